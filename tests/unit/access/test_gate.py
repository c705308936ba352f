import base64
import contextlib
import http.client
import json
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tablegate.gateway.access.gate import Gate
from tablegate.gateway.access.policy import Forbidden, Right
from tablegate.gateway.access.principal import AccessFileError, Unauthenticated
from tablegate.gateway.cluster.forward_token import FORWARDED
from tests.kit.gateway_processes.gateway import soon
from tests.kit.gateways_in_process.tenants import CLAIMS, POLICY, TENANTS, World, credential, write_access
from tests.kit.table.filled import catalogue_of

GET = "/tenants.v1.TicketsService/GetTicket"
NO_TICKETS = POLICY.replace(
    'tables = ["tickets"]\nrows = { owner = "owner" }\nhide = ["note"]', 'tables = ["invoices"]'
)


@pytest.fixture
def access_file(tmp_path: Path) -> Path:
    return write_access(tmp_path)


@pytest.fixture
def world(access_file: Path) -> Iterator[World]:
    made = World("tickets", access_file, random.Random(1))
    with made.cluster:
        made.cluster.put([made.row_class(ticket_id=number, owner=number % 4, note="n") for number in range(8)])
        yield made


def post(world: World, path: str, body: bytes, **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", world.cluster.whole.port, timeout=20)
    with contextlib.closing(connection):
        connection.request("POST", path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()


def get(world: World, path: str, **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", world.cluster.whole.port, timeout=20)
    with contextlib.closing(connection):
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()


def refusal(world: World, **more: Any) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as caught:
        world.cluster.ask("", "GetTicket", ticket_id=1, **more)
    return caught.value


def test_calls_without_a_credential_or_with_a_wrong_one(world: World) -> None:
    missing = refusal(world)
    assert missing.code() is grpc.StatusCode.UNAUTHENTICATED
    assert missing.details() == "the call shows no credential; show one"
    wrong = refusal(world, metadata=credential("secret-that-is-wrong"))
    assert wrong.code() is grpc.StatusCode.UNAUTHENTICATED
    assert "secret" not in (wrong.details() or "")


def test_each_protocol_says_who_is_not_let_in(world: World) -> None:
    # What comes before the request is read: a body that is no request changes nothing.
    for path, kind in ((GET, "application/json"), (GET, "application/proto")):
        status, headers, body = post(world, path, b"{", content_type=kind)
        assert (status, headers["www-authenticate"]) == (401, "Bearer")
        assert json.loads(body)["code"] == "unauthenticated"
    status, body = get(world, "/v1/tickets/1")
    assert (status, json.loads(body)["error"]["status"]) == (401, "UNAUTHENTICATED")
    status, body = get(world, "/v1/tickets:scan")
    assert status == 401
    framed = b"\x00\x00\x00\x00\x00"
    _, _, body = post(world, GET, framed, content_type="application/grpc-web")
    assert b"grpc-status: 16" in body
    stream_path = "/tenants.v1.TicketsService/ScanTickets"
    _, _, body = post(world, stream_path, framed, content_type="application/connect+json")
    assert b'"code":"unauthenticated"' in body


def test_each_protocol_shows_the_same_view(world: World) -> None:
    shown = {"authorization": "Bearer ann"}
    assert json.loads(get(world, "/v1/tickets/1", **shown)[1])["row"] == {"ticketId": "1", "owner": "1"}
    assert get(world, "/v1/tickets/2", **shown)[0] == 404
    lines = [json.loads(line) for line in get(world, "/v1/tickets:scan", **shown)[1].splitlines()]
    assert {row["ticketId"] for line in lines for row in line.get("rows", [])} == {"1", "5"}
    request = base64.urlsafe_b64encode(b'{"ticketId": 2}').decode()
    assert get(world, f"{GET}?connect=v1&encoding=json&base64=1&message={request}", **shown)[0] == 404


def test_who_says_that_a_gateway_forwards(world: World) -> None:
    assert refusal(world, metadata=[(FORWARDED, "1.abc")]).code() is grpc.StatusCode.PERMISSION_DENIED
    with grpc.insecure_channel(f"127.0.0.1:{world.cluster.whole.port}") as channel:
        call: Any = channel.unary_unary("/tablegate.v1.GatewayService/GetTable", None, None)
        with pytest.raises(grpc.RpcError) as caught:
            call(b"", metadata=[(FORWARDED, "1.abc")], timeout=20)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_health_is_for_everybody(world: World) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{world.cluster.whole.port}") as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        stub.Check(health_pb2.HealthCheckRequest(), timeout=20)


def test_explain_needs_the_right_and_the_method(world: World) -> None:
    channel = grpc.insecure_channel(f"127.0.0.1:{world.cluster.whole.port}")
    with channel:
        call: Any = channel.unary_unary("/tablegate.v1.GatewayService/Explain", None, None)
        with pytest.raises(grpc.RpcError) as caught:
            call(b"", metadata=credential("ann"), timeout=20)
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert call(b"\x0a" + bytes([len(GET) - 1]) + GET[1:].encode(), metadata=credential("all"), timeout=20)


def test_a_filter_by_a_hidden_column_is_refused(world: World) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        list(world.cluster.stream("", "ScanTickets", metadata=credential("ann"), note="n"))
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert caught.value.details() == 'field "note" asks by the column "note", which is hidden from you'
    assert list(world.cluster.stream("", "ScanTickets", metadata=credential("all"), note="n"))


def subscription(world: World, key: str) -> Iterator[Any]:
    stream = world.cluster.stream("", "SubscribeTickets", metadata=credential(key))
    for message in stream:
        if message.progress.phase == 3:
            break
    return stream


def check_gate(world: World) -> None:
    """Do what a worker does on its timer, when nobody writes the file any more."""
    for _ in range(2):
        refresh_gate(world)


def refresh_gate(world: World) -> None:
    gateway = world.cluster.whole

    def refresh() -> None:
        assert gateway.gate is not None
        gateway.gate.refresh()
        gateway.check_streams()

    gateway.do(refresh)


def test_a_stream_ends_that_the_policy_does_not_allow_any_more(world: World, access_file: Path) -> None:
    stream, other = subscription(world, "ann"), subscription(world, "all")
    access_file.write_text(NO_TICKETS)
    check_gate(world)
    with pytest.raises(grpc.RpcError) as caught:
        for _ in stream:
            pass
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert refusal(world, metadata=credential("ann")).code() is grpc.StatusCode.PERMISSION_DENIED
    world.cluster.put([world.row_class(ticket_id=7, owner=3)])
    assert next(other).changes


def test_a_stream_ends_whose_view_is_another_now(world: World, tmp_path: Path) -> None:
    stream = subscription(world, "ann")
    write_access(tmp_path, claims={**CLAIMS, "ann": {"owner": 3}})
    check_gate(world)
    with pytest.raises(grpc.RpcError) as caught:
        next(stream)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    row = world.cluster.ask("", "GetTicket", ticket_id=3, metadata=credential("ann")).row
    assert row.owner == 3


def test_a_stream_ends_with_its_key_whose_end_came_after_it_began(world: World, tmp_path: Path) -> None:
    stream = subscription(world, "ann")
    keys, ends = tmp_path / "keys.toml", datetime.now(UTC) + timedelta(seconds=2)
    keys.write_text(keys.read_text().replace('[[key]]\nname = "ann"', f'[[key]]\nexpires = {ends}\nname = "ann"'))
    check_gate(world)
    stopped = threading.Event()
    checks = threading.Thread(target=check_until, args=(world, stopped))
    checks.start()
    world.cluster.put([world.row_class(ticket_id=1, owner=1, state="open")])
    try:
        with pytest.raises(grpc.RpcError) as caught:
            for _ in stream:
                pass
    finally:
        stopped.set()
        checks.join()
    assert datetime.now(UTC) >= ends
    assert "credential has ended" in str(caught.value.details())


def check_until(world: World, stopped: threading.Event) -> None:
    """Do what a worker does on its timer, for as long as a stream may take to end."""
    for _ in range(200):
        if stopped.wait(0.05):
            return
        refresh_gate(world)
    world.cluster.cancel_streams()


def test_a_call_that_waits_ends_when_the_policy_does_not_allow_it(world: World, access_file: Path) -> None:
    gateway = world.cluster.whole
    gateway.hangs = True
    with grpc.insecure_channel(f"127.0.0.1:{gateway.port}") as channel:
        ask: Any = channel.unary_unary(GET, None, None)
        waiting = ask.future(b"\x08\x01", metadata=credential("all"), timeout=60)
        soon(lambda: gateway.calls, "a call that waits")
        access_file.write_text(POLICY.replace('tables = ["*"]', 'tables = ["invoices"]'))
        check_gate(world)
        assert waiting.code() is grpc.StatusCode.PERMISSION_DENIED


def test_a_subscriber_hears_nothing_of_a_hidden_column(world: World) -> None:
    mine, all_of_it = subscription(world, "ann"), subscription(world, "all")
    row = world.row_class(ticket_id=1, owner=1, note="n")
    notes = ("other", "other", "last")
    for note, state in zip(notes, ("", "done", "done"), strict=True):
        row.note, row.state = note, state
        world.cluster.put([row])
    world.cluster.put([world.row_class(ticket_id=9, owner=1)])

    def heard(stream: Iterator[Any]) -> list[Any]:
        changes: list[Any] = []
        while not changes or changes[-1].upsert.ticket_id != 9:
            changes += next(stream).changes
        return [(change.upsert.note, change.upsert.state) for change in changes[:-1]]

    assert heard(all_of_it) == [("other", ""), ("other", "done"), ("last", "done")]
    assert heard(mine) == [("", "done")]


@dataclass
class AnyClient:
    principal: str | None
    address: str


def test_the_audit_log_has_calls_and_pages(tmp_path: Path) -> None:
    file = write_access(tmp_path, f'{POLICY}\n[audit]\nfile = "audit.log"\n')
    gate = Gate(file, catalogue_of(TENANTS))
    ann, all_ = {b"x-api-key": b"ann"}, {b"x-api-key": b"all"}
    client = AnyClient(principal=None, address="192.0.2.7")
    gate.admit(GET, ann, client, is_get=False)
    with pytest.raises(Forbidden):
        gate.admit_to(Right.REFLECTION, "/docs", ann, client)
    gate.admit_to(Right.REFLECTION, "/docs", all_, client)
    with pytest.raises(Unauthenticated, match="the call shows no credential; show one"):
        gate.admit_to(Right.REFLECTION, "/docs", {}, client)
    gate.close()
    lines = [json.loads(line) for line in (tmp_path / "audit.log").read_text().splitlines()]
    assert [(line["principal"], line["method"], line["table"], line["allowed"]) for line in lines] == [
        ("key ann", GET, "tickets", True),
        ("key ann", "/docs", None, False),
        ("key all", "/docs", None, True),
        (None, "/docs", None, False),
    ]
    assert [line.get("address") for line in lines] == [None, None, None, "192.0.2.7"]  # of who is not known otherwise


def test_a_wrong_file_changes_nothing(world: World, access_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    stream = subscription(world, "ann")
    for text in ("[[rule]", POLICY.replace("tickets", "nothing"), ""):
        access_file.write_text(text)
        check_gate(world)
    access_file.unlink()
    check_gate(world)
    assert world.cluster.ask("", "GetTicket", ticket_id=1, metadata=credential("ann")).row.owner == 1
    world.cluster.put([world.row_class(ticket_id=1, owner=1, state="open")])
    assert next(stream).changes
    reasons = [record.reason for record in caplog.records]  # type: ignore[attr-defined]
    assert len(reasons) == 4
    assert all(str(access_file) in reason for reason in reasons)


def test_half_a_file_is_not_read(world: World, access_file: Path) -> None:
    half, rest = POLICY.split('rows = { owner = "owner" }')
    access_file.write_text(half)
    refresh_gate(world)
    assert refusal(world, metadata=credential("bob")).code() is grpc.StatusCode.NOT_FOUND
    access_file.write_text(f'{half}rows = {{ owner = "owner" }}{rest}')
    check_gate(world)
    assert refusal(world, metadata=credential("bob")).code() is grpc.StatusCode.NOT_FOUND


def test_a_file_is_read_again_when_what_it_names_is_there(world: World, access_file: Path) -> None:
    # Who writes the access file first, and then the keys that it names, changes nothing of the first any more.
    access_file.write_text(NO_TICKETS.replace("keys.toml", "newer.toml"))
    check_gate(world)
    assert world.cluster.ask("", "GetTicket", ticket_id=1, metadata=credential("ann")).row.owner == 1
    (access_file.parent / "keys.toml").rename(access_file.parent / "newer.toml")
    soon(lambda: is_refused_now(world), "the file is read again")


def is_refused_now(world: World) -> bool:
    check_gate(world)
    try:
        world.cluster.ask("", "GetTicket", ticket_id=1, metadata=credential("ann"))
    except grpc.RpcError as error:
        return error.code() is grpc.StatusCode.PERMISSION_DENIED
    return False


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[[rule]", "it is no TOML: "),
        (f"rule = {'9' * 5_000}", "it is no TOML: "),
        (f"rule = {'[' * 5_000}", "it is no TOML: "),
        ("[rules]", '"rules" is no section; there are api_keys, audit, certificates, issuer, limit, policy, rule'),
        ("", "the file has no [[rule]]"),
    ],
)
def test_wrong_files(tmp_path: Path, text: str, reason: str) -> None:
    file = tmp_path / "a.toml"
    file.write_text(text)
    with pytest.raises(AccessFileError) as caught:
        Gate(file, catalogue_of(TENANTS))
    assert str(caught.value).startswith(f'access file "{file}": {reason}')


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(AccessFileError, match="it cannot be read: No such file or directory; check the path"):
        Gate(tmp_path / "a.toml", catalogue_of(TENANTS))
    (tmp_path / "b.toml").write_bytes(b"\xff")
    with pytest.raises(AccessFileError, match="it is no UTF-8"):
        Gate(tmp_path / "b.toml", catalogue_of(TENANTS))
