"""Resume tokens: only the one that a stream of the same request gave is taken."""

import asyncio
import random
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any

import pytest

from tablegate.gateway.contract.tokens import TokenSigner
from tablegate.gateway.query.call import StreamMethod
from tablegate.gateway.query.errors import InvalidResumeToken, PartitionUnavailable
from tablegate.gateway.query.service import query_methods
from tablegate.v1.query_pb2 import SUBSCRIBE_PHASE_RESET
from tests.kit.call.asker import Ratings, make_ratings
from tests.kit.call.subscribing import METHOD, Writer, options, token_of
from tests.kit.table.filled import SIGNER, LocalCall

MUTATIONS = 5_000
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_=.~ \n\x00é"


def tokens_of(ratings: Ratings, count: int, **fields: Any) -> list[str]:
    messages = ratings.asker.stream(METHOD, most=count, **fields)
    return [message.progress.resume_token for message in messages]


def mutated(token: str, other: str, choice: random.Random) -> str:
    """Return a text that is neither of two tokens, but was made of them."""
    at = choice.randrange(len(token))
    raw = bytearray(urlsafe_b64decode(token[2:] + "=" * (-len(token[2:]) % 4)))
    match choice.randrange(8):
        case 0:
            return token[:at] + choice.choice(ALPHABET) + token[at + 1 :]
        case 1:
            return token[:at] + choice.choice(ALPHABET) + token[at:]
        case 2:
            return token[:at] + token[at + 1 :]
        case 3:
            return token[:at]
        case 4:
            return token[:at] + other[at:]
        case 5:
            return token[:at] + token[at:].swapcase()
        case 6:
            raw[choice.randrange(len(raw))] ^= 1 << choice.randrange(8)
        case _:
            first, second = sorted(choice.randrange(len(raw)) for _ in range(2))
            del raw[first:second]
    return "1." + urlsafe_b64encode(raw).rstrip(b"=").decode()


@pytest.mark.tools
def test_no_mutated_token_is_taken() -> None:
    ratings = make_ratings()
    Writer(ratings).put(*range(1_200))
    tokens = tokens_of(ratings, 4)
    choice = random.Random(5)
    handler = ratings.asker.methods[f"{ratings.asker.service}/{METHOD}"]
    assert isinstance(handler, StreamMethod)
    refused = 0

    async def ask(text: str) -> None:
        request = ratings.asker.request(METHOD, subscribe_options=options(text))
        messages = handler.handler(request.SerializeToString(), LocalCall(None))
        try:
            await anext(messages)
        finally:
            await messages.aclose()  # type: ignore[attr-defined]

    async def talk() -> None:
        nonlocal refused
        await ask(tokens[2])
        while refused < MUTATIONS:
            token, other = choice.sample(tokens, 2)
            text = mutated(token, other, choice)
            if text in (*tokens, ""):
                continue
            with pytest.raises(InvalidResumeToken):
                await ask(text)
            refused += 1

    asyncio.run(talk())
    assert refused == MUTATIONS


def test_a_token_of_another_kind_method_or_params(ratings: Ratings) -> None:
    Writer(ratings).put(1)
    [scan] = ratings.asker.stream("ScanRatings", most=1)
    read = ratings.ask("GetRating", movie_id=1)
    page = ratings.ask("ListRatings", page_size=1)
    for text in (scan.progress.resume_token, read.read_info.consistency_token, page.next_page_token or "1.AA"):
        assert text
        with pytest.raises(InvalidResumeToken):
            ratings.asker.stream(METHOD, subscribe_options=options(text))
    [token] = tokens_of(ratings, 1)
    for fields in ({"movie_id": 1}, {"movie_id": 0}, {"keys": [{"movie_id": 1}]}):
        with pytest.raises(InvalidResumeToken):
            ratings.asker.stream(METHOD, subscribe_options=options(token), **fields)
    [of_one] = tokens_of(ratings, 1, movie_id=1)
    with pytest.raises(InvalidResumeToken):
        ratings.asker.stream(METHOD, movie_id=2, subscribe_options=options(of_one))


def test_a_token_of_another_table(ratings: Ratings) -> None:
    token = token_of(tokens_of(ratings, 1)[0])
    token.table = "orders"
    with pytest.raises(InvalidResumeToken, match="another table"):
        ratings.asker.stream(METHOD, subscribe_options=options(SIGNER.sign(token)))


def test_a_token_of_another_signer_and_of_one_that_was_replaced(ratings: Ratings) -> None:
    [token] = tokens_of(ratings, 1)
    other = TokenSigner([b"o" * 32])
    with pytest.raises(InvalidResumeToken, match="damaged"):
        ratings.asker.stream(METHOD, subscribe_options=options(other.sign(token_of(token))))
    both = TokenSigner([b"o" * 32, b"k" * 32])
    ratings.asker.methods = query_methods(ratings.asker.catalogue, ratings.table.store, both, ratings.asker.bell)
    assert len(tokens_of(ratings, 1, subscribe_options=options(token))) == 1


def test_a_token_of_another_generation_or_changelog(ratings: Ratings) -> None:
    ratings.table.generation = 2
    ratings.table.publish()
    _, whole = tokens_of(ratings, 2)
    assert not token_of(whole).incarnation_ids  # nothing expires
    [same] = ratings.asker.stream(METHOD, most=1, subscribe_options=options(whole))
    assert same.progress.phase != SUBSCRIBE_PHASE_RESET
    token = token_of(whole)
    token.generation = 3
    with pytest.raises(PartitionUnavailable, match="newer generation"):
        ratings.asker.stream(METHOD, subscribe_options=options(SIGNER.sign(token)))
    for name, value in (("generation", 1), ("changelog_topic_id", "another")):
        token = token_of(whole)
        setattr(token, name, value)
        [first] = ratings.asker.stream(METHOD, most=1, subscribe_options=options(SIGNER.sign(token)))
        assert first.progress.phase == SUBSCRIBE_PHASE_RESET
