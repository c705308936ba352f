"""Manifest against contract: may a gateway follow it?"""

from gateway.contract.catalogue import Partitioner, Table
from gateway.contract.rows import RowDecoder, UnfitSchema
from gateway.v1 import changelog_pb2
from gateway.v1.changelog_pb2 import Manifest

PARTITIONS_MAX = 65_536  # two bytes of a store's keys


def problem_of(table: Table, manifest: Manifest) -> str | None:
    """Return why a gateway with the contract of `table` cannot follow `manifest`, in one sentence; None if it can."""
    if manifest.generation < 1:
        return _problem(table, manifest, "has no generation", "publish it with a job of this version")
    if not manifest.changelog_topic or not manifest.changelog_topic_id:
        return _problem(table, manifest, "names no changelog topic", "publish it with a job of this version")
    if not 1 <= manifest.partition_count <= PARTITIONS_MAX:
        return _problem(table, manifest, f"has {manifest.partition_count} partitions", f"use 1 to {PARTITIONS_MAX}")
    disagreement = _disagreement(table, manifest)
    if disagreement is not None:
        return _problem(table, manifest, disagreement, "start job and gateway with one contract")
    return schema_problem_of(table, manifest)


def schema_problem_of(table: Table, manifest: Manifest) -> str | None:
    """Return why rows of the manifest's schemas are not rows of the table; None if they are."""
    try:
        RowDecoder(table, manifest.value_schemas)
    except UnfitSchema as error:
        return f"{error}; start job and gateway with one contract"
    return None


def follows_on(old: Manifest, new: Manifest) -> bool:
    """Return whether `new` describes the same life of the same changelog as `old`."""
    return (old.generation, old.changelog_topic, old.changelog_topic_id, old.partition_count) == (
        new.generation,
        new.changelog_topic,
        new.changelog_topic_id,
        new.partition_count,
    )


def _problem(table: Table, manifest: Manifest, what: str, hint: str) -> str:
    return f'table "{table.name}": manifest of generation {manifest.generation} {what}; {hint}'


def _disagreement(table: Table, manifest: Manifest) -> str | None:
    theirs = ", ".join(f"{column.name} {_key_type_name(column.type)}" for column in manifest.key)
    ours = ", ".join(f"{column.name} {column.type.name}" for column in table.key)
    if theirs != ours:
        return f"has the key ({theirs}), the contract ({ours})"
    if manifest.partition_by_count != table.partition_by_count:
        return f"partitions by {manifest.partition_by_count} key columns, the contract by {table.partition_by_count}"
    if manifest.partitioner != table.partitioner.value:
        return f"partitions with {_partitioner_name(manifest.partitioner)}, the contract with {table.partitioner.name}"
    if manifest.contract_fingerprint != table.fingerprint:
        return (
            f"has the fingerprint {manifest.contract_fingerprint.hex()[:8]}, the contract {table.fingerprint.hex()[:8]}"
        )
    return None


def _key_type_name(number: int) -> str:
    try:
        return changelog_pb2.KeyType.Name(number).removeprefix("KEY_TYPE_")
    except ValueError:
        return f"type {number}"


def _partitioner_name(number: int) -> str:
    try:
        return Partitioner(number).name
    except ValueError:
        return f"partitioner {number}"
