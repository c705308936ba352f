"""The mark of a forwarded call: good for its table and a minute, and made by nobody else."""

import pytest
from tablegate.gateway.cluster.forward_token import (
    KEPT_MS,
    MARK_AGE_MAX_MS,
    ForeignForwardToken,
    ForwardToken,
    ForwardTokenSigner,
)
from tablegate.gateway.contract.tokens import TokenSigner
from tablegate.internal.v1.tokens_pb2 import TOKEN_KIND_CONSISTENCY, Token

SIGNER = TokenSigner([b"k" * 32])
MARK = ForwardToken("ratings", generation=3, partitions=(1, 4))


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def marks(clock: Clock) -> ForwardTokenSigner:
    return ForwardTokenSigner(SIGNER, clock)


@pytest.mark.parametrize("mark", [MARK, ForwardToken("ratings"), ForwardToken("ratings", 1, (), "1.resume")])
def test_a_mark_says_what_was_signed(mark: ForwardToken, marks: ForwardTokenSigner) -> None:
    for _ in range(2):
        assert marks.open(marks.sign(mark), "ratings") == mark


def test_a_mark_of_another_table_is_refused(marks: ForwardTokenSigner) -> None:
    with pytest.raises(ForeignForwardToken, match="another table"):
        marks.open(marks.sign(MARK), "orders")


@pytest.mark.parametrize("text", ["", "1.", "1.AAAA", "nonsense"])
def test_nonsense_is_refused(text: str, marks: ForwardTokenSigner) -> None:
    with pytest.raises(ForeignForwardToken, match="damaged"):
        marks.open(text, "ratings")


def test_a_mark_of_other_keys_is_refused(marks: ForwardTokenSigner, clock: Clock) -> None:
    with pytest.raises(ForeignForwardToken, match="damaged"):
        marks.open(ForwardTokenSigner(TokenSigner([b"o" * 32]), clock).sign(MARK), "ratings")


def test_a_token_that_a_client_was_given_is_no_mark(marks: ForwardTokenSigner, clock: Clock) -> None:
    token = Token(kind=TOKEN_KIND_CONSISTENCY, table="ratings", generation=3, issue_time_ms=clock())
    with pytest.raises(ForeignForwardToken, match="another kind"):
        marks.open(SIGNER.sign(token), "ratings")


def test_a_mark_grows_old_also_where_it_is_known(marks: ForwardTokenSigner, clock: Clock) -> None:
    text = marks.sign(MARK)
    clock.now_ms += MARK_AGE_MAX_MS
    assert marks.open(text, "ratings") == MARK
    clock.now_ms += 1
    with pytest.raises(ForeignForwardToken, match="too long ago"):
        marks.open(text, "ratings")
    with pytest.raises(ForeignForwardToken, match="too long ago"):
        ForwardTokenSigner(SIGNER, clock).open(text, "ratings")


def test_a_mark_of_a_clock_that_is_ahead_is_refused(marks: ForwardTokenSigner, clock: Clock) -> None:
    text = marks.sign(MARK)
    clock.now_ms -= MARK_AGE_MAX_MS + 1
    with pytest.raises(ForeignForwardToken, match="ahead"):
        marks.open(text, "ratings")


def test_a_mark_is_signed_anew_before_it_is_old(marks: ForwardTokenSigner, clock: Clock) -> None:
    first = marks.sign(MARK)
    clock.now_ms += KEPT_MS - 1
    assert marks.sign(MARK) == first
    clock.now_ms += 1
    second = marks.sign(MARK)
    clock.now_ms += MARK_AGE_MAX_MS
    assert second != first
    assert marks.open(second, "ratings") == MARK
    clock.now_ms -= 3_600_000
    assert ForwardTokenSigner(SIGNER, clock).open(marks.sign(MARK), "ratings") == MARK
