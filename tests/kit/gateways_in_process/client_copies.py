"""The client's live tables, for threads and for asyncio, to be tested alike."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from typing import Any

import tablegate.client
from tablegate.client import aio
from tests.kit.gateways_in_process.ratings import SERVICE
from tests.kit.table.filled import catalogue_of

TIMEOUT_S = 60.0


class Copy:
    """A live table. `wait` is its `wait_current`; `table` may be read by any thread."""

    def __init__(self, table: Mapping[Any, Any], wait: Callable[[float], None]) -> None:
        self.table: Any = table
        self.wait = wait

    def counts(self) -> dict[int, int]:
        """Return movie → count."""
        return {key: row.rating_count for key, row in self.table.items()}


def request(method: str = "SubscribeRatings", **fields: Any) -> Any:
    """Return a request of the ratings service."""
    return catalogue_of().queries[f"{SERVICE}/{method}"].request_class(**fields)


def stub_method(channel: Any, method: str = "SubscribeRatings") -> Any:
    """Return a method as a generated stub has it."""
    query = catalogue_of().queries[f"{SERVICE}/{method}"]
    kind = channel.unary_stream if method == "SubscribeRatings" else channel.unary_unary
    return kind(
        query.path,
        request_serializer=query.request_class.SerializeToString,
        response_deserializer=query.response_class.FromString,
    )


@contextmanager
def for_threads(address: str, asked: Any, on_change: Any = None, credential: str | None = None) -> Iterator[Copy]:
    """Give the live table for threads."""
    with (
        tablegate.client.open_channel(address, credential=credential) as channel,
        tablegate.client.LiveTable(stub_method(channel), asked, on_change=on_change) as table,
    ):
        yield Copy(table, table.wait_current)


@contextmanager
def for_asyncio(address: str, asked: Any, on_change: Any = None, credential: str | None = None) -> Iterator[Copy]:
    """Give the live table for asyncio, in an event loop of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def run(coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(TIMEOUT_S)

    async def enter(stack: AsyncExitStack) -> aio.LiveTable:
        channel = await stack.enter_async_context(aio.open_channel(address, credential=credential))
        return await stack.enter_async_context(aio.LiveTable(stub_method(channel), asked, on_change=on_change))

    stack = AsyncExitStack()
    try:
        table = run(enter(stack))
        yield Copy(table, lambda timeout_s: run(table.wait_current(timeout_s)))
    finally:
        run(stack.aclose())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
