"""The plan of a job: everything that is settled with Kafka and the schema registry before Spark starts.

`make_plan` goes from the declaration to the plan in this order, and stops with a `JobError` at the first thing wrong:

1. the contract, and the Avro schema of the table's values that follows from it;
2. each source's topic, the schemas of its writers, and where a new query begins to read;
3. the newest manifest of the table, which says the generation to go on with;
4. the topics that the job writes, made where they are missing: changelog, dead letters, outputs;
5. the manifest that the job will publish.

The plan holds no connection and needs no Spark. `dataflow.frames.build` makes streaming frames of it.

Decision: docs/decisions/0055-jobs-go-forward-only.md
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tablegate.gateway.contract import catalogue
from tablegate.gateway.contract.kafka_settings import source_cluster
from tablegate.gateway.contract.rows import row_schema
from tablegate.jobs.errors import JobError
from tablegate.jobs.formats import Avro, Protobuf, RowKey
from tablegate.jobs.frame_table import Declared, FrameTable
from tablegate.jobs.kafka.manifests import JOB_MODES, past_generation, read_manifest
from tablegate.jobs.kafka.topics import (
    DEAD_LETTERS_NEW_SETTINGS,
    DEAD_LETTERS_SETTINGS,
    MANIFESTS_SETTINGS,
    KafkaAdmin,
    Topic,
    changelog_name,
    changelog_settings,
    dead_letters_name,
    manifests_topic,
    source_admin,
)
from tablegate.jobs.planning.declarations import job_argument, load_contract
from tablegate.jobs.planning.logic import check_repeatable
from tablegate.jobs.planning.options import Options, Start
from tablegate.jobs.planning.patterns import matched_topics
from tablegate.jobs.planning.registry import SchemaRegistry, choose_value_schema
from tablegate.jobs.planning.schemas import SchemaId, SourceSchemas, WriterSchemas, merged_schemas
from tablegate.jobs.table import REALTIME_TRIGGER_S_MIN, Global, Mode, Source
from tablegate.v1 import changelog_pb2

MICROBATCH_TRIGGER_S = 0.1  # an idle job asks Kafka for new records ten times a second: a few hundredths of a core
PARTITIONS = 4  # of a new changelog, where neither a source nor the user says it
_MATCHED = "matched"  # stands for the topics of a pattern, where no cluster has any
_EARLIEST = -2  # as Spark's Kafka source has it
NO_BROKER = "127.0.0.1:1"  # a sink connects with its first record, and there is none


@dataclass(frozen=True, slots=True, kw_only=True)
class SidePlan:
    """A topic of a side, the schemas of its writers, and where a new query begins to read (Spark's JSON).

    `side`: the side's name. `source`: the side's, of this topic alone. `generation`: of the table whose rows they are,
    0 where they are of no table.
    """

    side: str
    source: Source
    topic: Topic
    schemas: SourceSchemas
    starting_offsets: str
    generation: int = 0


@dataclass(frozen=True, slots=True)
class SourceStream:
    """Topics of a side that Spark reads as one stream: as a checkpoint has it, one source."""

    source: Source
    topics: Sequence[str]
    schemas: SourceSchemas
    starting_offsets: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that a job needs to know to keep one table.

    `bootstrap`: of the cluster that has the table; its sources are at `source_cluster` of it.
    `sides`: by the side's name, those of a side's `more_topics` behind it, by their numbers.
    `output_schema_ids`: of outputs in Avro and Protobuf, by their subjects. `sequence_base`: what the sequences of rows
    are counted from, where rows expire. `older`: the manifest of an older generation, which is served until this one
    has caught up; None where none is.
    """

    table: Declared
    contract: catalogue.Table
    bootstrap: str
    mode: Mode
    batch_s: float
    generation: int
    checkpoint: str
    outputs_checkpoint: str
    sides: Mapping[str, SidePlan]
    changelog: Topic
    dead_letters: Topic
    value_schema: Mapping[str, Any]
    schema_id: int
    manifest: changelog_pb2.Manifest
    older: changelog_pb2.Manifest | None
    output_schema_ids: Mapping[str, int] = field(default_factory=dict)
    sequence_base: int = 0

    @property
    def streamed(self) -> Mapping[str, SidePlan]:
        """The sides whose records come one after the other: those that are not global."""
        return {
            name: side for name, side in self.sides.items() if not isinstance(self.table.all_sides[side.side], Global)
        }

    @property
    def streamed_sides(self) -> list[str]:
        """The names of the sides that are not global."""
        return [name for name, side in self.table.all_sides.items() if not isinstance(side, Global)]

    def topics_of(self, side: str) -> list[SidePlan]:
        """Return the topics of a side, in the order of its declaration."""
        return [one for one in self.sides.values() if one.side == side]

    def streams_of(self, side: str) -> list[SourceStream]:
        """Return what Spark reads a side from: a stream of each topic; one of all topics of a pattern.

        A checkpoint knows its sources by their number, and a pattern may match one topic more tomorrow.
        """
        source, found = self.table.source_of(side), self.topics_of(side)
        if not source.pattern:
            return [SourceStream(one.source, (one.topic.name,), one.schemas, one.starting_offsets) for one in found]
        names = tuple(one.topic.name for one in found)
        return [SourceStream(source, names, merged_schemas([one.schemas for one in found]), _starts_of_all(found))]

    @property
    def realtime_slots(self) -> int:
        """How many tasks run at the same time without end: one for each partition; none in micro-batches."""
        if self.mode is Mode.MICROBATCH:
            return 0
        return self.changelog.partition_count + sum(side.topic.partition_count for side in self.streamed.values())


def make_plan(
    table: Declared,
    options: Options,
    *,
    generation: int | None = None,
    start: Start | None = None,
    seen_schemas: Mapping[str, Collection[SchemaId]] | None = None,
    planned: Mapping[str, changelog_pb2.Manifest] | None = None,
    topics: Collection[str] | None = None,
) -> Plan:
    """Return the plan of a run, with its topics made; raise `JobError`.

    `generation`: the one to build; None goes on with the newest. `start`: where a new generation begins to read.
    `seen_schemas`: ids or GUIDs of schemas, by topic, that records had and no subject of the topic has. `planned`:
    manifests of tables of the same application, which may not be published yet. `topics`: the only ones that patterns
    are to match.
    """
    contract = load_contract(table)
    value_schema = row_schema(contract)
    check_repeatable(table)
    mode = _mode(table, options)
    admin = KafkaAdmin(options.bootstrap)
    registry = SchemaRegistry(options.registry) if options.registry else None
    read = {**(planned or {}), **_manifests_read(table, options.bootstrap)}
    matched = matched_topics(table, options.bootstrap, only=topics)
    sides = _side_plans(table, options.bootstrap, registry, start, seen_schemas or {}, read, matched)
    # A new changelog has as many partitions as the first source, unless the user says otherwise.
    partitions = next((side.topic.partition_count for side in sides.values()), PARTITIONS)
    admin.ensure(manifests_topic(options.bootstrap), MANIFESTS_SETTINGS, partition_count=1)
    old = read_manifest(options.bootstrap, table.name)
    if generation is None:
        check_declaration(table, old)
        # Numbers go on after a reset, or tokens of the old table would be valid for the new one.
        newest = old.generation if old is not None else past_generation(options.bootstrap, table.name) + 1
        generation = max(table.generation, newest)
    check_contract_unchanged(table, contract, old, generation)
    check_atomic_unchanged(table, old, generation)
    changelog = admin.ensure(
        changelog_name(options.bootstrap, table.name, generation),
        changelog_settings(changelog_lifetime_us(contract)),
        partition_count=options.partition_count,
        new_partition_count=old.partition_count if old is not None else partitions,
    )
    check_changelog(table, changelog, old, generation)
    dead_letters = admin.ensure(
        dead_letters_name(options.bootstrap, table.name),
        DEAD_LETTERS_SETTINGS,
        new_settings=DEAD_LETTERS_NEW_SETTINGS,
    )
    for output in table.outputs:
        admin.ensure(output.topic, {}, new_partition_count=partitions)
    schema_id, value_schemas = choose_value_schema(value_schema, changelog.name, generation, old, registry)
    manifest = make_manifest(
        table,
        contract,
        generation=generation,
        changelog=changelog,
        sources=[side.topic for side in sides.values()],
        keyed=table.has_keyed_versions,
        mode=mode,
        atomic=table.atomic,
        value_schemas=value_schemas,
    )
    return Plan(
        table=table,
        contract=contract,
        bootstrap=options.bootstrap,
        mode=mode,
        batch_s=batch_s(table, mode),
        generation=generation,
        checkpoint=f"{options.checkpoints.rstrip('/')}/{table.name}/g{generation}",
        outputs_checkpoint=f"{options.checkpoints.rstrip('/')}/{table.name}/outputs",
        sides=sides,
        changelog=changelog,
        dead_letters=dead_letters,
        value_schema=value_schema,
        schema_id=schema_id,
        manifest=manifest,
        older=old if old is not None and old.generation < generation else None,
        output_schema_ids=_output_schema_ids(table, registry) if registry is not None else {},
    )


def _output_schema_ids(table: Declared, registry: SchemaRegistry) -> dict[str, int]:
    """Register the schemas of outputs in Avro and Protobuf and return their ids by subject."""
    found: dict[str, int] = {}
    for output in table.outputs:
        for part, form in (("key", output.key), ("value", output.value)):
            subject = f"{output.topic}-{part}"
            if isinstance(form, Avro):
                found[subject] = registry.register(subject, form.schema)
            elif isinstance(form, Protobuf) and form.framed:
                found[subject] = registry.register_message(subject, form.files)
    return found


def changelog_lifetime_us(contract: catalogue.Table) -> int | None:
    """Return how long after its last change a row is gone at the latest; None where rows stay."""
    expiry = contract.expiry
    return expiry.window.size_us + expiry.retention_us if expiry is not None else None


def _side_plans(
    table: Declared,
    bootstrap: str,
    registry: SchemaRegistry | None,
    start: Start | None,
    seen_schemas: Mapping[str, Collection[SchemaId]],
    read: Mapping[str, changelog_pb2.Manifest],
    matched: Mapping[str, Sequence[Topic]],
) -> dict[str, SidePlan]:
    admin, sides = source_admin(bootstrap), {}
    described = {topic.name: topic for topics in matched.values() for topic in topics}
    for name, side, source in _sources(table, {one: [topic.name for topic in matched[one]] for one in matched}):
        if source.is_table:
            if source_cluster(bootstrap) != bootstrap:
                raise JobError(
                    f'{source.declared_at}: table "{table.name}" reads table "{source.topic}" at {bootstrap}, and all '
                    f"sources are at {source_cluster(bootstrap)}; keep that table there, or all in one cluster"
                )
            sides[name] = _changelog_plan(table, side, source, admin, start, read.get(source.topic), seen_schemas)
            continue
        of_pattern = table.source_of(side).pattern
        topic = described[source.topic] if of_pattern else admin.require(source.topic)
        sides[name] = SidePlan(
            side=side,
            source=source,
            topic=topic,
            schemas=source_schemas(
                source, registry, seen_schemas.get(source.topic, ()), is_first_to_come=not of_pattern
            ),
            starting_offsets=_starting_offsets(topic, admin, _start_of(source, topic, admin, start)),
        )
    for side in matched:
        _check_readable(table.source_of(side), [one.schemas for one in sides.values() if one.side == side])
    return sides


def _check_readable(pattern: Source, found: Sequence[SourceSchemas]) -> None:
    """Raise `JobError` where the registry has no schema for any of the topics that a pattern matches."""
    writers = merged_schemas(found).writers
    if writers is not None and not writers.decoded:
        raise JobError(
            f'{pattern.declared_at}: of the topics that "{pattern.topic}" matches, the schema registry has no schema '
            "that the declared one can read; let a producer register its schema first, or correct the declared one"
        )


def _manifests_read(table: Declared, bootstrap: str) -> dict[str, changelog_pb2.Manifest]:
    """Return the manifests of the tables whose rows a declaration reads, where they have one."""
    found = {name: read_manifest(bootstrap, name) for name in tables_read(table)}
    return {name: manifest for name, manifest in found.items() if manifest is not None}


def tables_read(table: Declared) -> set[str]:
    """Return the names of the tables whose rows a declaration reads."""
    sources = [table.source_of(side) for side in table.all_sides]
    return {source.topic for source in sources if source.is_table}


def _changelog_plan(
    table: Declared,
    side: str,
    source: Source,
    admin: KafkaAdmin,
    start: Start | None,
    manifest: changelog_pb2.Manifest | None,
    seen_schemas: Mapping[str, Collection[SchemaId]],
) -> SidePlan:
    """Return the plan of a side that has the rows of another table; raise `JobError`."""
    where = f'{source.declared_at}: table "{table.name}" reads table "{source.topic}"'
    if manifest is None:
        raise JobError(f"{where}, which has no manifest; start its job first, or in the same application")
    if start is not None:
        raise JobError(f"{where}, of which it needs every row; rebuild it from its start: tablegate job rebuild")
    assert isinstance(source.key, RowKey)
    declared = [(column.name, column.type.value) for column in source.key.columns]
    if [(column.name, column.type) for column in manifest.key] != declared:
        raise JobError(f"{where} by a contract with another key than its job's; give contract= of that table")
    topic = admin.require(manifest.changelog_topic)
    if topic.topic_id != manifest.changelog_topic_id:
        raise JobError(
            f"{where}, whose changelog was deleted and created again; build that table anew: tablegate job rebuild"
        )
    writers = WriterSchemas(decoded=dict(manifest.value_schemas), ignored={}, incompatible={})
    return SidePlan(
        side=side,
        source=source,
        topic=topic,
        # A contract that has got a column may have added a schema by the time of a record.
        schemas=SourceSchemas(writers, can_learn={*writers.decoded} >= {*seen_schemas.get(source.topic, ())}),
        starting_offsets="earliest",
        generation=manifest.generation,
    )


def _sources(table: Declared, matched: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, str, Source]]:
    """Yield each topic of each side: its name in a plan, the side's, and its source.

    `matched`: topics by side, of those that have patterns.
    """
    for side in table.all_sides:
        declared = table.source_of(side)
        for number, source in enumerate(declared.of_one_topic(matched.get(side, declared.topics))):
            yield f"{side} {number}" if number else side, side, source


