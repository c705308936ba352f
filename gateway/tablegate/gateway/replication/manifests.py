"""Manifests: the topic that has them, and whether a gateway may follow one.

A manifest is held against the contract (`problem_of`), against the manifest before it (`ManifestSequence`), and against
the changelog topic that it names (`topic_fault`).

Decision: docs/decisions/0045-a-generations-manifest-is-fixed.md
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from typing import NamedTuple

from typing_extensions import override

from tablegate.gateway.contract.catalogue import Partitioner, Table
from tablegate.gateway.contract.foreign.topics import unfit_reason
from tablegate.gateway.contract.rows import RowDecoder, UnfitSchema
from tablegate.gateway.contract.types import PARTITIONS_MAX
from tablegate.gateway.kafka.border import Poison, read_manifest
from tablegate.gateway.kafka.compacted_topic import CompactedTopic
from tablegate.gateway.kafka.log import Clock, Log, Record, TopicFacts
from tablegate.v1 import changelog_pb2
from tablegate.v1.changelog_pb2 import Manifest

DELETE_RETENTION_MIN_MS = 60_000  # a store is too old after half of it, and its age is known each few seconds
REBUILD = "build the table's next generation with tablegate job rebuild"
_PUBLISH = "start the table's job, or give it a topic with tablegate table add"
PROBLEM_CHARACTERS_MAX = 1_000  # a manifest may have names and types of any length, and a problem goes into each status


class ManifestTopic(CompactedTopic):
    """Follows the topic of manifests. `manifests`: the newest of each of `tables` that has one; others are passed over.

    `poison_of`: how many of a table's were set aside, by reason.
    """

    def __init__(self, topic: str, *, tables: Collection[str], log: Log, clock: Clock) -> None:
        super().__init__(topic, log=log, clock=clock)
        self.manifests: dict[str, Manifest] = {}
        self.poison_of: dict[str, Counter[str]] = {name: Counter() for name in tables}
        self._set_aside_last: dict[str, str] = {}  # why the newest record of a table was set aside
        self._removed: set[str] = set()  # tables of which a manifest was removed
        self._unread: defaultdict[str, list[Manifest | None]] = defaultdict(list)

    @override
    def _start_over(self) -> None:
        self.manifests = {}
        self._unread.clear()
        self._set_aside_last.clear()
        self._removed.clear()

    @override
    def _receive(self, record: Record) -> None:
        name = (record.key or b"").decode("utf-8", errors="replace")
        # A topic may have the manifests of thousands of tables, and only those of our contracts are ever asked for.
        if name not in self.poison_of:
            return
        if record.value is None:
            self.manifests.pop(name, None)
            self._set_aside_last.pop(name, None)
            self._removed.add(name)
            self._unread[name].append(None)
            return
        try:
            manifest = read_manifest(name, record.value)
        except Poison as error:
            self.poison_of[name][str(error)] += 1
            self._set_aside_last[name] = str(error)
            raise
        self._set_aside_last.pop(name, None)
        self.manifests[name] = manifest
        self._unread[name].append(manifest)

    def repeat(self, table_name: str) -> None:
        """Let the next `pop_unread` begin with what is known of a table: whoever asks begins anew, too."""
        known = [self.manifests[table_name]] if table_name in self.manifests else []
        removed: list[Manifest | None] = [None] if table_name in self._removed else []
        self._unread[table_name] = [*removed, *known]

    def pop_unread(self, table_name: str) -> Sequence[Manifest | None]:
        """Return the manifests of a table since the last call, the newest last; None: it was removed."""
        return self._unread.pop(table_name, ())

    def put_back(self, table_name: str, unread: Sequence[Manifest | None]) -> None:
        """Have these returned once more, before what came since: they could not be used yet."""
        self._unread[table_name][:0] = unread

    def why_missing(self, table_name: str) -> str:
        """Return why there is no manifest of a table."""
        if not self.exists:
            return f'table "{table_name}": topic "{self.topic_partition.topic}" does not exist; {_PUBLISH}'
        why = self._set_aside_last.get(table_name)
        more = f" (its newest manifest was set aside: {why})" if why else ""
        what = f'table "{table_name}" has no manifest in topic "{self.topic_partition.topic}"'
        return f"{what}{more}; {_PUBLISH}"


def problem_of(table: Table, manifest: Manifest) -> str | None:
    """Return why a gateway with the contract of `table` cannot follow `manifest`, in one sentence; None if it can."""
    problem = _problem_of(table, manifest)
    return None if problem is None else shortened(problem)


def shortened(problem: str) -> str:
    """Return a sentence that quotes a manifest, in a form that each status and log can hold."""
    if len(problem) > PROBLEM_CHARACTERS_MAX:
        half = PROBLEM_CHARACTERS_MAX // 2
        problem = f"{problem[:half]} … {problem[-half:]}"  # the end says what to do
    return problem.encode("utf-8", errors="replace").decode()


def _problem_of(table: Table, manifest: Manifest) -> str | None:
    if manifest.generation < 1:
        return _problem(table, manifest, "has no generation", "publish it with a job of this version")
    if not manifest.changelog_topic or not manifest.changelog_topic_id:
        return _problem(table, manifest, "names no changelog topic", "publish it with a job of this version")
    if not 1 <= manifest.partition_count <= PARTITIONS_MAX:
        return _problem(table, manifest, f"has {manifest.partition_count} partitions", f"use 1 to {PARTITIONS_MAX}")
    disagreement = _disagreement(table, manifest)
    if disagreement is not None:
        is_foreign = manifest.HasField("foreign")
        hint = "add the table again with this contract" if is_foreign else "start job and gateway with one contract"
        return _problem(table, manifest, disagreement, hint)
    if manifest.HasField("foreign"):
        why = unfit_reason(table, manifest)
        return None if why is None else f'table "{table.name}": {why}, and add the table again'
    return schema_problem_of(table, manifest)


def schema_problem_of(table: Table, manifest: Manifest) -> str | None:
    """Return why rows of the manifest's schemas are not rows of the table; None if they are."""
    try:
        RowDecoder(table, manifest.value_schemas)
    except UnfitSchema as error:
        return f"{error}; start job and gateway with one contract"
    return None


