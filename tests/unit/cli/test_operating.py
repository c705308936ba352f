"""Commands for those who run gateways: what a cluster's status shows, explaining, draining."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tablegate.gateway.http.server import HttpServer
from tablegate.gateway.query.call import Call, UnaryMethod
from tablegate.gateway.server.metadata import metadata_methods, status_methods
from tablegate.gateway.server.preflight import Holder, holder_of, lock_data
from tablegate.gateway.stores.notifier import Notifier
from tablegate.v1.cluster_pb2 import REPLICA_PHASE_LIVE, REPLICA_PHASE_RESTORING
from tablegate.v1.status_pb2 import GenerationState, GetStatusResponse, PartitionState, TableState
from tests.kit.command_line import COMMAND
from tests.kit.gateways_in_process.threaded import ServerThread
from tests.kit.store.memory import MemoryStore
from tests.kit.table.filled import SIGNER, catalogue_of, rating, ratings_table

LIVE, RESTORING = REPLICA_PHASE_LIVE, REPLICA_PHASE_RESTORING
Placement = dict[str, dict[int, int]]
"""From a gateway's name to its partitions, with their phases."""


def _status(
    held: Placement, *, own: str = "a", away: Sequence[str] = (), draining: Sequence[str] = (), replicas: int = 2
) -> bytes:
    """Return what gateway `own` of a cluster says of a table of 4 partitions."""
    status = GetStatusResponse(kafka_reachable=True, gateway_id=own)
    for name, partitions in held.items():
        told = status.gateways.add(alive=name not in away)
        told.beat_time.FromMilliseconds(1_700_000_000_000 - (14_000 if name in away else 0))
        told.record.gateway_id, told.record.endpoint, told.record.zone = name, f"{name}.example:7", f"zone-{name}"
        told.record.draining = name in draining
        serving = told.record.tables.add(table="ratings", replicas=replicas).serving
        serving.generation = 1
        for partition, phase in partitions.items():
            serving.partitions.append(partition)
            serving.phases.append(phase)  # type: ignore[arg-type]
            serving.next_offsets.append(5)
    table = status.tables.add(table="ratings", serving=True)
    table.manifest.generation, table.manifest.partition_count = 1, 4
    table.manifest.changelog_topic = "ratings-g1-changelog"
    for partition, phase in held.get(own, {}).items():
        table.partitions.add(partition=partition, phase=phase, next_offset=5, end_offset=25)  # type: ignore[arg-type]
    return status.SerializeToString()


class _Gateway:
    """A gateway whose replicator's words are written by hand: once it drains, it says the next of `steps` each time."""

    def __init__(self, status: bytes) -> None:
        self.address = ""
        self.is_told = False
        self.steps: deque[bytes] = deque()
        self._store = MemoryStore()
        self._store.set_status(status)

    def tell(self) -> None:
        """Have it drain."""
        self.is_told = True

    def server(self) -> HttpServer:
        """Return its server."""
        [(path, method)] = status_methods(self._store).items()
        assert isinstance(method, UnaryMethod)
        answer = method.handler

        def get_status(data: bytes, call: Call) -> bytes | Awaitable[bytes]:
            if self.is_told and self.steps:
                self._store.set_status(self.steps.popleft())
            return answer(data, call)

        return HttpServer({path: UnaryMethod(get_status, 5, 5)}, "127.0.0.1:0")


@contextmanager
def _serving(status: bytes) -> Iterator[_Gateway]:
    gateway = _Gateway(status)
    with ServerThread(gateway.server) as server:
        gateway.address = f"127.0.0.1:{server.port}"
        yield gateway


def _run(*words: str) -> Result:
    return CliRunner().invoke(COMMAND, list(words), env={"COLUMNS": "200"})


WHOLE: Placement = {"a": {0: LIVE, 1: RESTORING, 3: LIVE}, "b": {0: LIVE, 1: LIVE}, "c": {2: LIVE}}


def _lines(result: Result) -> list[list[str]]:
    return [line.split() for line in result.stdout.splitlines()]


def test_status_shows_the_cluster_and_who_has_each_partition() -> None:
    with _serving(_status(WHOLE, draining=["b"])) as gateway:
        result = _run("status", "--address", gateway.address)
        as_json = json.loads(_run("status", "--address", gateway.address, "--json").stdout)
    assert result.exit_code == 0
    lines = _lines(result)
    assert lines[0][:2] == ["gateway", "a,"]
    assert lines[3] == ["a", "a.example:7", "zone-a", "alive", "0.0", "s", "ago", "ratings", "2", "+", "1", "restoring"]
    assert lines[4][3:] == ["draining", "0.0", "s", "ago", "ratings", "2"]
    assert "ratings serving, generation 1 of ratings-g1-changelog" in result.stdout
    owners = {line[0]: line[1:] for line in lines[8:]}
    # One that drains comes last.
    assert owners["0"] == ["a", "b", "live", "5", "25", "20"]
    assert owners["1"] == ["b", "a", "restoring", "restoring", "5", "25", "20"]
    assert owners["2"] == ["c"]
    assert [each["record"]["gateway_id"] for each in as_json["gateways"]] == ["a", "b", "c"]


