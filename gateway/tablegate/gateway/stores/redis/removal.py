"""What goes from Redis: partitions that nobody keeps any more, and what gateways left that are gone."""

from collections.abc import Iterable, Sequence

from tablegate.gateway.stores.redis.connection import RedisConnection
from tablegate.gateway.stores.redis.layout import Keys, Place, place_name, place_of
from tablegate.gateway.stores.redis.scripts import BURY, DROP, THERE

GONE_MS = 86_400_000  # a gateway that was away so long keeps nothing
BURIED_ROWS_MAX = 500  # at once: under a millisecond
BURIED_PLACES_MAX = 100


class Removal:
    """Removes partitions of one prefix, for a gateway that is there."""

    def __init__(self, connection: RedisConnection, keys: Keys) -> None:
        self._connection = connection
        self._keys = keys

    def there(self, for_ms: int) -> set[bytes]:
        """Return the gateways that were here within that time."""
        return set(self._connection.call(THERE, (self._keys.gateways,), (for_ms,)))

    def drop(self, places: Sequence[Place], limit: int) -> bool:
        """Take partitions from this gateway, and remove at most `limit` rows and changes that nobody keeps then.

        Return whether nothing is left of them.
        """
        done = self._removed(places, limit, leaving=(self._keys.gateway.encode(),))
        if done:
            self._connection.run(("SREM", self._keys.places, *map(place_name, done)))
        return len(done) == len(places)

    def _removed(self, places: Sequence[Place], limit: int, *, leaving: Iterable[bytes]) -> list[Place]:
        """Take partitions from gateways that leave or are gone; return those of which nobody has anything left."""
        done: list[Place] = []
        if not places:
            return done
        # Whoever keeps one was here before it did, so this order takes nobody for gone who has just come.
        *keepers, there = self._connection.run(
            *(("HKEYS", self._keys.of(place).position) for place in places),
            THERE.on((self._keys.gateways,), (GONE_MS,)),
        )
        gone = [{*kept} - {b"at", *there} | {*leaving} for kept in keepers]
        if len(places) > 1:  # first the positions, so that nobody reads the rest
            found = zip(places, gone, strict=True)
            self._connection.run(*(DROP.on(self._keys.of(place), (0, *names)) for place, names in found))
        left = max(limit, 0)
        for place, names in zip(places, gone, strict=True):
            removed, rest = self._connection.call(DROP, self._keys.of(place), (left, *names))
            if rest:
                break
            left -= removed
            done.append(place)
        return done

    def bury(self) -> bool:
        """Remove some of what gateways left that are gone; return True when there is nothing of that any more."""
        names, there = self._connection.run(
            ("HKEYS", self._keys.gateways), THERE.on((self._keys.gateways,), (GONE_MS,))
        )
        return all(self._is_buried(name) for name in names if name not in there)

    def _is_buried(self, name: bytes) -> bool:
        theirs = self._keys.of_gateway(name.decode())
        found = self._connection.run(("SRANDMEMBER", theirs.places, BURIED_PLACES_MAX))[0]
        done = self._removed([*map(place_of, found)], BURIED_ROWS_MAX, leaving=())
        keys = (theirs.gateways, theirs.states, theirs.status, theirs.places)
        return bool(self._connection.call(BURY, keys, (name, GONE_MS, *map(place_name, done))))
