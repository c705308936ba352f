"""Get: the row of one key. The common read, answered at once, from one snapshot, without a task or a coroutine."""

from tablegate.gateway.cluster.forward_token import ForwardToken
from tablegate.gateway.contract.catalogue import GetQuery
from tablegate.gateway.contract.types import Partition
from tablegate.gateway.contract.wire import FieldEncoder
from tablegate.gateway.query.call import Answer, Call, UnaryHandler
from tablegate.gateway.query.consistency import requirement_reader
from tablegate.gateway.query.errors import PartitionUnavailable, RowNotFound
from tablegate.gateway.query.forwarding import NotServedHere, answer_by_others, answer_fresh, forward_whole
from tablegate.gateway.query.requests import key_reader, parse
from tablegate.gateway.query.serving import ServedGeneration, TableAccess
from tablegate.gateway.stores.base import StoreUnavailable


def get_handler(query: GetQuery, access: TableAccess) -> UnaryHandler:
    """Return the handler of `query`."""
    plan = _GetPlan(query, access)

    def handle(data: bytes, call: Call) -> Answer:
        read = GetRead(plan, data, call)
        # What `forwarding.answer` does, written out: a Get that is answered at once calls nothing of that module.
        if read.requirement is not None:
            return answer_fresh(read)
        try:
            return read.local()
        except (PartitionUnavailable, StoreUnavailable) as reason:
            return answer_by_others(read, reason)

    return handle


class _GetPlan:
    """A Get, compiled."""

    def __init__(self, query: GetQuery, access: TableAccess) -> None:
        self.query = query
        self.access = access
        self.request_class = query.request_class
        self.read_key = key_reader([param.field for param in query.params], query.table.key)
        self.read_requirement = requirement_reader(query, access)
        self.options_name = None if query.read_options is None else query.read_options.name
        self.row_field = FieldEncoder(query.row.number)
        self.info_field = None if query.read_info is None else FieldEncoder(query.read_info.number)
        self.forward_token = ForwardToken(query.table.name)


class GetRead:
    """A request, parsed."""

    __slots__ = ("access", "call", "data", "key", "plan", "requirement", "scope")

    def __init__(self, plan: _GetPlan, data: bytes, call: Call) -> None:
        """Parse a request; raise `InvalidField` or `ForeignForward`."""
        request = parse(plan.request_class, data)
        options_name = plan.options_name
        self.plan = plan
        self.access = plan.access
        self.data = data
        self.call = call
        self.key = plan.read_key(request)
        # Looked up here, as most requests have no options: the common read has one function less to call.
        has_options = options_name is not None and request.HasField(options_name)
        self.requirement = plan.read_requirement(request) if has_options else None
        forwarded = call.forwarded
        self.scope = None if forwarded is None else plan.access.scope(forwarded)

    def local(self) -> bytes:
        """Return the answer from this gateway's store."""
        plan, access, key = self.plan, self.access, self.key
        with access.store.snapshot() as snapshot:
            served = access.served(snapshot)
            if self.scope is not None:
                self.scope.check(access.table.name, served.generation)
            partition = access.partition_of(key, served.partition_count)
            position = access.live(snapshot, served, partition)
            if self.requirement is not None:
                self.requirement.check_keys(access, snapshot, served, partition, position, (key,))
            row = snapshot.get(served.store_id, partition, key)
        positions = {partition: position}
        self.call.set_trailer(access.trailer(served, positions))
        if row is None:
            if not plan.query.missing_is_empty:
                raise RowNotFound(access.table.name, access.table.row.full_name)
            found = b""
        else:
            found = plan.row_field[len(row)] + row
        if plan.info_field is None:
            return found
        info = access.read_info(served, positions)
        return found + plan.info_field[len(info)] + info

    def partitions(self, served: ServedGeneration) -> tuple[Partition]:
        """Return the key's partition."""
        return (self.access.partition_of(self.key, served.partition_count),)

    async def remote(self, reason: NotServedHere) -> bytes:
        """Return the answer of another gateway, as it is."""
        plan = self.plan
        return await forward_whole(self, reason, plan.query.path, self.data, plan.forward_token)
