"""The manifest of a table: read, made and written in the topic `tables`."""

from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from google.protobuf.message import DecodeError

from gateway.contract import catalogue
from gateway.v1 import changelog_pb2
from streamjobs.runtime.errors import JobError
from streamjobs.runtime.topics import BROKER_TIMEOUT_S, MANIFESTS_TOPIC, QUIET_CLIENT, Topic, broker_away
from streamjobs.table import Mode, Table

JOB_MODES = {
    Mode.REALTIME: changelog_pb2.JOB_MODE_REALTIME,
    Mode.MICROBATCH: changelog_pb2.JOB_MODE_MICROBATCH,
}


def make_manifest(
    table: Table,
    contract: catalogue.Table,
    *,
    changelog: Topic,
    source: Topic,
    mode: Mode,
    value_schemas: Mapping[int, str],
) -> changelog_pb2.Manifest:
    """Return the manifest of a job that starts now."""
    manifest = changelog_pb2.Manifest(
        table=table.name,
        generation=table.generation,
        contract_fingerprint=contract.fingerprint,
        changelog_topic=changelog.name,
        changelog_topic_id=changelog.topic_id,
        partition_count=changelog.partition_count,
        partitioner=contract.partitioner.value,
        key=[changelog_pb2.KeyColumn(name=column.name, type=column.type.value) for column in contract.key],
        partition_by_count=contract.partition_by_count,
        value_schemas=value_schemas,
        sources=[changelog_pb2.SourceTopic(topic=source.name, partition_count=source.partition_count)],
        mode=JOB_MODES[mode],
    )
    manifest.publish_time.GetCurrentTime()
    return manifest


def check_succession(table: Table, contract: catalogue.Table, old: changelog_pb2.Manifest | None) -> None:
    """Raise `JobError` where a job of this declaration must not follow the one that wrote `old`."""
    if old is None:
        return
    if old.generation > table.generation:
        raise JobError(
            f'{table.declared_at}: table "{table.name}" is already at generation {old.generation}, '
            f"this declaration says {table.generation}; raise it to {old.generation} or more"
        )
    if old.generation == table.generation and old.contract_fingerprint != contract.fingerprint:
        raise JobError(
            f'{table.declared_at}: the key or partitioning of table "{table.name}" has changed since generation '
            f"{old.generation} was built; raise generation to {old.generation + 1}"
        )


def publish_manifest(bootstrap: str, manifest: changelog_pb2.Manifest) -> None:
    """Write the manifest, and return when Kafka has it; raise `JobError`."""
    errors: list[KafkaError] = []
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", **QUIET_CLIENT})
    producer.produce(
        MANIFESTS_TOPIC,
        key=manifest.table.encode(),
        value=manifest.SerializeToString(),
        on_delivery=lambda error, _: errors.append(error) if error is not None else None,
    )
    if producer.flush(BROKER_TIMEOUT_S) > 0:
        raise broker_away(bootstrap)
    if errors:
        raise JobError(f'topic "{MANIFESTS_TOPIC}" at {bootstrap} takes no manifest: {errors[0].str()}')


def read_manifest(bootstrap: str, table: str) -> changelog_pb2.Manifest | None:
    """Return the newest manifest of the table; None where it has none; raise `JobError`."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "tablegate-job",  # asked for by the client; never joined, nothing is committed
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            **QUIET_CLIENT,
        }
    )
    try:
        consumer.assign([TopicPartition(MANIFESTS_TOPIC, 0, 0)])
        return _newest(consumer, bootstrap, table)
    finally:
        consumer.close()


def _newest(consumer: Consumer, bootstrap: str, table: str) -> changelog_pb2.Manifest | None:
    newest: changelog_pb2.Manifest | None = None
    while True:
        record = consumer.poll(BROKER_TIMEOUT_S)
        if record is None:
            raise broker_away(bootstrap)
        error = record.error()
        if error is not None and error.code() == KafkaError._PARTITION_EOF:
            return newest
        if error is not None:
            raise JobError(f'topic "{MANIFESTS_TOPIC}" at {bootstrap} cannot be read: {KafkaException(error)}')
        if record.key() != table.encode():
            continue
        try:
            value = record.value()
            newest = None if value is None else changelog_pb2.Manifest.FromString(value)
        except DecodeError:
            raise JobError(
                f'topic "{MANIFESTS_TOPIC}" offset {record.offset()}: the manifest of table "{table}" is damaged; '
                "write a tombstone for its key, then start the job again"
            ) from None
