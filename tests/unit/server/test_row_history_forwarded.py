"""How a row has changed, asked of a gateway that has not got it; and what the answer says of rows that are hidden."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from tablegate.gateway.access.gate import Gate
from tablegate.gateway.cluster.forward_token import ForwardToken, ForwardTokenSigner
from tablegate.gateway.contract.tokens import TokenSigner
from tablegate.gateway.contract.types import Partition
from tablegate.gateway.http.server import HttpServer
from tablegate.gateway.query.row_history import HISTORY_PATH
from tablegate.gateway.query.serving import wall_clock_ms
from tablegate.gateway.server.admin import moved_methods
from tablegate.gateway.server.metadata import history_methods
from tablegate.gateway.stores.notifier import Notifier
from tablegate.v1 import changelog_pb2
from tablegate.v1.changelog_pb2 import ForeignTopic
from tablegate.v1.status_pb2 import GetHistoryRequest, GetHistoryResponse
from tests.kit.gateways_in_process.cluster import ALONE, EACH_ON_ONE, EACH_ON_TWO, GrpcCluster, movie_of
from tests.kit.gateways_in_process.metadata import refused
from tests.kit.gateways_in_process.tenants import CLAIMS, TENANTS, credential, write_access
from tests.kit.gateways_in_process.threaded import ServerThread
from tests.kit.store.memory import MemoryStore
from tests.kit.table.filled import SIGNER, catalogue_of, rating, ratings_table

pytestmark = pytest.mark.tools

GET = "examples.ratings.v1.RatingsService/GetRating"
TICKET = "tenants.v1.TicketsService/GetTicket"
ANYWHERE = ForeignTopic(
    key_codec=changelog_pb2.KEY_CODEC_INT64,
    value_codec=changelog_pb2.VALUE_CODEC_JSON,
    record_partitioner=changelog_pb2.RECORD_PARTITIONER_UNKNOWN,
)
POLICY = """
[api_keys]
file = "keys.toml"

[audit]
file = "audit.log"

[[rule]]
roles = ["operator"]
tables = ["*"]
rights = ["history"]

[[rule]]
tables = ["tickets"]
rows = { owner = "owner" }
hide = ["note"]

[[rule]]
principals = ["key ann"]
rights = ["history"]
"""
Answered = tuple[bytes, dict[str, str]]
"""The answer to a question, and its trailer."""


def _port(cluster: GrpcCluster, gateway_id: str) -> int:
    return (cluster.whole if gateway_id == ALONE else cluster[gateway_id]).port


def _answered(port: int, request: GetHistoryRequest, **options: Any) -> Answered:
    with grpc.insecure_channel(f"127.0.0.1:{port}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
        call: Any = channel.unary_unary(HISTORY_PATH, None, None)
        answer, details = call.with_call(request.SerializeToString(), **{"timeout": 20, **options})
    return answer, dict(details.trailing_metadata())


def _history(cluster: GrpcCluster, gateway_id: str, number: int, **options: Any) -> GetHistoryResponse:
    request = GetHistoryRequest(method=GET, json=json.dumps({"movieId": number}))
    return GetHistoryResponse.FromString(_answered(_port(cluster, gateway_id), request, **options)[0])


def _comparable(answer: GetHistoryResponse) -> tuple[object, ...]:
    """Return what is to be the same at each gateway; the worlds' gateways number versions each for itself."""
    changes = [(each.offset, each.row, each.before) for each in answer.changes]
    return answer.partition, changes, answer.history_start, answer.next_offset, answer.has_row, answer.truncated


@pytest.fixture
def cluster() -> Iterator[GrpcCluster]:
    with GrpcCluster(EACH_ON_ONE, has_console=True) as running:
        for count in (1, 2, 3):
            running.put(rating(number, count=count) for number in range(20))
        yield running


@pytest.mark.parametrize("gateway_id", ["a", "b", "c"])
def test_a_history_is_the_same_at_each_gateway(cluster: GrpcCluster, gateway_id: str) -> None:
    for number in range(0, 20, 3):
        answer = _history(cluster, gateway_id, number)
        assert cluster.whole.table.partition_of(rating(number)) in cluster[answer.gateway_id].held
        whole = _history(cluster, ALONE, number)
        assert (len(whole.changes), whole.has_row, whole.gateway_id) == (3, True, ALONE)
        assert _comparable(answer) == _comparable(whole)
    assert not _history(cluster, gateway_id, 99).has_row


