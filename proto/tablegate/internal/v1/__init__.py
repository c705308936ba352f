"""Generated from proto/tablegate/internal/v1."""
