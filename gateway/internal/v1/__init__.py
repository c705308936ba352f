"""Generated from proto/gateway/internal/v1."""
