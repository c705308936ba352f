"""The classes of a contract's messages, which threads may not lose: a process ended by it (decision 198)."""

import gc
from typing import Any
from weakref import ref

import pytest

from tablegate.client.messages import Field, message_classes
from tablegate.client.queries import TableQueries
from tests.kit.table.filled import catalogue_of

SERVICE = "/examples.ratings.v1.RatingsService"


def of_a_gateway() -> Any:
    return catalogue_of().queries[f"{SERVICE}/SubscribeRatings"].response_class().progress.read_info.as_of_time


def of_a_client() -> Any:
    queries = TableQueries(
        table="ratings",
        key=("movie_id",),
        row="examples.ratings.v1.Rating",
        scan=f"{SERVICE}/ScanRatings",
        batch_get="",
        keys_max=1,
        files=catalogue_of().files.SerializeToString(),
    )
    KEPT.append(queries)
    return queries.classes(queries.scan)[1]().progress.read_info.as_of_time


def of_an_error() -> Any:
    classes = message_classes("errors", {"Status": [Field("details", 1, "google.protobuf.Any", repeated=True)]})
    KEPT.append(classes)
    return classes["Status"]().details.add()


KEPT: list[Any] = []


@pytest.mark.parametrize("message", [of_a_gateway, of_a_client, of_an_error])
def test_a_class_stays_when_its_last_message_has_gone(message: Any) -> None:
    found = ref(type(message()))
    gc.collect()
    assert found() is not None