def source_schemas(
    source: Source,
    registry: SchemaRegistry | None,
    seen: Collection[SchemaId] = (),
    *,
    is_first_to_come: bool = True,
) -> SourceSchemas:
    """Return the schemas of a source's writers, by the registry or by the declaration.

    `is_first_to_come`: the topic's first schema must be there; else its first record is waited for, and tells it.
    """
    if not isinstance(source.value, Avro):
        return SourceSchemas()
    if registry is not None:
        needs_one = is_first_to_come
        found = registry.writer_schemas(source.topic, source.value.schema, seen=seen, needs_one=needs_one)
        return SourceSchemas(found, can_learn=True)
    if not source.value.others:
        return SourceSchemas()
    others = dict(enumerate(source.value.other_names, start=2))
    return SourceSchemas(WriterSchemas(decoded={1: source.value.schema}, ignored=others, incompatible={}))


def _start_of(source: Source, topic: Topic, admin: KafkaAdmin, start: Start | None) -> Start | None:
    """Return where a topic is read from: where its history says, if it has one; raise `JobError`."""
    history = source.history
    if history is None:
        return start
    where = f'{history.declared_at}: the history of source "{source.topic}"'
    if start is not None:
        raise JobError(f"{where} says where the topic goes on; change its topic_from, then tablegate job rebuild")
    partitions = {*range(topic.partition_count)}
    if history.offsets is not None and history.offsets.keys() != partitions:
        raise JobError(
            f"{where} has topic_from for partitions {', '.join(map(str, sorted(history.offsets)))}, and the topic has "
            f"0 to {topic.partition_count - 1}; give an offset for each"
        )
    ends = admin.end_offsets(topic) if history.offsets is not None else {}
    for partition, offset in (history.offsets or {}).items():
        if offset > ends[partition]:
            raise JobError(
                f"{where} has topic_from {offset} for partition {partition}, which ends at {ends[partition]}; give the "
                "offset of the first record that the history has not"
            )
    offsets = {topic.name: history.offsets} if history.offsets is not None else None
    return Start(time_ms=history.time_ms, offsets=offsets)


