"""Channels that lead to a local table: stubs of generated code that are made with one are answered from the disk."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

from tablegate.client.local.queries import LocalQueries
from tablegate.client.local.refusals import NotServed

Serialize = Callable[[Any], bytes]
Deserialize = Callable[[bytes], Any]


class LocalChannel:
    """What a stub needs of a channel. It has nothing to close: it reads for as long as its table is open."""

    def __init__(self, queries: LocalQueries) -> None:
        self._queries = queries

    def unary_unary(
        self, method: str, request_serializer: Serialize, response_deserializer: Deserialize, **_: Any
    ) -> Callable[..., Any]:
        """Return the function that answers a Get, BatchGet, Range or Count."""
        queries = self._queries

        def call(request: Any, timeout: float | None = None, **_: Any) -> Any:
            plan = queries.plan(method)
            return response_deserializer(plan.answer(plan.parsed(request_serializer(request)), timeout))

        return call

    def unary_stream(
        self, method: str, request_serializer: Serialize, response_deserializer: Deserialize, **_: Any
    ) -> Callable[..., "LocalStream"]:
        """Return the function that answers a Scan."""
        queries = self._queries

        def call(request: Any, timeout: float | None = None, **_: Any) -> LocalStream:
            return LocalStream(_messages(queries, method, request_serializer(request), timeout), response_deserializer)

        return call

    def stream_unary(self, method: str, *_: Any, **__: Any) -> Callable[..., Any]:
        """Return a function that refuses: no query takes a stream."""
        return _refuse(method)

    def stream_stream(self, method: str, *_: Any, **__: Any) -> Callable[..., Any]:
        """Return a function that refuses: no query takes a stream."""
        return _refuse(method)


class AsyncLocalChannel:
    """The same for the stubs of asyncio.

    A Get and a BatchGet are answered at once: they are shorter than a turn of the loop. What may take longer, or waits,
    is read in a thread.
    """

    def __init__(self, queries: LocalQueries) -> None:
        self._queries = queries

    def unary_unary(
        self, method: str, request_serializer: Serialize, response_deserializer: Deserialize, **_: Any
    ) -> Callable[..., Awaitable[Any]]:
        """Return the function that answers a Get, BatchGet, Range or Count."""
        queries = self._queries

        async def call(request: Any, timeout: float | None = None, **_: Any) -> Any:
            plan = queries.plan(method)
            parsed = plan.parsed(request_serializer(request))
            if plan.is_short and not plan.requires(parsed):
                return response_deserializer(plan.answer(parsed, timeout))
            return response_deserializer(await asyncio.to_thread(plan.answer, parsed, timeout))

        return call

    def unary_stream(
        self, method: str, request_serializer: Serialize, response_deserializer: Deserialize, **_: Any
    ) -> Callable[..., AsyncIterator[Any]]:
        """Return the function that answers a Scan."""
        queries = self._queries

        async def call(request: Any, timeout: float | None = None, **_: Any) -> AsyncIterator[Any]:
            messages = _messages(queries, method, request_serializer(request), timeout)
            while (message := await asyncio.to_thread(next, messages, None)) is not None:
                yield response_deserializer(message)

        return call

    def stream_unary(self, method: str, *_: Any, **__: Any) -> Callable[..., Any]:
        """Return a function that refuses: no query takes a stream."""
        return _refuse(method)

    def stream_stream(self, method: str, *_: Any, **__: Any) -> Callable[..., Any]:
        """Return a function that refuses: no query takes a stream."""
        return _refuse(method)


class LocalStream(Iterator[Any]):
    """The responses of a Scan."""

    def __init__(self, messages: Iterator[bytes], response_deserializer: Deserialize) -> None:
        self._messages = messages
        self._deserialize = response_deserializer
        self._is_cancelled = False

    def __next__(self) -> Any:
        if self._is_cancelled:
            raise StopIteration
        return self._deserialize(next(self._messages))

    def cancel(self) -> None:
        """End it."""
        self._is_cancelled = True


def _messages(queries: LocalQueries, method: str, request: bytes, timeout_s: float | None) -> Iterator[bytes]:
    plan: Any = queries.plan(method)
    if not hasattr(plan, "messages"):
        raise NotServed(f'a local table does not answer "{method}": ask a gateway')
    yield from plan.messages(plan.parsed(request), timeout_s)


def _refuse(method: str) -> Callable[..., Any]:
    def call(*_: Any, **__: Any) -> Any:
        raise NotServed(f'a local table does not answer "{method}": ask a gateway')

    return call
