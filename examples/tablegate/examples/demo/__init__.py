"""`tablegate demo`: everything on one machine."""
