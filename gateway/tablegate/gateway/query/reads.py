"""Which partitions a request reads, and why those: found as its query finds them."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from google.protobuf.message import Message
from tablegate.gateway.contract.catalogue import BatchGetQuery, GetQuery, Query, RangeQuery, ScanQuery, SubscribeQuery
from tablegate.gateway.contract.types import Partition
from tablegate.gateway.query.errors import TableRebuilt, TooManyKeys, resume_token_refused
from tablegate.gateway.query.live_table import LiveTable
from tablegate.gateway.query.ranges import RangePlan
from tablegate.gateway.query.requests import key_reader, keys_reader
from tablegate.gateway.query.scan import ScanPlan
from tablegate.gateway.query.serving import ServedGeneration, TableAccess
from tablegate.gateway.query.subscribe.local import SubscribePlan
from tablegate.internal.v1.tokens_pb2 import TOKEN_KIND_SUBSCRIBE


class Reads(NamedTuple):
    """The partitions that a request reads, with the keys of each where it is for keys; and why those."""

    keys: Mapping[Partition, Sequence[bytes]]
    why: str


Asked = Callable[[ServedGeneration], Reads]
"""From a table's life to what a request reads of it; raises what the query raises of a bad token."""
Read = Callable[[Message], Asked]
"""From a request to what it asks for; raises what the query raises of a bad request."""


def reads_reader(query: Query, access: TableAccess) -> Read:
    """Return the function from a request of `query` to what it asks for."""
    match query:
        case GetQuery():
            return _get_reader(query, access)
        case BatchGetQuery():
            return _batch_get_reader(query, access)
        case RangeQuery():
            return _range_reader(query, access)
        case ScanQuery():
            return _scan_reader(query, access)
        case SubscribeQuery():
            return _subscribe_reader(query, access)
        case _:
            raise TypeError(query)


def _get_reader(query: GetQuery, access: TableAccess) -> Read:
    read_key = key_reader([param.field for param in query.params], query.table.key)

    def read(request: Message) -> Asked:
        key = read_key(request)
        why = f"that of its {_columns(access)}"
        return lambda life: Reads(dict.fromkeys(access.places([key], life), (key,)), why)

    return read


def _batch_get_reader(query: BatchGetQuery, access: TableAccess) -> Read:
    read_keys = keys_reader(query.keys, query.key_fields, query.table)

    def read(request: Message) -> Asked:
        asked = len(getattr(request, query.keys.name))
        if asked > query.max_keys:
            raise TooManyKeys(asked, query.max_keys)
        keys = read_keys(request)

        def reads(life: ServedGeneration) -> Reads:
            places = access.places(keys, life)
            of_partition = {partition: [keys[place] for place in found] for partition, found in places.items()}
            return Reads(of_partition, f"those of its {len(keys)} keys")

        return reads

    return read


def _range_reader(query: RangeQuery, access: TableAccess) -> Read:
    plan = RangePlan(query, access)

    def read(request: Message) -> Asked:
        page = plan.page(request)

        def reads(life: ServedGeneration) -> Reads:
            plan.rest(request, page, life)
            return _all_or_one(plan.partitions(page, life), access, is_one=page.partition_prefix is not None)

        return reads

    return read


def _scan_reader(query: ScanQuery, access: TableAccess) -> Read:
    plan = ScanPlan(query, access)

    def read(request: Message) -> Asked:
        plan.read_filters(request)

        def reads(life: ServedGeneration) -> Reads:
            token_text = plan.token_text(request)
            start = plan.resumed(request, token_text, life).partition
            why = "those behind its resume token, one after the other" if token_text else "all, one after the other"
            return Reads(dict.fromkeys(life.partitions[start:], ()), why)

        return reads

    return read


def _subscribe_reader(query: SubscribeQuery, access: TableAccess) -> Read:
    plan = SubscribePlan(query, access, LiveTable(access))

    def read(request: Message) -> Asked:
        asked = plan.asked(request)

        def reads(life: ServedGeneration) -> Reads:
            if asked.resume_token:
                with suppress(TableRebuilt):  # it begins anew
                    access.open_token(
                        asked.resume_token,
                        kind=TOKEN_KIND_SUBSCRIBE,
                        request_hash=asked.request_hash,
                        life=life,
                        refused=resume_token_refused,
                    )
            selection = asked.select(life.partition_count)
            if not selection.partitions:
                return Reads({}, "no key can be in what it asks for")
            if selection.keys is not None:
                return Reads({each: selection.keys[each] for each in selection.partitions}, "those of its keys")
            is_one = len(selection.partitions) < life.partition_count
            return _all_or_one(selection.partitions, access, is_one=is_one)

        return reads

    return read


def _all_or_one(partitions: Sequence[Partition], access: TableAccess, *, is_one: bool) -> Reads:
    columns = _columns(access)
    why = f"that of its {columns}" if is_one else f"all, as it does not fix {columns}"
    return Reads(dict.fromkeys(partitions, ()), why)


def _columns(access: TableAccess) -> str:
    """Return the columns that choose the partition."""
    table = access.table
    return ", ".join(column.name for column in table.key[: table.partition_by_count])
