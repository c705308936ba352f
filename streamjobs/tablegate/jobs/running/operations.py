"""Commands beside running jobs: list tables, find where to seek to, delete what is stored of a table.

Decision: docs/decisions/0081-a-person-drops-old-generations.md
"""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote, urlsplit

from google.protobuf.message import DecodeError

from tablegate.gateway.contract.types import MARKER_KEY
from tablegate.jobs.errors import JobError
from tablegate.jobs.frame_table import Declared
from tablegate.jobs.kafka.job_group import hosts_of, job_group, rebuild_group, rebuilt_generation
from tablegate.jobs.kafka.manifests import JOB_MODES, has_manifest, read_manifests, remove_manifest
from tablegate.jobs.kafka.topics import KafkaAdmin, Topic, read_to_end, source_admin
from tablegate.jobs.planning.options import Start
from tablegate.jobs.planning.patterns import matched_topics
from tablegate.jobs.table import Global, Mode
from tablegate.v1 import changelog_pb2

MARKER_WINDOWS = (1, 1_000, 100_000)
"""Numbers of records before a changelog's end in which the newest marker is searched, one after the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """A table's job, as Kafka shows it. `mode`, counts and times are None where they are unknown.

    `rebuilding`: the generation that is being built beside the table. `records_behind`: records of the sources beyond
    the newest marker. `marker_time`: when that was written.
    """

    name: str
    generation: int | None = None
    mode: Mode | None = None
    partition_count: int | None = None
    sources: tuple[str, ...] = ()
    is_running: bool = False
    rebuilding: int | None = None
    records_behind: int | None = None
    marker_time: datetime | None = None


def list_tables(bootstrap: str, declared: Iterable[Declared] | None = None) -> list[TableState]:
    """Return the declared tables, or else all whose jobs have published manifests, by name; raise `JobError`."""
    admin = KafkaAdmin(bootstrap)
    by_name = {table.name: table for table in declared or ()}
    manifests = {name: each for name, each in read_manifests(bootstrap).items() if not each.HasField("foreign")}
    states = []
    for name in sorted(manifests if declared is None else by_name):
        states.append(_state(admin, bootstrap, name, by_name.get(name), manifests.get(name)))
    return states


def _state(
    admin: KafkaAdmin, bootstrap: str, name: str, table: Declared | None, manifest: changelog_pb2.Manifest | None
) -> TableState:
    is_running = bool(admin.members(job_group(name)))
    rebuilding = rebuilt_generation(admin.members(rebuild_group(name)))
    if manifest is None:
        sources = tuple(topic for side in table.all_sides for topic in table.source_of(side).topics) if table else ()
        return TableState(name=name, sources=sources, is_running=is_running, rebuilding=rebuilding)
    changelog = admin.find(manifest.changelog_topic)
    marker = newest_marker(bootstrap, admin, changelog) if changelog is not None else None
    modes = {number: mode for mode, number in JOB_MODES.items()}
    return TableState(
        name=name,
        generation=manifest.generation,
        mode=modes.get(manifest.mode),
        partition_count=manifest.partition_count,
        sources=tuple(source.topic for source in manifest.sources),
        is_running=is_running,
        rebuilding=rebuilding,
        records_behind=_records_behind(source_admin(bootstrap), marker) if marker is not None else None,
        marker_time=marker.commit_time.ToDatetime(tzinfo=UTC) if marker is not None else None,
    )


def _records_behind(admin: KafkaAdmin, marker: changelog_pb2.ProgressMarker) -> int | None:
    """Return how many records the sources have beyond a marker; None where one of them is not there any more."""
    behind = 0
    for source in marker.sources:
        topic = admin.find(source.topic)
        if topic is None:
            return None
        ends = admin.end_offsets(topic)
        behind += sum(max(end - source.next_offsets.get(partition, 0), 0) for partition, end in ends.items())
    return behind if marker.sources else None


def newest_marker(
    bootstrap: str, admin: KafkaAdmin, changelog: Topic, *, of_batch: bool = False
) -> changelog_pb2.ProgressMarker | None:
    """Return the newest marker in a changelog's first partition, as all partitions have the same; None without one.

    Those that say nothing of sources do not count, unless `of_batch`: of published DataFrames no marker says anything.
    """
    first, end = admin.first_offsets(changelog)[0], admin.end_offsets(changelog)[0]
    for window in (*MARKER_WINDOWS, end):
        marker = _newest_in(bootstrap, changelog, max(first, end - window), end, of_batch=of_batch)
        if marker is not None or end - window <= first:
            return marker
    return None


def _newest_in(
    bootstrap: str, changelog: Topic, start: int, end: int, *, of_batch: bool
) -> changelog_pb2.ProgressMarker | None:
    if start >= end:
        return None
    newest = None
    with closing(read_to_end(bootstrap, changelog.name, start)) as records:
        for record in records:
            if record.key() == MARKER_KEY:
                newest = _marker(record.value() or b"", of_batch=of_batch) or newest
            if (record.offset() or 0) >= end - 1:
                break
    return newest


def _marker(value: bytes, *, of_batch: bool) -> changelog_pb2.ProgressMarker | None:
    try:
        marker = changelog_pb2.ProgressMarker.FromString(value)
    except DecodeError:
        return None
    # The end of an atomic batch, and the begin of a run, say nothing of sources.
    return marker if marker.sources or marker.final or (of_batch and marker.batch_id >= 0) else None


def start_at_time(time: datetime) -> Start:
    """Return the start at a moment; raise `JobError` where it is in the future."""
    if time.tzinfo is None:
        raise JobError(f"time {time.isoformat()} has no time zone; write {time.isoformat()}Z for UTC")
    if time > datetime.now(UTC):
        raise JobError(f"time {time.isoformat()} is in the future; give one that records have been written after")
    return Start(time_ms=int(time.timestamp() * 1000))


def start_at_offsets(table: Declared, bootstrap: str, offsets: Mapping[str, Mapping[int, int]]) -> Start:
    """Return the start at offsets by topic and partition; raise `JobError` where the table cannot begin there."""
    admin = source_admin(bootstrap)
    streamed = [name for name, side in table.all_sides.items() if not isinstance(side, Global)]
    matched = matched_topics(table, bootstrap)
    topics = sorted(
        {topic for name in streamed if name not in matched for topic in table.source_of(name).topics}
        | {topic.name for found in matched.values() for topic in found}
    )
    for name, wanted in offsets.items():
        if name not in topics:
            listed = ", ".join(f'"{topic}"' for topic in topics)
            raise JobError(f'topic "{name}" is not a source of table "{table.name}"; it reads {listed}')
        topic = admin.require(name)
        first, end = admin.first_offsets(topic), admin.end_offsets(topic)
        for partition, offset in wanted.items():
            if partition not in end:
                raise JobError(
                    f'topic "{name}" has no partition {partition}; its partitions are 0 to {topic.partition_count - 1}'
                )
            if not first[partition] <= offset <= end[partition]:
                raise JobError(
                    f'topic "{name}" partition {partition} has no offset {offset}; give one from {first[partition]}, '
                    f"the first record that Kafka still has, to {end[partition]}, its end"
                )
    return Start(offsets=offsets)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredArtifacts:
    """What is stored of a table, or, unless `is_all`, of its older generations.

    `remote`: its checkpoints, where these are not on this machine. `generation` is the newest that it has had, 0 where
    none is known.
    """

    table: str
    generation: int
    has_manifest: bool
    changelogs: tuple[str, ...]
    directories: tuple[Path, ...]
    remote: str | None
    is_all: bool = True

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to delete."""
        return not (self.has_manifest or self.changelogs or self.directories)


