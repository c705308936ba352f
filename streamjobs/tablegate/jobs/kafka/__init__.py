"""What a job reads and writes in Kafka beside its rows: topics, manifests, progress markers, its consumer group."""
