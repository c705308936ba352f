"""The server in this process, with REST and the pages: over 100 movies, and over things that it sends back."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from google.protobuf import descriptor_pool

from tablegate.gateway.http.json_codec import JsonCodec
from tablegate.gateway.http.rest.arrow import ArrowRows
from tablegate.gateway.http.rest.pages import Pages
from tablegate.gateway.http.rest.protocol import RestProtocol
from tablegate.gateway.http.rpc.calls import Calls
from tablegate.gateway.http.rpc.connect import ConnectProtocol
from tablegate.gateway.http.server import HttpServer, WebProtocol
from tablegate.gateway.query.call import Call, Methods, StreamMethod, UnaryMethod
from tablegate.gateway.query.errors import NotCaughtUp, Overloaded, RowNotFound
from tablegate.gateway.query.service import query_methods
from tablegate.gateway.stores.notifier import Notifier
from tests.kit.gateways_in_process.cluster import WrittenEnds
from tests.kit.gateways_in_process.threaded import ServerThread
from tests.kit.store.memory import MemoryStore
from tests.kit.table.filled import SIGNER, catalogue_of, rating, ratings_table
from tests.kit.table.things import SERVICE, thing_routes

YEAR_10000 = b"Z\x07\x08\x80\x83\xd1\xff\xaf\x07"  # a start time that JSON has no text for


class RestServer(ServerThread):
    """As said above. `rules`: of the things' service.

    What is found is the thing that was asked for. `ended`: how many streams without end were left by their clients.
    """

    def __init__(self, **rules: str) -> None:
        super().__init__(self._made)
        self.ended = 0
        self._rules = rules

    def _made(self) -> HttpServer:
        store, catalogue = MemoryStore(), catalogue_of()
        table = ratings_table(store)
        table.put(rating(number) for number in range(100))
        things, problems = thing_routes(**self._rules)
        assert not problems, problems

        def web(methods: Methods, calls: Calls) -> Sequence[WebProtocol]:
            pools = [catalogue.pool, *{route.method.containing_service.file.pool for route in things}]
            codec = JsonCodec([*pools, descriptor_pool.Default()])
            rest = RestProtocol(
                [*catalogue.routes, *things], methods, calls, codec, ArrowRows(catalogue.queries, codec)
            )
            return [ConnectProtocol(methods, calls, codec), rest, Pages(catalogue, "http")]

        methods = {
            **query_methods(catalogue, store, SIGNER, Notifier(), ends=WrittenEnds(table)),
            **self._thing_methods(),
        }
        return HttpServer(methods, "127.0.0.1:0", web=web)

    def _thing_methods(self) -> Methods:
        async def watch(data: bytes, _call: Call) -> AsyncIterator[bytes]:
            if not data:
                raise Overloaded("too much", "calls")
            yield data
            yield _sent_back(data)
            raise NotCaughtUp("things", 0, "it is 3 s behind")

        async def watch_on(data: bytes, _call: Call) -> AsyncIterator[bytes]:
            try:
                while True:
                    yield data
                    await asyncio.sleep(0.001)
            finally:
                self.ended += 1

        def find(data: bytes, call: Call) -> bytes:
            call.set_trailer(((b"tablegate-role", b"owner"),))
            if not data:
                raise RowNotFound("things", "test.things.v1.Thing")
            return _sent_back(data)

        return {
            f"{SERVICE}/GetThing": UnaryMethod(lambda data, _call: data, 5.0, 5.0),
            f"{SERVICE}/FindThing": UnaryMethod(find, 5.0, 5.0),
            f"{SERVICE}/WatchThing": StreamMethod(watch, is_bulk=True),
            f"{SERVICE}/WatchOn": StreamMethod(watch_on),
        }


def _sent_back(data: bytes) -> bytes:
    return YEAR_10000 if b"year-10000" in data else data
