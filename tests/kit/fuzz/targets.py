"""The targets by name, and where their corpora are."""

from collections.abc import Callable, Mapping
from pathlib import Path

from tests.kit.fuzz import connections, contents

CORPORA = Path(__file__).parents[2] / "fuzz/corpus"

TARGETS: Mapping[str, Callable[[bytes], None]] = {
    "hpack": connections.hpack_blocks,
    "http2": connections.http2,
    "http1": connections.http1,
    "json": connections.json_text,
    "request": contents.request,
    "token": contents.token,
    "key": contents.key,
    "row": contents.row,
}
"""Each takes any bytes, and raises where the product does what it must not."""


def corpus(name: str) -> list[Path]:
    """Return the files of a target's corpus."""
    return sorted(path for path in (CORPORA / name).iterdir() if path.is_file())
