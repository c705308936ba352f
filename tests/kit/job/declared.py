"""A declaration in a file."""

from pathlib import Path

JOB = """from tablegate.jobs.table import Avro, Source, Table
from tablegate.examples.tables.ratings import RATING_SCHEMA

TABLE = Table(
    name="{name}",
    contract="{contract}",
    source=Source("ratings", Avro(RATING_SCHEMA)),
    key={key},
    columns={columns},
)
"""

COLUMNS = {"average_rating": "avg(rating)", "rating_count": "count(*)", "update_time": "max(kafka.timestamp)"}


def write_job(
    directory: Path,
    *,
    name: str = "ratings",
    contract: str = "examples/ratings/v1/ratings.proto",
    key: dict[str, str] | None = None,
    columns: dict[str, str] = COLUMNS,
) -> str:
    path = directory / "job.py"
    path.write_text(JOB.format(name=name, contract=contract, key=key or {"movie_id": "movie_id"}, columns=columns))
    return str(path)
