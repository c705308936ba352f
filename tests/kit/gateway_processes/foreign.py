"""A gateway process that serves topics that others write, and the commands that say what these are."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from click.testing import CliRunner
from google.protobuf.message import Message

from tablegate.gateway.contract.keys import murmur2_partition
from tests.kit.command_line import COMMAND
from tests.kit.gateway_processes.gateway import GatewayProcess, soon
from tests.kit.gateway_processes.row_queries import RowQueries
from tests.kit.programs.kafka import NewRecord, new_topic, produce
from tests.kit.table.foreign import FOREIGN, foreign_catalogue

Record = tuple[bytes, bytes | None, bytes | None]
"""What chooses the partition, the key, the value."""


class ForeignTables:
    """The tables of `foreign.proto`, none of which has a manifest at first."""

    def __init__(self, directory: Path, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.contract = FOREIGN
        self.tables_topic = new_topic(bootstrap, prefix="tables", cleanup_policy="compact")
        self.gateway = GatewayProcess(
            directory / "gateway", bootstrap, contract=FOREIGN, tables_topic=self.tables_topic, workers=1
        )

    def __enter__(self) -> Self:
        self.gateway.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.gateway.stop()

    def command(self, *arguments: str) -> str:
        """Return what `tablegate table …` prints, which must go well."""
        code, printed = self._run(arguments)
        assert code == 0, printed
        return printed

    def refused(self, *arguments: str) -> str:
        """Return what `tablegate table …` prints, which must fail."""
        code, printed = self._run(arguments)
        assert code == 1, printed
        return printed

    def _run(self, arguments: Iterable[str]) -> tuple[int, str]:
        more = ["--bootstrap", self.bootstrap, "--tables-topic", self.tables_topic]
        ran = CliRunner().invoke(COMMAND, ["table", *arguments, *more], env={"COLUMNS": "500"})
        if ran.exception is not None and not isinstance(ran.exception, SystemExit):
            raise ran.exception
        return ran.exit_code, ran.output

    def add(self, table: str, *arguments: str) -> str:
        """Add a table of the contract."""
        return self.command("add", table, "--contract", str(FOREIGN), *arguments)

    def write(self, topic: str, records: Iterable[Record], partitions: int = 3) -> None:
        """Write records, each where murmur2 of its first part says."""
        produce(
            self.bootstrap,
            topic,
            [NewRecord(key, value, (), murmur2_partition(place, partitions)) for place, key, value in records],
        )

    def generation(self, table: str) -> int:
        """Return the generation that was published last."""
        found = [json.loads(line) for line in self.command("list", "--json").splitlines()]
        return next(int(one["generation"]) for one in found if one["table"] == table)

    def wait_for(self, table: str, generation: int, seconds: float = 30.0) -> None:
        """Wait until all of a generation is answered, `seconds` at most."""

        def is_live() -> bool:
            [status] = [one for one in self.gateway.status().tables if one.table == table]
            phases = [partition.phase for partition in status.partitions]
            return status.serving and status.manifest.generation == generation and set(phases) == {2}

        soon(is_live, f"generation {generation} of {table} is served", seconds)

    def is_served(self, table: str) -> bool:
        """Return whether the gateway answers from a table."""
        return any(one.serving for one in self.gateway.status().tables if one.table == table)

    def poison(self, table: str) -> dict[str, int]:
        """Return how many records were set aside, by reason."""
        [status] = [one for one in self.gateway.status().tables if one.table == table]
        return {one.reason: one.count for one in status.poison}

    def _queries(self, table: str) -> RowQueries:
        queries = foreign_catalogue().queries.values()
        return RowQueries(self.gateway, [query for query in queries if query.table.name == table])

    def get(self, table: str, row: Any, **options: Any) -> Message:
        """Return the row with the key of `row`."""
        key = {column.name: getattr(row, column.name) for column in foreign_catalogue().tables[table].key}
        found: Message = self._queries(table).get(**key, **({"read_options": options} if options else {}))
        return found

    def rows(self, table: str) -> list[Any]:
        """Return all rows of a table."""
        return self._queries(table).rows()
