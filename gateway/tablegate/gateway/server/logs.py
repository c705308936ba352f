"""The log: one JSON object a line; lines for people where a person looks at a terminal.

What a line tells beside its message comes as `extra={"table": ..., "rows": ...}`. No line carries a key.
"""

import json
import logging
import sys
import time
from pathlib import Path
from typing import IO, Any

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_COLOURS = {logging.WARNING: "\033[33m", logging.ERROR: "\033[31m", logging.CRITICAL: "\033[31m"}
_DIM, _PLAIN = "\033[2m", "\033[0m"


def set_up_logging(process: str, log_file: Path | None = None) -> None:
    """Send the log of this process to `log_file` (as JSON), else to stderr (for people where that is a terminal)."""
    handler: logging.Handler
    if log_file is not None:
        handler = logging.FileHandler(log_file, encoding="utf-8")
        handler.setFormatter(JsonFormatter(process))
    else:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(TerminalFormatter(process) if _is_terminal(sys.stderr) else JsonFormatter(process))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)


def _is_terminal(stream: IO[str]) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON: time, level, process, logger, message, then what the record adds."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        seconds, milliseconds = divmod(int(record.created * 1_000), 1_000)
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{milliseconds:03d}Z",
            "level": record.levelname.lower(),
            "process": self._process,
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info is not None and record.exc_info[0] is not None:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


class TerminalFormatter(logging.Formatter):
    """A record for a person: time of day, process, message, then what the record adds."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        more = "".join(f" {name}={value}" for name, value in _fields(record).items())
        more = f"{_DIM}{more}{_PLAIN}" if more else ""
        text = f"{clock} {self._process:<10} {record.getMessage()}{more}"
        colour = _COLOURS.get(record.levelno)
        text = f"{colour}{text}{_PLAIN}" if colour else text
        if record.exc_info is not None and record.exc_info[0] is not None:
            text += "\n" + self.formatException(record.exc_info)
        return text
