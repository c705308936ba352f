"""The token of a forwarded call: good for its table and an hour, and made by nobody else."""

import random

import pytest

from tablegate.gateway.cluster.forward_token import (
    KEPT_MS,
    TOKEN_AGE_MAX_MS,
    ForeignForwardToken,
    ForwardToken,
    ForwardTokenSigner,
)
from tablegate.gateway.contract.tokens import TokenSigner
from tablegate.gateway.http.h2.headers import HEADER_BYTES_MAX
from tablegate.internal.v1.tokens_pb2 import TOKEN_KIND_CONSISTENCY, Token

SIGNER = TokenSigner([b"k" * 32])
TOKEN = ForwardToken("ratings", generation=3, partitions=(1, 4))


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def signer(clock: Clock) -> ForwardTokenSigner:
    return ForwardTokenSigner(SIGNER, clock)


@pytest.mark.parametrize("forward_token", [TOKEN, ForwardToken("ratings"), ForwardToken("ratings", 1, (), "1.resume")])
def test_a_forward_token_says_what_was_signed(forward_token: ForwardToken, signer: ForwardTokenSigner) -> None:
    for _ in range(2):
        assert signer.open(signer.sign(forward_token), "ratings") == forward_token


@pytest.mark.parametrize("count", [100, 101, 2_000, 10_000, 65_536])
def test_a_forward_token_fits_metadata_at_any_count(count: int, signer: ForwardTokenSigner, clock: Clock) -> None:
    """The half that one gateway of two has by rendezvous: no list of them is shorter than a bit each."""
    partitions = tuple(sorted(random.Random(count).sample(range(65_536), count // 2 or 1)))
    token = ForwardToken("ratings", 3, partitions)
    text = signer.sign(token)
    assert len(text) < HEADER_BYTES_MAX - 4_096  # which has other fields too
    assert ForwardTokenSigner(SIGNER, clock).open(text, "ratings") == token


def test_a_forward_token_of_another_table_is_refused(signer: ForwardTokenSigner) -> None:
    with pytest.raises(ForeignForwardToken, match="another table"):
        signer.open(signer.sign(TOKEN), "orders")


@pytest.mark.parametrize("text", ["", "1.", "1.AAAA", "nonsense"])
def test_nonsense_is_refused(text: str, signer: ForwardTokenSigner) -> None:
    with pytest.raises(ForeignForwardToken, match="damaged"):
        signer.open(text, "ratings")


def test_a_forward_token_of_other_keys_is_refused(signer: ForwardTokenSigner, clock: Clock) -> None:
    with pytest.raises(ForeignForwardToken, match="damaged"):
        signer.open(ForwardTokenSigner(TokenSigner([b"o" * 32]), clock).sign(TOKEN), "ratings")


def test_a_token_that_a_client_was_given_is_no_forward_token(signer: ForwardTokenSigner, clock: Clock) -> None:
    token = Token(kind=TOKEN_KIND_CONSISTENCY, table="ratings", generation=3, issue_time_ms=clock())
    with pytest.raises(ForeignForwardToken, match="another kind"):
        signer.open(SIGNER.sign(token), "ratings")


def test_a_forward_token_grows_old_also_where_it_is_known(signer: ForwardTokenSigner, clock: Clock) -> None:
    text = signer.sign(TOKEN)
    clock.now_ms += TOKEN_AGE_MAX_MS
    assert signer.open(text, "ratings") == TOKEN
    clock.now_ms += 1
    with pytest.raises(ForeignForwardToken, match="too long ago"):
        signer.open(text, "ratings")
    with pytest.raises(ForeignForwardToken, match="too long ago"):
        ForwardTokenSigner(SIGNER, clock).open(text, "ratings")


@pytest.mark.parametrize("off_ms", [-61_000, 61_000, -1_800_000, 1_800_000])
def test_clocks_of_gateways_may_differ_by_minutes(off_ms: int, signer: ForwardTokenSigner, clock: Clock) -> None:
    other = ForwardTokenSigner(SIGNER, lambda: clock() + off_ms)
    assert signer.open(other.sign(TOKEN), "ratings") == TOKEN
    assert other.open(signer.sign(TOKEN), "ratings") == TOKEN


def test_a_forward_token_of_a_clock_that_is_ahead_is_refused(signer: ForwardTokenSigner, clock: Clock) -> None:
    text = signer.sign(TOKEN)
    clock.now_ms -= TOKEN_AGE_MAX_MS + 1
    with pytest.raises(ForeignForwardToken, match="ahead"):
        signer.open(text, "ratings")


def test_a_forward_token_is_signed_anew_before_it_is_old(signer: ForwardTokenSigner, clock: Clock) -> None:
    first = signer.sign(TOKEN)
    clock.now_ms += KEPT_MS - 1
    assert signer.sign(TOKEN) == first
    clock.now_ms += 1
    second = signer.sign(TOKEN)
    clock.now_ms += TOKEN_AGE_MAX_MS
    assert second != first
    assert signer.open(second, "ratings") == TOKEN
    clock.now_ms -= 3_600_000
    assert ForwardTokenSigner(SIGNER, clock).open(signer.sign(TOKEN), "ratings") == TOKEN
