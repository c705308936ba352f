"""Generated from proto/tablegate/v1."""
