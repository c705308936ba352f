"""What Go's HTTP/2 server makes of a client's bytes, ours makes of them, too, but for what RFC 9113 leaves open."""

import shutil
from pathlib import Path

import pytest

from tests.kit.fuzz.go_http2.cases import CHANGES, case
from tests.kit.fuzz.go_http2.oracle import GoServer, difference, ours

CASES, MANY_CASES = 3_000, 200_000
TRIES = 5  # Go reads bodies in threads: on a busy machine it may be asked what it has read before they had their turn

# A malformed request is an error of its stream here (8.1.1), and of the connection there.
_MALFORMED = {
    "a method behind fields",
    "a name in capitals",
    "a name with a colon",
    "a name with a space",
    "a second method",
    "a second path",
    "a value with a line's end",
    "a value with a zero",
    "an empty name",
}
# What comes on a stream that was reset by us, before the client can know it, is late and not wrong (5.1).
_LATE = {
    "a flag",
    "a field of a connection",
    "a frame comes twice",
    "a frame is left out",
    "a length that is none",
    "a path without a slash",
    "a payload is cut",
    "a reset",
    "a stream's window by 0",
    "a stream's window too wide",
    "an empty path",
    "another kind",
    "another length",
    "another stream",
    "no method",
    "no path",
    "no scheme",
    "te",
    "too much padding",
    "transfer-encoding",
    "two frames are swapped",
}
# These are malformed, and Go takes them, or answers 400: fields of a connection (8.2.2), also in trailers; a body that
# is not as long as said (8.1.1); values with space around (8.2.1); no authority, or another host (8.3.1); a method that
# is no token; `*` for a path, but of OPTIONS.
_STRICTER = {
    "a field of a connection",
    "a flag",
    "a frame comes twice",
    "a frame is left out",
    "a host",
    "a length that is none",
    "a method that is no token",
    "a payload is cut",
    "a star for a path",
    "a value with spaces around",
    "another kind",
    "another length",
    "another stream",
    "no authority",
    "te",
    "too much padding",
    "transfer-encoding",
    "two frames are swapped",
}
ALLOWED = {
    "theirs ends the connection": _MALFORMED | _LATE | {"random bytes for a block"},
    # Padding that is longer than its frame, and a frame without the length of its padding (6.1, 6.2, 4.2): an error of
    # the connection here, and of the stream there.
    "ours ends the connection": {"a flag", "another kind", "too much padding"},
    # Two things are wrong, or the code is a matter of taste: all of them end the connection.
    "another code": {
        "a flag",
        "a reset",
        "another kind",
        "another stream",
        "random bytes for a block",
        "too much padding",
    },
    # Go takes a table's new size behind a field where the table is empty (RFC 7541, 4.2: at the beginning alone).
    "theirs serves more": _STRICTER | {"random bytes for a block"},
    # What ended the connection here was an error of a stream there, before both met another.
    "theirs resets more": {"a flag"},
    "ours resets more": _STRICTER,
    # Whose client has said GOAWAY asks for nothing more there. It is about streams of the server (6.8).
    "ours serves more": {"goaway", "another kind"},
}


@pytest.mark.tools
@pytest.mark.parametrize(
    "seeds",
    [range(CASES), pytest.param(range(CASES, MANY_CASES), marks=[pytest.mark.long, pytest.mark.timeout(7_200)])],
)
def test_a_connection_is_to_go_what_it_is_here(seeds: range, tmp_path: Path) -> None:
    if shutil.which("go") is None:
        pytest.skip("Go is not here")
    found: dict[tuple[str, str], list[int]] = {}
    with GoServer.built(tmp_path) as go:
        for seed in seeds:
            asked = case(seed)
            own = ours(asked.data)
            for _ in range(TRIES):
                if own == (theirs := go.ask(asked.data)):
                    break
            else:
                found.setdefault((difference(own, theirs), asked.change), []).append(seed)
    assert found, "changes are noticed by one of them and not by the other"
    odd = {key: some[:5] for key, some in found.items() if key[1] not in ALLOWED.get(key[0], ())}
    assert not odd


def test_what_is_allowed_can_be_changed() -> None:
    assert set().union(*ALLOWED.values()) <= CHANGES.keys()
