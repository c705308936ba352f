"""Where a subscription keeps its resume token."""

import os
from pathlib import Path
from typing import Protocol


class TokenStore(Protocol):
    """Keeps one token. A subscription loads it once, and saves each newer one when its consumer has all before it.

    So a consumer that ends anywhere gets each event at least once: what it makes of one must be done before it asks for
    the next. For a copy that outlives the process that is not enough: keep it with the token of its last event, in one
    transaction, and give that in the request.
    """

    def load(self) -> str:
        """Return the token that was saved last; "" where there is none."""

    def save(self, token: str) -> None:
        """Keep `token` instead of the one before."""


class TokenMemory:
    """Keeps it for as long as the process lives."""

    def __init__(self) -> None:
        self._token = ""

    def load(self) -> str:
        """Return the token."""
        return self._token

    def save(self, token: str) -> None:
        """Keep the token."""
        self._token = token


class TokenFile:
    """Keeps it in a file, which has one complete token at any moment. May raise OSError.

    It is not forced to disk: after a lost power an older token, or none, leads to changes that come once more.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._next = self._path.with_name(f"{self._path.name}.next")

    def load(self) -> str:
        """Return what the file holds; "" where there is none."""
        try:
            return self._path.read_text("ascii").strip()
        except FileNotFoundError:
            return ""

    def save(self, token: str) -> None:
        """Replace the file."""
        self._next.write_text(f"{token}\n", "ascii")
        self._next.replace(self._path)
