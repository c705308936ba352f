"""Rows from another gateway over gRPC and a real socket."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tablegate.gateway.cluster.assignment import Holder, TransferFailed
from tablegate.gateway.cluster.forward_token import ForwardTokenSigner
from tablegate.gateway.cluster.parts import WAITING_MAX
from tablegate.gateway.cluster.transfers import GrpcParts, GrpcTransfers
from tablegate.gateway.contract.tokens import TokenSigner
from tablegate.gateway.contract.types import VERSION_BYTES, Offset, Partition, Version
from tablegate.gateway.http.server import HttpServer
from tablegate.gateway.query.serving import wall_clock_ms
from tablegate.gateway.server.transfers import transfer_methods
from tablegate.gateway.stores.base import Change
from tablegate.gateway.stores.lmdb import layout
from tablegate.gateway.stores.notifier import Notifier
from tablegate.gateway.telemetry.measures import Measures
from tablegate.internal.v1.transfer_pb2 import TransferRequest, TransferResponse
from tests.kit.gateways_in_process.threaded import ServerThread
from tests.kit.store.memory import MemoryStore
from tests.kit.table.filled import SIGNER, FilledTable, catalogue_of, rating

pytestmark = pytest.mark.tools

ROWS = 2_000
WAIT_S = 30
REQUEST = TransferRequest(
    table="ratings",
    partition=0,
    generation=1,
    changelog_topic_id="id of ratings-g1-changelog",
    format=layout.FORMAT_VERSION,
    row_digest=catalogue_of().tables["ratings"].row_digest,
)


def store_of(count: int) -> MemoryStore:
    store = MemoryStore()
    table = FilledTable(store, catalogue_of().tables["ratings"], 1)
    table.publish()
    table.put(rating(number) for number in range(count))
    return store


@contextmanager
def transfers(
    store: MemoryStore, signer: TokenSigner = SIGNER, measures: Measures | None = None
) -> Iterator[tuple[GrpcTransfers, Holder]]:
    """Return by what a gateway with that store is asked, and its place."""
    methods = transfer_methods(catalogue_of(), store, SIGNER, Notifier(), part_bytes=1_000, measures=measures)
    with ServerThread(lambda: HttpServer(methods, "127.0.0.1:0")) as server:
        sign = ForwardTokenSigner(signer, wall_clock_ms).sign
        yield GrpcTransfers(sign), Holder("gw", f"127.0.0.1:{server.port}")


def wait_for(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.01)


def next_of(parts: GrpcParts) -> TransferResponse:
    """Return the next part; raise `TransferFailed`."""
    until_s = time.monotonic() + WAIT_S
    while (part := parts.next()) is None:
        assert time.monotonic() < until_s
        time.sleep(0.001)
    return part


def read_on(parts: GrpcParts) -> None:
    while True:
        next_of(parts)


def failure_of(parts: GrpcParts) -> str:
    with pytest.raises(TransferFailed) as failed:
        read_on(parts)
    parts.close()
    return str(failed.value)


def test_all_parts_come_in_order() -> None:
    with transfers(store_of(ROWS)) as (client, holder):
        parts = client.ask(holder, REQUEST)
        assert next_of(parts).first_position
        count = 0
        while not (part := next_of(parts)).last_position:
            count += len(part.key_lengths) // 4
        assert count == part.rows == ROWS
        parts.close()


def test_a_row_that_is_longer_than_grpc_lets_in_otherwise_comes() -> None:
    store = MemoryStore()
    table = FilledTable(store, catalogue_of().tables["ratings"], 1)
    table.publish()
    with store.snapshot() as snapshot:
        position = snapshot.position(table.store_id, Partition(0))
    assert position is not None
    row = bytes(5 << 20)
    store.apply(
        table.store_id, Partition(0), [Change(Offset(0), b"key", Version(bytes(VERSION_BYTES)), row, 1)], position
    )
    with transfers(store) as (client, holder):
        parts = client.ask(holder, REQUEST)
        assert next_of(parts).first_position
        assert next_of(parts).values.endswith(row)
        parts.close()


def test_who_reads_slowly_makes_the_other_wait() -> None:
    with transfers(store_of(20 * ROWS)) as (client, holder):
        parts = client.ask(holder, REQUEST)
        wait_for(parts._parts.full)
        assert parts._parts.qsize() == WAITING_MAX
        assert sum(len(next_of(parts).key_lengths) // 4 for _ in range(300)) > ROWS
        parts.close()


def test_what_is_given_is_counted() -> None:
    measures = Measures()
    with transfers(store_of(20 * ROWS), measures=measures) as (client, holder):
        parts = client.ask(holder, REQUEST)
        while not next_of(parts).last_position:
            continue
        parts.close()
        wait_for(lambda: bool(measures.transfers))
        assert measures.transfers == {("ratings", "out", "done"): 1}
        assert measures.transferred_rows == {("ratings", "out"): 20 * ROWS}
        parts = client.ask(holder, REQUEST)
        next_of(parts)
        parts.close()
        wait_for(lambda: ("ratings", "out", "failed") in measures.transfers)


def test_a_transfer_that_is_closed_ends_its_thread() -> None:
    before = threading.active_count()
    with transfers(store_of(20 * ROWS)) as (client, holder):
        parts = client.ask(holder, REQUEST)
        next_of(parts)
        parts.close()
        parts.close()
        wait_for(lambda: not any(thread.name == "transfer" for thread in threading.enumerate()))
    assert threading.active_count() <= before + 1


def test_why_a_gateway_gives_nothing_is_told() -> None:
    with transfers(store_of(9)) as (client, holder):
        asked = TransferRequest()
        asked.CopyFrom(REQUEST)
        asked.generation = 2
        assert "another generation is served here" in failure_of(client.ask(holder, asked))


def test_keys_of_another_cluster_get_nothing() -> None:
    with transfers(store_of(9), TokenSigner([b"other" * 8])) as (client, holder):
        assert "the token of a forwarded call" in failure_of(client.ask(holder, REQUEST))


def test_a_gateway_without_the_method_is_passed_over() -> None:
    with ServerThread(lambda: HttpServer({}, "127.0.0.1:0")) as server:
        client = GrpcTransfers(ForwardTokenSigner(SIGNER, wall_clock_ms).sign)
        assert failure_of(client.ask(Holder("gw", f"127.0.0.1:{server.port}"), REQUEST))


def test_a_gateway_that_is_not_there_is_passed_over() -> None:
    client = GrpcTransfers(ForwardTokenSigner(SIGNER, wall_clock_ms).sign)
    assert failure_of(client.ask(Holder("gw", "127.0.0.1:1"), REQUEST))


def test_a_gateway_that_ends_in_between_is_passed_over() -> None:
    with transfers(store_of(20 * ROWS)) as (client, holder):
        parts = client.ask(holder, REQUEST)
        next_of(parts)
    assert failure_of(parts)


def test_a_partition_that_is_emptied_in_between_is_no_more_given() -> None:
    store = store_of(20 * ROWS)
    with transfers(store) as (client, holder):
        parts = client.ask(holder, REQUEST)
        next_of(parts)
        with store.snapshot() as snapshot:
            state = snapshot.table("ratings")
        assert state is not None
        store.drop_partition(state.store_id, Partition(0), limit=10**9)
        assert "being restored" in failure_of(parts)
