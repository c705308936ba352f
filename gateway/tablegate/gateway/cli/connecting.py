"""How commands reach a gateway: its address, whom they trust, what they show, and what becomes of errors.

What they ask it is in `gateway.py`.
"""

import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import grpc
import typer
from google.rpc import error_details_pb2, status_pb2

LOCAL = "127.0.0.1:50051"

Address = Annotated[
    str,
    typer.Option(help="Gateway to ask; https://HOST:PORT for TLS.", envvar="TABLEGATE_ADDRESS", metavar="HOST:PORT"),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON object per line, for pipes.", envvar="TABLEGATE_JSON")
]

HTTPS = "https://"
_TARGET = re.compile(r"(?:\[[0-9A-Fa-f:.%]+\]|[^\s:/\[\]]+):([0-9]{1,5})")
_PORT_MAX = 65_535


class AskError(Exception):
    """A question that got no answer; the message is one sentence for the user."""


class NotServedHere(AskError):
    """The method that was asked for is not at this address."""


class NotAllowed(AskError):
    """Whoever asks may not call the method."""


def _ask_error(error: grpc.RpcError, address: str) -> AskError:
    code, text = error.code(), error.details() or ""
    reason = _reason(error)
    if code is grpc.StatusCode.UNAVAILABLE and reason is None:
        why = text.rpartition("last error: ")[2]
        return AskError(
            f"no gateway answers at {address} ({why}): start one with `tablegate serve`, or name it with --address; "
            f"use {HTTPS}HOST:PORT if it speaks TLS"
        )
    how = f": {_SHOW_ONE}" if text.endswith("show one") else ""  # by what, the gateway does not know
    return _KINDS.get(code, AskError)(f"{code.name}{f' ({reason})' if reason else ''}: {text}{how}")


_SHOW_ONE = "tablegate --credential FILE, before the command"
_KINDS = {grpc.StatusCode.UNIMPLEMENTED: NotServedHere, grpc.StatusCode.PERMISSION_DENIED: NotAllowed}


def _reason(error: grpc.RpcError) -> str | None:
    """Return the reason that the gateway gave, None if the error is not the gateway's own."""
    trailers: Any = error.trailing_metadata() or ()
    for name, value in trailers:
        if name == "grpc-status-details-bin":
            for detail in status_pb2.Status.FromString(value).details:
                info = error_details_pb2.ErrorInfo()
                if detail.Unpack(info):
                    return str(info.reason)
    return None


@contextmanager
def ask_errors(address: str) -> Iterator[None]:
    """Turn errors of gRPC into `AskError`."""
    try:
        yield
    except grpc.RpcError as error:
        raise _ask_error(error, address) from None


@dataclass(frozen=True, slots=True)
class Trust:
    """Which CA a TLS client trusts, and which certificate it shows: paths of PEM files; and the file of a credential.

    Without a CA, gRPC's own are trusted.
    """

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    credential: Path | None = None

    @property
    def is_of_tls(self) -> bool:
        """Return whether there is anything that only TLS needs."""
        return any(path is not None for path in (self.ca, self.certificate, self.key))

    def token(self) -> str | None:
        """Return the credential; None without one. Raise `AskError` where there is none in its file."""
        if self.credential is None:
            return None
        try:
            text = self.credential.read_text(encoding="ascii").strip()
        except OSError as error:
            raise AskError(f'"{self.credential}" cannot be read: {error.strerror}; check the path') from None
        except UnicodeDecodeError:
            text = ""
        if not text or not text.isprintable() or " " in text:
            raise AskError(f'"{self.credential}" holds no credential; write a JWT or an API key there, alone')
        return text

    def credentials(self) -> grpc.ChannelCredentials:
        """Return the credentials for a channel; raise `AskError` if a file cannot be read."""
        if (self.certificate is None) != (self.key is None):
            raise AskError("a client certificate needs its key: give both --cert and --key")
        contents: list[bytes | None] = []
        for path in (self.ca, self.key, self.certificate):
            try:
                contents.append(None if path is None else path.read_bytes())
            except OSError as error:
                raise AskError(f'"{path}" cannot be read: {error.strerror}; check the path') from None
        return grpc.ssl_channel_credentials(*contents)


