"""A job's checkpoint: one directory of Spark's for each query, and a file that says which table they are of.

Spark would go on with any checkpoint that it finds. State of another table, generation or topic would give wrong rows
without an error; so the file is compared before the queries start.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from pyspark.sql import SparkSession

from tablegate.jobs.dataflow.java_classes import HADOOP_PATH, IO_UTILS, java_class, scala_object
from tablegate.jobs.dataflow.java_errors import error_reason
from tablegate.jobs.errors import JobError
from tablegate.v1 import changelog_pb2

IDENTITY_FILE = "tablegate.json"
OFFSETS, COMMITS = "offsets", "commits"
"""Spark's logs of a query: of the batches that were planned, and of those that are done."""
_FILE_MANAGERS = "org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager"
OFFSET_LOG_HEAD = 2  # lines of a file of the offset log: its version and its settings; then comes a line a source
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What the state in a checkpoint was built from, and for.

    `begins`: where in its sources the generation begins, as JSON; "" is at their start. `logic`: what its rows are
    computed by, as `logic_of` has it. `first_offsets`: the first records that it was made of, by topic and partition.
    """

    table: str
    generation: int
    changelog_topic_id: str
    source_topic_ids: dict[str, str]
    begins: str = ""
    logic: dict[str, str] = field(default_factory=dict)
    first_offsets: dict[str, dict[str, int]] = field(default_factory=dict)


class Checkpoint:
    """A job's checkpoint, wherever Spark can write: a local directory, HDFS, an object store."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        self.location = location
        self._spark = spark
        self._context = spark.sparkContext
        self._conf: Any = spark.sparkContext._jsc.hadoopConfiguration()

    def query_location(self, query: str) -> str:
        """Return where Spark keeps what belongs to one query."""
        return f"{self.location.rstrip('/')}/{query}"

    def discard_uncommitted(self, query: str) -> None:
        """Remove the state of a query that has never committed a batch; raise `JobError`.

        A job that is killed in its first commit leaves a temporary file. Spark believes it to be another query's state,
        and refuses to start. The state goes, and the first batch runs again. Its offsets stay: the rows that it has
        written were made of these records and no others.
        """
        directory = self._path(self.query_location(query))
        commits = self._path(directory, "commits")
        try:
            files = directory.getFileSystem(self._conf)
            found = files.listStatus(commits) if files.exists(commits) else []
            if not any(str(status.getPath().getName()).isdigit() for status in found):
                for name in ("commits", "state"):
                    files.delete(self._path(directory, name), True)
        except Exception as error:  # noqa: BLE001 - py4j's errors have no common class of their own
            raise self._unusable(error) from None

    def committed_offsets(self, query: str) -> dict[str, dict[int, int]] | None:
        """Return how far a query has read its sources, by topic and partition; None before its first commit.

        Of sides with the same topic, the slowest counts. Raise `JobError` where the checkpoint cannot be read.
        """
        batch = self.newest_batch(query, COMMITS)
        return self._read_offset_log(query, batch, read_offset_log) if batch is not None else None

    def newest_batch(self, query: str, log: str) -> int | None:
        """Return the number of the newest batch in a log of a query, `OFFSETS` or `COMMITS`; None where it is empty.

        Raise `JobError` where the checkpoint cannot be read.
        """
        try:
            path = self._path(self.query_location(query), log)
            files = path.getFileSystem(self._conf)
            found = files.listStatus(path) if files.exists(path) else []
            batches = [int(name) for status in found if (name := str(status.getPath().getName())).isdigit()]
        except Exception as error:  # noqa: BLE001 - as above
            raise self._unusable(error) from None
        return max(batches, default=None)

    def watermark_us(self, query: str, batch: int) -> int:
        """Return the watermark of a committed batch in µs since 1970, 0 without one; raise `JobError`."""
        return self._read_offset_log(query, batch, _read_watermark_us)

    def _read_offset_log(self, query: str, batch: int, read: Callable[[str], Found]) -> Found:
        try:
            path = self._path(self.query_location(query), f"{OFFSETS}/{batch}")
            return read(self._text_of(path) or "")
        except Exception as error:  # noqa: BLE001 - as above
            raise self._unusable(error) from None

    def noted(self, name: str) -> str:
        """Return what was noted in a file; "" where nothing was, or a crash has left a part of it."""
        try:
            return self._text_of(self._file(name)) or ""
        except Exception:  # noqa: BLE001 - as above; where the checkpoint cannot be read, its owner has told
            return ""

    def note(self, name: str, text: str) -> None:
        """Write a file, in the place of the last; raise `JobError`."""
        try:
            self._write(name, text)
        except Exception as error:  # noqa: BLE001 - as above
            raise self._unusable(error) from None

    def decided(self, name: str) -> str:
        """Return what was decided in a file; "" where nothing was; raise `JobError`."""
        try:
            return self._text_of(self._file(name)) or ""
        except Exception as error:  # noqa: BLE001 - as above
            raise self._unusable(error) from None

    def decide(self, name: str, text: str) -> None:
        """Write a file in the place of the last, as a whole: a crash leaves the one or the other; raise `JobError`."""
        try:
            self._replace(name, text)
        except Exception as error:  # noqa: BLE001 - as above
            raise self._unusable(error) from None

    def copy_query(self, query: str, name: str) -> None:
        """Let a query `name` begin where another one is, in the place of what there is of it; raise `JobError`."""
        self.discard(name)
        source, target = self._file(query), self._file(name)
        try:
            files = source.getFileSystem(self._conf)
            file_util = java_class(self._context, "org.apache.hadoop.fs.FileUtil")
            file_util.copy(files, source, files, target, False, self._conf)
            # It has the query's own id, and Spark runs no two queries of one.
            files.delete(self._file(f"{name}/metadata"), False)
        except Exception as error:  # noqa: BLE001 - as above
            raise self._unusable(error) from None

    def offset_log(self, query: str, batch: int) -> str:
        """Return what Spark's offset log has of a batch; raise `JobError`, also where it has nothing of it any more."""
        try:
            found = self._text_of(self._path(self.query_location(query), f"{OFFSETS}/{batch}"))
        except Exception as error:  # noqa: BLE001 - as above
            raise self._unusable(error) from None
        if found is None:
            raise JobError(f'checkpoint "{self.location}" does not have batch {batch} any more; try again')
        return found

    def adopt_offsets(self, query: str, lines: Sequence[str]) -> None:
        """Let the batches of a query have read this, a line of Spark's offset log for each source; raise `JobError`.

        The newest batch comes last, which says whether all of it is done.
        """
        for batch in range((self.newest_batch(query, OFFSETS) or 0) + 1):
            own = self.offset_log(query, batch).splitlines()[:OFFSET_LOG_HEAD]
            try:
                self._replace(f"{query}/{OFFSETS}/{batch}", "\n".join([*own, *lines]))
            except Exception as error:  # noqa: BLE001 - as above
                raise self._unusable(error) from None
        self.discard(f"{query}/sources")  # what Spark has noted of the source that the batches really had

    def discard(self, directory: str) -> None:
        """Remove a directory of the checkpoint; raise `JobError`."""
        try:
            path = self._file(directory)
            path.getFileSystem(self._conf).delete(path, True)
        except Exception as error:  # noqa: BLE001 - as above
            raise self._unusable(error) from None

    def move(self, directory: str, to: str) -> bool:
        """Let a directory of the checkpoint take the place of another; return whether it was there; raise `JobError`.

        Where a crash cuts this off, it can be called again.
        """
        try:
            source, target = self._file(directory), self._file(to)
            files = source.getFileSystem(self._conf)
            if not files.exists(source):
                return False
            files.delete(target, True)
            if not files.rename(source, target):
                raise OSError("a directory cannot be renamed")
        except Exception as error:  # noqa: BLE001 - as above
            raise self._unusable(error) from None
        return True

    def sibling(self, generation: int) -> "Checkpoint":
        """Return the checkpoint of another generation of the table."""
        parent, _, _ = self.location.rstrip("/").rpartition("/")
        return Checkpoint(self._spark, f"{parent}/g{generation}")

    def owner(self) -> Identity | None:
        """Return what the checkpoint belongs to; None where it is new; raise `JobError`."""
        try:
            found = self._text_of(self._file(IDENTITY_FILE))
        except Exception as error:  # noqa: BLE001 - as above
            raise self._unusable(error) from None
        if found is None:
            return None
        return read_identity(found, self.location)

    def claim(self, identity: Identity) -> None:
        """Write what a new checkpoint belongs to; raise `JobError` where it belongs to something else."""
        owner = self.owner()
        if owner is not None:
            self._check(owner, identity)
            return
        try:
            self._write(IDENTITY_FILE, as_text(identity))
        except Exception as error:  # noqa: BLE001 - as above
            raise self._unusable(error) from None

    def _unusable(self, error: Exception) -> JobError:
        return JobError(f'checkpoint "{self.location}" cannot be used: {error_reason(error)}')

    def _check(self, owner: Identity, identity: Identity) -> None:
        of = f'checkpoint "{self.location}" belongs to'
        if owner.table != identity.table:
            raise JobError(f'{of} table "{owner.table}", not "{identity.table}"; give each table its own')
        if owner.generation != identity.generation:
            raise JobError(
                f"{of} generation {owner.generation}, the declaration says {identity.generation}; "
                "give each generation its own"
            )
        for topic in sorted({*owner.source_topic_ids, *identity.source_topic_ids}):
            before, now = owner.source_topic_ids.get(topic), identity.source_topic_ids.get(topic)
            if before != now:
                what = (
                    f'source topic "{topic}" as it was before it was deleted and created again'
                    if before and now
                    else f'a table {"with" if before else "without"} the source topic "{topic}"'
                )
                raise JobError(f"{of} {what}; build the table anew with tablegate job rebuild")
        # State that goes on with an empty changelog would write only what changes from now on: all other rows would be
        # missing.
        if owner.changelog_topic_id != identity.changelog_topic_id:
            raise JobError(
                f"{of} the changelog topic as it was before it was deleted and created again; "
                "remove the checkpoint, and the table is built anew"
            )

    def _path(self, *parts: Any) -> Any:
        return java_class(self._context, HADOOP_PATH)(*parts)

    def _file(self, name: str) -> Any:
        return self._path(self.location, name)

    def _text_of(self, path: Any) -> str | None:
        files = path.getFileSystem(self._conf)
        if not files.exists(path):
            return None
        stream = files.open(path)
        try:
            return str(java_class(self._context, IO_UTILS).toString(stream, "UTF-8"))
        finally:
            stream.close()

    def _replace(self, name: str, text: str) -> None:
        """Write a file in the place of another, as a whole: a crash leaves the one or the other."""
        managers = scala_object(self._context, _FILE_MANAGERS)
        path = self._file(name)
        files = managers.create(path.getParent(), self._conf)
        files.mkdirs(path.getParent())
        stream = files.createAtomic(path, True)
        try:
            stream.write(text.encode())
        except BaseException:
            stream.cancel()
            raise
        stream.close()

    def _write(self, name: str, text: str) -> None:
        self._write_to(self._file(name), text)

    def _write_to(self, path: Any, text: str) -> None:
        stream = path.getFileSystem(self._conf).create(path, True)
        try:
            stream.write(text.encode())
        finally:
            stream.close()