def follows_on(old: Manifest, new: Manifest) -> bool:
    """Return whether `new` describes the same generation of the same changelog as `old`."""
    return old.generation == new.generation and _change(old, new) is None


class ManifestSequence:
    """The manifests of one table, in the order of their topic: what places rows stays as it is within a generation.

    Tokens name partitions and offsets of a generation, and a row is looked for where the manifest says. So a manifest
    that says otherwise needs a higher generation, unless the table was given up: its manifest was removed.

    Nor does a table go back to an older generation, as of a job that was frozen while the next one was built.
    """

    def __init__(self, known: Manifest | None) -> None:
        """`known`: the newest manifest that was followed before a restart."""
        self._known = known
        self.was_removed = False

    def is_older(self, manifest: Manifest) -> bool:
        """Return whether a newer generation was followed already."""
        return self._known is not None and manifest.generation < self._known.generation

    def accept(self, manifest: Manifest) -> None:
        """Accept a manifest that can be followed: what comes is held to it, unless it is of an older generation."""
        if self._known is None or manifest.generation >= self._known.generation:
            self._known = manifest

    def end(self) -> None:
        """Record that the manifest was removed: whatever comes next is the first."""
        self._known, self.was_removed = None, True

    def breach_of(self, manifest: Manifest) -> str | None:
        """Return why nobody may follow the next manifest, in one sentence; None where it keeps to the one before."""
        known = self._known
        # What is known of a generation of others names no topic.
        if known is None or manifest.generation != known.generation or not known.changelog_topic:
            return None
        change = _change(known, manifest)
        if change is None:
            return None
        hint = REBUILD
        if manifest.HasField("foreign"):
            # Two commands wrote it at once. To add it again says what is there already.
            hint = f"remove it with tablegate table remove {manifest.table}, then add it again"
        return shortened(
            f'table "{manifest.table}": manifest of generation {manifest.generation} was replaced by one with another '
            f"{change}; {hint}"
        )


class TopicFault(NamedTuple):
    """What is wrong with a changelog's topic, and what to do."""

    what: str
    hint: str


def topic_fault(manifest: Manifest, facts: TopicFacts | None) -> TopicFault | None:
    """Return why the changelog is not the one that the manifest describes; None if it is."""
    if manifest.HasField("foreign"):
        return _foreign_topic_fault(manifest, facts)
    topic = f'changelog topic "{manifest.changelog_topic}"'
    if facts is None:
        return TopicFault(f"{topic} does not exist", "start the table's job")
    if not same_topic_id(facts.topic_id, manifest.changelog_topic_id):
        ids = f"id {facts.topic_id}, not {manifest.changelog_topic_id}"
        return TopicFault(f"{topic} was made anew ({ids})", REBUILD)
    if facts.partition_count != manifest.partition_count:
        what = f"{topic} has {facts.partition_count} partitions, its manifest says {manifest.partition_count}"
        return TopicFault(what, "raise the table's generation and start its job")
    return _tombstone_fault(topic, facts)


