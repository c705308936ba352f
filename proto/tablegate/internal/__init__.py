"""Generated from proto/tablegate/internal."""
