"""A schema registry that knows GUIDs, as Confluent's does since 8.0: another one behind a proxy that makes them."""

import contextlib
import http.server
import json
import threading
import uuid
from http import HTTPStatus
from typing import Self

from tests.kit.programs.secure_registry import forwarded


class RegistryWithGuids:
    """Answers at `url` as the registry at `upstream` does, each schema with the GUID that `guid` gives."""

    def __init__(self, upstream: str) -> None:
        base, _, path = upstream.partition("/apis")
        registry = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                before, asks_guid, name = self.path.partition("/schemas/guids/")
                status, body = registry._by_guid(self, base, before, name) if asks_guid else forwarded(self, base)
                with contextlib.suppress(ValueError):
                    found = json.loads(body)
                    if status == HTTPStatus.OK and isinstance(found, dict) and "id" in found:
                        body = json.dumps({**found, "guid": registry.guid(found["id"])}).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self) -> None:
                self.do_GET()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._ids: dict[str, int] = {}
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/apis{path}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def guid(self, schema_id: int) -> str:
        """Return the GUID of a schema, by which it is found from now on."""
        guid = str(uuid.uuid5(uuid.NAMESPACE_OID, str(schema_id)))
        self._ids[guid] = schema_id
        return guid

    def _by_guid(self, asked: http.server.BaseHTTPRequestHandler, base: str, path: str, name: str) -> tuple[int, bytes]:
        schema_id = self._ids.get(name.partition("?")[0])
        if schema_id is None:
            return HTTPStatus.NOT_FOUND, json.dumps({"error_code": 40403, "message": "none"}).encode()
        return forwarded(asked, base, f"{path}/schemas/ids/{schema_id}")
