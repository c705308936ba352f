"""Worker processes over a store that this process writes: one port, drains, a wiped store, a parent that dies."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from tablegate.gateway.server.child import WORKER, ChildConfig
from tablegate.gateway.server.preflight import reserve_address
from tablegate.gateway.stores.lmdb.environment import wipe
from tablegate.gateway.stores.lmdb.store import LmdbStore
from tests.kit.gateway_processes.child import child_config, child_process
from tests.kit.programs.processes import alive
from tests.kit.table.filled import ROOT, catalogue_of, rating, ratings_table

GET = "/examples.ratings.v1.RatingsService/GetRating"
SUBSCRIBE = "/examples.ratings.v1.RatingsService/SubscribeRatings"
STREAMS = 3


@pytest.fixture
def address() -> Iterator[str]:
    reserved = reserve_address("127.0.0.1:0", insecure=False)
    with reserved.holder:
        yield reserved.address


def _config(store: Path, address: str, admin: str | None = None, log_settings: Path | None = None) -> ChildConfig:
    return child_config(
        "worker-0",
        store,
        address=address,
        admin_address=admin,
        streams=STREAMS,
        log_settings=None if log_settings is None else str(log_settings),
    )


def _worker(
    store: Path, address: str, admin: str | None = None, log_settings: Path | None = None
) -> AbstractContextManager["subprocess.Popen[str]"]:
    return child_process(WORKER, _config(store, address, admin, log_settings))


def _event(worker: "subprocess.Popen[str]") -> str:
    assert worker.stdout is not None
    return str(json.loads(worker.stdout.readline())["event"])


def _get(address: str, movie_id: int = 1) -> Any:
    query = catalogue_of().queries[GET]
    # A pool of its own: otherwise channels of one process share their connection.
    with grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        call = channel.unary_unary(GET, response_deserializer=query.response_class.FromString)
        return call(query.request_class(movie_id=movie_id).SerializeToString(), timeout=5, wait_for_ready=True)


def _health(address: str) -> int:
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(
            "/grpc.health.v1.Health/Check", response_deserializer=health_pb2.HealthCheckResponse.FromString
        )
        return int(call(b"", timeout=5, wait_for_ready=True).status)


def _soon(holds: Callable[[], bool], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_calls_are_logged_while_the_file_of_settings_says_so(tmp_path: Path, address: str) -> None:
    store, file = LmdbStore(tmp_path / "store"), tmp_path / "log.toml"
    ratings_table(store).put([rating(1)])
    file.write_text("")

    def lines(message: str) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
        return [line for line in found if line["message"] == message]

    def logs(message: str) -> bool:
        _get(address)
        return bool(lines(message))

    admin = reserve_address("127.0.0.1:0", insecure=False)

    def ask_as_the_console() -> bool:
        request = urllib.request.Request(f"http://{admin.address}{GET}", b'{"movieId": "1"}')
        request.add_header("content-type", "application/json")
        request.add_header("x-request-id", "of-the-console")
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.status == 200
        return "of-the-console" in [line["request_id"] for line in lines("call")]

    with admin.holder, _worker(tmp_path / "store", address, admin.address, file) as worker:
        assert [_event(worker), _event(worker)] == ["listening", "serving"]
        _get(address)
        assert not lines("call")
        file.write_text("access_log = true\nslow_call_ms = 0.000001\n")
        _soon(lambda: logs("call") and logs("slow call"), 30)
        assert {(line["method"], line["code"]) for line in lines("call")} == {(GET, "OK")}
        assert lines("slow call")[0]["reads"] == "1 of 3 partitions: that of its movie_id"
        _soon(ask_as_the_console, 30)
        file.write_text('level = "error"\n')

        def is_silent() -> bool:
            before = len(lines("call"))
            _get(address)
            return len(lines("call")) == before

        _soon(is_silent, 30)
    store.close()


def test_two_workers_share_a_port_and_one_goes_on_alone(tmp_path: Path, address: str) -> None:
    host, _, port = address.rpartition(":")
    store = LmdbStore(tmp_path / "store")
    ratings_table(store).put([rating(1)])
    with _worker(tmp_path / "store", address) as one, _worker(tmp_path / "store", address) as other:
        assert [_event(one), _event(one)] == ["listening", "serving"]
        assert [_event(other), _event(other)] == ["listening", "serving"]
        sockets = {pid: _sockets(pid) for pid in (one.pid, other.pid)}
        with ExitStack() as clients:
            for _ in range(40):
                clients.enter_context(socket.create_connection((host, int(port))))
            _soon(lambda: all(_sockets(pid) > before for pid, before in sockets.items()))
        one.terminate()
        assert one.wait(10) == 0
        for _ in range(20):
            assert _get(address).rating.movie_id == 1
    store.close()


def _sockets(pid: int) -> int:
    """Return how many sockets a process has open."""
    return sum(os.readlink(link).startswith("socket:") for link in Path(f"/proc/{pid}/fd").iterdir())


def test_a_worker_waits_for_its_store_and_follows_a_new_one(tmp_path: Path, address: str) -> None:
    path = tmp_path / "store"
    with _worker(path, address) as worker:
        assert _event(worker) == "listening"
        assert _health(address) == 2
        with pytest.raises(grpc.RpcError) as refused:
            _get(address)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        store = LmdbStore(path)
        ratings_table(store).put([rating(1, 4.0)])
        assert _event(worker) == "serving"
        assert _get(address).rating.average_rating == 4.0
        store.close()
        wipe(path)
        assert _event(worker) == "not-serving"
        store = LmdbStore(path)
        ratings_table(store).put([rating(1, 6.0)])
        assert _event(worker) == "serving"
        assert _get(address).rating.average_rating == 6.0
        assert _health(address) == 1
        store.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains(tmp_path: Path, address: str, number: signal.Signals) -> None:
    store = LmdbStore(tmp_path / "store")
    ratings_table(store).put([rating(1)])
    with _worker(tmp_path / "store", address) as worker:
        assert [_event(worker), _event(worker)] == ["listening", "serving"]
        query = catalogue_of().queries[GET]
        request: Any = query.request_class(movie_id=1)
        request.read_options.at_least_source.topics.add(topic="ratings").offsets[0] = 10**9
        request.read_options.max_wait.nanos = 700_000_000
        with grpc.insecure_channel(address) as channel:
            grpc.channel_ready_future(channel).result(5)
            waiting = channel.unary_unary(GET).future(request.SerializeToString(), timeout=10)
            watched = channel.unary_stream(
                "/grpc.health.v1.Health/Watch", response_deserializer=health_pb2.HealthCheckResponse.FromString
            )(b"")
            assert next(watched).status == health_pb2.HealthCheckResponse.SERVING
            time.sleep(0.2)
            worker.send_signal(number)
            assert next(watched).status == health_pb2.HealthCheckResponse.NOT_SERVING
            with pytest.raises(grpc.RpcError) as told:
                next(watched)
            assert told.value.details() == "the gateway is shutting down; connect again"
            assert waiting.exception(5).code() is grpc.StatusCode.UNAVAILABLE
            assert "not fresh enough" in waiting.details()  # it was answered, not cut
        assert worker.wait(10) == 0
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert {line["process"] for line in lines} == {"worker-0"}
    assert "draining" in {line["message"] for line in lines}
    store.close()


def test_the_admin_port_says_why_a_worker_is_not_ready(tmp_path: Path, address: str) -> None:
    path = tmp_path / "store"
    reserved = reserve_address("127.0.0.1:0", insecure=False)
    with reserved.holder, _worker(path, address, admin=reserved.address) as worker:
        assert _event(worker) == "listening"
        status, text = _readiness(reserved.address)
        assert status == 503
        assert text.startswith("the store is away: ")
        with closing(LmdbStore(path)) as store:
            ratings_table(store).put([rating(1)])
            assert _event(worker) == "serving"
            assert _readiness(reserved.address) == (200, "ok\n")
            worker.terminate()
            assert worker.wait(10) == 0


def _readiness(address: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}/readyz", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_a_worker_has_as_many_streams_as_it_is_told(tmp_path: Path, address: str) -> None:
    store = LmdbStore(tmp_path / "store")
    ratings_table(store).put([rating(1)])
    with _worker(tmp_path / "store", address) as worker, grpc.insecure_channel(address) as channel:
        assert _event(worker) == "listening"
        subscribe = channel.unary_stream(SUBSCRIBE)
        streams = [subscribe(b"", timeout=30) for _ in range(STREAMS)]
        for stream in streams:
            next(stream)
        with pytest.raises(grpc.RpcError) as refused:
            next(subscribe(b"", timeout=30))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert f"all clients together have {STREAMS} streams at work here" in refused.value.details()
        for stream in streams:
            stream.cancel()
    store.close()


def test_a_worker_whose_certificate_is_none_says_so(tmp_path: Path, address: str) -> None:
    for name in ("server.pem", "server.key"):
        (tmp_path / name).write_text("junk")
    tls = [str(tmp_path / "server.pem"), str(tmp_path / "server.key"), None]
    settings = json.dumps({**json.loads(_config(tmp_path / "store", address).to_json()), "tls": tls})
    command = [sys.executable, "-m", "tablegate.gateway.server", WORKER]
    run = subprocess.run(
        command, input=settings + "\n", capture_output=True, text=True, cwd=ROOT, timeout=60, check=False
    )
    assert (run.returncode, run.stdout, run.stderr) == (1, "", "")
    *_, line = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert line["message"] == "the worker cannot serve"
    assert "server.pem" in line["reason"]
    assert "exception" not in line


def test_a_worker_does_not_outlive_its_parent(tmp_path: Path, address: str) -> None:
    code = (
        "import subprocess, sys, time\n"
        "child = [sys.executable, '-m', 'tablegate.gateway.server', 'worker']\n"
        "child = subprocess.Popen(child, stdin=subprocess.PIPE)\n"
        "import os; text = sys.stdin.readline().replace('PARENT', str(os.getpid()))\n"
        "child.stdin.write(text.encode()); child.stdin.close(); print(child.pid, flush=True); time.sleep(60)\n"
    )
    settings = json.loads(_config(tmp_path / "store", address).to_json())
    text = json.dumps({**settings, "parent": 0}).replace('"parent": 0', '"parent": PARENT')
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    out, _ = _killed_after(parent, text + "\n")
    child = int(out.split()[0])
    _soon(lambda: not alive(child))


def _killed_after(parent: "subprocess.Popen[str]", text: str) -> tuple[str, None]:
    """Feed `parent`, let its child listen, kill it with -9; return what it printed first."""
    assert parent.stdin is not None
    assert parent.stdout is not None
    parent.stdin.write(text)
    parent.stdin.flush()
    pid = parent.stdout.readline()
    assert "listening" in parent.stdout.readline()
    assert alive(int(pid))
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdin.close()
    parent.stdout.close()
    return pid, None