def find_stored_artifacts(table: str, bootstrap: str, checkpoints: str) -> StoredArtifacts:
    """Return everything that is stored of a table; raise `JobError` while a job keeps it."""
    if not table.isidentifier():  # it becomes part of a path
        raise JobError(f'"{table}" is not the name of a table; tablegate job list shows them')
    admin = KafkaAdmin(bootstrap)
    _refuse_running(admin, table)
    directory = local_directory(checkpoints)
    changelogs = admin.changelogs(table)
    manifest = read_manifests(bootstrap).get(table)
    return StoredArtifacts(
        table=table,
        generation=max([manifest.generation if manifest is not None else 0, *changelogs]),
        has_manifest=has_manifest(bootstrap, table),
        changelogs=tuple(changelogs.values()),
        directories=_checkpoints_of(directory / table) if directory is not None else (),
        remote=None if directory is not None else f"{checkpoints.rstrip('/')}/{table}",
    )


def delete_artifacts(artifacts: StoredArtifacts, bootstrap: str) -> None:
    """Delete everything; raise `JobError`. If it is interrupted, it can be called again."""
    admin = KafkaAdmin(bootstrap)
    _refuse_running(admin, artifacts.table)
    if artifacts.has_manifest:  # first, or gateways would wait for topics that are gone
        remove_manifest(bootstrap, artifacts.table, newest=artifacts.generation)
    if artifacts.changelogs:
        admin.delete(artifacts.changelogs)
    for directory in artifacts.directories:
        _remove(directory)