def _starting_offsets(topic: Topic, admin: KafkaAdmin, start: Start | None) -> str:
    if start is None or (start.time_ms is None and topic.name not in (start.offsets or {})):
        return "earliest"
    offsets = admin.first_offsets(topic)
    if start.time_ms is not None:
        offsets = admin.offsets_at(topic, start.time_ms)
    for partition, offset in (start.offsets or {}).get(topic.name, {}).items():
        if partition not in offsets:
            raise JobError(f'topic "{topic.name}" has no partition {partition}; it has {topic.partition_count}')
        offsets[partition] = offset
    return json.dumps({topic.name: {str(partition): offset for partition, offset in offsets.items()}})


def _starts_of_all(sides: Sequence[SidePlan]) -> str:
    """Return where a new query begins to read several topics (Spark's JSON)."""
    if all(side.starting_offsets == "earliest" for side in sides):
        return "earliest"
    starts: dict[str, Mapping[str, int]] = {}
    for side in sides:
        earliest = {side.topic.name: {str(number): _EARLIEST for number in range(side.topic.partition_count)}}
        starts.update(earliest if side.starting_offsets == "earliest" else json.loads(side.starting_offsets))
    return json.dumps(starts)


def _mode(table: Declared, options: Options) -> Mode:
    if options.once and options.mode is Mode.REALTIME:
        raise JobError("Real-time Mode does not end by itself; leave out --mode or --once")
    if options.once:
        return Mode.MICROBATCH
    if options.mode is Mode.REALTIME:
        reason = table.why_not_realtime()
        if reason is not None:
            raise JobError(
                f'{table.declared_at}: table "{table.name}": Spark\'s Real-time Mode does not support {reason}; '
                "run it in micro-batches"
            )
    return options.mode or table.mode