TWICE: Placement = {"a": {0: LIVE, 1: LIVE, 3: LIVE}, "b": {0: LIVE, 1: LIVE, 2: LIVE}, "c": {2: LIVE, 3: LIVE}}


@pytest.mark.parametrize(
    ("said", "exit_code"),
    [
        (_status(TWICE), 0),
        (_status(TWICE, replicas=3), 1),
        (_status(TWICE, replicas=0), 1),  # each on all
        (_status({**TWICE, "c": {2: RESTORING, 3: LIVE}}), 1),
        (_status(TWICE, away=["b"]), 1),  # two live, and are to have everything
        (_status({"a": dict.fromkeys(range(4), LIVE), "b": {}}, away=["b"]), 0),  # there is no second
        (_status(TWICE, away=["a"]), 1),  # it has not joined yet
    ],
)
def test_status_says_whether_each_partition_has_its_replicas(said: bytes, exit_code: int) -> None:
    with _serving(said) as gateway:
        assert _run("status", "--whole", "--address", gateway.address).exit_code == exit_code
        assert _run("status", "--address", gateway.address).exit_code == 0


def test_one_that_refuses_a_table_is_not_to_have_its_partitions() -> None:
    """By its contract; nor one that builds the next generation and has none of this one."""
    two = GetStatusResponse.FromString(_status({"a": dict.fromkeys(range(4), LIVE), "d": {}, "e": {}}))
    with _serving(two.SerializeToString()) as gateway:
        assert _run("status", "--whole", "--address", gateway.address).exit_code == 1
    for told in two.gateways[1:]:
        told.record.tables[0].ClearField("serving")
    two.gateways[1].record.tables[0].refused_generation = 1
    two.gateways[2].record.tables[0].building.generation = 2
    with _serving(two.SerializeToString()) as gateway:
        result = _run("status", "--whole", "--address", gateway.address)
    assert result.exit_code == 0
    assert "ratings 0 + refuses generation 1" in result.stdout


def test_status_of_a_gateway_without_the_generation_that_is_served() -> None:
    status = GetStatusResponse.FromString(_status({**TWICE, "d": {}}, own="d"))
    status.tables[0].serving = False
    status.tables[0].manifest.changelog_topic = ""
    status.gateways[3].record.tables[0].ClearField("serving")
    building = status.gateways[3].record.tables[0].building
    building.generation = 2
    building.partitions.append(0)
    building.phases.append(RESTORING)
    with _serving(status.SerializeToString()) as gateway:
        result = _run("status", "--whole", "--address", gateway.address)
    assert result.exit_code == 0
    assert "ratings serving, generation 1\n" in result.stdout
    assert ["0", "a", "b", "d", "restoring", "of", "generation", "2"] in _lines(result)


def test_status_names_the_states() -> None:
    status = GetStatusResponse.FromString(_status(WHOLE, away=["c"]))
    table = status.tables[0]
    table.state = TableState.TABLE_STATE_JOINING
    table.partitions[0].state = PartitionState.PARTITION_STATE_FROZEN
    table.generations.add(generation=1, state=GenerationState.GENERATION_STATE_SERVING)
    why = "its partition 3 has no marker yet"
    table.generations.add(generation=2, state=GenerationState.GENERATION_STATE_BUILDING, waits_for=why)
    table.generations.add(generation=3, state=GenerationState.GENERATION_STATE_DISCOVERED)
    with _serving(status.SerializeToString()) as gateway:
        result = _run("status", "--address", gateway.address)
    assert "ratings not serving (joining)" in result.stdout
    assert f"  generation 2 is building: {why}\n  generation 3 is discovered\n" in result.stdout
    assert "generation 1 is" not in result.stdout
    assert any("frozen" in line for line in _lines(result))


def test_status_tells_a_partition_that_nobody_has() -> None:
    with _serving(_status(WHOLE, away=["c"])) as gateway:
        result = _run("status", "--address", gateway.address)
    assert result.exit_code == 1
    assert "ratings not serving" in result.stdout
    lines = _lines(result)
    assert lines[5][3:7] == ["away", "14.0", "s", "ago"]
    assert ["2", "none"] in lines


def test_explain_shows_who_answers_and_why() -> None:
    store, catalogue = MemoryStore(), catalogue_of()
    ratings_table(store).put([rating(362)])
    with ServerThread(
        lambda: HttpServer(metadata_methods(catalogue, store, SIGNER, Notifier()), "127.0.0.1:0")
    ) as server:
        at = ("--address", f"127.0.0.1:{server.port}")
        method = "examples.ratings.v1.RatingsService/GetRating"
        shown = _run("explain", method, '{"movieId": 362}', *at).stdout
        assert "reads 1 of 3 partitions: that of its movie_id" in shown
        assert "here   this gateway has it  live at 1" in shown
        answer = json.loads(_run("explain", method, '{"movieId": 362}', *at, "--json").stdout)
        assert answer["query"] == "Get"
        for words, sentence in (
            ((method, "{"), "INVALID_ARGUMENT (INVALID_FIELD): the request is no JSON"),
            (("GetRating",), 'INVALID_ARGUMENT (INVALID_FIELD): field "method"'),
        ):
            result = _run("explain", *words, *at)
            assert result.exit_code == 1
            assert sentence in result.stderr


