"""A schema registry over real HTTP, with what a producer and a job ask of one; schema texts have one id each."""

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

_VERSIONS = re.compile(r"/subjects/([^/?]+)/versions(?:/(\d+))?")


class FakeRegistry:
    """Listens on a free port while the block runs."""

    def __init__(self) -> None:
        self.schemas: list[str] = []  # id - 1 is the place
        self.subjects: dict[str, list[int]] = {}
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                matched = _VERSIONS.match(self.path)
                ids = registry.subjects.get(matched[1], []) if matched else []
                if matched is None or not ids:
                    self._answer(404, {"error_code": 40401, "message": "Subject not found."})
                elif matched[2] is None:
                    self._answer(200, list(range(1, len(ids) + 1)))
                else:
                    schema_id = ids[int(matched[2]) - 1]
                    version = {"subject": matched[1], "version": int(matched[2]), "id": schema_id}
                    self._answer(200, {**version, "schema": registry.schemas[schema_id - 1]})

            def do_POST(self) -> None:
                matched = _VERSIONS.match(self.path)
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                assert matched is not None
                self._answer(200, {"id": registry.register(matched[1], body["schema"])})

            def _answer(self, code: int, body: Any) -> None:
                raw = json.dumps(body).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, *arguments: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def register(self, subject: str, schema: str) -> int:
        """Add a schema to a subject and return its id."""
        if schema not in self.schemas:
            self.schemas.append(schema)
        schema_id = self.schemas.index(schema) + 1
        versions = self.subjects.setdefault(subject, [])
        if schema_id not in versions:
            versions.append(schema_id)
        return schema_id

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
