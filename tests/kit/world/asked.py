"""What all gateways of a history are asked at the end of a chapter, and must answer: rows, pages, streams, copies."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tablegate.gateway.contract.types import Partition, StoreId, read_version
from tablegate.v1.query_pb2 import SUBSCRIBE_PHASE_CURRENT
from tests.kit.call.subscribing import Copy
from tests.kit.world.clients import stated_by
from tests.kit.world.history import Chapter, Key

if TYPE_CHECKING:
    from tests.kit.world.ways import Follower, Served

PAGE_ROWS = 4
SWEPT_S = 34.0  # a sweep begins each ten seconds, and anew where a replicator does


class OtherAnswer(AssertionError):
    """A way to serve a history does not answer as it should."""


class Asked:
    """All questions, asked of each gateway at the end of a chapter.

    What is expected is the same for all ways, but for how often a copy begins anew: where one gateway loses its store
    its subscribers do, and of three gateways another one goes on. So what was sent counts where nothing began anew.
    """

    def __init__(self, served: "Served", chapter: Chapter, *, is_first: bool) -> None:
        self._served = served
        self._subject = served.subject
        self._chapter = chapter
        self._is_first = is_first
        self._names = list(served.gateways)
        self._ends = served.ends()
        passed_s, expires_s = served.clock.passed_s, served.subject.expires_s
        self._rows = {key: count for key, count in chapter.rows.items() if expires_s(key) > passed_s}

    def check(self) -> None:
        """Raise `OtherAnswer` for the first one that is not as it should be."""
        for name in self._names:
            self._check(f"the rows stored at {name}", self._stored(name), self._expected_stored(name))
            self._check(f"Gets at {name}", self._gets(name), self._rows)
            if self._subject.batches:
                keys = self._served.chance.sample(self._subject.keys, len(self._subject.keys))
                expected: Any = [self._rows.get(key) for key in keys]
                self._check(f"BatchGet at {name}", self._batch(name, keys), expected)
            self._check(f"Scan at {name}", self._scan(name), sorted(self._rows.items()))
            for scope in self._subject.scopes:
                rows = {key: count for key, count in self._rows.items() if self._subject.is_in(key, scope)}
                self._check(f"the snapshot of Subscribe{_of(scope)} at {name}", self._snapshot(name, scope), rows)
                ordered = sorted(rows.items(), key=lambda item: self._subject.key_bytes(item[0]))
                for order in (ordered, ordered[::-1]):
                    what = "ORDER_ASCENDING" if order is ordered else "ORDER_DESCENDING"
                    pages = [order[at : at + PAGE_ROWS] for at in range(0, len(order), PAGE_ROWS)]
                    self._check(f"pages{_of(scope)} from {name} on, {what}", self._pages(name, scope, what), pages)
        for follower in self._served.followers:
            self._check_follower(follower)

    def _check(self, what: str, found: object, expected: object) -> None:
        if found != expected:
            raise OtherAnswer(f"{what}: {found}, and not {expected}")

    def _item(self, row: Any) -> tuple[Key, int]:
        key, count = self._subject.key_of(row), self._subject.count_of(row)
        for name, value in self._subject.columns(key, count).items():
            if isinstance(value, float):  # it belongs to the count: a row is of one version
                self._check(f"{name} of {key}", getattr(row, name), value)
        return key, count

    def _check_info(self, what: str, info: Any) -> None:
        stated = stated_by(info)
        positions = {number: self._ends[number] for number in stated.positions}
        self._check(f"what {what} is of", (stated.generation, stated.positions), (self._chapter.generation, positions))

    def _stored(self, name: str) -> dict[Key, tuple[tuple[int, int], int]]:
        """Return version and count of each row that a gateway has stored, and that is not expired."""
        found = {}
        with self._served.gateways[name].disk.snapshot() as snapshot:
            state = snapshot.table(self._subject.table_name)
            assert state is not None
            for key in self._subject.keys:
                place = StoreId(state.store_id), Partition(self._subject.partition_of(key, self._chapter.partitions))
                if snapshot.position(*place) is None or self._subject.expires_s(key) <= self._served.clock.passed_s:
                    continue
                stored = snapshot.get_stored(*place, self._subject.key_bytes(key))
                if stored is not None and stored.row is not None:
                    _, count = self._item(self._subject.table.row_class.FromString(stored.row))
                    found[key] = tuple(read_version(stored.version)), count
        return found

    def _expected_stored(self, name: str) -> dict[Key, tuple[tuple[int, int], int]]:
        with self._served.gateways[name].disk.snapshot() as snapshot:
            state = snapshot.table(self._subject.table_name)
            assert state is not None
            numbers = range(self._chapter.partitions)
            here = {each for each in numbers if snapshot.position(StoreId(state.store_id), Partition(each)) is not None}
        return {
            key: ((self._chapter.generation, count), count)
            for key, count in self._rows.items()
            if self._subject.partition_of(key, self._chapter.partitions) in here
        }

    def _gets(self, name: str) -> dict[Key, int]:
        found = {}
        for key in self._subject.keys:
            method = f"Get{self._subject.one}"
            answer = self._served.ask(name, method, **self._subject.fields(key))
            if answer is not None:
                self._check_info(f"{method} of {key} at {name}", answer.read_info)
            if answer is not None and answer.HasField(self._subject.row_field):
                at, count = self._item(getattr(answer, self._subject.row_field))
                self._check(f"the key of {method} at {name}", at, key)
                found[key] = count
        return found

    def _batch(self, name: str, keys: Sequence[Key]) -> list[int | None]:
        method = f"BatchGet{self._subject.many}"
        answer = self._served.ask(name, method, keys=[self._subject.fields(key) for key in keys])
        self._check_info(f"{method} at {name}", answer.read_info)
        found: list[int | None] = []
        for key, result in zip(keys, answer.results, strict=True):
            is_found = result.HasField("found")
            self._check(f"a key of {method}", self._subject.key_of(result.found if is_found else result.missing), key)
            found.append(self._item(result.found)[1] if is_found else None)
        return found

    def _pages(self, name: str, scope: Mapping[str, str], order: str) -> list[list[tuple[Key, int]]]:
        """Return the pages of a walk, each of which another gateway gives."""
        pages, token, number = list[list[tuple[Key, int]]](), "", self._names.index(name)
        method = f"List{self._subject.many}"
        while True:
            gateway = self._names[number % len(self._names)]
            answer = self._served.ask(gateway, method, **scope, order=order, page_size=PAGE_ROWS, page_token=token)
            self._check_info(f"a page at {gateway}", answer.read_info)
            rows = [self._item(row) for row in getattr(answer, self._subject.rows_field)]
            pages += [rows] if rows else []
            token, number = answer.next_page_token, number + 1
            if not token:
                return pages

    def _scan(self, name: str) -> list[tuple[Key, int]]:
        messages = self._served.stream(name, f"Scan{self._subject.many}", until=lambda _: False)
        return sorted(self._item(row) for message in messages for row in getattr(message, self._subject.rows_field))

    def _snapshot(self, name: str, scope: Mapping[str, str]) -> dict[Key, int]:
        method = f"Subscribe{self._subject.many}"
        one = Copy(self._subject.key_of, self._subject.count_of)
        messages = self._served.stream(
            name, method, until=lambda message: bool(message.progress.phase == SUBSCRIBE_PHASE_CURRENT), **scope
        )
        for message in messages:
            one.take(message)
        self._check_info(f"the snapshot of {method} at {name}", messages[-1].progress.read_info)
        return one.counts

    def _without_just_expired(self, counts: Mapping[Key, int]) -> dict[Key, int]:
        """Return the rows of a copy but for those that expired a moment ago: it hears of them with the next sweep."""
        now_s, expires_s = self._served.clock.passed_s, self._subject.expires_s
        return {key: each for key, each in counts.items() if not now_s - SWEPT_S < expires_s(key) <= now_s}

    def _check_follower(self, follower: "Follower") -> None:
        what = f"the copy{_of(follower.scope)} of who began at {follower.name}"
        rows = {key: count for key, count in self._rows.items() if self._subject.is_in(key, follower.scope)}
        self._check(what, self._without_just_expired(follower.copy.counts), rows)
        if not self._is_first and follower.copy.resets == follower.resets:
            sent = self._of_rows_that_stay(follower.sent, follower.scope)
            self._check(f"what {what} was sent", sent, self._of_rows_that_stay(self._chapter.sent, follower.scope))

    def _of_rows_that_stay(self, sent: Mapping[Key, Sequence[int | None]], scope: Mapping[str, str]) -> dict[Key, Any]:
        """Return what is sent of keys that are not expired: of the others, the delete may come before or after."""
        now_s, subject = self._served.clock.passed_s, self._subject
        return {key: each for key, each in sent.items() if subject.expires_s(key) > now_s and subject.is_in(key, scope)}


def _of(scope: Mapping[str, str]) -> str:
    return "".join(f" of {value}" for value in scope.values())
