"""Tables of the access file, read with care: a key that nobody reads is a rule that does not hold."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from tablegate.gateway.access.principal import AccessFileError


class Section:
    """A table whose keys are all known. Each method raises `AccessFileError`, which names the key.

    `where` begins sentences: "[api_keys]". `directory` is where relative paths begin.
    """

    def __init__(self, value: object, where: str, known: Collection[str], directory: Path = Path()) -> None:
        if not isinstance(value, dict):
            raise AccessFileError(f"{where} is no table; write it as one")
        for name in value:
            if name not in known:
                raise AccessFileError(f'{where} "{name}" is unknown; known are {", ".join(sorted(known))}')
        self._values: Mapping[str, Any] = value
        self._where = where
        self._directory = directory

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def refuse(self, why: str) -> AccessFileError:
        """Return the error that says what is wrong with the table."""
        return AccessFileError(f"{self._where} {why}")

    def get(self, name: str) -> Any:
        """Return a value of any type; None where there is none."""
        return self._values.get(name)

    def text(self, name: str, default: str = "") -> str:
        """Return a text that can be printed; without a default it must be given."""
        value = self._values.get(name, default)
        if not isinstance(value, str) or not value or not value.isprintable():
            raise self.refuse(f'needs "{name}", a text without line breaks; give it')
        return value

    def texts(self, name: str, default: Collection[str] | None = None) -> tuple[str, ...]:
        """Return one text or several; without a default they must be given."""
        if default is not None and name not in self._values:
            return tuple(default)
        value = self._values.get(name)
        values = [value] if isinstance(value, str) else value
        # An empty list would be for nobody, or for all: who knows.
        if not isinstance(values, list) or not values or not all(isinstance(each, str) and each for each in values):
            if default is None:
                raise self.refuse(f'needs "{name}", a text or a list of texts; give it')
            raise self.refuse(f'"{name}" is no text or list of texts; correct it, or leave it out')
        return tuple(values)

    def number(self, name: str, default: float, least: float, most: float) -> float:
        """Return a number between two others."""
        value = self._values.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise self.refuse(f'"{name}" is no number from {least:g} to {most:g}; correct it')
        return float(value)

    def flag(self, name: str) -> bool:
        """Return true or false; false where there is none."""
        value = self._values.get(name, False)
        if not isinstance(value, bool):
            raise self.refuse(f'"{name}" is neither true nor false; correct it')
        return value

    def table(self, name: str) -> Mapping[str, Any]:
        """Return a table in it, with any keys; empty where there is none."""
        value = self._values.get(name, {})
        if not isinstance(value, dict):
            raise self.refuse(f'"{name}" is no table; write {name} = {{ … }}')
        return value

    def path(self, name: str) -> Path:
        """Return a path, which must be given."""
        return self._directory / self.text(name)


_UNREAD = (-1, -1, -1)  # of no file


class WatchedFile:
    """A file that somebody may write at any moment.

    It has changed when it is another one than was read, and the same as at the last look: half of a policy may be a
    policy, of which a rule lacks the line that says whose rows it shows.
    """

    def __init__(self, path: Path) -> None:
        """Take the file as read: before it is."""
        self._path = path
        self._read: tuple[int, int, int] | None = self._stamp()
        self._seen = self._read

    def has_changed(self) -> bool:
        """Return whether it is to be read again, which counts as done then."""
        before, self._seen = self._seen, self._stamp()
        if self._seen != before or self._seen == self._read:
            return False
        self._read = self._seen
        return True

    def forget(self) -> None:
        """Have it read again, also where it stays as it is: what was wrong may have been something else."""
        self._read = _UNREAD

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()  # of what a link leads to: Kubernetes replaces that
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino, found.st_size


def read_file(path: Path, bytes_max: int) -> bytes:
    """Return what a file has; raise `AccessFileError`."""
    try:
        with path.open("rb") as file:
            data = file.read(bytes_max + 1)
    except OSError as error:
        raise AccessFileError(f'"{path}" cannot be read: {error.strerror}; check the path and its mode') from None
    if len(data) > bytes_max:
        raise AccessFileError(f'"{path}" is longer than {bytes_max} bytes; is it the right file?')
    return data
