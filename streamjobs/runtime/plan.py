"""What a job is about to do, settled with Kafka and the schema registry before Spark starts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.contract import catalogue
from gateway.contract.rows import UnsupportedColumn, row_schema
from gateway.v1 import changelog_pb2
from streamjobs.runtime import topics
from streamjobs.runtime.declarations import load_contract
from streamjobs.runtime.errors import JobError
from streamjobs.runtime.manifests import check_succession, make_manifest, read_manifest
from streamjobs.runtime.options import Options
from streamjobs.runtime.schemas import SchemaRegistry, choose_value_schema
from streamjobs.runtime.topics import Topic, Topics
from streamjobs.table import REALTIME_TRIGGER_S_MIN, Mode, Table

MICROBATCH_TRIGGER_S = 0.1  # an idle job asks Kafka for new records ten times a second: a few hundredths of a core


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything a job needs to know. `writer_schemas` None takes the source's declared schema as every writer's."""

    table: Table
    contract: catalogue.Table
    bootstrap: str
    mode: Mode
    trigger_s: float
    source: Topic
    changelog: Topic
    dead_letters: Topic
    writer_schemas: Mapping[int, str] | None
    value_schema: Mapping[str, Any]
    schema_id: int
    manifest: changelog_pb2.Manifest
    is_built_before: bool  # by a job of the same generation into the same changelog


def make_plan(table: Table, options: Options) -> Plan:
    """Return the plan of a run, with its topics made; raise `JobError`."""
    contract = load_contract(table)
    try:
        value_schema = row_schema(contract)
    except UnsupportedColumn as error:
        raise JobError(str(error)) from None
    cluster = Topics(options.bootstrap)
    source = cluster.require_source(table.source.topic)
    registry = SchemaRegistry(options.schema_registry_url) if options.schema_registry_url else None
    writer_schemas = registry.writer_schemas(table.source) if registry is not None else None
    cluster.ensure(topics.MANIFESTS_TOPIC, topics.MANIFESTS_SETTINGS, partition_count=1)
    old = read_manifest(options.bootstrap, table.name)
    check_succession(table, contract, old)
    changelog = cluster.ensure(
        topics.changelog_name(table.name, table.generation),
        topics.CHANGELOG_SETTINGS,
        partition_count=options.partition_count,
        new_partition_count=source.partition_count,
    )
    dead_letters = cluster.ensure(topics.dead_letters_name(source.name), topics.DEAD_LETTERS_SETTINGS)
    schema_id, value_schemas = choose_value_schema(value_schema, changelog.name, table.generation, old, registry)
    mode = options.mode or table.mode
    manifest = make_manifest(
        table, contract, changelog=changelog, source=source, mode=mode, value_schemas=value_schemas
    )
    return Plan(
        table=table,
        contract=contract,
        bootstrap=options.bootstrap,
        mode=mode,
        trigger_s=_trigger_s(table, mode),
        source=source,
        changelog=changelog,
        dead_letters=dead_letters,
        writer_schemas=writer_schemas,
        value_schema=value_schema,
        schema_id=schema_id,
        manifest=manifest,
        is_built_before=old is not None and old.changelog_topic_id == changelog.topic_id,
    )


def check_rebuild(plan: Plan) -> None:
    """Raise `JobError` where a job without its checkpoint cannot build the table again: the source has lost records."""
    if not plan.is_built_before:
        return
    for partition, offset in Topics(plan.bootstrap).first_offsets(plan.source).items():
        if offset > 0:
            raise JobError(
                f'table "{plan.table.name}" generation {plan.table.generation} was built before, its checkpoint is not '
                f'here, and source topic "{plan.source.name}" partition {partition} has dropped its first {offset} '
                "records; give the checkpoint it had, or raise generation to build it from what is left"
            )


def _trigger_s(table: Table, mode: Mode) -> float:
    if mode is table.mode and table.trigger_s is not None:
        return table.trigger_s
    return REALTIME_TRIGGER_S_MIN if mode is Mode.REALTIME else MICROBATCH_TRIGGER_S
