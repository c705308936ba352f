"""Tests of declarations without Kafka and without a cluster: events in, the table's rows and outputs out.

    from tablegate.jobs.testing import Event, run_table

    def test_average() -> None:
        result = run_table(
            TABLE,
            [
                Event("ratings", value={"movie_id": 362, "rating": 10.0}),
                Event("ratings", value={"movie_id": 362, "rating": 8.0}),
            ],
        )
        assert result.rows[362,]["average_rating"] == 9.0
        assert result.outputs["rating-averages"] == ((362, 9.0),)

Spark starts at the first call, takes some seconds, and stays until the process ends.
"""

from tablegate.jobs.testing.events import Event, UnfitEvent
from tablegate.jobs.testing.results import Change, DeadLetter, OutputRecord, Result
from tablegate.jobs.testing.run import run_table
from tablegate.jobs.testing.session import stop_spark

__all__ = ["Change", "DeadLetter", "Event", "OutputRecord", "Result", "UnfitEvent", "run_table", "stop_spark"]
