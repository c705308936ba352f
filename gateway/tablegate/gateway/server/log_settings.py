"""What a gateway logs, in a file that may change while it runs: `tablegate serve --log-settings log.toml`.

    level = "info"            # or debug, warning, error
    access_log = false        # a line for each call
    slow_call_ms = 500        # a line for each unary call that took so long, with how it was answered; 0: none

The processes of a gateway look at it each second. A signal would have to say which of these is meant, and a call would
reach one of several processes.

Decision: docs/decisions/0151-calls-are-logged-on-demand.md
"""

import logging
import tomllib
from dataclasses import dataclass
from pathlib import Path

from tablegate.gateway.access.sections import WatchedFile

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
FILE_BYTES_MAX = 64 * 1024

_logger = logging.getLogger("tablegate.gateway.server")


class LogSettingsError(Exception):
    """Log settings that are wrong; the message is a sentence for who wrote them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """What is logged. `slow_s`: unary calls that take so long are; None: none."""

    level: int = logging.INFO
    access_log: bool = False
    slow_s: float | None = None


def level_of(name: str) -> int:
    """Return the level of a name; raise `LogSettingsError`."""
    if name not in LEVELS:
        raise LogSettingsError(f'"{name}" is no level of a log; give one of {", ".join(LEVELS)}')
    return LEVELS[name]


def read_log_settings(path: Path, level: int) -> LogSettings:
    """Return what a file says; `level` where it names none. Raise `LogSettingsError`."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise LogSettingsError(f'"{path}" is longer than {FILE_BYTES_MAX} bytes; is it the right file?')
        content = tomllib.loads(data.decode())
    except OSError as error:
        raise LogSettingsError(f'"{path}" cannot be read: {error.strerror}; check the path and its mode') from None
    except (ValueError, RecursionError) as error:  # ValueError alone: a number of too many digits
        raise LogSettingsError(f'"{path}" is no TOML: {error}') from None
    for name in content:
        if name not in ("level", "access_log", "slow_call_ms"):
            raise LogSettingsError(f'"{path}" has "{name}", which is no setting: level, access_log, slow_call_ms are')
    access_log, slow_call_ms = content.get("access_log", False), content.get("slow_call_ms", 0)
    if not isinstance(access_log, bool):
        raise LogSettingsError(f'"{path}": access_log is true or false')
    if isinstance(slow_call_ms, bool) or not isinstance(slow_call_ms, int | float) or not 0 <= slow_call_ms < 1e9:
        raise LogSettingsError(f'"{path}": slow_call_ms is a number of milliseconds, 0 for none')
    if "level" in content:
        if not isinstance(content["level"], str):
            raise LogSettingsError(f'"{path}": level is a text; give one of {", ".join(LEVELS)}')
        level = level_of(content["level"])
    return LogSettings(level=level, access_log=access_log, slow_s=slow_call_ms / 1_000 if slow_call_ms else None)


class WatchedLogSettings:
    """The log settings of a process: those of a file, as it is now, or of none. One thread."""

    def __init__(self, path: Path | None, level: int) -> None:
        """Begin with what the file says; where it is wrong by now, with none of it."""
        self.now = LogSettings(level=level)
        self._path = path
        self._level = level
        if path is not None:
            self._watched = WatchedFile(path)
            self._read(path)
        logging.getLogger().setLevel(self.now.level)

    def refresh(self) -> None:
        """Read the file again where it has changed. On a timer."""
        if self._path is not None and self._watched.has_changed():
            self._read(self._path)
            logging.getLogger().setLevel(self.now.level)

    def _read(self, path: Path) -> None:
        try:
            self.now = read_log_settings(path, self._level)
        except LogSettingsError as error:
            _logger.warning("the log settings stay as they were", extra={"reason": str(error)})