def test_a_forward_of_a_history_is_one_call_in_its_time(cluster: GrpcCluster) -> None:
    number = movie_of(cluster, 2)
    assert _history(cluster, "a", number, timeout=3).gateway_id == "b"
    assert [each.is_forwarded for each in cluster["a"].calls] == [False]
    [called] = cluster["b"].calls
    assert (called.method, called.is_forwarded, called.left_s <= 3) == ("GetHistory", True, True)
    assert not cluster["c"].calls


def test_who_is_asked_for_a_history_by_another_asks_nobody(cluster: GrpcCluster) -> None:
    number = movie_of(cluster, 2)
    token = ForwardTokenSigner(SIGNER, wall_clock_ms).sign(ForwardToken("ratings"))
    code, reason, _ = refused(lambda: _history(cluster, "a", number, metadata=[("tablegate-forwarded", token)]))
    assert (code, reason) == ("UNAVAILABLE", "PARTITION_UNAVAILABLE")
    assert not cluster["b"].calls


def test_a_history_that_nobody_has_is_refused_as_its_get_is(cluster: GrpcCluster) -> None:
    number = movie_of(cluster, 2)
    cluster["b"].hold([3])
    cluster.announce()
    asked = [
        refused(lambda: _history(cluster, "a", number, timeout=1)),
        refused(lambda: cluster.ask("a", "GetRating", movie_id=number, timeout_s=1)),
    ]
    assert asked[0] == asked[1]
    assert asked[0][:2] == ("UNAVAILABLE", "PARTITION_UNAVAILABLE")


def test_a_history_comes_from_a_standby_where_the_owner_is_away() -> None:
    with GrpcCluster(EACH_ON_TWO, has_console=True) as cluster:
        number = movie_of(cluster, 2)
        cluster.put([rating(number, count=1)])
        assert _history(cluster, "c", number).gateway_id in ("a", "b")
        cluster["a"].stop()
        assert [_history(cluster, "c", number).gateway_id for _ in range(3)] == ["b", "b", "b"]


def test_a_forward_that_nobody_signed_gets_no_history(cluster: GrpcCluster) -> None:
    other = ForwardTokenSigner(TokenSigner([b"another key of 32 bytes or more!"]), wall_clock_ms)
    for text in (other.sign(ForwardToken("ratings")), "made up"):
        code, reason, _ = refused(lambda text=text: _history(cluster, "a", 1, metadata=[("tablegate-forwarded", text)]))
        assert (code, reason) == ("PERMISSION_DENIED", "FOREIGN_FORWARD")


