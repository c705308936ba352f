"""Channels with the settings that go with a gateway."""

import json
from collections.abc import Sequence
from typing import Any

import grpc

Options = Sequence[tuple[str, Any]]

DEADLINE_S = 5.0  # of a unary call that is given none: the gateway waits for freshness up to half of it
RESPONSE_BYTES_MAX = 64 * 1024 * 1024  # a page has up to 1,000 rows; gRPC's own limit is 4 MiB
KEEPALIVE_MS = 30_000  # a gateway takes no more than a ping each 20 s
KEEPALIVE_TIMEOUT_MS = 10_000
RECONNECT_MIN_MS, RECONNECT_MAX_MS = 200, 2_000  # gRPC's own are a second and two minutes
CONNECT_TIMEOUT_MS = 5_000

RETRY = {
    # Of its statuses a gateway means UNAVAILABLE alone to be tried again. gRPC itself heeds grpc-retry-pushback-ms.
    "maxAttempts": 4,
    "initialBackoff": "0.1s",
    "maxBackoff": "2s",
    "backoffMultiplier": 2,
    "retryableStatusCodes": ["UNAVAILABLE"],
}


def channel_options(more: Options = ()) -> list[tuple[str, Any]]:
    """Return the options of a channel to a gateway; those of `more` win."""
    options: dict[str, Any] = {
        "grpc.service_config": json.dumps({"methodConfig": [{"name": [{}], "retryPolicy": RETRY}]}),
        "grpc.max_receive_message_length": RESPONSE_BYTES_MAX,
        "grpc.keepalive_time_ms": KEEPALIVE_MS,
        "grpc.keepalive_timeout_ms": KEEPALIVE_TIMEOUT_MS,
        "grpc.initial_reconnect_backoff_ms": RECONNECT_MIN_MS,
        "grpc.min_reconnect_backoff_ms": CONNECT_TIMEOUT_MS,  # that is what it means
        "grpc.max_reconnect_backoff_ms": RECONNECT_MAX_MS,
    }
    return list({**options, **dict(more)}.items())


def open_channel(
    target: str,
    *,
    credentials: grpc.ChannelCredentials | None = None,
    deadline_s: float = DEADLINE_S,
    options: Options = (),
) -> grpc.Channel:
    """Return a channel to the gateway at `target` (host:port, or what gRPC's resolvers know).

    Of several addresses (`ipv4:10.0.0.1:50051,10.0.0.2:50051`) it takes one, and the next where that is not there.
    Without `credentials` it speaks plaintext; `grpc.ssl_channel_credentials()` makes it TLS. A unary call that
    UNAVAILABLE ends is tried again, up to four times in all, when the gateway says so; one that is given no timeout
    has `deadline_s`. Streams have no deadline.
    """
    if credentials is None:
        channel = grpc.insecure_channel(target, channel_options(options))
    else:
        channel = grpc.secure_channel(target, credentials, channel_options(options))
    deadlines: Any = _Deadlines(deadline_s)
    return grpc.intercept_channel(channel, deadlines)


class _Deadlines(grpc.UnaryUnaryClientInterceptor):  # type: ignore[type-arg]
    """Gives unary calls a deadline. A service config cannot: it knows no unary methods from streams."""

    def __init__(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s

    def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return continuation(with_deadline(client_call_details, self._deadline_s), request)


def with_deadline(details: Any, deadline_s: float) -> Any:
    """Return the details of a call with this deadline, unless it has one."""
    return details if details.timeout is not None else details._replace(timeout=deadline_s)
