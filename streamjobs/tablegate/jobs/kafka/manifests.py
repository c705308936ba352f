"""The manifest of a table: read, made and written in the topic `tables`."""

from collections.abc import Iterable, Mapping
from contextlib import closing, suppress

from confluent_kafka import KafkaError, Producer
from google.protobuf.message import DecodeError
from tablegate.gateway.contract import catalogue
from tablegate.jobs.errors import JobError
from tablegate.jobs.kafka.topics import (
    BROKER_TIMEOUT_S,
    MANIFESTS_TOPIC,
    QUIET_CLIENT,
    KafkaAdmin,
    Topic,
    broker_away,
    read_to_end,
)
from tablegate.jobs.planning.declarations import job_argument
from tablegate.jobs.table import Mode, Table
from tablegate.v1 import changelog_pb2

JOB_MODES = {
    Mode.REALTIME: changelog_pb2.JOB_MODE_REALTIME,
    Mode.MICROBATCH: changelog_pb2.JOB_MODE_MICROBATCH,
}


def make_manifest(
    table: Table,
    contract: catalogue.Table,
    *,
    generation: int,
    changelog: Topic,
    sources: Iterable[Topic],
    keyed: bool,
    mode: Mode,
    value_schemas: Mapping[int, str],
) -> changelog_pb2.Manifest:
    """Return the manifest of a job that starts now."""
    manifest = changelog_pb2.Manifest(
        table=table.name,
        generation=generation,
        contract_fingerprint=contract.fingerprint,
        changelog_topic=changelog.name,
        changelog_topic_id=changelog.topic_id,
        partition_count=changelog.partition_count,
        partitioner=contract.partitioner.value,
        key=[changelog_pb2.KeyColumn(name=column.name, type=column.type.value) for column in contract.key],
        partition_by_count=contract.partition_by_count,
        value_schemas=value_schemas,
        sources=[
            changelog_pb2.SourceTopic(topic=source.name, partition_count=source.partition_count, keyed=keyed)
            for source in sources
        ],
        mode=JOB_MODES[mode],
        declared_generation=table.generation,
    )
    manifest.publish_time.GetCurrentTime()
    return manifest


def check_declaration(table: Table, old: changelog_pb2.Manifest | None) -> None:
    """Raise `JobError` where the table was built from a newer declaration than this one."""
    if old is not None and old.declared_generation > table.generation:
        raise JobError(
            f'{table.declared_at}: table "{table.name}" is declared with generation {table.generation}, and was built '
            f"from a newer declaration, with {old.declared_generation}; run that one, or go back to this one: "
            f"tablegate job rebuild {job_argument(table)}"
        )


def check_succession(
    table: Table, contract: catalogue.Table, old: changelog_pb2.Manifest | None, generation: int
) -> None:
    """Raise `JobError` where a job of this declaration must not follow the one that wrote `old`."""
    if old is not None and old.generation == generation and old.contract_fingerprint != contract.fingerprint:
        raise JobError(
            f'{table.declared_at}: the key, windows or partitioning of table "{table.name}" have changed since '
            f"generation {old.generation} was built; build the next: tablegate job rebuild "
            f"{job_argument(table)}"
        )


def check_changelog(table: Table, changelog: Topic, old: changelog_pb2.Manifest | None, generation: int) -> None:
    """Raise `JobError` where the changelog is no longer the one of `old`: gateways would refuse the new manifest."""
    if old is None or old.generation != generation:
        return
    if old.changelog_topic_id != changelog.topic_id:
        change = "was deleted and made again"
    elif old.partition_count != changelog.partition_count:
        change = f"has {changelog.partition_count} partitions for {old.partition_count}"
    else:
        return
    raise JobError(
        f'{table.declared_at}: changelog topic "{changelog.name}" of table "{table.name}" {change} since generation '
        f"{generation} was built; build the next: tablegate job rebuild {job_argument(table)}"
    )


def publish_manifest(bootstrap: str, manifest: changelog_pb2.Manifest) -> None:
    """Write the manifest, and return when Kafka has it; raise `JobError`, also where a newer generation has one."""
    newest = read_manifest(bootstrap, manifest.table)
    if newest is not None and newest.generation > manifest.generation:
        raise JobError(
            f'table "{manifest.table}" has come to generation {newest.generation} by another job, so generation '
            f"{manifest.generation} is not published; start the job again to go on with the newest"
        )
    _write(bootstrap, manifest.table, manifest.SerializeToString())


def remove_manifest(bootstrap: str, table: str, *, newest: int) -> None:
    """Write that the table has no manifest, and return when Kafka has it; raise `JobError`.

    `newest` is the newest generation that the table has had. It is kept, as tokens of clients tell generations apart.
    """
    name = _past_name(table)
    newest = max(newest, past_generation(bootstrap, table))
    _write(bootstrap, name, changelog_pb2.Manifest(table=name, generation=newest).SerializeToString())
    _write(bootstrap, table, None)


def past_generation(bootstrap: str, table: str) -> int:
    """Return the newest generation that a table had when it was reset; 0 where it never was; raise `JobError`."""
    manifest = read_manifest(bootstrap, _past_name(table))
    return manifest.generation if manifest is not None else 0


def _past_name(table: str) -> str:
    """Return the name under which the topic keeps what a table was; no table has such a name."""
    return f"{table}/past"


def _write(bootstrap: str, table: str, value: bytes | None) -> None:
    errors: list[KafkaError] = []
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", **QUIET_CLIENT})
    producer.produce(
        MANIFESTS_TOPIC,
        key=table.encode(),
        value=value,
        on_delivery=lambda error, _: errors.append(error) if error is not None else None,
    )
    if producer.flush(BROKER_TIMEOUT_S) > 0:
        raise broker_away(bootstrap)
    if errors:
        raise JobError(f'topic "{MANIFESTS_TOPIC}" at {bootstrap} takes no manifest: {errors[0].str()}')


def read_manifest(bootstrap: str, table: str) -> changelog_pb2.Manifest | None:
    """Return the newest manifest of the table; None where it has none; raise `JobError`."""
    found = _newest_records(bootstrap).get(table)
    if found is None:
        return None
    offset, value = found
    try:
        return changelog_pb2.Manifest.FromString(value)
    except DecodeError:
        raise JobError(
            f'topic "{MANIFESTS_TOPIC}" offset {offset}: the manifest of table "{table}" is damaged; '
            "write a tombstone for its key, then start the job again"
        ) from None


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
    if KafkaAdmin(bootstrap).find(MANIFESTS_TOPIC) is None:
        return {}
    newest: dict[str, tuple[int, bytes]] = {}
    with closing(read_to_end(bootstrap, MANIFESTS_TOPIC, 0)) as records:
        for record in records:
            table, value = (record.key() or b"").decode(errors="replace"), record.value()
            newest.pop(table, None)
            if value is not None:
                newest[table] = record.offset() or 0, value
    return newest
