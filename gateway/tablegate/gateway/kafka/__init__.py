"""Kafka, as a gateway reads and writes it. Only these modules import confluent_kafka."""
