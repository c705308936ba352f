"""What a query's failure means for its job."""

import pytest
from tablegate.jobs.errors import PythonWorkerLate, UnknownSchema


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


def test_an_unknown_schema_is_found_in_the_text_of_a_failure() -> None:
    found = UnknownSchema.found_in(f"RuntimeException: {UnknownSchema.message_prefix('orders')}17 (in stage 3)")
    assert found is not None
    assert (found.topic, found.schema_id) == ("orders", 17)
    assert UnknownSchema.found_in("RuntimeException: something else 17") is None
