"""From the store's history to subscribers. Knows no requests and no protocols."""
