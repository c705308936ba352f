"""A table behind a server in this process, which keeps what it is asked."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Self

from google.protobuf.message import Message

from tablegate.gateway.http.server import HttpServer
from tablegate.gateway.query.call import Call, Methods, StreamMethod, UnaryMethod
from tablegate.gateway.query.service import query_methods
from tablegate.gateway.server.metadata import reflection_methods
from tablegate.gateway.stores.notifier import Notifier
from tests.kit.gateways_in_process.threaded import ServerThread
from tests.kit.store.memory import MemoryStore
from tests.kit.table.filled import SIGNER, FilledTable, catalogue_of


class RecordedTable:
    """`asked`: the name of each query's method and its request, in the order in which they came.

    `on_message` is called with each message of a stream, and may raise.
    """

    def __init__(self, contract: Path, table: str, rows: Iterable[Message], partition_count: int = 4) -> None:
        self.catalogue = catalogue_of(contract)
        self.asked: list[tuple[str, Any]] = []
        self.on_message: Callable[[], None] = lambda: None
        self._store = MemoryStore()
        self.filled = FilledTable(self._store, self.catalogue.tables[table], partition_count)
        self.filled.publish()
        self.filled.put(rows)
        self._thread = ServerThread(self._server)

    def __enter__(self) -> Self:
        self._thread.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.__exit__()

    @property
    def address(self) -> str:
        """Return where it listens."""
        return f"127.0.0.1:{self._thread.port}"

    def _server(self) -> HttpServer:
        methods = query_methods(self.catalogue, self._store, SIGNER, Notifier())
        recorded: Methods = {path: self._recorded(path, method) for path, method in methods.items()}
        return HttpServer({**recorded, **reflection_methods(self.catalogue)}, "127.0.0.1:0")

    def _recorded(self, path: str, method: Any) -> Any:
        parse, name = self.catalogue.queries[path].request_class.FromString, path.rpartition("/")[2]

        def answer(data: bytes, call: Call) -> Any:
            self.asked.append((name, parse(data)))
            return method.handler(data, call)

        async def stream(data: bytes, call: Call) -> Any:
            self.asked.append((name, parse(data)))
            async for message in method.handler(data, call):
                self.on_message()
                yield message

        if isinstance(method, UnaryMethod):
            return UnaryMethod(answer, method.default_timeout_s, method.max_timeout_s)
        assert isinstance(method, StreamMethod)
        return StreamMethod(stream)
