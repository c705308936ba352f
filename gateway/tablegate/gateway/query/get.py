"""Get: the row of one key."""

from collections.abc import Awaitable
from functools import partial

from tablegate.gateway.contract.catalogue import GetQuery
from tablegate.gateway.contract.types import Partition
from tablegate.gateway.query.call import Call, UnaryHandler
from tablegate.gateway.query.consistency import ConsistencyRequirement, wish_reader
from tablegate.gateway.query.errors import PartitionUnavailable, RowNotFound
from tablegate.gateway.query.forwarding import Whole, here_or
from tablegate.gateway.query.requests import key_reader, parse
from tablegate.gateway.query.router import Scope
from tablegate.gateway.query.serving import ServedGeneration, TableAccess
from tablegate.gateway.query.wire import Heads
from tablegate.gateway.stores.base import StoreUnavailable


def get_handler(query: GetQuery, access: TableAccess) -> UnaryHandler:
    """Return the handler of `query`."""
    table, store = access.table, access.store
    read_key = key_reader([param.field for param in query.params], table.key)
    read_wish = wish_reader(query, access)
    row_heads = Heads(query.row.number)
    info_heads = None if query.read_info is None else Heads(query.read_info.number)
    whole = Whole(query, access)

    def asked(key: bytes, life: ServedGeneration) -> tuple[Partition]:
        return (table.partition_of(key, life.partition_count),)

    def answer(key: bytes, wish: ConsistencyRequirement | None, call: Call, scope: Scope | None) -> bytes:
        with store.snapshot() as snapshot:
            life = access.life(snapshot)
            if scope is not None:
                scope.check(table.name, life)
            partition = table.partition_of(key, life.partition_count)
            position = access.live(snapshot, life, partition)
            if wish is not None:
                wish.check_keys(access, snapshot, life, partition, position, (key,))
            row = snapshot.get(life.store_id, partition, key)
        positions = {partition: position}
        call.set_trailer(access.trailer(life, positions))
        if row is None and not query.missing_is_empty:
            raise RowNotFound(table.name, table.row.full_name)
        found = b"" if row is None else row_heads.embed(row)
        return found if info_heads is None else found + info_heads.embed(access.read_info(life, positions))

    def handle(data: bytes, call: Call) -> bytes | Awaitable[bytes]:
        request = parse(query.request_class, data)
        key = read_key(request)
        wish = read_wish(request)
        scope = access.scope(call)
        if wish is None:  # the commonest read, which makes no function to be called
            try:
                return answer(key, None, call, scope)
            except (PartitionUnavailable, StoreUnavailable) as missing:
                return whole.answer(missing, partial(asked, key), data, call, scope, may_wait=False)
        return here_or(
            lambda missing: whole.answer(missing, partial(asked, key), data, call, scope, may_wait=True),
            lambda: answer(key, wish, call, scope),
            access,
            partial(asked, key),
            wish,
            call,
            scope,
        )

    return handle