class ShownCredential(
    grpc.UnaryUnaryClientInterceptor,  # type: ignore[type-arg]
    grpc.UnaryStreamClientInterceptor,  # type: ignore[type-arg]
    grpc.StreamStreamClientInterceptor,  # type: ignore[type-arg]
):
    """Shows a credential with each call. On a plaintext channel gRPC's own way to do so is not there.

    Its file is read each time: a token may be renewed there while a command runs for days.
    """

    def __init__(self, trust: Trust) -> None:
        self._trust = trust

    def _shown(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        metadata = [*(client_call_details.metadata or ()), ("authorization", f"Bearer {self._trust.token()}")]
        return continuation(client_call_details._replace(metadata=metadata), request)

    intercept_unary_unary = intercept_unary_stream = _shown

    def intercept_stream_stream(self, continuation: Any, client_call_details: Any, request_iterator: Any) -> Any:
        """Add the credential to the metadata of a call."""
        return self._shown(continuation, client_call_details, request_iterator)


class InterruptibleStreams(
    grpc.UnaryStreamClientInterceptor,  # type: ignore[type-arg]
    grpc.StreamStreamClientInterceptor,  # type: ignore[type-arg]
):
    """Begins each stream out of reach of Ctrl-C."""

    def _begun(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        with interrupts_deferred():
            return continuation(client_call_details, request)

    intercept_unary_stream = _begun

    def intercept_stream_stream(self, continuation: Any, client_call_details: Any, request_iterator: Any) -> Any:
        """Begin the stream."""
        return self._begun(continuation, client_call_details, request_iterator)


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Let Ctrl-C, and signals that are the same, wait for the end of the block; begin streams and futures in it.

    gRPC notes such a call, and then starts the thread that reads its events. A `KeyboardInterrupt` between the two
    leaves a call that nobody reads, and `Channel.close` waits for it for ever. Blocking unary calls are safe.
    """
    came: list[int] = []
    deferred: list[signal.Signals] = []
    try:
        if threading.current_thread() is threading.main_thread():  # others are not interrupted
            for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(one) is signal.default_int_handler:
                    deferred.append(one)
                    signal.signal(one, lambda number, _: came.append(number))
        yield
    finally:
        for one in deferred:
            signal.signal(one, signal.default_int_handler)
        if came:
            raise KeyboardInterrupt


CLOSE_S = 2.0  # it takes a millisecond, or for ever


def close(channel: grpc.Channel) -> None:
    """Close a channel that the main thread has used; leave it as it is where that takes too long.

    A Ctrl-C in `Condition.__enter__` leaves gRPC's condition locked, between the lock and the block that would free it.
    The thread that reads the events of the channel then waits for the lock, and `Channel.close` for that thread.
    """
    closing = threading.Thread(target=channel.close, name="tablegate-close", daemon=True)
    closing.start()
    closing.join(CLOSE_S)


NO_TRUST = Trust()


_trust = NO_TRUST


def use_trust(trust: Trust) -> None:
    """Connect with these files from now on."""
    global _trust
    _trust = trust


def trust() -> Trust:
    """Return what commands connect with."""
    return _trust


def target_of(address: str) -> str:
    """Return the host:port of an address; raise `AskError` where it is none."""
    target = address.removeprefix(HTTPS).removeprefix("http://").removesuffix("/")
    found = _TARGET.fullmatch(target)
    if found is None or not 0 < int(found[1]) <= _PORT_MAX:
        raise AskError(f'"{address}" is not an address: give HOST:PORT, or {HTTPS}HOST:PORT for TLS')
    return target
