"""Manifests of tables, in the topic `tables`: read, published, removed.

A manifest says which generation of a table is served, and from which changelog; a gateway follows it.

Decision: docs/decisions/0045-a-generations-manifest-is-fixed.md
"""

from contextlib import closing, suppress

from confluent_kafka import KafkaError, Message, Producer
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


def replace_manifest(bootstrap: str, manifest: changelog_pb2.Manifest, *, old: changelog_pb2.Manifest | None) -> None:
    """Write the manifest behind `old`, and return when Kafka has it; raise `JobError` where another one is between.

    Whoever was frozen behind its last check wakes up here, and others may have published meanwhile. Nobody can keep it
    from writing. So it looks back, and writes again what was there: of two, the first in the topic counts.
    """
    offset = _write(bootstrap, manifest.table, manifest.SerializeToString())
    _, before = _newest_records(bootstrap, end=offset).get(manifest.table, (0, None))
    with suppress(DecodeError):
        # Its own, where Kafka had it twice.
        if (None if before is None else changelog_pb2.Manifest.FromString(before)) in (old, manifest):
            return
    _write(bootstrap, manifest.table, before)
    raise JobError(
        f'table "{manifest.table}" has been published by another run while this one stood still, so what this one has '
        "is not published; begin it again"
    )


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


def _write(bootstrap: str, table: str, value: bytes | None) -> int:
    """Write a record, and return its offset when Kafka has it; raise `JobError`."""
    errors: list[KafkaError] = []
    offsets: list[int] = []

    def note(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            errors.append(error)
        else:
            offsets.append(message.offset() or 0)

    producer = Producer({**settings_of(bootstrap).librdkafka(), "acks": "all", **QUIET_CLIENT})
    topic = manifests_topic(bootstrap)
    producer.produce(topic, key=table.encode(), value=value, on_delivery=note)
    if producer.flush(BROKER_TIMEOUT_S) > 0:
        raise broker_away(bootstrap)
    if errors:
        why = why_not(bootstrap, errors[0], Right("Write", "topic", topic))
        raise JobError(f'the manifest cannot be written to topic "{topic}" at {bootstrap}: {why}')
    return offsets[0]


def read_manifest(bootstrap: str, table: str) -> changelog_pb2.Manifest | None:
    """Return the newest manifest of the table, that of the highest generation; None where it has none.

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


def _newest_records(bootstrap: str, *, end: int | None = None) -> dict[str, tuple[int, bytes]]:
    """Return offset and value of each table's newest manifest that is no tombstone; nothing before the first job.

    `end`: the first offset that does not count.
    """
    topic = manifests_topic(bootstrap)
    if KafkaAdmin(bootstrap).find(topic) is None:
        return {}
    newest: dict[str, tuple[int, bytes]] = {}
    with closing(read_to_end(bootstrap, topic, 0)) as records:
        for record in records:
            table, value = (record.key() or b"").decode(errors="replace"), record.value()
            if end is not None and (record.offset() or 0) >= end:
                break
            if value is None:
                newest.pop(table, None)
            elif table not in newest or not _is_older(value, newest[table][1]):
                newest.pop(table, None)
                newest[table] = record.offset() or 0, value
    return newest


def _is_older(value: bytes, newest: bytes) -> bool:
    """Return whether a manifest is of an older generation than that before it, as one that was frozen may leave it."""
    with suppress(DecodeError):
        manifest, before = changelog_pb2.Manifest.FromString(value), changelog_pb2.Manifest.FromString(newest)
        return not manifest.HasField("foreign") and manifest.generation < before.generation
    return False  # a damaged one is told
