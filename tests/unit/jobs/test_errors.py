"""What a query's failure means for its job."""

import pytest

from tablegate.jobs.dataflow.java_errors import raised_in_function, raised_in_query
from tablegate.jobs.errors import CheckpointConflict, PythonWorkerLate, ShuffleBroken, UnknownSchema


@pytest.mark.parametrize(
    ("reason", "is_late"),
    [
        ("SocketTimeoutException: Timed out while waiting for the Python worker to connect back", True),
        ("SparkException: Python worker failed to connect back.", True),
        ("SparkException: Python worker exited unexpectedly (crashed)", False),
        ("ProcessorError: on_record failed", False),
    ],
)
def test_a_python_worker_that_is_late_is_no_fault_of_the_job(reason: str, is_late: bool) -> None:
    assert (PythonWorkerLate.found_in(reason) is not None) == is_late


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        (
            "SparkRuntimeException: [USER_RAISED_EXCEPTION] no way: do this a.py:b SQLSTATE: P0001",
            "no way: do this a.py:b",
        ),
        ("SparkRuntimeException: [USER_RAISED_EXCEPTION] no way", "no way"),
        (
            "ArithmeticException: [DIVIDE_BY_ZERO] SQLSTATE: 22012",
            "ArithmeticException: [DIVIDE_BY_ZERO] SQLSTATE: 22012",
        ),
    ],
)
def test_what_a_query_raises_on_purpose_is_said_as_it_is(reason: str, expected: str) -> None:
    assert raised_in_query(reason) == expected


def rename_refused(path: str) -> str:
    """Return what Spark says where a file has appeared after it found that there was none."""
    return (
        f"SparkFileAlreadyExistsException: [FAILED_RENAME_PATH] Failed to rename file:{path}.tmp to file:{path} "
        "as destination already exists. SQLSTATE: 42K04"
    )


@pytest.mark.parametrize(
    ("reason", "is_conflict"),
    [
        ("SparkException: [CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log. Multiple streaming jobs", True),
        (rename_refused("/data/g1/table/offsets/2"), True),
        (rename_refused("/data/g1/dead-letters/commits/2"), True),
        (rename_refused("/data/out/2"), False),
        ("SparkException: Job aborted", False),
    ],
)
def test_another_writer_of_a_checkpoint_is_told_from_other_failures(reason: str, is_conflict: bool) -> None:
    assert (CheckpointConflict.found_in(reason) is not None) == is_conflict


def test_an_unknown_schema_is_found_in_the_text_of_a_failure() -> None:
    found = UnknownSchema.found_in(f"RuntimeException: {UnknownSchema.message_prefix('orders')}17 (in stage 3)")
    assert found is not None
    assert (found.topic, found.schema_id) == ("orders", 17)
    assert UnknownSchema.found_in("RuntimeException: something else 17") is None


WORKER = """[PYTHON_EXCEPTION] An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/venv/pyspark/worker.py", line 4207, in invoke_udf
    func(
  File "/home/me/scores.py", line 12, in scored
    return 1 / 0
ZeroDivisionError: division by zero
 SQLSTATE: 39000"""


def test_a_function_that_raises_is_named_with_its_line() -> None:
    assert raised_in_function(WORKER) == "/home/me/scores.py:12: ZeroDivisionError: division by zero"
    without = WORKER.replace("/home/me/scores.py", "/venv/pyspark/serializers.py")
    assert raised_in_function(without) == "ZeroDivisionError: division by zero"
    assert raised_in_function("TimeoutException: no broker") is None


@pytest.mark.parametrize(
    ("reason", "is_broken"),
    [
        ("SparkException: Connection to streaming shuffle writer 1 closed before termination; the writer failed", True),
        ("RuntimeException: Error sending credit control message to shuffle writer 0: Broken pipe", True),
        ("SparkException: the writer task failed", False),
    ],
)
def test_a_task_that_lost_its_writer_is_no_fault_of_the_job(reason: str, is_broken: bool) -> None:
    """Real-time Mode may name the reader in the place of the task that has ended: its own reason comes another time."""
    assert (ShuffleBroken.found_in(reason) is not None) is is_broken
