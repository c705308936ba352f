"""What people see in a browser: /openapi.json, and /docs, a page to try the REST routes. All of it comes from here."""

import gzip
import hashlib
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files

from tablegate.gateway.contract.catalogue import Catalogue
from tablegate.gateway.http.exchange import TEXT, Exchange, Head
from tablegate.gateway.http.rest.openapi import openapi_document
from tablegate.gateway.query.call import Fields

_CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
_FIELDS: Fields = (
    (b"cache-control", b"no-cache"),  # which is: ask whether it is still the same
    (b"content-security-policy", _CONTENT_SECURITY_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"vary", b"accept-encoding"),
)
_HTML, _STYLE = b"text/html; charset=utf-8", b"text/css; charset=utf-8"
_SCRIPT, _JSON = b"text/javascript; charset=utf-8", b"application/json"
_GZIP = (b"content-encoding", b"gzip")
_METHOD_NOT_ALLOWED = Head(405, (TEXT, (b"allow", b"GET")))


class _Page:
    """One file. `load` gives it; it is called when the file is first asked for."""

    def __init__(self, content_type: bytes, load: Callable[[], bytes]) -> None:
        self._fields: Fields = ((b"content-type", content_type), *_FIELDS)
        self._load = cache(load)
        self._etag = cache(lambda: b'"%b"' % hashlib.sha256(self._load()).hexdigest()[:32].encode())

    def respond(self, exchange: Exchange) -> None:
        """Answer with the file, or with 304 where the client has it."""
        etag = self._etag()
        fields = (*self._fields, (b"etag", b"W/" + etag))  # weak: it is the same whether packed or not
        if etag in exchange.headers.get(b"if-none-match", b""):
            exchange.respond(Head(304, fields), b"")
        elif b"gzip" in exchange.headers.get(b"accept-encoding", b""):
            exchange.respond(Head(200, (*fields, _GZIP)), self._load())
        else:
            exchange.respond(Head(200, fields), gzip.decompress(self._load()))


class Pages:
    """Serves exchanges whose path is one of the pages."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._pages: Mapping[bytes, _Page] = {
            b"/openapi.json": _Page(_JSON, lambda: _packed(openapi_document(catalogue))),
            b"/docs": _Page(_HTML, lambda: _packed(_file("page.html"))),
            b"/docs/page.js": _Page(_SCRIPT, lambda: _packed(_file("page.js"))),
            b"/docs/swagger-ui-bundle.js": _Page(_SCRIPT, lambda: _file("swagger-ui-bundle.js.gz")),
            b"/docs/swagger-ui.css": _Page(_STYLE, lambda: _file("swagger-ui.css.gz")),
        }

    def serve(self, exchange: Exchange) -> bool:
        """Serve an exchange; return whether its path was that of a page."""
        page = self._pages.get(exchange.target.partition(b"?")[0])
        if page is None:
            return False
        if exchange.method == b"GET":
            page.respond(exchange)
        else:
            exchange.respond(_METHOD_NOT_ALLOWED, b"a page is asked for by GET\n")
        return True


def _packed(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)  # the same in each worker, or etags would differ


def _file(name: str) -> bytes:
    return (files("tablegate.gateway.http.rest") / "swagger_ui" / name).read_bytes()
