"""Average rating per movie."""

from streamjobs.table import Mode, Source, Table

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
    source=Source(topic="ratings", schema=RATING_SCHEMA),
    key={"movie_id": "movie_id"},
    columns={
        "average_rating": "avg(rating)",
        "rating_count": "count(*)",
        "update_time": "max(kafka.timestamp)",
    },
    mode=Mode.REALTIME,
    # A short batch keeps reads that wait for a source offset, and replays after a crash, to a few seconds; it costs
    # about 15 % of a core when idle. With many Real-time Mode jobs on one machine, 60 is the better choice.
    trigger_s=5,
)
