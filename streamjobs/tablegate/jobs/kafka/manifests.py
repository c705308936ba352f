"""Manifests of tables, in the topic `tables`: read, published, removed.

A manifest says which generation of a table is served, and from which changelog; a gateway follows it.

Decision: docs/decisions/0045-a-generations-manifest-is-fixed.md
"""

from contextlib import closing, suppress

from confluent_kafka import KafkaError, Producer
from google.protobuf.message import DecodeError

from tablegate.gateway.contract.kafka_refusals import Right
from tablegate.gateway.contract.kafka_settings import settings_of
from tablegate.gateway.contract.types import past_name
from tablegate.jobs.errors import JobError
from tablegate.jobs.kafka.topics import (
    BROKER_TIMEOUT_S,
    QUIET_CLIENT,
    KafkaAdmin,
    broker_away,
    manifests_topic,
    read_to_end,
    why_not,
)
from tablegate.jobs.table import Mode
from tablegate.v1 import changelog_pb2

JOB_MODES = {
    Mode.REALTIME: changelog_pb2.JOB_MODE_REALTIME,
    Mode.MICROBATCH: changelog_pb2.JOB_MODE_MICROBATCH,
}


def publish_manifest(bootstrap: str, manifest: changelog_pb2.Manifest) -> None:
    """Write the manifest, and return when Kafka has it; raise `JobError`, also where a newer generation has one."""
    newest = read_manifest(bootstrap, manifest.table)
    if newest is not None and newest.generation > manifest.generation:
        raise JobError(
            f'table "{manifest.table}" is at generation {newest.generation}, built by another job, so generation '
            f"{manifest.generation} is not published; start the job again to go on with the newest"
        )
    _write(bootstrap, manifest.table, manifest.SerializeToString())


def remove_manifest(bootstrap: str, table: str, *, newest: int) -> None:
    """Write that the table has no manifest, and return when Kafka has it; raise `JobError`.

    `newest` is the newest generation that the table has had. It is kept under another key: a later
    table must not use its number again, as tokens of clients would seem valid.
    """
    name = past_name(table)
    newest = max(newest, past_generation(bootstrap, table))
    _write(bootstrap, name, changelog_pb2.Manifest(table=name, generation=newest).SerializeToString())
    _write(bootstrap, table, None)


def past_generation(bootstrap: str, table: str) -> int:
    """Return the newest generation that a table had when it was reset; 0 where it never was; raise `JobError`."""
    manifest = read_manifest(bootstrap, past_name(table))
    return manifest.generation if manifest is not None else 0


def _write(bootstrap: str, table: str, value: bytes | None) -> None:
    errors: list[KafkaError] = []
    producer = Producer({**settings_of(bootstrap).librdkafka(), "acks": "all", **QUIET_CLIENT})
    topic = manifests_topic(bootstrap)
    producer.produce(
        topic,
        key=table.encode(),
        value=value,
        on_delivery=lambda error, _: errors.append(error) if error is not None else None,
    )
    if producer.flush(BROKER_TIMEOUT_S) > 0:
        raise broker_away(bootstrap)
    if errors:
        why = why_not(bootstrap, errors[0], Right("Write", "topic", topic))
        raise JobError(f'the manifest cannot be written to topic "{topic}" at {bootstrap}: {why}')


def read_manifest(bootstrap: str, table: str) -> changelog_pb2.Manifest | None:
    """Return the newest manifest of the table; None where it has none.

    Raise `JobError`, also where the table is of a topic that others write: no job keeps that.
    """
    found = _newest_records(bootstrap).get(table)
    if found is None:
        return None
    offset, value = found
    try:
        manifest = changelog_pb2.Manifest.FromString(value)
    except DecodeError:
        raise JobError(
            f'topic "{manifests_topic(bootstrap)}" offset {offset}: the manifest of table "{table}" is damaged; '
            "write a tombstone for its key, then start the job again"
        ) from None
    if manifest.HasField("foreign"):
        raise JobError(
            f'table "{table}" is served from topic "{manifest.changelog_topic}", which others write; remove it first '
            f"with tablegate table remove {table}"
        )
    return manifest


def read_manifests(bootstrap: str) -> dict[str, changelog_pb2.Manifest]:
    """Return the newest manifests by table; damaged ones are left out; raise `JobError`."""
    manifests = {}
    for table, (_, value) in _newest_records(bootstrap).items():
        if table.isidentifier():
            with suppress(DecodeError):
                manifests[table] = changelog_pb2.Manifest.FromString(value)
    return manifests


def has_manifest(bootstrap: str, table: str) -> bool:
    """Return whether the table has a manifest, even a damaged one; raise `JobError`."""
    return table in _newest_records(bootstrap)


def _newest_records(bootstrap: str) -> dict[str, tuple[int, bytes]]:
    """Return offset and value of each table's newest manifest that is no tombstone; nothing before the first job."""
    topic = manifests_topic(bootstrap)
    if KafkaAdmin(bootstrap).find(topic) is None:
        return {}
    newest: dict[str, tuple[int, bytes]] = {}
    with closing(read_to_end(bootstrap, topic, 0)) as records:
        for record in records:
            table, value = (record.key() or b"").decode(errors="replace"), record.value()
            newest.pop(table, None)
            if value is not None:
                newest[table] = record.offset() or 0, value
    return newest
