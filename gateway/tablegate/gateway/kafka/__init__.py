"""Kafka, as a gateway reads and writes it. Only this room imports confluent_kafka."""
