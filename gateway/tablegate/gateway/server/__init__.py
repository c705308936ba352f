"""The gateway as processes: a parent that keeps a replicator and workers alive, and the services of every gateway."""
