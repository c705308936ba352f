"""The console at /console: a page that asks the port from which it came, and what it needs to know of the contracts.

The page is static files. They are the same in every installation and tell nothing of this one, so they need no right:
a browser sends no credential when it opens a page, and the page asks for one where it is refused. What tells something
is asked for by calls, under the rights of each, and by /console/contracts.json, under that of reflection.

Paths are those of the files in `page/`, listed when the process starts: a path that is not in the list is no file.

Decision: docs/decisions/0148-the-console-asks-its-own-port.md
Decision: docs/decisions/0149-the-console-has-no-build.md
"""

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import partial
from importlib.resources import files

from tablegate.gateway.contract.catalogue import Catalogue
from tablegate.gateway.http.console.contracts import contracts_value
from tablegate.gateway.http.exchange import Exchange, ResponseHeaders
from tablegate.gateway.http.page_files import (
    GOT_BY,
    HTML,
    JSON_TYPE,
    PAGE_FIELDS,
    SCRIPT,
    STYLE,
    PageFile,
    packed,
    page_fields,
    refuse_method,
)

START = b"/console"
CONTRACTS = b"/console/contracts.json"

_TYPES: Mapping[str, bytes] = {".css": STYLE, ".js": SCRIPT, ".mjs": SCRIPT, ".svg": b"image/svg+xml"}
_IMPORTS_BEGIN, _IMPORTS_END = b'<script type="importmap">', b"</script>"
_MOVED = ResponseHeaders(308, ((b"location", b"../console"),))


class Console:
    """Serves exchanges whose path is of the console. `data_port`: where clients call the gateway."""

    def __init__(self, catalogue: Catalogue, *, data_port: int) -> None:
        page = _read("index.html")
        self._files: Mapping[bytes, PageFile] = {
            START: PageFile(HTML, partial(packed, page), page_fields(script_hash=_hash_of_imports(page))),
            CONTRACTS: PageFile(
                JSON_TYPE, lambda: packed(json.dumps(contracts_value(catalogue, data_port)).encode()), PAGE_FIELDS
            ),
            **{b"/console/" + name.encode(): _page_file(name) for name in _names()},
        }

    @property
    def guarded_paths(self) -> Iterable[bytes]:
        """Return the paths that tell something of this gateway."""
        return (CONTRACTS,)

    def serve(self, exchange: Exchange) -> bool:
        """Serve an exchange; return whether its path was of the console."""
        path = exchange.target.partition(b"?")[0]
        file = self._files.get(path)
        if file is not None:
            file.serve(exchange)
        elif path != START + b"/":
            return False
        elif exchange.method in GOT_BY:
            exchange.respond(_MOVED, b"")
        else:
            refuse_method(exchange)
        return True


def _names() -> Iterable[str]:
    """Return the files that browsers get, as they are named below `page/`."""
    page = files("tablegate.gateway.http.console") / "page"
    for directory, prefix in ((page, ""), (page / "vendor", "vendor/")):
        for file in directory.iterdir():
            if any(file.name.endswith(suffix) for suffix in _TYPES):
                yield prefix + file.name


def _page_file(name: str) -> PageFile:
    suffix = name[name.rindex(".") :]
    return PageFile(_TYPES[suffix], lambda: packed(_read(name)))


def _read(name: str) -> bytes:
    return (files("tablegate.gateway.http.console") / "page").joinpath(*name.split("/")).read_bytes()


def _hash_of_imports(page: bytes) -> str:
    """Return the SHA-256 of the page's import map: browsers take one in the page alone, and no other is allowed."""
    text = page.partition(_IMPORTS_BEGIN)[2].partition(_IMPORTS_END)[0]
    return base64.b64encode(hashlib.sha256(text).digest()).decode("ascii")
