"""What the client finds in a contract's messages: by types and annotations, never by names."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from tablegate.client import ContractMismatch, SourceRecord, Upsert, at_least_source
from tablegate.client.fields import response_fields
from tablegate.client.subscriber import Subscriber
from tests.kit.table.filled import catalogue_of

SHIFTS = Path(__file__).parent / "contracts/shifts.proto"
START = datetime(2026, 11, 21, 8, 0, 0, 123, tzinfo=UTC)
RATINGS_SERVICE = "/examples.ratings.v1.RatingsService"


def _query(method: str) -> Any:
    return catalogue_of(SHIFTS).queries[f"/shifts.v1.ShiftsService/{method}"]


def _shift(message: Any) -> Any:
    message.person = "ann"
    message.start.FromDatetime(START)
    return message


def test_the_key_is_in_the_tables_order_and_its_times_are_datetimes() -> None:
    query = _query("SubscribeShifts")
    response = query.response_class()
    _shift(response.what.add().now).hours = 8
    _shift(response.what.add().gone)
    upsert, delete = Subscriber(query.request_class()).receive(response)
    assert (upsert.key, upsert.row.hours) == (("ann", START), 8)
    assert (delete.key, delete.message.person) == (("ann", START), "ann")


def test_a_row_that_is_all_key_is_told_from_its_key() -> None:
    query = _query("SubscribeBadges")
    response = query.response_class()
    response.changes.add().now.code = "b7"
    assert Subscriber(query.request_class()).receive(response) == [Upsert("b7", response.changes[0].now)]


def _without_annotations(method: str) -> Any:
    """Return the response's class as code that was generated without our annotations has it."""
    pool = descriptor_pool.DescriptorPool()
    for file in catalogue_of(SHIFTS).files.file:
        bare = descriptor_pb2.FileDescriptorProto.FromString(file.SerializeToString())
        for message in bare.message_type:
            message.ClearField("options")
        pool.Add(bare)
    name = _query(method).response_class.DESCRIPTOR.full_name
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def test_without_annotations_the_row_is_what_has_more_columns() -> None:
    response = _without_annotations("SubscribeShifts")()
    _shift(response.what.add().gone)
    assert response_fields(response.DESCRIPTOR).key_of(response.what[0].gone) == (START, "ann")
    with pytest.raises(ContractMismatch, match="does not tell its row from its key"):
        response_fields(_without_annotations("SubscribeBadges").DESCRIPTOR)


def test_messages_of_other_queries_are_refused() -> None:
    get = catalogue_of().queries[f"{RATINGS_SERVICE}/GetRating"]
    scan = catalogue_of().queries[f"{RATINGS_SERVICE}/ScanRatings"]
    with pytest.raises(
        ContractMismatch, match=r"GetRatingRequest has no field of type tablegate\.v1\.SubscribeOptions"
    ):
        Subscriber(get.request_class())
    with pytest.raises(ContractMismatch, match="SubscribeProgress"):
        response_fields(scan.response_class.DESCRIPTOR)
    subscribe = catalogue_of().queries[f"{RATINGS_SERVICE}/SubscribeRatings"]
    with pytest.raises(ContractMismatch, match="ReadOptions"):
        at_least_source(subscribe.request_class(), SourceRecord("ratings", 0, 1))


class Acknowledged:
    """As confluent_kafka's Message."""

    def __init__(self, offset: int | None) -> None:
        self._offset = offset

    def topic(self) -> str:
        return "ratings"

    def partition(self) -> int:
        return 1

    def offset(self) -> int | None:
        return self._offset


def test_a_read_waits_for_the_newest_of_what_was_acknowledged() -> None:
    query = catalogue_of().queries[f"{RATINGS_SERVICE}/GetRating"]
    request: Any = query.request_class(movie_id=7)
    request.read_options.max_wait.seconds = 3
    asking = at_least_source(request, Acknowledged(5), SourceRecord("ratings", 1, 4), SourceRecord("movies", 0, 0))
    asking = at_least_source(asking, SourceRecord("ratings", 2, 9))
    topics = {topic.topic: dict(topic.offsets) for topic in asking.read_options.at_least_source.topics}
    assert topics == {"ratings": {1: 5, 2: 9}, "movies": {0: 0}}
    assert (asking.movie_id, asking.read_options.max_wait.seconds) == (7, 3)
    assert not request.read_options.HasField("at_least_source")


@pytest.mark.parametrize("wrong", [Acknowledged(None), Acknowledged(-1001), 7, SourceRecord("", 0, 0)])
def test_what_is_not_acknowledged_is_refused(wrong: Any) -> None:
    query = catalogue_of().queries[f"{RATINGS_SERVICE}/GetRating"]
    with pytest.raises(ValueError, match="is not acknowledged"):
        at_least_source(query.request_class(movie_id=7), wrong)
