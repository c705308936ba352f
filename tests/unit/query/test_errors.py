from google.protobuf.any_pb2 import Any
from google.rpc import code_pb2, error_details_pb2

from tablegate.gateway.query import errors
from tablegate.gateway.query.errors import STATUS_OF_REASON, QueryError, code_of, reason_of, status_of
from tablegate.v1 import errors_pb2


def _classes(of: type[QueryError] = QueryError) -> set[type[QueryError]]:
    """Return the errors of this gateway."""
    direct = set(of.__subclasses__()) - {errors.PeerError}
    return direct.union(*(_classes(each) for each in direct))


def test_every_reason_has_a_status_and_a_class() -> None:
    reasons = set(errors_pb2.ErrorReason.values()) - {errors_pb2.ERROR_REASON_UNSPECIFIED}
    assert set(STATUS_OF_REASON) == reasons
    assert {error.reason for error in _classes()} == reasons


def test_every_unavailable_error_says_when_to_come_again() -> None:
    for error in _classes():
        if STATUS_OF_REASON[error.reason] == code_pb2.UNAVAILABLE:
            assert error.retry_after_ms, error


def test_the_comments_of_the_reasons_name_the_statuses_of_the_table() -> None:
    """The proto is what users read: each reason's comment begins with its status."""
    from pathlib import Path

    text = Path(__file__).parents[3].joinpath("proto/tablegate/v1/errors.proto").read_text()
    for reason, code in STATUS_OF_REASON.items():
        name = errors_pb2.ErrorReason.Name(reason)  # type: ignore[arg-type]
        comment = text[: text.index(f"{name} =")].rpartition(";\n")[2]
        assert f"// {code_pb2.Code.Name(code)}" in comment, name


def test_a_status_carries_info_field_and_retry() -> None:
    status = status_of(errors.InvalidField("page_size", "is negative; send 0"))
    assert status.code == code_pb2.INVALID_ARGUMENT
    info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    assert _unpacked(status.details[0], info)
    assert (info.reason, info.domain) == ("INVALID_FIELD", "tablegate")
    assert _unpacked(status.details[1], bad)
    assert bad.field_violations[0].field == "page_size"

    status = status_of(errors.PartitionUnavailable("ratings", 3, "it is being restored"))
    retry = error_details_pb2.RetryInfo()
    assert _unpacked(status.details[0], info)
    assert dict(info.metadata) == {"table": "ratings", "partition": "3"}
    assert _unpacked(status.details[1], retry)
    assert retry.retry_delay.ToMilliseconds() == 500


def test_a_missing_row_names_its_table() -> None:
    error = errors.RowNotFound("ratings", "examples.ratings.v1.Rating")
    resource = error_details_pb2.ResourceInfo()
    assert _unpacked(status_of(error).details[1], resource)
    assert (resource.resource_type, resource.resource_name) == ("examples.ratings.v1.Rating", "ratings")
    assert code_of(error) == code_pb2.NOT_FOUND
    assert reason_of(error) == "ROW_NOT_FOUND"


def _unpacked(packed: Any, into: object) -> bool:
    return packed.Unpack(into)  # type: ignore[arg-type]
