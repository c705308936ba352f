"""Where a declaration stands in its file, and the error of a wrong one."""

import sys
from dataclasses import dataclass
from pathlib import Path

_PACKAGE = str(Path(__file__).parent)


class DeclarationError(Exception):
    """A declaration that no job can run; the message says where, what and what to do."""


@dataclass(frozen=True, slots=True)
class SourceLine:
    """Where a declaration stands."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def declaring_line() -> SourceLine:
    """Return the line that makes a declaration: the first frame outside of the language itself."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_language(frame.f_code.co_filename):
        frame = frame.f_back
    return SourceLine(frame.f_code.co_filename, frame.f_lineno)


def _is_language(file: str) -> bool:
    """Return whether a frame is of these modules, or of an `__init__` that dataclasses made."""
    return file == "<string>" or (file.startswith(_PACKAGE) and str(Path(file).parent) == _PACKAGE)
