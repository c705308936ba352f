"""Subscriptions for threads."""

import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any, Self

import grpc
from google.protobuf.message import Message

from tablegate.client.events import Event
from tablegate.client.failures import Failure, failure_of
from tablegate.client.subscriber import ENDED, Subscriber, silent
from tablegate.client.tokens import TokenMemory, TokenStore
from tablegate.client.watch import Watch

Method = Callable[..., Any]
"""A streaming method of a generated stub, as `stub.SubscribeRatings`."""


class Subscription(Iterator[Event]):
    """The events of one subscription, for one thread. Any thread may close it: then there are no more.

    Raises `SubscribeError` where the gateway refuses it, and what the token store raises.
    """

    def __init__(self, method: Method, subscriber: Subscriber, tokens: TokenStore) -> None:
        self._method = method
        self._subscriber = subscriber
        self._tokens = tokens
        self._closed = threading.Event()
        self._call: Any = None
        self._events = self._run()

    def __next__(self) -> Event:
        return next(self._events)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it."""
        self._closed.set()
        if self._call is not None:
            self._call.cancel()

    def _run(self) -> Iterator[Event]:
        watch = Watch(self._subscriber.silence_s)
        try:
            while not self._closed.is_set():
                failure = yield from self._stream(watch)
                if self._closed.is_set():
                    return
                lost = self._subscriber.lost(failure)
                yield lost
                self._closed.wait(lost.retry_after_s)
        finally:
            watch.stop()

    def _stream(self, watch: Watch) -> Generator[Event, None, Failure]:
        """Yield the events of one stream; return why it ended."""
        self._call = call = self._method(self._subscriber.request())
        if self._closed.is_set():
            call.cancel()
        watch.begin(call.cancel)
        try:
            while True:
                watch.waits()
                response: Message | None = next(call, None)
                watch.heard()
                if response is None:
                    return ENDED
                yield from self._subscriber.take(response)
                self._tokens.save(self._subscriber.token)
        except grpc.RpcError as error:
            return silent(watch.silence_s) if watch.bit else failure_of(error)
        finally:
            call.cancel()


def subscribe(
    method: Method, request: Message, *, token_store: TokenStore | None = None, restart: bool = False
) -> Subscription:
    """Return the events of a Subscribe, over as many streams as it takes.

    A stream that breaks (UNAVAILABLE, CANCELLED, a lost connection, three heartbeats that did not come) is opened again
    where it was, after a pause that grows, or the one that the gateway asks for.

    `token_store` is where the subscription goes on from, and keeps its token each time the consumer has taken all
    events before it: by asking for the next one. Without it the request's own token counts, if it has one. `restart`:
    a token that the gateway refuses begins with a Reset and a new snapshot; otherwise `ResumeTokenRefused` is raised.
    Raise `ContractMismatch` where `request` is not a Subscribe's.
    """
    tokens = token_store or TokenMemory()
    return Subscription(method, Subscriber(request, token=tokens.load(), restarts=restart), tokens)