def test_a_history_is_forwarded_for_connect(cluster: GrpcCluster) -> None:
    number = movie_of(cluster, 2)
    asked = json.dumps({"method": GET, "json": json.dumps({"movieId": number})}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{cluster['a'].port}{HISTORY_PATH}", asked, {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        found = json.loads(answer.read())
    assert (found["gatewayId"], len(found["changes"])) == ("b", 3)
    assert json.loads(found["changes"][0]["row"]["json"])["ratingCount"] == "3"


def test_beside_an_admin_port_gateways_alone_get_histories() -> None:
    store = MemoryStore()
    ratings_table(store, 1).put([rating(7)])
    history = history_methods(catalogue_of(), store, SIGNER, Notifier())
    request = GetHistoryRequest(method=GET, json='{"movieId": 7}')
    token = ForwardTokenSigner(SIGNER, wall_clock_ms).sign(ForwardToken("ratings"))
    with ServerThread(lambda: HttpServer(moved_methods(history), "127.0.0.1:0")) as server:
        answer, _ = _answered(server.port, request, metadata=[("tablegate-forwarded", token)])
        assert len(GetHistoryResponse.FromString(answer).changes) == 1
        code, reason, _ = refused(lambda: _answered(server.port, request))
        assert (code, reason) == ("UNIMPLEMENTED", "NOT_SERVED")
        code, reason, _ = refused(lambda: _answered(server.port, request, metadata=[("tablegate-forwarded", "x")]))
        assert (code, reason) == ("PERMISSION_DENIED", "FOREIGN_FORWARD")


# Keys that may be anywhere, and rows that are hidden.


@contextmanager
def _tickets(directory: Path) -> Iterator[GrpcCluster]:
    """Tickets, each where its number says. Ann sees 1; 2, deleted 3, 4 that was hers and 6 are of others; 5 is none."""
    access = write_access(directory, POLICY, CLAIMS)
    with GrpcCluster(
        EACH_ON_ONE,
        contract=TENANTS,
        table="tickets",
        service="/tenants.v1.TicketsService",
        gate=lambda catalogue: Gate(access, catalogue),
        has_console=True,
    ) as cluster:
        cluster.be_foreign(ANYWHERE, lambda key: Partition((int.from_bytes(key, "big") - 2**63) % 6))
        row: Any = cluster.catalogue.tables["tickets"].row_class
        rows = [row(ticket_id=number, owner=owner) for number, owner in ((1, 1), (2, 2), (3, 2), (4, 1), (6, 2))]
        cluster.put(rows)
        cluster.put([row(ticket_id=4, owner=2), row(ticket_id=1, owner=1, state="done")])
        for gateway in (cluster.whole, *cluster.gateways.values()):
            if gateway.table.partition_of(rows[2]) in gateway.held:
                gateway.do(partial(gateway.table.delete, [rows[2]]))
        yield cluster


def _of_ticket(cluster: GrpcCluster, gateway_id: str, number: int, key: str) -> Answered:
    request = GetHistoryRequest(method=TICKET, json=json.dumps({"ticketId": number}))
    return _answered(_port(cluster, gateway_id), request, metadata=credential(key))


@pytest.mark.parametrize("gateway_id", ["a", "b", "c", ALONE])
def test_a_history_of_a_hidden_row_is_that_of_no_row(tmp_path: Path, gateway_id: str) -> None:
    with _tickets(tmp_path) as cluster:
        missing = _of_ticket(cluster, gateway_id, 5, "ann")
        assert not GetHistoryResponse.FromString(missing[0]).changes
        for number in (2, 3, 4, 6):
            assert _of_ticket(cluster, gateway_id, number, "ann") == missing, number
        gateway = cluster.whole if gateway_id == ALONE else cluster[gateway_id]
        assert gateway.gate is not None
        gateway.do(gateway.gate.refresh)
        audited = [json.loads(line) for line in (tmp_path / "audit.log").read_text().splitlines()]
        assert [{**line, "time": ""} for line in audited] == [{**audited[0], "time": ""}] * 5


@pytest.mark.parametrize("gateway_id", ["a", "b", "c", ALONE])
def test_a_history_is_found_wherever_its_row_is(tmp_path: Path, gateway_id: str) -> None:
    with _tickets(tmp_path) as cluster:

        def found(number: int, key: str) -> tuple[int, list[str], bool]:
            answer = GetHistoryResponse.FromString(_of_ticket(cluster, gateway_id, number, key)[0])
            owners = [json.loads(each.row.json)["owner"] if each.HasField("row") else "-" for each in answer.changes]
            return answer.partition, owners, answer.has_row

        assert found(1, "ann") == found(1, "all") == (1, ["1", "1"], True)
        assert found(2, "all") == (2, ["2"], True)
        assert found(3, "all") == (3, ["-", "2"], False)
        assert found(4, "all") == (4, ["2", "1"], True)
        assert found(5, "all")[1:] == ([], False)


def test_a_history_of_a_hidden_row_is_refused_as_one_of_no_row(tmp_path: Path) -> None:
    with _tickets(tmp_path) as cluster:
        for gateway in (cluster["b"], cluster.whole):
            gateway.hold([partition for partition in gateway.held if partition != 3])
        cluster.announce()
        for gateway_id in ("a", "b", ALONE):
            errors = [refused(partial(_of_ticket, cluster, gateway_id, number, "ann")) for number in (2, 3, 4, 6, 5)]
            assert errors == [errors[-1]] * 5
            assert errors[0][:2] == ("UNAVAILABLE", "PARTITION_UNAVAILABLE")
