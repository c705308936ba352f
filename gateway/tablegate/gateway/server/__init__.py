"""The gRPC skin: processes, doors, statuses, health, reflection."""
