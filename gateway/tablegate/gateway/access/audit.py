"""The audit log: a JSON line for each call, of who asked for what, and whether it was allowed.

It never has rows, values of requests or credentials. Lines wait in a buffer; `flush` writes them, on a timer. What
cannot be written stops no call: it waits until the buffer is full, then it is left out, and counted in the log. That
goes for a full disk, and for a pipe whose reader stands still. Nor may whoever shows no credential fill the disk: of
calls that nobody is known to have made, each second has so many lines, and one that counts the others.

    [audit]
    file = "audit.log"      # "-" is stderr
    sample = 0.01           # of the calls that were allowed; refusals are all there
"""

import json
import logging
import os
import random
import select
import stat
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tablegate.gateway.access.principal import AccessFileError
from tablegate.gateway.access.sections import Section

BUFFER_BYTES_MAX = 4 * 1024 * 1024
FLUSH_BYTES = 64 * 1024  # that are not left to the timer
UNKNOWN_PER_S = 50  # refused calls of nobody who is known
TEXT_CHARACTERS_MAX = 256  # of what a client may choose, such as a path

_STDERR = 2

_logger = logging.getLogger("tablegate.gateway.access")


class AuditLog:
    """Lines of a file, or of stderr. Several processes may write the same file. One thread."""

    def __init__(
        self,
        file: Path | None,
        *,
        sample: float = 1.0,
        clock: Callable[[], float] = time.time,
        chance: Callable[[], float] = random.random,
        buffer_bytes_max: int = BUFFER_BYTES_MAX,
    ) -> None:
        """Open the file (None: stderr); raise `AccessFileError`. `sample` is the part of allowed calls to record."""
        self._file = file
        self._sample = sample
        self._clock = clock
        self._chance = chance
        self._buffer = bytearray()
        self._buffer_bytes_max = buffer_bytes_max
        self._left_out = 0
        self._fails = False
        self._is_pipe = False
        self._second = 0
        self._unknown = 0  # refused calls of nobody who is known, in that second
        try:
            self._descriptor = self._open()
        except OSError as error:
            raise AccessFileError(f'[audit] file "{file}" cannot be written: {error.strerror}; correct it') from None

    def record(
        self,
        principal: str | None,
        path: str,
        table: str | None,
        *,
        refusal: str | None = None,
        address: str | None = None,
    ) -> None:
        """Record a call of a method. `refusal` is why it was not allowed; `address` is the client's."""
        if refusal is None and self._sample < 1.0 and self._chance() >= self._sample:
            return
        seconds, milliseconds = divmod(int(self._clock() * 1_000), 1_000)
        if refusal is not None and principal is None:
            if seconds != self._second:
                self._count_unknown()
                self._second = seconds
            self._unknown += 1
            if self._unknown > UNKNOWN_PER_S:
                return
        if len(self._buffer) >= self._buffer_bytes_max:
            self._left_out += 1
            return
        line: dict[str, Any] = {
            "time": _time(seconds, milliseconds),
            "principal": principal,
            "method": path[:TEXT_CHARACTERS_MAX],
            "table": table,
            "allowed": refusal is None,
        }
        if refusal is not None:
            line["reason"] = refusal[:TEXT_CHARACTERS_MAX]
        if address is not None:
            line["address"] = address
        self._buffer += json.dumps(line).encode() + b"\n"  # escaped: no text of a client begins a line
        if len(self._buffer) >= FLUSH_BYTES and not self._fails:
            self.flush()

    def _count_unknown(self) -> None:
        """Add the line that counts the calls of the last second that have none."""
        more = self._unknown - UNKNOWN_PER_S
        self._unknown = 0
        if more > 0:
            line = {"time": _time(self._second, 0), "principal": None, "allowed": False, "more_calls": more}
            self._buffer += json.dumps(line).encode() + b"\n"

    def flush(self) -> None:
        """Write what waits, into the file that has the name now: whoever rotates logs has moved the one before."""
        if self._unknown and int(self._clock()) != self._second:
            self._count_unknown()
        if not self._buffer:
            return
        try:
            self._reopen_if_moved()
            while self._buffer:
                written = os.write(self._descriptor, self._buffer[: self._piece_bytes()])
                del self._buffer[:written]
        except OSError as error:
            if not self._fails:
                self._fails = True
                _logger.error(
                    "the audit log cannot be written; calls are answered all the same",
                    extra={"file": str(self._file or "-"), "reason": error.strerror},
                )
            return
        if self._fails:
            self._fails = False
            _logger.warning("the audit log is written again", extra={"left_out": self._left_out})
            self._left_out = 0

    def close(self) -> None:
        """Write what waits, and close the file."""
        self.flush()
        if self._descriptor != _STDERR:
            os.close(self._descriptor)

    def _piece_bytes(self) -> int:
        """Return how much is written at once: to a pipe, whole lines that go in all together or not at all."""
        if not self._is_pipe:
            return len(self._buffer)
        return self._buffer.rfind(b"\n", 0, select.PIPE_BUF) + 1 or select.PIPE_BUF

    def _open(self) -> int:
        if self._file is None:
            if not stat.S_ISFIFO(os.fstat(_STDERR).st_mode):
                return _STDERR
            try:  # opened anew, as not to wait for a reader is of all who have opened it
                opened = os.open(f"/proc/self/fd/{_STDERR}", os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            except OSError:  # not on Linux, or of another user
                return _STDERR
        else:
            # Appended, a write is whole beside those of other processes. A pipe that nobody reads is an error.
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
            opened = os.open(self._file, flags, 0o640)
        self._is_pipe = stat.S_ISFIFO(os.fstat(opened).st_mode)
        return opened

    def _reopen_if_moved(self) -> None:
        if self._file is None:
            return
        ours = os.fstat(self._descriptor)
        try:
            found = os.stat(self._file)
            is_ours = (found.st_dev, found.st_ino) == (ours.st_dev, ours.st_ino)
        except FileNotFoundError:
            is_ours = False
        if not is_ours:
            opened = self._open()
            os.close(self._descriptor)
            self._descriptor = opened


def audit_log_of(settings: Mapping[str, Any], directory: Path) -> AuditLog | None:
    """Return the log of the section `[audit]` of an access file; None without one. Raise `AccessFileError`."""
    if "audit" not in settings:
        return None
    section = Section(settings["audit"], "[audit]", ("file", "sample"), directory)
    file = None if section.text("file") == "-" else section.path("file")
    return AuditLog(file, sample=section.number("sample", 1.0, 0.0, 1.0))


def _time(seconds: int, milliseconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{milliseconds:03d}Z"