# Draining. The tests' own process stands for the gateway's: it has the lock, and gets the signal.


@contextmanager
def _signalled(on_signal: Callable[[], None]) -> Iterator[None]:
    old = signal.signal(signal.SIGUSR1, lambda *_: on_signal())
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, old)


@contextmanager
def _locked(data: Path, address: str) -> Iterator[None]:
    lock = lock_data(data, address)
    try:
        yield
    finally:
        os.close(lock)


@contextmanager
def _draining(data: Path, status: bytes, *steps: bytes) -> Iterator[_Gateway]:
    with _serving(status) as gateway, _locked(data, gateway.address), _signalled(gateway.tell):
        gateway.steps.extend(steps)
        yield gateway


def test_drain_waits_until_nothing_is_held(tmp_path: Path) -> None:
    steps = (
        _status(WHOLE),
        _status(WHOLE, draining=["a"]),
        _status({**WHOLE, "b": {0: LIVE, 1: LIVE, 3: RESTORING}}, draining=["a"]),
        _status({**WHOLE, "b": {0: LIVE, 1: LIVE, 3: LIVE}}, draining=["a"]),
        _status({**WHOLE, "a": {}}, draining=["a"]),
    )
    with _draining(tmp_path, _status(WHOLE), *steps) as gateway:
        assert holder_of(tmp_path) == Holder(os.getpid(), gateway.address)
        result = _run("drain", "--data", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        'gateway "a" has not started to drain yet',
        "3 partitions here, 1 on no other gateway yet: ratings 3",
        "3 partitions here",
        f'gateway "a" holds no partition any more: it may be stopped (process {os.getpid()})',
    ]


def test_drain_gives_up_waiting_and_says_what_is_missing(tmp_path: Path) -> None:
    with _draining(tmp_path, _status(WHOLE), _status(WHOLE, draining=["a"])) as gateway:
        result = _run("drain", "--data", str(tmp_path), "--timeout", "0", "--address", gateway.address)
        assert gateway.is_told
    assert result.exit_code == 1
    text = "not drained after 0 s: 3 partitions here, 1 on no other gateway yet: ratings 3; draining continues"
    assert text in result.stderr


@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        (GetStatusResponse(kafka_reachable=True).SerializeToString(), "this gateway stands alone"),
        (_status(WHOLE, away=["b"], draining=["c"]), 'no other live gateway can take the partitions of "a"'),
    ],
)
def test_drain_leaves_a_gateway_alone_where_nobody_could_take_over(
    tmp_path: Path, status: bytes, sentence: str
) -> None:
    with _draining(tmp_path, status) as gateway:
        result = _run("drain", "--data", str(tmp_path))
        assert not gateway.is_told
    assert result.exit_code == 1
    assert sentence in result.stderr


def test_drain_signals_nobody_where_no_gateway_runs(tmp_path: Path) -> None:
    with _locked(tmp_path, "127.0.0.1:7"):
        pass
    told: list[None] = []
    with _signalled(lambda: told.append(None)):
        for data in (tmp_path, tmp_path / "nothing"):
            result = _run("drain", "--data", str(data))
            assert result.exit_code == 1
            assert f'no gateway runs on data directory "{data}"' in result.stderr
    assert not told


def test_drain_signals_nobody_where_the_gateway_does_not_answer(tmp_path: Path) -> None:
    told: list[None] = []
    with _signalled(lambda: told.append(None)), _locked(tmp_path, "127.0.0.1:1"):
        result = _run("drain", "--data", str(tmp_path))
    assert result.exit_code == 1
    assert "no gateway answers at 127.0.0.1:1" in result.stderr
    assert not told


CONTAINER = ["unshare", "--pid", "--fork", "--kill-child"]  # its first process has the number 1


@pytest.mark.tools
def test_sigterm_ends_a_gateway_that_has_only_begun_in_a_container() -> None:
    can_have_one = shutil.which("unshare") is not None
    if not can_have_one or subprocess.run([*CONTAINER, "true"], capture_output=True, check=False).returncode:
        pytest.skip("processes with numbers of their own are not permitted here")
    program = (
        "import os, signal\n"
        "from tablegate.gateway.cli.main import main\n"
        "from tablegate.gateway.server import app\n"
        "app.serve = lambda config: os.kill(os.getpid(), signal.SIGTERM)\n"
        "main()\n"
    )
    command = [*CONTAINER, sys.executable, "-c", program, "serve", "--contract", "any.proto", "--bootstrap", "kafka:1"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (128 + signal.SIGTERM, "", "")
