"""Get, BatchGet, Range and Scan over a store."""
