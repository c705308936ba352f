"""A connection to Redis: its URL, commands and scripts over it, its errors as ours."""

import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from hiredis import pack_command
from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection, parse_url
from redis.exceptions import (
    AskError,
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ClusterDownError,
    InvalidResponse,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry
from typing_extensions import override

from tablegate.gateway.stores.base import StoreFull, StoreUnavailable
from tablegate.gateway.stores.redis.layout import DEFAULT_PREFIX
from tablegate.gateway.stores.redis.scripts import SCRIPTS, Script

CONNECT_TIMEOUT_S = 1.0
REST_S = 0.2  # after a failure nobody waits again for so long: a worker has other things to do
REST_MAX_S = 3.0  # where there are other nodes, it is as long as was waited in vain, and so long at most
READ_BYTES = 256 * 1024  # taken from the socket at once
POLICY = "noeviction"
DEFAULT_PORT = 6379
NO_SCRIPT = "0" * 40  # the digest of none

Command = tuple[Any, ...]


class BadRedisUrl(ValueError):
    """A URL that names no Redis; the message is a sentence for the one who wrote it, without the URL's secrets."""


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """A Redis, and the prefix of the keys in it. `text` is for messages: it has no user and no password.

    `others`: hosts and ports of more of its nodes, which are asked while the first is away.
    """

    text: str
    prefix: str
    kind: Callable[..., Any] = field(repr=False)
    options: Mapping[str, Any] = field(repr=False)
    others: tuple[tuple[str, int], ...] = ()


def parse_address(url: str) -> RedisAddress:
    """Return the address of `redis://`, `rediss://` or `unix://`; raise `BadRedisUrl`.

    User, password and database are in the URL as usual, and the prefix in its query: `?prefix=gateway-1`. Of a Redis
    with several nodes the URL may name some: `redis://host-1:6379,host-2:6379`.
    """
    try:
        url, others = _split_hosts(url)
        parts = urlsplit(url)
        options = dict(parse_url(url))  # type: ignore[no-untyped-call]
    except ValueError:
        raise BadRedisUrl(_BAD_URL) from None
    kind = options.pop("connection_class", Connection)
    if kind is SSLConnection:
        kind = _TlsConnection
    options.pop("prefix", None)
    # The client's own parser leaves out what is empty: two gateways would share the prefix that nobody named.
    prefix = dict(parse_qsl(parts.query, keep_blank_values=True)).get("prefix", DEFAULT_PREFIX)
    if not prefix or any(character in prefix for character in "{} \n"):
        raise BadRedisUrl("the prefix of a Redis URL is empty, or has a space or a brace: choose a plain word")
    if kind is UnixDomainSocketConnection:
        if "path" not in options:
            raise BadRedisUrl(_BAD_URL)
        text = f"Redis at {options['path']}"
    else:
        database = parts.path.removeprefix("/")
        if database and not database.isdecimal():  # the client's own parser would take 0
            raise BadRedisUrl("the database in the URL of the store is no number: Redis has 0, 1 and so on")
        text = f"Redis at {options.get('host', 'localhost')}:{options.get('port', 6379)}"
    address = RedisAddress(text, prefix, kind, options, others)
    try:
        kind(**options)
    except TypeError:
        raise BadRedisUrl(
            "the URL of the store has an option that Redis connections have not: after ? give prefix=NAME, and check "
            "how the others are written"
        ) from None
    except (ValueError, RedisError):
        raise BadRedisUrl(_BAD_URL) from None
    return address


def _split_hosts(url: str) -> tuple[str, tuple[tuple[str, int], ...]]:
    """Return the URL with the first of its hosts, and the others with their ports; raise `ValueError`."""
    parts = urlsplit(url)
    user, at, hosts = parts.netloc.rpartition("@")
    first, *others = hosts.split(",")
    named = [urlsplit(f"//{other}") for other in others]
    if not all(other.hostname for other in named):
        raise ValueError("a host is empty")
    found = tuple((str(other.hostname), other.port or DEFAULT_PORT) for other in named)
    return parts._replace(netloc=f"{user}{at}{first}").geturl() if others else url, found


class _TlsConnection(SSLConnection):
    """Connects over TLS, in the time that there is to connect: a Redis without TLS waits for more, and says nothing."""

    @override
    def _wrap_socket_with_ssl(self, sock: socket.socket) -> socket.socket:
        sock.settimeout(self.socket_connect_timeout)
        try:
            wrapped: socket.socket = super()._wrap_socket_with_ssl(sock)  # type: ignore[no-untyped-call]
        except TimeoutError:
            waited = f"no TLS handshake within {self.socket_connect_timeout:g} s"
            raise RedisTimeoutError(f"{waited}; redis:// is without TLS") from None
        wrapped.settimeout(self.socket_timeout)
        return wrapped


_BAD_URL = "the URL of the store is none of Redis: use redis://host:6379/0, rediss://host:6379/0 or unix:///path"


class RedisConnection:
    """Runs commands, a round trip each time. It connects when it has to, and again where the connection was lost.

    Any thread; one at a time is served. A command that fails may have been done, and is done twice where its answer was
    lost: all that the store sends may be repeated.
    """

    def __init__(self, address: RedisAddress, *, timeout_s: float, has_others: bool = False) -> None:
        """`has_others`: it is of one of several nodes, so who waits for it holds up who asks for what others have."""
        self.address = address
        self._has_others = has_others
        self._lock = threading.Lock()
        self._rests_until_s = float("-inf")
        self._failure = ""
        self._connection: Any = address.kind(
            **{
                "socket_connect_timeout": CONNECT_TIMEOUT_S,
                "socket_timeout": timeout_s,
                "socket_read_size": READ_BYTES,
                **address.options,
                "protocol": 2,
                "decode_responses": False,
                "retry": Retry(NoBackoff(), 0),
                "redis_connect_func": self._greet,
            }
        )

    def call(self, script: Script, keys: Sequence[str], arguments: Iterable[Any]) -> Any:
        """Run a script and return its answer; errors as of `run`."""
        return self.run(script.on(keys, arguments))[0]

    def run(self, *commands: Command) -> list[Any]:
        """Return the answers of commands that are sent at once; raise `StoreUnavailable` or `StoreFull`."""
        try:
            return self.exchange(*commands)
        except RedisError as error:
            raise as_store_error(error, self.address.text) from None

    def exchange(self, *commands: Command) -> list[Any]:
        """Do what `run` does, and raise what Redis's client raises; `StoreUnavailable` for a while after a failure."""
        with self._lock:
            # While Redis hangs, each call would wait for its timeout again, and hold up the event loop of a worker.
            begin_s = time.monotonic()
            if self._failure and begin_s < self._rests_until_s:
                raise StoreUnavailable(self._failure)
            try:
                try:
                    answers = self._exchange(commands)
                # A timeout is not tried again: the command may still be running, and the caller has waited long enough.
                except RedisTimeoutError:
                    raise
                except (RedisConnectionError, NoScriptError):
                    self._connection.disconnect()
                    answers = self._exchange(commands)
            except RedisError as error:
                if isinstance(error, RedisConnectionError | RedisTimeoutError):
                    self._failure = str(as_store_error(error, self.address.text))
                    now_s = time.monotonic()
                    waited_s = min(now_s - begin_s, REST_MAX_S) if self._has_others else 0.0
                    self._rests_until_s = now_s + max(REST_S, waited_s)
                # Answers may be left unread on the connection. A write that Redis refused for want of memory has been
                # answered, and so has one for keys that another node has.
                if not isinstance(error, OutOfMemoryError | AskError):
                    self._connection.disconnect()
                raise
            self._failure = ""
            return answers

    def _exchange(self, commands: Sequence[Command]) -> list[Any]:
        connection = self._connection
        connection.send_packed_command(_packed(commands))
        answers: list[Any] = []
        first_error: ResponseError | None = None
        for _ in commands:
            try:
                answers.append(connection.read_response())
            except ResponseError as error:  # the answers after it are still to be read
                first_error = first_error or error
        if first_error is not None:
            raise first_error
        return answers

    def _greet(self, connection: Any) -> None:
        """Begin a new connection: log in, see that Redis can be the store, and bring the scripts."""
        connection.on_connect()
        self._check_policy(connection)
        self._check_age(connection)
        # Scripts are called by their digest. A Redis that was restarted has forgotten them, and a new connection is the
        # sign of that.
        connection.send_packed_command(_packed([("SCRIPT", "LOAD", each.text) for each in SCRIPTS]))
        for _ in SCRIPTS:
            connection.read_response()

    def _check_policy(self, connection: Any) -> None:
        connection.send_packed_command(_packed([("INFO", "memory")]))
        policy = _policy(connection.read_response())
        if policy != POLICY:
            raise _Evicting(policy)

    def _check_age(self, connection: Any) -> None:
        """Raise a `ResponseError` where Redis lacks the youngest command that the store sends, which only reads do."""
        connection.send_packed_command(_packed([("EVALSHA_RO", NO_SCRIPT, 0)]))
        with suppress(NoScriptError):
            connection.read_response()

    def check_policy(self) -> None:
        """Raise `StoreUnavailable` where Redis may evict rows."""
        policy = _policy(self.run(("INFO", "memory"))[0])
        if policy != POLICY:
            raise as_store_error(_Evicting(policy), self.address.text)

    def close(self) -> None:
        """Disconnect. Repeats do nothing."""
        with self._lock:
            self._connection.disconnect()


def _packed(commands: Iterable[Command]) -> list[bytes]:
    """Return commands as what is sent; hiredis itself takes a third of what the client's packer around it does."""
    return [b"".join(map(pack_command, commands))]


class _Evicting(RedisError):
    """A server that removes keys when its memory is full: a key that exists would be "not found"."""


def _policy(info: bytes) -> str:
    for line in info.decode(errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name == "maxmemory_policy":
            return value
    return "unknown"


def as_store_error(error: RedisError, address: str) -> StoreUnavailable:
    """Return our error for one of Redis's."""
    if isinstance(error, OutOfMemoryError):
        return StoreFull(f"{address} has no room for the store: raise its maxmemory")
    if isinstance(error, _Evicting):
        return StoreUnavailable(
            f'{address} may evict rows, as its maxmemory-policy is "{error}": set maxmemory-policy to {POLICY}'
        )
    return StoreUnavailable(f"{address} {_trouble(error)}")


def _trouble(error: RedisError) -> str:
    if isinstance(error, AuthenticationError | AuthorizationError):
        return "refuses the user or the password: check those in the store's URL"
    if isinstance(error, NoPermissionError) or "user executing the script can't" in str(error):
        return f"does not permit what the store does ({error}): give its user all commands on the store's keys"
    if isinstance(error, ReadOnlyError):
        return "is a replica and takes no writes: name the primary in the store's URL"
    if isinstance(error, BusyLoadingError):
        return "is loading its data: wait until it has"
    if isinstance(error, ClusterDownError):
        return f"is one of several nodes of a cluster that is down ({error}): look at its CLUSTER INFO"
    if isinstance(error, TryAgainError):
        return "moves a slot to another node: ask again"
    if isinstance(error, RedisConnectionError | RedisTimeoutError):
        return f"does not answer ({error}): see that it runs, and that its address in the store's URL is right"
    if isinstance(error, InvalidResponse):
        return f"is something else than Redis ({error}): check the address in the store's URL"
    if str(error).startswith("DAMAGED"):
        return "has lost keys of the store, as one that evicts does: what it lacks is fetched again"
    if "SELECT is not allowed" in str(error):
        return "is one of several nodes of a cluster, which have no database but 0: name none in the store's URL"
    if "DB index" in str(error):
        return "has no database of that number: name another in the store's URL, or raise databases in Redis"
    if "unknown command" in str(error):
        return f"is too old ({error}): Redis 7.0 or newer is needed"
    return f"refuses what the store does ({error})"