def as_text(identity: Identity) -> str:
    """Return what is in an `IDENTITY_FILE`."""
    return json.dumps(asdict(identity), indent=2)


def read_identity(text: str, location: str) -> Identity:
    """Return what an `IDENTITY_FILE` says; raise `JobError` where it is damaged."""
    try:
        return Identity(**json.loads(text))
    except (ValueError, TypeError):
        raise JobError(
            f'checkpoint "{location}" has a damaged {IDENTITY_FILE}; give another directory, and raise the '
            "table's generation"
        ) from None


def check_owner(
    owner: Identity | None, location: str, manifest: changelog_pb2.Manifest, changelog_topic_id: str, bootstrap: str
) -> Identity:
    """Return what a checkpoint belongs to; raise `JobError` where that is not the changelog of this manifest."""
    if owner is None:
        raise JobError(
            f'the checkpoint of table "{manifest.table}" generation {manifest.generation} is not at "{location}"; give '
            "the --checkpoints of its job"
        )
    if owner.changelog_topic_id != changelog_topic_id:
        raise JobError(
            f'checkpoint "{location}" is not that of changelog topic "{manifest.changelog_topic}" at {bootstrap}; give '
            "the --checkpoints of its job"
        )
    return owner


def read_offset_log(text: str) -> dict[str, dict[int, int]]:
    """Return the next offsets in a file of Spark's offset log."""
    found: dict[str, dict[int, int]] = {}
    for line in text.splitlines()[OFFSET_LOG_HEAD:]:
        read = json.loads(line) if line.startswith("{") else {}
        for topic, next_offsets in read.items() if isinstance(read, Mapping) else ():
            if not isinstance(next_offsets, Mapping):  # the log of another source than Kafka
                continue
            offsets = found.setdefault(topic, {})
            for partition, next_offset in next_offsets.items():
                offsets[int(partition)] = min(next_offset, offsets.get(int(partition), next_offset))
    return found


def _read_watermark_us(text: str) -> int:
    """Return the watermark in a file of Spark's offset log, in µs since 1970."""
    settings = json.loads(text.splitlines()[1])
    return int(settings["batchWatermarkMs"]) * 1_000
