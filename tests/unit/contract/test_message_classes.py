"""The classes of a contract's messages, which threads may not lose: a process ended by it (decision 198)."""

import gc
import subprocess
import sys
from typing import Any
from weakref import ref

import pytest

from tablegate.client.messages import Field, message_classes
from tablegate.client.queries import TableQueries
from tests.kit.table.filled import catalogue_of

# What lets the threads run within a collection is a client of Kafka that is garbage: it is ended there.
MEETS_A_CLASS_THAT_IS_COLLECTED = """
import gc, threading, time
from confluent_kafka import Producer
from tests.kit.table.filled import catalogue_of

asked = catalogue_of().queries["/examples.ratings.v1.RatingsService/SubscribeRatings"].response_class
answer = asked()
answer.progress.read_info.as_of_time.FromMilliseconds(5)
data = answer.SerializeToString()
del answer
gc.collect()
gc.disable()

def meet():
    collects.wait()
    while not ended.is_set():
        met.append(asked.FromString(data).progress.read_info)
        time.sleep(0.0003)

for _ in range(10):
    for _ in range(5):
        cycle = [Producer({"log_level": 0})]
        cycle.append(cycle)
    del cycle
    met, collects, ended = [], threading.Event(), threading.Event()
    asked.FromString(data).progress.read_info.as_of_time
    thread = threading.Thread(target=meet)
    thread.start()
    collects.set()
    gc.collect()
    ended.set()
    thread.join()
    assert all(info.HasField("as_of_time") for info in met)
    print(len(met))
"""
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


@pytest.mark.tools
def test_a_thread_may_meet_a_message_while_another_collects() -> None:
    ran = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", MEETS_A_CLASS_THAT_IS_COLLECTED],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    assert sum(map(int, ran.stdout.split())) > 0, "no thread ran within a collection: nothing was shown"
