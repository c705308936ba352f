"""Go's server as a process, and what it and ours make of the same case."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tablegate.gateway.http.h2 import frames
from tablegate.gateway.http.h2.connection import ServerConnection
from tablegate.gateway.http.h2.frames import Http2ConnectionError
from tablegate.gateway.http.h2.stream import NEED_DATA, Stream

_BODY_BYTES_MAX = 4_096  # more than any case has

Request = tuple[Any, ...]
"""Method, target, authority, the other fields, body; all as text, the body in hex."""


@dataclass(frozen=True)
class Outcome:
    """The requests that were read to their end; the streams that were reset; the error of the connection, -1: none."""

    requests: frozenset[Request]
    resets: frozenset[int]
    error: int


def difference(ours: Outcome, theirs: Outcome) -> str:
    """Return how two outcomes differ that are not the same: in the first of these ways."""
    if (ours.error == -1) != (theirs.error == -1):
        return "theirs ends the connection" if ours.error == -1 else "ours ends the connection"
    if ours.error != theirs.error:
        return "another code"
    if ours.requests != theirs.requests:
        if ours.requests < theirs.requests:
            return "theirs serves more"
        return "ours serves more" if theirs.requests < ours.requests else "another request"
    if ours.resets < theirs.resets:
        return "theirs resets more"
    return "ours resets more" if theirs.resets < ours.resets else "other resets"


class GoServer:
    """Go's server."""

    def __init__(self, program: Path) -> None:
        self._program = program

    @classmethod
    def built(cls, directory: Path) -> Self:
        """Build it from the sources beside this, into a directory."""
        program = directory / "go-http2"
        subprocess.run(["go", "build", "-o", program.absolute(), "."], cwd=Path(__file__).parent, check=True)
        return cls(program)

    def __enter__(self) -> Self:
        self._process = subprocess.Popen([self._program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def ask(self, data: bytes) -> Outcome:
        """Return what it makes of what a client sends."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(len(data).to_bytes(4, "big") + data)
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        requests = [
            (each["method"], each["target"], each["authority"], _fields(each["headers"]), each["body"])
            for each in answer["requests"]
        ]
        return Outcome(frozenset(requests), frozenset(map(int, answer["resets"])), answer["error"])


def ours(data: bytes) -> Outcome:
    """Return what our protocol makes of it, without I/O."""
    connection: ServerConnection[Stream] = ServerConnection(body_bytes_max=_BODY_BYTES_MAX, new_stream=Stream)
    requests, error = [], -1
    try:
        connection.receive_data(data)
        while connection.started and (event := connection.next_event()) is not NEED_DATA:
            if isinstance(event, Stream):
                headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers.items()}
                authority = headers.pop("host", "")
                method, target = event.method.decode("latin-1"), event.target.decode("latin-1")
                requests.append((method, target, authority, _fields(headers), event.body.hex()))
    except Http2ConnectionError as failure:
        error = failure.code
    return Outcome(frozenset(requests), frozenset(_resets(b"".join(connection.output))), error)


def _resets(output: bytes) -> list[int]:
    found, at = [], 0
    while at < len(output):
        size, kind = int.from_bytes(output[at : at + 3], "big"), output[at + 3]
        if kind == frames.RST_STREAM:
            found.append(int.from_bytes(output[at + 5 : at + frames.FRAME_HEADER_BYTES], "big"))
        at += frames.FRAME_HEADER_BYTES + size
    return found


def _fields(headers: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(headers.items()))