def batch_s(table: Declared, mode: Mode) -> float:
    """Return how long a batch takes at least."""
    if mode is Mode.REALTIME and not isinstance(table, FrameTable):
        return table.trigger_s or REALTIME_TRIGGER_S_MIN
    return max(table.emit_interval_s or 0.0, MICROBATCH_TRIGGER_S)


def make_manifest(
    table: Declared,
    contract: catalogue.Table,
    *,
    generation: int,
    changelog: Topic,
    mode: Mode | None,
    value_schemas: Mapping[int, str],
    sources: Iterable[Topic] = (),
    keyed: bool = False,
    atomic: bool = False,
) -> changelog_pb2.Manifest:
    """Return the manifest of a table that is written from now on; `mode` None: by runs that end."""
    manifest = contract.manifest(
        generation=generation,
        changelog_topic=changelog.name,
        changelog_topic_id=changelog.topic_id,
        partition_count=changelog.partition_count,
        value_schemas=value_schemas,
        sources=[
            changelog_pb2.SourceTopic(topic=source.name, partition_count=source.partition_count, keyed=keyed)
            for source in sources
        ],
        mode=changelog_pb2.JOB_MODE_BATCH if mode is None else JOB_MODES[mode],
        declared_generation=table.generation,
        atomic=atomic,
    )
    manifest.publish_time.GetCurrentTime()
    return manifest


