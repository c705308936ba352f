"""The services of every gateway: health, reflection, metrics, status and metadata."""
