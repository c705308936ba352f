"""Listens on one address, and gives each client the connection of the HTTP version that it speaks.

A client's life here: accepted, `ProtocolDetection`, then `Http1Connection` or `Http2Connection`, closed. All three are
a `Connection`: once a second each is asked to end what takes too long, so that no client needs a timer of its own.

A process that has all the connections it may have is shared by addresses (`http.shares`): who has fewer gets in, and
who has the most loses one, an idle one if there is any. The same goes for the bytes that all connections hold together
(`http.memory`). A connection that is old is asked to go: its client comes again, to whichever process or gateway has
room now, and with the certificate that it has now. One whose client's certificate has ended is closed. Where the
client CA changes, or its list of revoked certificates, all have to come again, also who is in the handshake.

Where several processes share the port (SO_REUSEPORT), the kernel has chosen a process before it accepts. So a drain
accepts what is in the queue before it closes the socket: the kernel would reset those clients.
"""

import asyncio
import errno
import heapq
import logging
import math
import socket
import ssl
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

from tablegate.gateway.http.connection_turns import ConnectionTurns, WaitLimits
from tablegate.gateway.http.detection import ProtocolDetection
from tablegate.gateway.http.exchange import App
from tablegate.gateway.http.h1_connection import Http1Connection, Http1Limits
from tablegate.gateway.http.h2_connection import Http2Connection, Http2Limits
from tablegate.gateway.http.memory import MemoryAccount, MemoryBudget, MemoryLimits
from tablegate.gateway.http.shares import Shares, network_of
from tablegate.gateway.http.tls import TlsFiles, WatchedTls

BACKLOG = 1024  # clients that wait to be accepted: a burst of reconnects after a restart
ACCEPTED_MAX = 64  # in one turn of the event loop, before open connections have theirs
ACCEPTED_MAX_TLS = 8  # a handshake costs a millisecond
ACCEPT_PAUSE_S = 1.0  # where there are no descriptors left
TICK_S = 1.0  # limits are seconds, and 10,000 connections must not cost much when idle
SEARCHED_MAX = 100  # connections of an address among which an idle one is looked for
AGES = 64  # different ones: those who came together do not come again together
UNSENT_BYTES_MAX = 128 * 1024  # in the kernel: what is written later would wait behind it
KEEPALIVE_IDLE_S, KEEPALIVE_PROBES, KEEPALIVE_INTERVAL_S = 60, 3, 10  # finds clients that went away without a word
VERIFIED_ANEW_S = 60.0  # after the client CA was changed, or its list of revoked certificates; for all of them
LOG_EACH_S = 1.0  # a line a second tells all that a thousand would

_TRANSIENT = frozenset({errno.ECONNABORTED, errno.EPROTO, errno.EINTR, errno.EPERM})  # of one client, not of the socket

