"""CORS (the Fetch standard): which pages of other origins may call. Never with credentials: there are none."""

import re
from collections.abc import Callable, Mapping

from typing_extensions import override

from tablegate.gateway.http.exchange import Exchange, ResponseHeaders, Trailer
from tablegate.gateway.query.call import Fields

ANY = "*"
MAX_AGE_S = 7_200  # browsers keep a preflight's answer no longer

_HEADER_NAMES = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~, -]{1,4096}")
_EXPOSED = (b"access-control-expose-headers", b"*")


class Cors:
    """What pages of `origins`, such as "https://example.org", may do; "*" is every origin, none is nobody."""

    def __init__(self, origins: tuple[str, ...]) -> None:
        self._any = ANY in origins
        self._origins = frozenset(origin.encode("ascii") for origin in origins)

    def preflight(self, exchange: Exchange) -> bool:
        """Answer a browser that asks before it calls; return whether this was one, and of an allowed origin."""
        headers = exchange.headers
        if exchange.method != b"OPTIONS" or b"access-control-request-method" not in headers:
            return False
        allowed = self._allowed(exchange)
        if not allowed:
            return False
        fields = (*allowed, (b"access-control-allow-methods", b"GET, POST, PUT, PATCH, DELETE"))
        asked = headers.get(b"access-control-request-headers", b"")
        if _HEADER_NAMES.fullmatch(asked):
            fields += ((b"access-control-allow-headers", asked),)
        exchange.respond(ResponseHeaders(204, (*fields, (b"access-control-max-age", b"%d" % MAX_AGE_S))), b"")
        return True

    def wrap(self, exchange: Exchange) -> Exchange:
        """Return the exchange, with an answer that a page of another origin may read, where its origin is allowed."""
        allowed = self._allowed(exchange)
        return CrossOriginExchange(exchange, (*allowed, _EXPOSED)) if allowed else exchange

    def _allowed(self, exchange: Exchange) -> Fields:
        origin = exchange.headers.get(b"origin")
        if origin is None:
            return ()
        if self._any:
            return ((b"access-control-allow-origin", b"*"),)
        if origin in self._origins:
            return ((b"access-control-allow-origin", origin), (b"vary", b"origin"))
        return ()


class CrossOriginExchange(Exchange):
    """An exchange whose answer has more fields in its headers."""

    def __init__(self, exchange: Exchange, fields: Fields) -> None:
        self._exchange = exchange
        self._fields = fields
        self.method = exchange.method
        self.target = exchange.target
        self.headers: Mapping[bytes, bytes] = exchange.headers
        self.oversize = exchange.oversize
        self.http2 = exchange.http2

    @property
    def on_gone(self) -> Callable[[], object] | None:
        """As of the exchange inside: its connection calls it."""
        return self._exchange.on_gone

    @on_gone.setter
    def on_gone(self, call: Callable[[], object] | None) -> None:
        self._exchange.on_gone = call

    @property
    def body(self) -> bytes:
        """As of the exchange inside: a stream lets it go, and it is kept nowhere else."""
        return self._exchange.body

    @body.setter
    def body(self, body: bytes) -> None:
        self._exchange.body = body

    @property
    @override
    def principal(self) -> str | None:
        return self._exchange.principal

    @property
    @override
    def address(self) -> str:
        return self._exchange.address

    def _more(self, headers: ResponseHeaders) -> ResponseHeaders:
        return ResponseHeaders(headers.status, headers.fields + self._fields)

    @override
    def respond(self, headers: ResponseHeaders, body: bytes, trailer: Trailer | None = None) -> None:
        self._exchange.respond(self._more(headers), body, trailer)

    @override
    def begin(self, headers: ResponseHeaders) -> None:
        self._exchange.begin(self._more(headers))

    @override
    async def send(self, data: bytes) -> None:
        await self._exchange.send(data)

    @override
    def offer(self, data: bytes) -> bool:
        return self._exchange.offer(data)

    @override
    def end(self, trailer: Trailer | None = None) -> None:
        self._exchange.end(trailer)

    @override
    def abort(self) -> None:
        self._exchange.abort()

    @override
    async def read(self) -> bytes:
        return await self._exchange.read()
