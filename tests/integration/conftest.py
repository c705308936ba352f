"""What tests with Kafka and Spark share, and in which order their files run.

Decision: docs/decisions/0172-further-cases-are-tested-at-night.md
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tablegate.examples.demo.kafka import Broker
from tablegate.jobs.planning.options import Options
from tablegate.jobs.running.session import spark_session
from tablegate.jobs.testing import stop_spark

# Files that take minutes, the longest first: begun last, one of them keeps one process busy while the others are done.
# xdist would begin with those of most tests, so `make test` has --no-loadscope-reorder. Look at --durations=0 now and
# then, and put this right.
LONGEST_FIRST = (
    "test_cluster_faults.py",
    "test_job_restarts.py",
    "test_folds_of_tables.py",
    "test_secure_kafka.py",
    "test_job_commands.py",
    "test_timers_after_kills.py",
    "test_job_seeding.py",
    "test_kit.py",
    "test_alerts.py",
    "test_expiring_rows.py",
    "test_job_run.py",
    "test_frozen_runs.py",
    "test_wheels.py",
    "test_job_records.py",
    "test_demo.py",
    "test_topic_patterns.py",
    "test_history.py",
    "test_job_audit.py",
    "test_subscribe.py",
    "test_gateway_kafka.py",
    "test_tutorial.py",
    "test_local_kafka.py",
    "test_realtime_slots.py",
    "test_rows_of_tables.py",
    "test_cluster_demo.py",
    "test_atomic_batches.py",
    "test_frame_tables.py",
    "test_elements.py",
    "test_gateway_redis.py",
    "test_publishing.py",
    "test_read_your_writes.py",
    "test_network_faults.py",
)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session of a module's jobs in this process."""
    directory = tmp_path_factory.mktemp("spark")
    stop_spark()  # that of another module's declarations has too few slots
    # Slots for a table in Real-time Mode with two partitions here and there, and two for micro-batches beside it.
    with spark_session("tests", master="local[6]", checkpoints=str(directory), spark_log=directory / "log") as session:
        yield session


@pytest.fixture
def options(broker: Broker, tmp_path: Path) -> Options:
    """What such a job is started with."""
    return Options(bootstrap=broker.bootstrap, checkpoints=str(tmp_path / "checkpoints"))
