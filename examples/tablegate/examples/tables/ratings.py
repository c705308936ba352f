"""Average rating per movie.

Decision: docs/decisions/0017-one-batch-a-minute.md
"""

from tablegate.jobs import Avro, Double, Long, Mode, RowOutput, Source, Table

RATING_SCHEMA = """{
  "type": "record",
  "name": "Rating",
  "namespace": "examples.ratings",
  "fields": [
    {"name": "movie_id", "type": "long"},
    {"name": "rating", "type": "double"}
  ]
}"""
"""Avro schema of the source's records."""

TABLE = Table(
    name="ratings",
    contract="examples/ratings/v1/ratings.proto",
    # Any producer may send a rating to any partition, so the rows are versioned by how many ratings they hold.
    source=Source("ratings", Avro(RATING_SCHEMA)),
    key={"movie_id": "movie_id"},
    columns={
        "average_rating": "avg(rating)",
        "rating_count": "count(*)",
        "update_time": "max(kafka.timestamp)",
    },
    # For consumers that know no Tablegate: Java's Long and Double.
    outputs=(RowOutput("rating-averages", key=Long("movie_id"), value=Double("average_rating")),),
    mode=Mode.REALTIME,
    # Between two batches a Real-time Mode job stands still for 0.2 to 0.4 s: with one batch a minute that meets fewer
    # than one event in a hundred. Shorter batches bring more markers (a read that waits for a source offset waits for
    # one), and cost more when idle.
    trigger_s=60,
)
