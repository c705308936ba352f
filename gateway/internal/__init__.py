"""Generated from proto/gateway/internal."""
