"""Get: the row of one key."""

from collections.abc import Awaitable

from gateway.contract.catalogue import GetQuery
from gateway.query.access import TableAccess, trailer
from gateway.query.call import Call, UnaryHandler
from gateway.query.errors import RowNotFound
from gateway.query.freshness import Wish, when_fresh, wish_reader
from gateway.query.params import key_reader, parse
from gateway.query.wire import Heads


def get_handler(query: GetQuery, access: TableAccess) -> UnaryHandler:
    """Return the handler of `query`."""
    table, store = access.table, access.store
    read_key = key_reader([param.field for param in query.params], table.key)
    read_wish = wish_reader(query, access)
    row_heads = Heads(query.row.number)
    info_heads = None if query.read_info is None else Heads(query.read_info.number)

    def answer(key: bytes, wish: Wish | None, call: Call) -> bytes:
        with store.snapshot() as snapshot:
            life = access.life(snapshot)
            partition = table.partition_of(key, life.partition_count)
            position = access.live(snapshot, life, partition)
            if wish is not None:
                wish.check_keys(access, snapshot, life, partition, position, (key,))
            row = snapshot.get(life.store_id, partition, key)
        positions = {partition: position}
        call.set_trailer(trailer(positions))
        if row is None and not query.missing_is_empty:
            raise RowNotFound(table.name, table.row.full_name)
        found = b"" if row is None else row_heads.embed(row)
        return found if info_heads is None else found + info_heads.embed(access.read_info(life, positions))

    def handle(data: bytes, call: Call) -> bytes | Awaitable[bytes]:
        request = parse(query.request_class, data)
        key = read_key(request)
        wish = read_wish(request)
        if wish is None:
            return answer(key, None, call)
        return when_fresh(lambda: answer(key, wish, call), wish, call)

    return handle