def find_old(table: str, bootstrap: str, checkpoints: str) -> StoredArtifacts:
    """Return what is stored of a table's generations before the newest; raise `JobError` before that is in place."""
    if not table.isidentifier():  # it becomes part of a path
        raise JobError(f'"{table}" is not the name of a table; tablegate job list shows them')
    admin = KafkaAdmin(bootstrap)
    manifest = read_manifests(bootstrap).get(table)
    if manifest is None:
        raise JobError(f'table "{table}" has no manifest at {bootstrap}; tablegate job list shows the tables')
    members = admin.members(rebuild_group(table))
    if members:
        raise JobError(f'table "{table}" is being rebuilt on {hosts_of(members)}; wait until that is done')
    newest = manifest.generation
    old = {number: name for number, name in admin.changelogs(table).items() if number < newest}
    if old:
        _check_in_place(bootstrap, admin, manifest, old[max(old)])
    directory = local_directory(checkpoints)
    found = _checkpoints_of(directory / table) if directory is not None else ()
    return StoredArtifacts(
        table=table,
        generation=newest,
        has_manifest=False,
        changelogs=tuple(old.values()),
        directories=tuple(one for one in found if one.name.startswith("g") and int(one.name[1:]) < newest),
        remote=f"{checkpoints.rstrip('/')}/{table}/g1 to g{newest - 1}" if directory is None and old else None,
        is_all=False,
    )


def _check_in_place(bootstrap: str, admin: KafkaAdmin, manifest: changelog_pb2.Manifest, old_name: str) -> None:
    """Raise `JobError` where the newest generation has not read what the one before it has."""
    old, new = admin.find(old_name), admin.find(manifest.changelog_topic)
    last = newest_marker(bootstrap, admin, old) if old is not None else None
    marker = newest_marker(bootstrap, admin, new) if new is not None else None
    if marker is None or last is None or not last.final or not _has_reached(marker, last, manifest):
        raise JobError(
            f'table "{manifest.table}" generation {manifest.generation} has not read all that the one before it has, '
            "which gateways may still serve; let a job run until tablegate job list shows nothing behind"
        )


def _has_reached(
    marker: changelog_pb2.ProgressMarker, last: changelog_pb2.ProgressMarker, manifest: changelog_pb2.Manifest
) -> bool:
    # A source that the new generation does not read never comes to an end.
    own = {source.topic for source in manifest.sources}
    reached = {source.topic: dict(source.next_offsets) for source in marker.sources}
    return all(
        reached.get(source.topic, {}).get(partition, 0) >= end
        for source in last.sources
        if source.topic in own
        for partition, end in source.next_offsets.items()
    )


def delete_old(artifacts: StoredArtifacts, bootstrap: str) -> None:
    """Delete older generations, by `find_old`; raise `JobError`. If it is interrupted, it can be called again."""
    if artifacts.changelogs:
        KafkaAdmin(bootstrap).delete(artifacts.changelogs)
    for directory in artifacts.directories:
        _remove(directory)


def _remove(directory: Path) -> None:
    try:
        shutil.rmtree(directory)
        if not any(directory.parent.iterdir()):
            directory.parent.rmdir()
    except OSError as error:
        raise JobError(
            f'directory "{directory}" cannot be deleted: {error.strerror}; delete it, or the next run of the job goes '
            "wrong"
        ) from None


def _refuse_running(admin: KafkaAdmin, table: str) -> None:
    for group, doing in ((job_group(table), "is kept by a job that runs"), (rebuild_group(table), "is being rebuilt")):
        members = admin.members(group)
        if members:
            raise JobError(f'table "{table}" {doing} on {hosts_of(members)}; stop that one first')


def local_directory(checkpoints: str) -> Path | None:
    """Return the directory that a checkpoint location is; None where it is not on this machine."""
    scheme = urlsplit(checkpoints).scheme
    if scheme == "file":
        return Path(unquote(urlsplit(checkpoints).path))
    return None if scheme else Path(checkpoints)


def _checkpoints_of(directory: Path) -> tuple[Path, ...]:
    """Return the checkpoints in a table's directory, and nothing else that may be there."""
    found: Sequence[Path] = sorted(directory.iterdir()) if directory.is_dir() else ()
    return tuple(
        one for one in found if one.is_dir() and (one.name == "outputs" or one.name.removeprefix("g").isdigit())
    )
