"""Ratings of movies, in Avro."""

import random
import struct
from collections.abc import Iterable, Iterator

from tablegate.examples.samples.events import AvroValues, Event, numbers
from tablegate.examples.tables.ratings import RATING_SCHEMA
from tablegate.gateway.contract.registry_settings import RegistrySettings

TOPIC = "ratings"
TOPICS = {TOPIC: 2}

KNOWN_MOVIE = 362
KNOWN_RATINGS = (10.0, 8.0)


def known_events(*, topic: str = TOPIC, registry: RegistrySettings | None = None) -> Iterator[Event]:
    """Return all ratings that the known movie ever gets: average 9.0, count 2."""
    return _events(((KNOWN_MOVIE, rating) for rating in KNOWN_RATINGS), topic, registry)


def events(
    count: int | None = None,
    *,
    seed: int = 1,
    movies: int = 500,
    topic: str = TOPIC,
    registry: RegistrySettings | None = None,
) -> Iterator[Event]:
    """Yield `count` ratings of movies 1 … `movies` but the known one; without a count, for ever.

    The same arguments give the same ratings. They are halves, so sums of them are exact in any order. Raise
    `SetupError` where the schema registry does not take the schema.
    """
    choice = random.Random(seed)
    pool = [movie for movie in range(1, movies + 1) if movie != KNOWN_MOVIE]
    ratings = ((choice.choice(pool), choice.randint(2, 20) / 2) for _ in numbers(count))
    return _events(ratings, topic, registry)


def _events(ratings: Iterable[tuple[int, float]], topic: str, registry: RegistrySettings | None) -> Iterator[Event]:
    values = AvroValues(topic, RATING_SCHEMA, registry=registry)
    for movie_id, rating in ratings:
        value = values.frame(RATING_SCHEMA, {"movie_id": movie_id, "rating": rating})
        yield Event(topic, struct.pack(">q", movie_id), value)