_logger = logging.getLogger("tablegate.gateway.http")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What all clients, and each, may ask of one process."""

    connections_max: int = 10_000  # a process, each with a descriptor
    memory: MemoryLimits = field(default_factory=MemoryLimits)
    age_s: float = 3_600.0  # at most; at least four fifths of it: then a client is asked to come again
    detection_s: float = 10.0  # until it is known which protocol a client speaks; twice with TLS
    wait: WaitLimits = field(default_factory=WaitLimits)
    refused_s: float = 2.0  # for a client to read why it is refused
    http1: Http1Limits = field(default_factory=Http1Limits)
    http2: Http2Limits = field(default_factory=Http2Limits)


class Connection(Protocol):
    """A client, from the time that it is accepted on."""

    @property
    def idle(self) -> bool:
        """Whether the client waits for nothing."""

    def tick(self, now: float) -> None:
        """End what waits for too long; called about once a second."""

    def retire(self) -> None:
        """Let the client come again by another connection, soon and without losing an answer."""

    def drain(self) -> None:
        """End after what is at work."""

    def close(self) -> None:
        """End at once."""


@dataclass(slots=True, eq=False)
class _Client:
    """What the listener knows of a client."""

    address: str
    account: MemoryAccount
    connection: Connection
    retires_at_s: float
    ends_at_s: float = math.inf  # when its certificate does, in seconds since 1970


class Listener:
    """Accepts clients of `app` on `address`, host:port. One event loop.

    `shared_port`: other processes may listen on the same port, and share its connections.
    """

    def __init__(
        self,
        app: App,
        address: str,
        *,
        tls: TlsFiles | None = None,
        shared_port: bool = False,
        limits: Limits | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._wall_clock = wall_clock
        self._limits = limits or Limits()
        self.detection_s = self._limits.detection_s
        self.refused_s = self._limits.refused_s
        self._app = app
        self._address = address
        self._tls_files = tls
        self._tls: WatchedTls | None = None
        self._shared_port = shared_port
        self._port = 0
        self._draining = False
        self._connections: dict[Connection, _Client] = {}
        self._shares: Shares[_Client] = Shares()  # without those that are about to end to make room
        self._memory = MemoryBudget(self._limits.memory, self._evict_soon)
        self._eviction_scheduled = False
        self._turns = ConnectionTurns(limits=self._limits.wait)
        self._accepted = 0
        self._starting: set[asyncio.Task[object]] = set()  # the event loop alone would lose them
        self._empty = asyncio.Event()
        self._out_of_descriptors = False
        self._tls_failures = _RateLimitedLog("TLS handshake failed")
        self._too_many = _RateLimitedLog("too many connections, a client was closed")
        self._too_much = _RateLimitedLog("connections hold too much for their clients, a client was closed")

    @property
    def port(self) -> int:
        """Return the port, once started."""
        return self._port

    @property
    def connections(self) -> int:
        """Return how many connections there are."""
        return len(self._connections)

    @property
    def kept_bytes(self) -> int:
        """Return how many bytes connections hold for their clients, by the last count of each."""
        return self._memory.kept_bytes

    @property
    def context(self) -> ssl.SSLContext | None:
        """Return what new connections are encrypted with."""
        return None if self._tls is None else self._tls.context

    async def start(self) -> None:
        """Listen; raise `OSError` where the address cannot be had, `TlsError` where the TLS files are wrong."""
        if self._tls_files is not None:
            self._tls = WatchedTls(self._tls_files, self._wall_clock)
        self._socket = _listening_socket(self._address, shared_port=self._shared_port)
        self._port = self._socket.getsockname()[1]
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket, self._accept)
        self._timer = self._loop.call_later(TICK_S, self._tick)

    def drain(self) -> None:
        """Stop listening, and end each connection after what is at work on it."""
        if self._draining:
            return
        self._draining = True
        # Where the port is shared, the kernel has already given clients to this process: it would reset them.
        while self._accept():
            pass
        self._loop.remove_reader(self._socket)
        self._socket.close()
        for connection in tuple(self._connections):
            connection.drain()

    async def stop(self, grace_s: float) -> None:
        """Drain, wait for connections to end, at most `grace_s`, then end them."""
        self.drain()
        await self._wait_until_empty(grace_s)
        for connection in tuple(self._connections):
            connection.close()
        await self._wait_until_empty(TICK_S)
        self._timer.cancel()

    async def _wait_until_empty(self, limit_s: float) -> None:
        self._empty.clear()
        if not self._connections:
            return
        try:
            await asyncio.wait_for(self._empty.wait(), limit_s)
        except TimeoutError:
            return

    # Accepting.

    def _accept(self) -> bool:
        """Accept those that wait, up to a bound; return whether there may be more."""
        for _ in range(ACCEPTED_MAX if self._tls is None else ACCEPTED_MAX_TLS):
            try:
                client, address = self._socket.accept()
            except BlockingIOError:
                return False
            except OSError as error:
                if error.errno in _TRANSIENT:
                    continue
                self._pause_accepting(error)
                return False
            self._out_of_descriptors = False
            self._start(client, network_of(address[0]))
        return True

    def _start(self, client: socket.socket, address: str) -> None:
        if len(self._shares) >= self._limits.connections_max:
            self._too_many.note(self._loop.time(), {"connections": len(self._shares)})
            if not self._evict_rival(address):
                client.close()
                return
        client.setblocking(False)
        detection = ProtocolDetection(self)
        self._accepted += 1
        age_s = self._limits.age_s * (1 - 0.2 * (self._accepted % AGES) / AGES)
        known = self._connections[detection] = _Client(
            address, self._memory.account(), detection, self._loop.time() + age_s
        )
        self._shares.add(address, known)
        task: asyncio.Task[object] = self._loop.create_task(
            self._loop.connect_accepted_socket(lambda: detection, client)
        )
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    def _evict_rival(self, address: str) -> bool:
        """Close a connection of the address that has the most; return False where that is as few as this one's."""
        rivals = list(islice(self._shares.rivals(address), SEARCHED_MAX))
        if not rivals:
            return False
        rival = next((each for each in rivals if each.connection.idle), rivals[0])
        self._shares.remove(rival.address, rival)
        rival.connection.close()
        return True

    def _evict_soon(self) -> None:
        """Close who holds the most, but not in the middle of what somebody counts."""
        if not self._eviction_scheduled:
            self._eviction_scheduled = True
            self._loop.call_soon(self._evict_largest)

    def _evict_largest(self) -> None:
        """Close the connections that hold the most, each time of the address that does, until an eighth is free."""
        self._eviction_scheduled = False
        if not self._memory.is_full:
            return
        of_address: defaultdict[str, list[_Client]] = defaultdict(list)
        for client in self._connections.values():
            if client.account.kept_bytes:
                of_address[client.address].append(client)
        addresses = []
        for address, clients in of_address.items():
            clients.sort(key=_kept_bytes)
            addresses.append((-sum(map(_kept_bytes, clients)), address))
        heapq.heapify(addresses)
        enough = self._limits.memory.bytes_of(7)
        while addresses and self._memory.kept_bytes > enough:
            kept, address = heapq.heappop(addresses)
            client = of_address[address].pop()
            self._too_much.note(self._loop.time(), {"kept_bytes": self._memory.kept_bytes, "peer": address})
            kept += client.account.kept_bytes
            client.connection.close()
            if kept:
                heapq.heappush(addresses, (kept, address))

    def _pause_accepting(self, error: OSError) -> None:
        """Let clients wait in the kernel, rather than try again at once and for ever."""
        if not self._out_of_descriptors:
            self._out_of_descriptors = True
            _logger.warning("clients wait, since none can be accepted: %s; allow more open files", error.strerror)
        self._loop.remove_reader(self._socket)
        if not self._draining:
            self._loop.call_later(ACCEPT_PAUSE_S, self._resume_accepting)

    def _resume_accepting(self) -> None:
        if not self._draining:
            self._loop.add_reader(self._socket, self._accept)

    # What protocol detection calls.

    def start_protocol(
        self, detection: ProtocolDetection, transport: asyncio.Transport, data: bytes, *, http2: bool
    ) -> None:
        """Put a connection in the place of the detection."""
        client = self._connections.pop(detection)
        client.ends_at_s = min(client.ends_at_s, transport.get_extra_info("certificate_ends_at_s", math.inf))
        turn = self._turns.turn(lambda: self._shares.of(client.address))
        connection: Http1Connection | Http2Connection
        if http2:
            connection = Http2Connection(self._app, self._limits.http2, turn, client.account, self.note_closed)
        else:
            connection = Http1Connection(self._app, self._limits.http1, turn, client.account, self.note_closed)
        client.connection = connection
        self._connections[connection] = client
        transport.set_protocol(connection)
        connection.connection_made(transport)
        if data:
            connection.data_received(data)
        if self._draining:
            connection.drain()

    def note_tls_failure(self, reason: str, peer: str) -> None:
        """Log why a client cannot speak TLS with us."""
        self._tls_failures.note(self._loop.time(), {"reason": reason, "peer": peer})

    def note_closed(self, connection: Connection) -> None:
        """Forget a client."""
        client = self._connections.pop(connection, None)
        if client is not None:
            self._shares.remove(client.address, client)
        if not self._connections:
            self._empty.set()

    def _tick(self) -> None:
        self._timer = self._loop.call_later(TICK_S, self._tick)
        now, wall_s = self._loop.time(), self._wall_clock()
        for connection, client in tuple(self._connections.items()):
            try:
                connection.tick(now)
                if wall_s >= client.ends_at_s:
                    connection.close()  # nothing of it is to be answered any more, and its streams are to end
                if now >= client.retires_at_s:
                    client.retires_at_s = math.inf
                    connection.retire()
            except Exception:
                # Our mistake with one client: the limits of the others must hold on.
                _logger.exception("a connection failed")
                connection.close()
        if self._tls is not None and self._tls.reload_if_changed():
            self._verify_anew(now, wall_s)

    def _verify_anew(self, now: float, wall_s: float) -> None:
        """Let all clients come again, where their certificates may be revoked, a few at a time."""
        for number, client in enumerate(self._connections.values(), 1):
            after_s = VERIFIED_ANEW_S / 2 * number / len(self._connections)
            client.retires_at_s = min(client.retires_at_s, now + after_s)
            client.ends_at_s = min(client.ends_at_s, wall_s + VERIFIED_ANEW_S / 2 + after_s)


def _kept_bytes(client: _Client) -> int:
    return client.account.kept_bytes


class _RateLimitedLog:
    """Logs what may happen often at most once in LOG_EACH_S, with how often it was left out."""

    def __init__(self, message: str) -> None:
        self._message = message
        self._next = float("-inf")
        self._left_out = 0

    def note(self, now: float, details: dict[str, object]) -> None:
        """Log it, or count it."""
        if now < self._next:
            self._left_out += 1
            return
        self._next = now + LOG_EACH_S
        _logger.warning(self._message, extra={**details, "left_out": self._left_out})
        self._left_out = 0


def _listening_socket(address: str, *, shared_port: bool) -> socket.socket:
    """Return a socket that listens on host:port; what it is set to, those that it accepts are too."""
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of one before us may linger
        if shared_port:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listening.bind((host, int(port)))
        _set_options(listening)
        listening.setblocking(False)
        listening.listen(BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening


def _set_options(listening: socket.socket) -> None:
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (  # not every system has them
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
        ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL_S),
        ("TCP_NOTSENT_LOWAT", UNSENT_BYTES_MAX),
    ):
        if hasattr(socket, option):
            listening.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
