"""The ratings table as a job of its own name, its input, and the fold of it without Spark."""

import io
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro

from tablegate.examples.tables.ratings import RATING_SCHEMA
from tests.kit.job.process import Row
from tests.kit.programs.kafka import NewRecord, RawRecord, consume

CONTRACT = Path("examples/tablegate/examples/contracts/examples/ratings/v1/ratings.proto")
RATINGS = 20_000
MOVIES = 500
PARTITIONS = 2
_AVRO = fastavro.parse_schema(json.loads(RATING_SCHEMA))
JOB = """from tablegate.jobs.table import Avro, Source, Table
from tablegate.examples.tables import ratings

TABLE = Table(
    name="{name}",
    contract="contract.proto",
    source=Source("{topic}", Avro(ratings.RATING_SCHEMA)),
    key=ratings.TABLE.key,
    columns=ratings.TABLE.columns,
    generation={generation},
    trigger_s=5,
)
"""


def write_job(directory: Path, name: str, topic: str, generation: int = 1) -> str:
    """Declare the ratings table under another name: each test has topics of its own on one broker."""
    contract = CONTRACT.read_text()
    for named in ("name", "table"):
        contract = contract.replace(f'{named}: "ratings"', f'{named}: "{name}"')
    (directory / "contract.proto").write_text(contract)
    path = directory / "job.py"
    path.write_text(JOB.format(name=name, topic=topic, generation=generation))
    return str(path)


def rating_record(movie: int, rating: float, schema_id: int = 1) -> NewRecord:
    out = io.BytesIO(b"\0" + schema_id.to_bytes(4, "big"))
    out.seek(5)
    fastavro.schemaless_writer(out, _AVRO, {"movie_id": movie, "rating": rating})
    return NewRecord(str(movie).encode(), out.getvalue())


def some_ratings(count: int, seed: int) -> list[NewRecord]:
    choice = random.Random(seed)
    return [
        rating_record(choice.randint(-MOVIES // 2, MOVIES // 2 - 1), choice.randint(2, 20) / 2) for _ in range(count)
    ]


def fold_source(bootstrap: str, topic: str, wanted: Callable[[RawRecord], bool] = lambda _: True) -> dict[int, Row]:
    """Return the table that the source's records make, or those that are wanted, computed without Spark."""
    sums: dict[int, tuple[float, int, int]] = {}
    for record in filter(wanted, consume(bootstrap, topic)):
        try:
            assert record.value is not None
            assert record.value[:1] == b"\0"
            rating: Any = fastavro.schemaless_reader(io.BytesIO(record.value[5:]), _AVRO, None)
        except (AssertionError, EOFError):
            continue
        total, count, newest_ms = sums.get(rating["movie_id"], (0.0, 0, 0))
        newest_ms = max(newest_ms, record.timestamp_ms)
        sums[rating["movie_id"]] = total + rating["rating"], count + 1, newest_ms
    return {movie: Row(total / count, count, newest_ms) for movie, (total, count, newest_ms) in sums.items()}
