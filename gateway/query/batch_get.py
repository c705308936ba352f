"""BatchGet: the rows of several keys, in the order asked."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from google.protobuf.message import Message

from gateway.contract.catalogue import BatchGetQuery
from gateway.contract.keys import KeyType
from gateway.contract.types import Partition
from gateway.query.access import TableAccess, trailer
from gateway.query.call import Call, UnaryHandler
from gateway.query.errors import InvalidField, TooManyKeys
from gateway.query.freshness import Wish, when_fresh, wish_reader
from gateway.query.params import checked_key, key_reader, parse, value_encoder
from gateway.query.wire import Heads
from gateway.stores.base import Position


def batch_get_handler(query: BatchGetQuery, access: TableAccess) -> UnaryHandler:
    """Return the handler of `query`."""
    store = access.store
    keys_name = query.keys.name
    read_keys = _keys_reader(query)
    read_wish = wish_reader(query, access)
    entries = _Entries(query)
    info_heads = None if query.read_info is None else Heads(query.read_info.number)

    def answer(request: Message, keys: list[bytes], wish: Wish | None, call: Call) -> bytes:
        positions: dict[Partition, Position] = {}
        rows: list[bytes | None] = [None] * len(keys)
        with store.snapshot() as snapshot:
            life = access.life(snapshot)
            for partition, places in _by_partition(access, keys, life.partition_count).items():
                position = access.live(snapshot, life, partition)
                if wish is not None:
                    asked = [keys[place] for place in places]
                    wish.check_keys(access, snapshot, life, partition, position, asked)
                positions[partition] = position
                found = snapshot.get_many(life.store_id, partition, [keys[place] for place in places])
                for place, row in zip(places, found, strict=True):
                    rows[place] = row
        call.set_trailer(trailer(positions))
        results = entries.spliced(rows, getattr(request, keys_name))
        return results if info_heads is None else results + info_heads.embed(access.read_info(life, positions))

    def handle(data: bytes, call: Call) -> bytes | Awaitable[bytes]:
        request = parse(query.request_class, data)
        asked = len(getattr(request, keys_name))
        if asked > query.max_keys:
            raise TooManyKeys(asked, query.max_keys)
        keys = read_keys(request)
        wish = read_wish(request)
        if wish is None:
            return answer(request, keys, None, call)
        return when_fresh(lambda: answer(request, keys, wish, call), wish, call)

    return handle


def _by_partition(access: TableAccess, keys: list[bytes], partition_count: int) -> dict[Partition, list[int]]:
    """Return the places of `keys` by partition, lowest partition first."""
    partition_of = access.table.partition_of
    places: dict[Partition, list[int]] = {}
    for place, key in enumerate(keys):
        places.setdefault(partition_of(key, partition_count), []).append(place)
    return dict(sorted(places.items()))


def _keys_reader(query: BatchGetQuery) -> Callable[[Message], list[bytes]]:
    name = query.keys.name
    read_key: Callable[[Any], bytes]
    if query.key_fields:
        read_key = key_reader(query.key_fields, query.table.key)
    else:
        read_key = _scalar_reader(query.table.key[0].type)

    def read(request: Message) -> list[bytes]:
        values = getattr(request, name)
        try:
            return [read_key(value) for value in values]
        except InvalidField:
            raise _blamed(name, read_key, values) from None

    return read


def _scalar_reader(key_type: KeyType) -> Callable[[Any], bytes]:
    encode = value_encoder("", key_type)
    return lambda value: checked_key("", encode(value))


def _blamed(name: str, read_key: Callable[[Any], bytes], values: Iterable[Any]) -> InvalidField:
    """Return the error of the first bad key, with its place."""
    for place, value in enumerate(values):
        try:
            read_key(value)
        except InvalidField as error:
            inside = f".{error.field}" if error.field else ""
            return InvalidField(f"{name}[{place}]{inside}", error.description)
    raise AssertionError("no key is bad")


class _Entries:
    """Makes the response's repeated field of found rows and missing keys."""

    def __init__(self, query: BatchGetQuery) -> None:
        self._found = Heads(query.found.number)
        self._missing = Heads(query.missing.number)
        self._result = Heads(query.results.number)
        self._missing_field = query.missing
        self._result_class = query.response_class
        self._results_name = query.results.name

    def spliced(self, rows: list[bytes | None], keys: Sequence[Message]) -> bytes:
        """Return the bytes of all results, in the order of `keys`."""
        found, result = self._found, self._result
        parts: list[bytes] = []
        for place, row in enumerate(rows):
            if row is None:
                inner = self._missing_entry(keys[place])
                parts += (result[len(inner)], inner)
            else:
                head = found[len(row)]
                parts += (result[len(head) + len(row)], head, row)
        return b"".join(parts)

    def _missing_entry(self, key: Message) -> bytes:
        if self._missing_field.message_type is not None:
            return self._missing.embed(key.SerializeToString())
        # A scalar key: the message is made whole, and only its inside is wanted.
        response = self._result_class()
        entry = getattr(response, self._results_name).add()
        setattr(entry, self._missing_field.name, key)
        return bytes(entry.SerializeToString())
