"""BatchGet: the rows of several keys, in the order asked."""

from collections.abc import Awaitable, Sequence
from functools import partial

from google.protobuf.message import Message
from tablegate.gateway.contract.catalogue import BatchGetQuery
from tablegate.gateway.contract.types import Partition
from tablegate.gateway.query.call import Call, UnaryHandler
from tablegate.gateway.query.consistency import ConsistencyRequirement, wish_reader
from tablegate.gateway.query.errors import TooManyKeys
from tablegate.gateway.query.forwarding import Missing, here_or, router_instead
from tablegate.gateway.query.requests import keys_reader, parse
from tablegate.gateway.query.routed_batch import Read, RoutedBatch
from tablegate.gateway.query.router import Scope
from tablegate.gateway.query.serving import TableAccess
from tablegate.gateway.query.wire import Heads
from tablegate.gateway.stores.base import Position


def batch_get_handler(query: BatchGetQuery, access: TableAccess) -> UnaryHandler:
    """Return the handler of `query`."""
    keys_name = query.keys.name
    read_keys = keys_reader(query.keys, query.key_fields, query.table)
    read_wish = wish_reader(query, access)
    entries = _Entries(query)
    info_heads = None if query.read_info is None else Heads(query.read_info.number)

    def read(request: Message, keys: list[bytes], wish: ConsistencyRequirement | None, scope: Scope | None) -> Read:
        positions: dict[Partition, Position] = {}
        rows: list[bytes | None] = [None] * len(keys)
        with access.store.snapshot() as snapshot:
            life = access.life(snapshot)
            if scope is not None:
                scope.check(query.table.name, life)
            for partition, places in access.places(keys, life).items():
                position = access.live(snapshot, life, partition)
                asked = [keys[place] for place in places]
                if wish is not None:
                    wish.check_keys(access, snapshot, life, partition, position, asked)
                positions[partition] = position
                found = snapshot.get_many(life.store_id, partition, asked)
                for place, row in zip(places, found, strict=True):
                    rows[place] = row
        return Read(entries.spliced(rows, getattr(request, keys_name)), life, positions)

    def answer(
        request: Message, keys: list[bytes], wish: ConsistencyRequirement | None, call: Call, scope: Scope | None
    ) -> bytes:
        results, life, positions = read(request, keys, wish, scope)
        call.set_trailer(access.trailer(life, positions))
        return results if info_heads is None else results + info_heads.embed(access.read_info(life, positions))

    routed = RoutedBatch(query, access, read)

    def handle(data: bytes, call: Call) -> bytes | Awaitable[bytes]:
        request = parse(query.request_class, data)
        asked = len(getattr(request, keys_name))
        if asked > query.max_keys:
            raise TooManyKeys(asked, query.max_keys)
        keys = read_keys(request)
        wish = read_wish(request)
        scope = access.scope(call)

        def instead(missing: Missing) -> Awaitable[bytes]:
            return routed.answer(router_instead(access, missing, scope), missing, request, keys, wish, call)

        attempt = partial(answer, request, keys, wish, call, scope)
        return here_or(instead, attempt, access, partial(access.places, keys), wish, call, scope)

    return handle


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
