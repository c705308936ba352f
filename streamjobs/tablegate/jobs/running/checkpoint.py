"""A job's checkpoint: one directory of Spark's for each query, and a file that says which table they are of.

Spark would go on with any checkpoint that it finds. State of another table, generation or topic would give wrong rows
without an error; so the file is compared before the queries start.
"""

import json
from dataclasses import asdict, dataclass
from typing import Any

from pyspark.sql import SparkSession

from tablegate.jobs.dataflow.java_errors import error_reason
from tablegate.jobs.errors import JobError

IDENTITY_FILE = "tablegate.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What the state in a checkpoint was built from, and for.

    `begins`: where in its sources the generation begins, as JSON; "" is at their start.
    """

    table: str
    generation: int
    changelog_topic_id: str
    source_topic_ids: dict[str, str]
    begins: str = ""


class Checkpoint:
    """A job's checkpoint, wherever Spark can write: a local directory, HDFS, an object store."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        self.location = location
        self._jvm: Any = spark.sparkContext._jvm
        self._conf: Any = spark.sparkContext._jsc.hadoopConfiguration()

    def query_location(self, query: str) -> str:
        """Return where Spark keeps what belongs to one query."""
        return f"{self.location.rstrip('/')}/{query}"

    def discard_uncommitted(self, query: str) -> None:
        """Remove the checkpoint of a query that has never committed a batch; raise `JobError`.

        A job that is killed in its first commit leaves a temporary file. Spark believes it to be another query's state,
        and refuses to start. Without a commit there is nothing to lose: the first batch runs again.
        """
        directory = self._jvm.org.apache.hadoop.fs.Path(self.query_location(query))
        commits = self._jvm.org.apache.hadoop.fs.Path(directory, "commits")
        try:
            files = directory.getFileSystem(self._conf)
            found = files.listStatus(commits) if files.exists(commits) else []
            if not any(str(status.getPath().getName()).isdigit() for status in found):
                files.delete(directory, True)
        except Exception as error:  # noqa: BLE001 - py4j's errors have no common class of their own
            raise self._unusable(error) from None

    def discard_older(self) -> list[str]:
        """Remove the checkpoints of older generations that lie beside this one, and return their names."""
        here = self._jvm.org.apache.hadoop.fs.Path(self.location)
        files = here.getFileSystem(self._conf)
        found = {str(status.getPath().getName()): status.getPath() for status in files.listStatus(here.getParent())}
        generation = _generation_of(str(here.getName()))
        older = [name for name in sorted(found) if 0 < _generation_of(name) < generation]
        return [name for name in older if files.delete(found[name], True)]

    def owner(self) -> Identity | None:
        """Return what the checkpoint belongs to; None where it is new; raise `JobError`."""
        try:
            found = self._read()
        except Exception as error:  # noqa: BLE001 - as above
            raise self._unusable(error) from None
        if found is None:
            return None
        try:
            return Identity(**json.loads(found))
        except (ValueError, TypeError):
            raise JobError(
                f'checkpoint "{self.location}" has a damaged {IDENTITY_FILE}; give another directory, and raise the '
                "table's generation"
            ) from None

    def claim(self, identity: Identity) -> None:
        """Write what a new checkpoint belongs to; raise `JobError` where it belongs to something else."""
        owner = self.owner()
        if owner is not None:
            self._check(owner, identity)
            return
        try:
            self._write(json.dumps(asdict(identity), indent=2))
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

    def _path(self) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self.location, IDENTITY_FILE)

    def _read(self) -> str | None:
        path = self._path()
        files = path.getFileSystem(self._conf)
        if not files.exists(path):
            return None
        stream = files.open(path)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def _write(self, text: str) -> None:
        path = self._path()
        stream = path.getFileSystem(self._conf).create(path, True)
        try:
            stream.write(text.encode())
        finally:
            stream.close()


def _generation_of(name: str) -> int:
    """Return the generation that a directory is of; 0 for one that is of none."""
    number = name.removeprefix("g")
    return int(number) if name.startswith("g") and number.isdecimal() else 0
