"""The log of calls, request ids, and the settings that switch the log while a gateway runs."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tablegate.gateway.http.rpc.calls import REQUEST_ID_MAX, ServedCall, request_id_of, trace_of
from tablegate.gateway.http.server import HttpServer
from tablegate.gateway.query.call import Call, UnaryMethod
from tablegate.gateway.query.explain import Explainer
from tablegate.gateway.query.service import query_methods, table_accesses
from tablegate.gateway.query.serving import wall_clock_ms
from tablegate.gateway.server.call_log import CallLog
from tablegate.gateway.server.log_settings import (
    FILE_BYTES_MAX,
    LogSettings,
    LogSettingsError,
    WatchedLogSettings,
    read_log_settings,
)
from tablegate.gateway.stores.notifier import Notifier
from tests.kit.gateway_processes.gateway import soon
from tests.kit.gateways_in_process.cluster import GrpcCluster
from tests.kit.gateways_in_process.threaded import ServerThread
from tests.kit.store.memory import MemoryStore
from tests.kit.table.filled import SIGNER, catalogue_of, rating, ratings_table

SERVICE = "/examples.ratings.v1.RatingsService"
GET = f"{SERVICE}/GetRating"
BROKEN = "/test.Service/Broken"
LOGGER = "tablegate.gateway.calls"


class Served:
    """A gateway of one process, and the log of its calls."""

    def __init__(self, *, slow_lines_max: int = 10) -> None:
        catalogue, store, notifier = catalogue_of(), MemoryStore(), Notifier()
        ratings_table(store).put([rating(362)])
        accesses = table_accesses(catalogue, store, SIGNER, notifier, ends=None, router=None, now_ms=wall_clock_ms)
        self.log = CallLog(Explainer(catalogue, accesses).explain, slow_lines_max=slow_lines_max)

        def broken(_data: bytes, _call: Call) -> bytes:
            raise RuntimeError("a mistake")

        methods = {**query_methods(catalogue, store, SIGNER, notifier), BROKEN: UnaryMethod(broken, 5, 5)}
        self.server = HttpServer(methods, "127.0.0.1:0")
        self.server.calls.on_ended = self.log.note


@pytest.fixture
def served(caplog: pytest.LogCaptureFixture) -> Served:
    caplog.set_level(logging.INFO)
    return Served()


def _ask(port: int, path: str, data: bytes = b"", **metadata: str) -> tuple[grpc.StatusCode, dict[str, Any]]:
    """Return the status of a call, and what followed the answer."""
    sent = tuple((name.replace("_", "-"), value) for name, value in metadata.items())
    with grpc.insecure_channel(f"127.0.0.1:{port}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
        try:
            _, call = channel.unary_unary(path).with_call(data, timeout=30, metadata=sent)
        except grpc.RpcError as error:
            return error.code(), dict(error.trailing_metadata())  # type: ignore[attr-defined]
        return grpc.StatusCode.OK, dict(call.trailing_metadata())


def _request(movie_id: int) -> bytes:
    data: bytes = catalogue_of().queries[GET].request_class(movie_id=movie_id).SerializeToString()
    return data


def _lines(caplog: pytest.LogCaptureFixture, message: str) -> list[dict[str, Any]]:
    return [vars(record) for record in caplog.records if record.name == LOGGER and record.message == message]


def test_each_call_is_a_line_where_that_is_asked_for(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    with ServerThread(lambda: served.server) as server:
        _ask(server.port, GET, _request(362))
        assert not _lines(caplog, "call")
        served.log.logs_all = True
        _ask(server.port, GET, _request(362), x_request_id="order-17")
        _ask(server.port, GET, _request(4))
    found, missing = _lines(caplog, "call")
    assert (found["method"], found["code"], found["request_id"]) == (GET, "OK", "order-17")
    assert (found["role"], found["address"], found["forwarded"]) == ("owner", "127.0.0.1", False)
    assert found["ms"] > 0
    assert missing["code"] == "NOT_FOUND"
    assert len(missing["request_id"]) == 32


def test_a_slow_call_is_logged_with_its_explanation(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    served.log.slow_s = 3_600.0
    with ServerThread(lambda: served.server) as server:
        _ask(server.port, GET, _request(362))
        served.log.slow_s = 0.000_001
        _ask(server.port, GET, _request(362))
        _ask(server.port, GET, b"\xff")
    slow, wrong = _lines(caplog, "slow call")
    assert (slow["query"], slow["table"]) == ("Get", "ratings")
    assert slow["reads"] == "1 of 3 partitions: that of its movie_id"
    [partition] = slow["partitions"]
    assert (partition["route"], partition["why"]) == ("here", "this gateway has it")
    assert wrong["code"] == "INVALID_ARGUMENT"
    assert "partitions" not in wrong
    assert "362" not in str({name: value for name, value in slow.items() if name in ("reads", "partitions")})


def test_no_more_than_some_slow_calls_a_second_are_explained(caplog: pytest.LogCaptureFixture) -> None:
    served = Served(slow_lines_max=0)
    served.log.slow_s = 0.000_001
    with ServerThread(lambda: served.server) as server:
        for _ in range(3):
            _ask(server.port, GET, _request(362))
    assert not _lines(caplog, "slow call")


def test_a_mistake_of_ours_is_found_by_its_request_id(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    with ServerThread(lambda: served.server) as server:
        code, trailer = _ask(server.port, BROKEN)
        assert code is grpc.StatusCode.INTERNAL
        assert _ask(server.port, BROKEN, x_request_id="order-17")[1]["x-request-id"] == "order-17"
        assert "x-request-id" not in _ask(server.port, GET, _request(4))[1], "the log has nothing of it"
    errors = [vars(record) for record in caplog.records if record.message == "a handler failed"]
    assert [error["request_id"] for error in errors] == [trailer["x-request-id"], "order-17"]


def _key_of_the_other(cluster: GrpcCluster) -> int:
    """Put rows, and return the key of one that gateway a has not."""
    rows = [rating(number) for number in range(20)]
    cluster.put(rows)
    return next(row.movie_id for row in rows if cluster.whole.table.partition_of(row) in (3, 4, 5))


def test_a_forwarded_call_keeps_its_request_id(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with GrpcCluster({"a": [0, 1, 2], "b": [3, 4, 5]}) as cluster:
        there = _key_of_the_other(cluster)
        log = CallLog(lambda *_: pytest.fail("nothing is slow"))
        log.logs_all = True
        for name in ("a", "b"):
            cluster[name].served_calls.on_ended = log.note
        port = cluster["a"].port
        assert _ask(port, GET, _request(there), x_request_id="order-17")[0] is grpc.StatusCode.OK
        assert _ask(port, GET, _request(there))[0] is grpc.StatusCode.OK
        soon(lambda: len(_lines(caplog, "call")) == 4, "both gateways log both calls")
    lines = _lines(caplog, "call")
    assert [line["forwarded"] for line in lines] == [True, False, True, False]
    ids = [line["request_id"] for line in lines]
    assert ids[:2] == ["order-17", "order-17"]
    assert ids[2] == ids[3] != "order-17"


TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACE_PARENT = f"00-{TRACE_ID}-00f067aa0ba902b7-01"


def test_a_trace_goes_on_through_a_forward(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    received: list[tuple[bytes | None, bytes | None]] = []
    with GrpcCluster({"a": [0, 1, 2], "b": [3, 4, 5]}) as cluster:
        there = _key_of_the_other(cluster)
        log = CallLog(lambda *_: pytest.fail("nothing is slow"))
        log.logs_all = True

        def note(call: ServedCall, path: str, code: str, took_s: float) -> None:
            headers = call.exchange.headers
            received.append((headers.get(b"traceparent"), headers.get(b"tracestate")))
            log.note(call, path, code, took_s)

        for name in ("a", "b"):
            cluster[name].served_calls.on_ended = note
        _ask(cluster["a"].port, GET, _request(there), traceparent=TRACE_PARENT, tracestate="shop=17")
        soon(lambda: len(received) == 2, "both gateways have it")
        _ask(cluster["a"].port, GET, _request(there), traceparent="00-evil", tracestate="shop=17")
        soon(lambda: len(received) == 4, "both gateways have that, too")
    assert received[:2] == [(TRACE_PARENT.encode(), b"shop=17")] * 2
    assert received[2] == (None, None), "what is no trace is not sent on"
    assert [line.get("trace_id") for line in _lines(caplog, "call")] == [TRACE_ID, TRACE_ID, None, None]


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        b"00-00000000000000000000000000000000-00f067aa0ba902b7-01",
        b"00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
        b"00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
        b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\n",
    ],
)
def test_what_is_no_trace_is_none(value: bytes) -> None:
    assert trace_of({b"traceparent": value, b"tracestate": b"shop=17"}) == ("", ())


@pytest.mark.parametrize("state", [b"x" * 513, b"a=\n", b" a=1", "ä=1".encode()])
def test_a_trace_goes_on_without_what_is_no_state(state: bytes) -> None:
    headers = {b"traceparent": TRACE_PARENT.encode(), b"tracestate": state}
    assert trace_of(headers) == (TRACE_ID, (("traceparent", TRACE_PARENT),))


@pytest.mark.parametrize("value", [b"", b"two\nlines", b"\x1b[31m", b"x" * (REQUEST_ID_MAX + 1), "ä".encode(), b"a b"])
def test_what_may_not_stand_in_a_log_is_no_request_id(value: bytes) -> None:
    made = request_id_of({b"x-request-id": value})
    assert len(made) == 32
    assert made != request_id_of({b"x-request-id": value})


def test_request_ids_of_others_are_taken() -> None:
    for value in (b"0af7651916cd43dd8448eb211c80319c", b"1b9d6bcd-bbfd-4b2d-9b5d-ab8dfbbd4bed", b"x" * REQUEST_ID_MAX):
        assert request_id_of({b"x-request-id": value}) == value.decode()


# The settings.


@pytest.fixture(autouse=True)
def _root_level() -> Iterator[None]:
    level = logging.getLogger().level
    yield
    logging.getLogger().setLevel(level)


def test_settings_count_once_the_file_stays_as_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "log.toml"
    file.write_text("access_log = true\n")
    watched = WatchedLogSettings(file, logging.WARNING)
    assert watched.now == LogSettings(level=logging.WARNING, access_log=True)
    file.write_text('level = "debug"\nslow_call_ms = 250\n')
    watched.refresh()
    assert watched.now.access_log, "it may be half written"
    watched.refresh()
    assert watched.now == LogSettings(level=logging.DEBUG, slow_s=0.25)
    assert logging.getLogger().level == logging.DEBUG
    file.write_text("slow_call_ms = ")
    for _ in range(3):
        watched.refresh()
    assert watched.now.slow_s == 0.25
    [line] = [vars(record) for record in caplog.records if "log settings" in record.message]
    assert str(file) in line["reason"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("level = 3", "level is a text"),
        ('level = "loud"', '"loud" is no level of a log; give one of debug, info, warning, error'),
        ("access_log = 1", "access_log is true or false"),
        ("slow_call_ms = true", "slow_call_ms is a number of milliseconds"),
        ("slow_call_ms = -1", "slow_call_ms is a number of milliseconds"),
        ("slow_call_ms = nan", "slow_call_ms is a number of milliseconds"),
        ("slow_calls_ms = 1", 'has "slow_calls_ms", which is no setting'),
        ("level = ", "is no TOML"),
        (f"slow_call_ms = {'9' * 5_000}", "is no TOML"),
        (
            "access_log = true\n" + "#\n" * FILE_BYTES_MAX,
            f"is longer than {FILE_BYTES_MAX} bytes; is it the right file?",
        ),
    ],
)
def test_settings_that_are_wrong_are_named(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "log.toml"
    file.write_text(text)
    with pytest.raises(LogSettingsError) as wrong:
        read_log_settings(file, logging.INFO)
    assert why in str(wrong.value)


def test_a_file_of_settings_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(LogSettingsError, match="cannot be read: No such file"):
        read_log_settings(tmp_path / "log.toml", logging.INFO)
