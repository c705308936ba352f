"""Files that browsers are given: packed, with a weak etag, and with headers that let a page reach nobody but us."""

import gzip
import hashlib
from collections.abc import Callable
from functools import cache

from tablegate.gateway.http.exchange import TEXT, Exchange, ResponseHeaders
from tablegate.gateway.http.rpc.compression import accepts_gzip
from tablegate.gateway.query.call import Fields

HTML, STYLE = b"text/html; charset=utf-8", b"text/css; charset=utf-8"
SCRIPT, JSON_TYPE = b"text/javascript; charset=utf-8", b"application/json"

GOT_BY = (b"GET", b"HEAD")

_GZIP = (b"content-encoding", b"gzip")
_METHOD_NOT_ALLOWED = ResponseHeaders(405, (TEXT, (b"allow", b"GET, HEAD")))


def page_fields(*, script_hash: str = "") -> Fields:
    """Return the headers of a page; `script_hash`: the SHA-256, in base64, of the one script that stands in it."""
    scripts = f"'self' 'sha256-{script_hash}'" if script_hash else "'self'"
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src {scripts}",
            "style-src 'self'",
            "img-src 'self' data:",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )
    return (
        (b"cache-control", b"no-cache"),  # which is: ask whether it is still the same
        (b"content-security-policy", policy.encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
        (b"vary", b"accept-encoding"),
    )


PAGE_FIELDS = page_fields()


class PageFile:
    """One file. `load` gives it packed; it is called when the file is first asked for."""

    def __init__(self, content_type: bytes, load: Callable[[], bytes], fields: Fields = PAGE_FIELDS) -> None:
        self._fields: Fields = ((b"content-type", content_type), *fields)
        self._load = cache(load)
        self._etag = cache(lambda: b'"%b"' % hashlib.sha256(self._load()).hexdigest()[:32].encode())

    def serve(self, exchange: Exchange) -> None:
        """Answer with the file, or with 304 where the client has it."""
        if exchange.method not in GOT_BY:
            refuse_method(exchange)
            return
        etag = self._etag()
        fields = (*self._fields, (b"etag", b"W/" + etag))  # weak: it is the same whether packed or not
        if etag in exchange.headers.get(b"if-none-match", b""):
            exchange.respond(ResponseHeaders(304, fields), b"")
        elif accepts_gzip(exchange.headers.get(b"accept-encoding")):
            exchange.respond(ResponseHeaders(200, (*fields, _GZIP)), self._load())
        else:
            exchange.respond(ResponseHeaders(200, fields), gzip.decompress(self._load()))


def refuse_method(exchange: Exchange) -> None:
    """Say that a page is only got."""
    exchange.respond(_METHOD_NOT_ALLOWED, b"a page is asked for by GET\n")


def packed(data: bytes) -> bytes:
    """Return data packed by gzip."""
    return gzip.compress(data, mtime=0)  # the same in each worker, or etags would differ