def check_declaration(table: Declared, old: changelog_pb2.Manifest | None) -> None:
    """Raise `JobError` where the table was built from a newer declaration than this one."""
    if old is not None and old.declared_generation > table.generation:
        raise JobError(
            f'{table.declared_at}: table "{table.name}" is declared with generation {table.generation}, and was built '
            f"from a newer declaration, with {old.declared_generation}; run that one, or go back to this one: "
            f"tablegate job rebuild {job_argument(table)}"
        )


def check_contract_unchanged(
    table: Declared, contract: catalogue.Table, old: changelog_pb2.Manifest | None, generation: int
) -> None:
    """Raise `JobError` where a job of this declaration must not follow the one that wrote `old`."""
    if old is not None and old.generation == generation and old.contract_fingerprint != contract.fingerprint:
        raise JobError(
            f'{table.declared_at}: the key, windows or partitioning of table "{table.name}" have changed since '
            f"generation {old.generation} was built; build the next: tablegate job rebuild "
            f"{job_argument(table)}"
        )


def check_atomic_unchanged(table: Declared, old: changelog_pb2.Manifest | None, generation: int) -> None:
    """Raise `JobError` where the generation was begun with atomic batches and goes on without, or the reverse."""
    if old is not None and old.generation == generation and old.atomic != table.atomic:
        raise JobError(
            f'{table.declared_at}: atomic of table "{table.name}" has changed since generation {generation} was built; '
            f"build the next: tablegate job rebuild {job_argument(table)}"
        )


def check_changelog(table: Declared, changelog: Topic, old: changelog_pb2.Manifest | None, generation: int) -> None:
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


def plan_without_cluster(table: Declared, scratch: str, *, topics: Collection[str] = ()) -> Plan:
    """Return the plan of a job whose topics have one partition, for checks and tests that have no Kafka.

    `topics`: those that patterns may match.
    """
    contract = load_contract(table)
    value_schema = row_schema(contract)
    check_repeatable(table)
    sources = {side: table.source_of(side) for side in table.all_sides}
    matched = {
        side: [topic for topic in topics if source.matches(topic)] or [_MATCHED]
        for side, source in sources.items()
        if source.pattern
    }
    sides = {
        name: SidePlan(
            side=side,
            source=source,
            topic=_topic(source.topic),
            schemas=source_schemas(source, None),
            starting_offsets="earliest",
        )
        for name, side, source in _sources(table, matched)
    }
    return Plan(
        table=table,
        contract=contract,
        bootstrap=NO_BROKER,
        mode=table.mode,
        batch_s=batch_s(table, table.mode),
        generation=table.generation,
        checkpoint=f"{scratch}/table",
        outputs_checkpoint=f"{scratch}/outputs",
        sides=sides,
        changelog=_topic(changelog_name(NO_BROKER, table.name, table.generation)),
        dead_letters=_topic(dead_letters_name(NO_BROKER, table.name)),
        value_schema=value_schema,
        schema_id=1,
        manifest=changelog_pb2.Manifest(),
        older=None,
    )


def _topic(name: str) -> Topic:
    return Topic(name, topic_id="", partition_count=1)