def _tombstone_fault(topic: str, facts: TopicFacts) -> TopicFault | None:
    if facts.delete_retention_ms < DELETE_RETENTION_MIN_MS:
        what = f"{topic} has a delete.retention.ms of {facts.delete_retention_ms}"
        return TopicFault(f"{what}, and needs {DELETE_RETENTION_MIN_MS} at least", "set it on the topic")
    return None


def _foreign_topic_fault(manifest: Manifest, facts: TopicFacts | None) -> TopicFault | None:
    """Return why a topic that others write is not the one of the manifest, or cannot be a table."""
    topic = f'topic "{manifest.changelog_topic}"'
    if facts is None:
        return TopicFault(f"{topic} does not exist", "have its owner create it, then add the table again")
    if not same_topic_id(facts.topic_id, manifest.changelog_topic_id):
        return TopicFault(f"{topic} was made anew", _add_again(manifest))
    if facts.partition_count != manifest.partition_count:
        what = f"{topic} has {facts.partition_count} partitions, and had {manifest.partition_count}"
        return TopicFault(f"{what}: keys have moved to others", _add_again(manifest))
    keeps_ms = manifest.foreign.retention.ToMilliseconds()
    if not facts.deletes_old:
        return _tombstone_fault(topic, facts)
    if not keeps_ms:
        return TopicFault(
            f"{topic} has cleanup.policy=delete, so rows whose records are old are missing in it",
            "have it compacted, or say for how long rows are needed: --retention 7d",
        )
    if 0 <= facts.retention_ms < keeps_ms:
        return TopicFault(
            f"{topic} keeps records for {facts.retention_ms // 1_000} s, and the table's retention is "
            f"{keeps_ms // 1_000} s",
            "raise retention.ms of the topic, or add the table again with a shorter --retention",
        )
    return None


def _add_again(manifest: Manifest) -> str:
    return f"add the table again: tablegate table add {manifest.table}"


def same_topic_id(one: str, other: str) -> bool:
    """Compare two spellings of base64: Java's, librdkafka's."""
    url_safe = str.maketrans("+/", "-_")
    return one.translate(url_safe) == other.translate(url_safe)


def _problem(table: Table, manifest: Manifest, what: str, hint: str) -> str:
    return f'table "{table.name}": manifest of generation {manifest.generation} {what}; {hint}'


def _change(old: Manifest, new: Manifest) -> str | None:
    """Return what `new` says otherwise of where rows are; None where it says the same."""
    if old.changelog_topic != new.changelog_topic:
        return f'changelog topic, "{new.changelog_topic}" for "{old.changelog_topic}"'
    if not same_topic_id(old.changelog_topic_id, new.changelog_topic_id):
        return f"topic id, {new.changelog_topic_id} for {old.changelog_topic_id}: its changelog was made anew"
    if old.partition_count != new.partition_count:
        return f"partition count, {new.partition_count} for {old.partition_count}"
    if old.partitioner != new.partitioner:
        return f"partitioner, {_partitioner_name(new.partitioner)} for {_partitioner_name(old.partitioner)}"
    if old.partition_by_count != new.partition_by_count:
        return f"partitioning, by {new.partition_by_count} key columns for {old.partition_by_count}"
    if list(old.key) != list(new.key):
        return f"key, ({_key_text(new)}) for ({_key_text(old)})"
    if old.HasField("foreign") != new.HasField("foreign"):
        return "writer, a job for others" if old.HasField("foreign") else "writer, others for a job"
    if new.HasField("foreign") and (old.foreign != new.foreign or old.value_schemas != new.value_schemas):
        return "description of its records"
    if old.atomic != new.atomic:
        return f"writing, {_atomic_text(new)} for {_atomic_text(old)}"
    if old.contract_fingerprint != new.contract_fingerprint:
        return f"fingerprint, {new.contract_fingerprint.hex()[:8]} for {old.contract_fingerprint.hex()[:8]}"
    return None


def _disagreement(table: Table, manifest: Manifest) -> str | None:
    theirs = _key_text(manifest)
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


def _atomic_text(manifest: Manifest) -> str:
    return "atomic batches" if manifest.atomic else "row by row"


def _key_text(manifest: Manifest) -> str:
    return ", ".join(f"{column.name} {_key_type_name(column.type)}" for column in manifest.key)


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
