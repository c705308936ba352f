"""A schema registry that answers questions about the subjects that it was given, for tests without Java."""

import json
import threading
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import unquote

FIRST_ID = 41


class ListedRegistry:
    """Answers at `url`. `subjects`: the versions of each, as the registry's API has them, without their numbers.

    One that is marked "deleted" is there only for who asks for such.
    """

    def __init__(self, subjects: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        versions: dict[tuple[str, str], Mapping[str, Any]] = {}
        schema_id = FIRST_ID
        for subject, listed in subjects.items():
            for number, one in enumerate(listed, start=1):
                found = {"subject": subject, "version": number, "id": schema_id, **one}
                versions[subject, str(number)] = found
                if not one.get("deleted"):
                    versions[subject, "latest"] = found
                schema_id += 1

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path, _, query = self.path.partition("?")
                _, _, name, _, *version = [*map(unquote, path.split("/"))]
                listed = [
                    number
                    for number, one in enumerate(subjects.get(name, ()), start=1)
                    if query == "deleted=true" or not one.get("deleted")
                ]
                is_there = not version or version[0] == "latest" or int(version[0]) in listed
                found = listed if not version else versions.get((name, version[0])) if is_there else None
                body = json.dumps(found or {"error_code": 40401, "message": "none"}).encode()
                self.send_response(200 if found else 404)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
