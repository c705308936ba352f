"""A table of how many records of each source partition are in a row, and its job: as a process, or in this one."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tablegate.gateway.contract.rows import RowDecoder, row_schema
from tablegate.gateway.contract.types import RUN_HEADER, VERSION_HEADER, Version, is_marker_key, read_version
from tablegate.jobs.planning.declarations import load_contract, load_table
from tablegate.jobs.planning.options import Options
from tablegate.jobs.planning.plan import make_plan
from tablegate.jobs.running.queries import STALLED_S
from tablegate.jobs.running.running_table import RunningTable
from tests.kit.job.process import wait_until
from tests.kit.programs.kafka import NewRecord, RawRecord, consume

CONTRACT = Path("gateway/tablegate/gateway/cli/starter-project/orders.proto")
COLUMNS = {
    "order_count": "count_if(kafka.partition = 0)",
    "amount": "CAST(count_if(kafka.partition = 1) AS DOUBLE)",
}
JOB = """from tablegate.jobs import Json, Mode, Source, Table, Window

TABLE = Table(
    name="{name}",
    contract="orders.proto",
    source=Source("{topic}", Json("customer STRING, amount DOUBLE"){source}),
    key={{"customer": "customer"}},
    columns={columns},
    {more}
)
"""


def write_job(
    directory: Path,
    name: str,
    topic: str,
    *,
    columns: dict[str, str] = COLUMNS,
    source: str = "",
    more: str = "mode=Mode.MICROBATCH",
) -> str:
    """Declare the table; `source` and `more` are further arguments of `Source` and `Table`."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "orders.proto").write_text(CONTRACT.read_text().replace('"order_totals"', f'"{name}"'))
    path = directory / "job.py"
    path.write_text(JOB.format(name=name, topic=topic, columns=columns, source=source, more=more))
    return str(path)


def orders(
    customer: str, count: int, *, partition: int = 0, amount: float = 1.0, timestamp_ms: int | None = None
) -> list[NewRecord]:
    """Return records of one customer in one partition."""
    value = json.dumps({"customer": customer, "amount": amount}).encode()
    return [NewRecord(customer.encode(), value, partition=partition, timestamp_ms=timestamp_ms)] * count


@dataclass(frozen=True, slots=True)
class Written:
    """A row as a record of the changelog has it. `run`: of the job that wrote it."""

    customer: str
    sequence: int
    first: int
    second: float
    run: int = field(compare=False)


def newest_by_key(bootstrap: str, job: str, generation: int = 1) -> dict[bytes, RawRecord]:
    """Return the record of highest version of each key in the changelog; tombstones too."""
    newest: dict[bytes, RawRecord] = {}
    for record in consume(bootstrap, f"{load_table(job).name}-g{generation}-changelog"):
        key = record.key or b""
        if not is_marker_key(key) and (key not in newest or _version(record) > _version(newest[key])):
            newest[key] = record
    return newest


def _version(record: RawRecord) -> bytes:
    return dict(record.headers)[VERSION_HEADER]


def rows(bootstrap: str, job: str, generation: int = 1) -> dict[str, tuple[int, float]]:
    """Return both columns of each row that the changelog comes to, by customer."""
    contract = load_contract(load_table(job))
    decoder = RowDecoder(contract, {1: json.dumps(row_schema(contract))})
    values = [record.value for record in newest_by_key(bootstrap, job, generation).values()]
    found: list[Any] = [contract.row_class.FromString(decoder.decode(value)) for value in values if value is not None]
    return {row.customer: (row.order_count, row.amount) for row in found}


def written(bootstrap: str, job: str, generation: int = 1) -> list[Written]:
    """Return the rows in the changelog, in the order in which they were written."""
    table = load_table(job)
    contract = load_contract(table)
    decoder = RowDecoder(contract, {1: json.dumps(row_schema(contract))})
    found = []
    for record in consume(bootstrap, f"{table.name}-g{generation}-changelog"):
        if record.value is not None and not is_marker_key(record.key):
            row: Any = contract.row_class.FromString(decoder.decode(record.value))
            headers = dict(record.headers)
            _, sequence = read_version(Version(headers[VERSION_HEADER]))
            run = int.from_bytes(headers.get(RUN_HEADER, b""), "big")
            found.append(Written(row.customer, sequence, row.order_count, row.amount, run))
    return found


class JobInProcess:
    """A table kept in this process, on a session that tests share: a start takes two seconds instead of fifteen."""

    def __init__(
        self,
        spark: SparkSession,
        job: str,
        options: Options,
        *,
        generation: int | None = None,
        is_rebuild: bool = False,
        stalled_s: float = STALLED_S,
    ) -> None:
        plan = make_plan(load_table(job), options, generation=generation)
        self.table = RunningTable(spark, plan, options, is_rebuild=is_rebuild, stalled_s=stalled_s)

    def __enter__(self) -> "JobInProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.table.close()

    def run_until_read(self, topic: str, count: int) -> None:
        """Keep the table until it has read so many records of a topic."""

        def is_read() -> bool:
            self.table.poll()
            return sum(self.table.next_offsets.get(topic, {}).values()) >= count

        wait_until(f"{count} records read", is_read)
