"""Subscriptions of tables of many partitions: tokens stay short, and what would not be exact begins anew."""

import random
from typing import Any

import pytest

from tablegate.gateway.contract.tokens import CLIENT_TOKEN_CHARS_MAX
from tablegate.gateway.query.errors import InvalidField
from tablegate.v1.query_pb2 import SUBSCRIBE_PHASE_CURRENT, SUBSCRIBE_PHASE_RESET
from tests.kit.call.asker import Ratings, make_ratings
from tests.kit.table.filled import rating

ROWS = range(30)


def filled(partition_count: int, offset_max: int) -> Ratings:
    """Return a table whose partitions are at offsets of any size."""
    replica, choice = make_ratings(partition_count), random.Random(partition_count)
    for partition in replica.table.next_offsets:
        replica.table.next_offsets[partition] = choice.randrange(offset_max)
        replica.table.move(partition)
    replica.table.put(rating(number) for number in ROWS)
    return replica


def phases(replica: Ratings, token: str = "") -> tuple[list[int], str]:
    """Return the phases until the copy is whole, and the last token."""
    asked = {"resume_token": token, "progress_interval": {"nanos": 100_000_000}}
    messages: list[Any] = []
    for count in range(1, 20):
        messages = replica.asker.stream("SubscribeRatings", most=count, subscribe_options=asked)
        if messages[-1].progress.phase == SUBSCRIBE_PHASE_CURRENT:
            break
    assert all(len(message.progress.resume_token) < CLIENT_TOKEN_CHARS_MAX for message in messages)
    return [message.progress.phase for message in messages], messages[-1].progress.resume_token


@pytest.mark.parametrize(("partition_count", "offset_max"), [(12, 2**62), (500, 10**9), (1_000, 10_000)])
def test_a_subscription_goes_on_where_its_token_fits(partition_count: int, offset_max: int) -> None:
    replica = filled(partition_count, offset_max)
    begun, token = phases(replica)
    assert begun[0] == SUBSCRIBE_PHASE_RESET
    assert SUBSCRIBE_PHASE_RESET not in phases(replica, token)[0]


def test_a_token_that_would_be_too_long_begins_anew() -> None:
    replica = filled(1_000, 2**62)
    _, token = phases(replica)
    assert phases(replica, token)[0][0] == SUBSCRIBE_PHASE_RESET


def test_more_partitions_than_a_subscription_follows_are_refused() -> None:
    replica = filled(1_001, 10)
    with pytest.raises(
        InvalidField, match=r"1001 partitions .* more than the 1000 .* certain keys, or to one movie_id"
    ):
        phases(replica)
    asked = {"progress_interval": {"nanos": 100_000_000}}
    one = replica.asker.stream("SubscribeRatings", most=1, movie_id=3, subscribe_options=asked)
    assert one[0].progress.phase == SUBSCRIBE_PHASE_RESET
