"""Generated from proto/gateway/v1."""
