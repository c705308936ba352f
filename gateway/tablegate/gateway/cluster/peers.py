"""Calls to other gateways over gRPC: a channel to each, kept.

Decision: docs/decisions/0035-grpcio-between-gateways.md
"""

import asyncio
import logging
import time
from bisect import bisect_left
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from google.rpc import code_pb2
from google.rpc.status_pb2 import Status
from typing_extensions import override

from tablegate.gateway.cluster.directory import Peer
from tablegate.gateway.cluster.forward_token import FORWARDED, ForwardToken
from tablegate.gateway.cluster.scatter import ANSWER_BYTES_MAX, Forwarded, Forwarder, PeerFailed
from tablegate.gateway.telemetry.measures import Measures
from tablegate.gateway.telemetry.request_ids import AT_WORK

WINDOW_BYTES = 256 * 1024  # of a stream that is read slowly, and so what it makes this process hold
PING_S = 10  # a peer that went without a word is found out by it
PING_TIMEOUT_S = 3
CONNECT_S = 1  # until a connection that nobody answers is given up
RECONNECT_MIN_S = 0.05
RECONNECT_MAX_S = 0.25  # a gateway that is back is asked again so soon; one that stays away is soon forgotten

_DETAILS = "grpc-status-details-bin"
CHANNEL_OPTIONS = (
    ("grpc.enable_retries", 0),  # the next replica is the retry
    ("grpc.enable_http_proxy", 0),  # what the environment names is for the world outside, not for gateways
    ("grpc.service_config_disable_resolution", 1),
    ("grpc.use_local_subchannel_pool", 1),  # a channel with new certificates is to use them
    ("grpc.keepalive_time_ms", PING_S * 1_000),
    ("grpc.keepalive_timeout_ms", PING_TIMEOUT_S * 1_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", int(1_000 * RECONNECT_MIN_S)),
    ("grpc.min_reconnect_backoff_ms", CONNECT_S * 1_000),
    ("grpc.max_reconnect_backoff_ms", int(1_000 * RECONNECT_MAX_S)),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
)

_logger = logging.getLogger("tablegate.gateway.cluster")


class Credentials:
    """The credentials in PEM files: our certificate chain, its key, and the CA of the other gateways. One thread.

    Without `ca` the others need certificates of a CA that everybody knows.
    """

    def __init__(self, certificate: Path, key: Path, ca: Path | None) -> None:
        """Read the files; raise `OSError`."""
        self._files = (certificate, key, ca)
        self._content = self._read()
        self._current = _credentials(*self._content)

    def current(self) -> grpc.ChannelCredentials:
        """Return what is in the files now; what was in them, where they cannot be read."""
        try:
            content = self._read()
        except OSError:
            return self._current
        if content != self._content:
            self._content, self._current = content, _credentials(*content)
        return self._current

    def _read(self) -> tuple[bytes, bytes, bytes | None]:
        certificate, key, ca = self._files
        return certificate.read_bytes(), key.read_bytes(), None if ca is None else ca.read_bytes()


def _credentials(certificate: bytes, key: bytes, ca: bytes | None) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(root_certificates=ca, private_key=key, certificate_chain=certificate)


@dataclass(slots=True)
class _Open:
    """A channel, and how this gateway shows itself on it."""

    channel: grpc.aio.Channel
    credentials: grpc.ChannelCredentials | None
    methods: dict[str, Any] = field(default_factory=dict)  # by path


class GrpcForwarder(Forwarder):
    """Asks gateways over gRPC; without `credentials` in plaintext. Made in any thread, used in one event loop.

    `measures`: where it is counted how long they take.
    """

    def __init__(
        self,
        sign: Callable[[ForwardToken], str],
        credentials: Credentials | None = None,
        *,
        answer_bytes_max: int = ANSWER_BYTES_MAX,
        measures: Measures | None = None,
    ) -> None:
        super().__init__(sign)
        self._durations = (Measures() if measures is None else measures).forwards
        self._credentials = credentials
        self._options = (*CHANNEL_OPTIONS, ("grpc.max_receive_message_length", answer_bytes_max))
        self._open: dict[Peer, _Open] = {}
        self._closing: set[asyncio.Future[None]] = set()

    @override
    async def unary(
        self,
        peer: Peer,
        path: str,
        data: bytes,
        token: ForwardToken,
        time_left_s: float | None,
        *,
        may_wait: bool = False,
    ) -> Forwarded:
        opened = self._opened(peer)
        method = opened.methods.get(path)
        if method is None:
            method = opened.methods[path] = opened.channel.unary_unary(path, None, None)
        begin_s = time.monotonic()
        call = method(data, timeout=time_left_s, metadata=self._metadata(token))
        try:
            message = await call
            trailer = await call.trailing_metadata()
        except grpc.aio.AioRpcError as error:
            self._measure(peer, error.code().name, time.monotonic() - begin_s)
            raise self._failed(peer, error) from None
        except asyncio.CancelledError:
            _check_cancelled()
            raise
        took_s = time.monotonic() - begin_s
        self._measure(peer, "OK", took_s)
        # A peer that had to wait for freshness was not slow, so its time says nothing of the next call.
        self.answered(peer, None if may_wait else took_s)
        return Forwarded(message, tuple(_ours(trailer)))

    @override
    async def stream(
        self, peer: Peer, path: str, data: bytes, token: ForwardToken, time_left_s: float | None
    ) -> AsyncGenerator[bytes, None]:
        method = self._opened(peer).channel.unary_stream(path, None, None)
        call: Any = method(data, timeout=time_left_s, metadata=self._metadata(token))
        try:
            async for message in call:
                yield message
        except grpc.aio.AioRpcError as error:
            raise self._failed(peer, error) from None
        except asyncio.CancelledError:
            _check_cancelled()
            raise
        finally:
            call.cancel()

    @override
    def keep(self, peers: Iterable[Peer]) -> None:
        peers = set(peers)
        super().keep(peers)
        for peer in [peer for peer in self._open if peer not in peers]:
            self._shut(peer)
        # Gateways come and go under new names, for as long as this one runs: their measures go with them.
        names = {peer.gateway_id for peer in peers}
        for labels in [labels for labels in self._durations if labels[0] not in names]:
            del self._durations[labels]

    @override
    async def close(self) -> None:
        await super().close()
        if self._closing:
            await asyncio.wait(self._closing)

    def _measure(self, peer: Peer, code: str, took_s: float) -> None:
        durations = self._durations[peer.gateway_id, code]
        # `durations.add`, written out: a forward passes enough files.
        durations.counts[bisect_left(durations.bounds, took_s)] += 1
        durations.sum += took_s

    def _metadata(self, token: ForwardToken) -> Sequence[tuple[str, str]]:
        """Return what goes with a forward: the token, and by what the request is known that it is for."""
        forwarded, call = (FORWARDED, self.sign(token)), AT_WORK.get()
        return (forwarded,) if call is None else (forwarded, *call.identity())

    def _opened(self, peer: Peer) -> _Open:
        opened = self._open.get(peer)
        if opened is None:
            credentials = None if self._credentials is None else self._credentials.current()
            if credentials is None:
                channel = grpc.aio.insecure_channel(peer.endpoint, options=self._options)
            else:
                channel = grpc.aio.secure_channel(peer.endpoint, credentials, options=self._options)
            opened = self._open[peer] = _Open(channel, credentials)
        return opened

    def _shut(self, peer: Peer) -> None:
        """Close a channel: calls at work on it break off."""
        closing = asyncio.ensure_future(self._open.pop(peer).channel.close(None))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def _failed(self, peer: Peer, error: grpc.aio.AioRpcError) -> PeerFailed:
        failed = PeerFailed(_status_of(error), tuple(_ours(error.trailing_metadata())))
        if failed.is_away:
            # Logged once, and not by each of the calls that were at work on the connection.
            if not self.is_cooling(peer):
                _logger.info("a gateway is not there", extra={"gateway": peer.gateway_id, "reason": error.details()})
                self._renew(peer)
            self.cool(peer)
        return failed

    def _renew(self, peer: Peer) -> None:
        """Close a channel whose certificate is another one now: that may be why it failed."""
        opened = self._open.get(peer)
        if opened is None or self._credentials is None:
            return
        # Certificates are renewed on disk while gateways run; a channel keeps those that it was opened with.
        if self._credentials.current() is not opened.credentials:
            self._shut(peer)


def _check_cancelled() -> None:
    """Raise `PeerFailed` where it was not this task that was cancelled, but the call: its channel was closed."""
    task = asyncio.current_task()
    # grpc raises CancelledError also where a channel is closed under a call. This task was not cancelled then, and its
    # caller needs an error that says so.
    if task is not None and not task.cancelling():
        raise PeerFailed(Status(code=code_pb2.UNAVAILABLE, message="the gateway is regarded as gone")) from None


def _status_of(error: grpc.aio.AioRpcError) -> Status:
    """Return the status of an error, with all its details."""
    code = error.code().value[0]
    trailer: Any = error.trailing_metadata() or ()
    for name, value in trailer:
        if name == _DETAILS:
            try:
                status = Status.FromString(value)
            except DecodeError:
                break
            # Where details and status contradict each other the status counts, as it is what gRPC itself acts on.
            if status.code == code:
                return status
    return Status(code=code, message=error.details() or "")


def _ours(trailer: Any) -> Iterable[tuple[bytes, bytes]]:
    fields: Iterable[tuple[str, Any]] = trailer or ()
    for name, value in fields:
        if name.startswith("tablegate-") and isinstance(value, str):
            yield name.encode("ascii"), value.encode("latin-1")
