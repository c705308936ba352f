"""What a row that somebody does not see could tell him all the same."""

import asyncio
from typing import Any

import pytest

from tablegate.gateway.access.views import View
from tablegate.gateway.contract.types import Partition
from tablegate.gateway.query.call import UnaryMethod
from tablegate.gateway.query.errors import NotCaughtUp, RowNotFound
from tablegate.v1 import changelog_pb2
from tests.kit.call.asker import Asker
from tests.kit.gateways_in_process.tenants import TENANTS
from tests.kit.store.memory import MemoryStore
from tests.kit.table.filled import FilledTable, LocalCall, catalogue_of

SEEN = View((("owner", (1,)),))


def test_a_version_tells_nobody_that_a_row_is_there() -> None:
    catalogue, store = catalogue_of(TENANTS), MemoryStore()
    tickets = FilledTable(store, catalogue.tables["tickets"], 1, keyed=True)
    tickets.publish()
    row: Any = tickets.table.row_class
    tickets.put([row(ticket_id=number, owner=number) for number in (1, 2)])
    asker = Asker(catalogue, store, "/tenants.v1.TicketsService", None)
    method = asker.methods["/tenants.v1.TicketsService/GetTicket"]
    assert isinstance(method, UnaryMethod)

    def ask(ticket_id: int, view: View | None) -> Any:
        request = asker.request("GetTicket", ticket_id=ticket_id)
        request.read_options.at_least_source.topics.add(topic="ratings").offsets[0] = 0
        request.read_options.max_wait.nanos = 1
        call = LocalCall(view=view)
        handler = method.handler if view is None else method.handler_for(call)  # type: ignore[misc]
        answer = handler(request.SerializeToString(), call)

        async def awaited() -> bytes:
            return answer if isinstance(answer, bytes) else await answer

        return asyncio.run(awaited())

    assert ask(1, SEEN)
    assert ask(2, None)  # its version has what is asked for, with no marker
    for ticket_id in (2, 3):
        with pytest.raises(NotCaughtUp):
            ask(ticket_id, SEEN)


def test_where_a_row_is_tells_nobody_that_it_is_there() -> None:
    catalogue, store = catalogue_of(TENANTS), MemoryStore()
    tickets = FilledTable(store, catalogue.tables["tickets"], 3, place=lambda _: Partition(1))
    tickets.publish()
    with store.snapshot() as snapshot:
        state = snapshot.table("tickets")
    assert state is not None
    state.manifest.foreign.key_codec = changelog_pb2.KEY_CODEC_INT64
    state.manifest.foreign.value_codec = changelog_pb2.VALUE_CODEC_JSON
    state.manifest.foreign.record_partitioner = changelog_pb2.RECORD_PARTITIONER_UNKNOWN
    store.put_table("tickets", state)
    row: Any = tickets.table.row_class
    tickets.put([row(ticket_id=number, owner=number) for number in (1, 2)])
    asker = Asker(catalogue, store, "/tenants.v1.TicketsService", None)
    method = asker.methods["/tenants.v1.TicketsService/GetTicket"]
    assert isinstance(method, UnaryMethod)
    trailers = []
    for ticket_id in (2, 3):
        call = LocalCall(view=SEEN)
        with pytest.raises(RowNotFound):
            method.handler_for(call)(asker.request("GetTicket", ticket_id=ticket_id).SerializeToString(), call)  # type: ignore[misc]
        trailers.append(call.trailer)
    assert trailers[0] == trailers[1] != ()
