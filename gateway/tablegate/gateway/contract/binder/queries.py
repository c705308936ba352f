"""Binds methods with a `query` option to queries: one function for each kind.

Decision: docs/decisions/0116-an-index-is-chosen-by-the-params.md
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypedDict

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message_factory import GetMessageClass

from tablegate.gateway.contract.binder.fields import Fields, Method, Part, bind_parts, bind_request, is_choice
from tablegate.gateway.contract.binder.files import option
from tablegate.gateway.contract.binder.indexes import run_index, whole_index
from tablegate.gateway.contract.binder.results import (
    either_field,
    index_key_fields,
    key_fields,
    number_field,
    row_field,
)
from tablegate.gateway.contract.catalogue import (
    BatchGetQuery,
    CountQuery,
    GetQuery,
    Op,
    Param,
    Query,
    RangeQuery,
    ScanQuery,
    SubscribeQuery,
)
from tablegate.gateway.contract.columns import key_type, same_type, type_name
from tablegate.gateway.contract.indexes import Index
from tablegate.v1 import options_pb2

PAGE_SIZE_DEFAULT = 50
PAGE_SIZE_MAX = 1000  # a page is one message, and clients take 4 MiB
BATCH_KEYS_DEFAULT = 100
BATCH_KEYS_MAX = 1000


class Timeouts(NamedTuple):
    """Deadlines of a service's unary calls."""

    default_s: float
    max_s: float


class _Common(TypedDict):
    path: str
    table: Any
    request_class: Any
    response_class: Any
    default_timeout_s: float
    max_timeout_s: float
    read_options: FieldDescriptor | None
    read_mask: FieldDescriptor | None
    read_info: FieldDescriptor | None


class _Run(TypedDict):
    """What a Range and a Count have of the rows that they read."""

    prefix: tuple[Param, ...]
    bounds: tuple[Param, ...]
    filters: tuple[Param, ...]
    scatter: bool
    index: Index | None


def _common(method: Method, timeouts: Timeouts, request: Fields, response: Fields) -> _Common:
    descriptor = method.descriptor
    return _Common(
        path=f"/{descriptor.containing_service.full_name}/{descriptor.name}",
        table=method.table,
        request_class=GetMessageClass(descriptor.input_type),
        response_class=GetMessageClass(descriptor.output_type),
        default_timeout_s=timeouts.default_s,
        max_timeout_s=timeouts.max_s,
        read_options=request.parts.get(Part.READ_OPTIONS),
        read_mask=request.parts.get(Part.READ_MASK),
        read_info=response.parts.get(Part.READ_INFO),
    )


def bind_get(method: Method, options: options_pb2.GetQuery, timeouts: Timeouts) -> GetQuery | None:
    """Return the Get; None where there was a problem."""
    before = len(method.problems.found)
    method = replace(method, whole_key=True, reads_indexes=True)
    request = bind_request(method, {Part.READ_OPTIONS, Part.READ_MASK})
    response = bind_parts(method, method.descriptor.output_type, {Part.READ_INFO})
    index = _get_index(method, request.params)
    for param in request.params if index is None else ():
        if param.op is not Op.EQ or param.key_index is None:
            text = "a Get takes key columns with OP_EQ, and nothing else"
            if method.table.indexes:
                text = "a Get takes all columns of the key, or of a unique index, with OP_EQ, and nothing else"
            method.wrong_field(param.field, text, "remove it, or make the method a Range or Scan")
    row = row_field(method, response, repeated=False)
    if len(method.problems.found) == before and index is None:
        _check_whole_key(method, request.params)
    if row is None or len(method.problems.found) > before:
        return None
    place = _place_in_key if index is None else _place_in(index)
    params = sorted(request.params, key=place)
    missing_is_empty = options.on_missing == options_pb2.ON_MISSING_EMPTY
    common = _common(method, timeouts, request, response)
    return GetQuery(**common, params=tuple(params), row=row, missing_is_empty=missing_is_empty, index=index)


def _get_index(method: Method, params: Sequence[Param]) -> Index | None:
    """Return the unique index by which a Get reads; None where its params are the key, or no index fits."""
    key = {column.name for column in method.table.key}
    if {param.column_name for param in params} == key:
        return None
    return whole_index(method.table.indexes, [param for param in params if param.op in (Op.EQ, Op.CONTAINS)])


def _place_in(index: Index) -> Callable[[Param], int]:
    names = index.column_names
    return lambda param: names.index(param.column_name)


def _place_in_key(param: Param) -> int:
    assert param.key_index is not None, "only params on key columns are sorted"
    return param.key_index


def _check_whole_key(method: Method, params: Sequence[Param]) -> None:
    given = {param.key_index for param in params}
    for at, column in enumerate(method.table.key):
        if at not in given:
            text = f'does not give key column "{column.name}" of table "{method.table.name}"'
            hint = "add a field for it, or make the method a Range"
            method.wrong(text, hint, message=method.descriptor.input_type)


def bind_batch_get(method: Method, options: options_pb2.BatchGetQuery, timeouts: Timeouts) -> BatchGetQuery | None:
    """Return the BatchGet; None where there was a problem."""
    before = len(method.problems.found)
    if not 0 <= options.max_keys <= BATCH_KEYS_MAX:
        method.wrong(f"max_keys is {options.max_keys}", f"take 1 to {BATCH_KEYS_MAX}, or leave it out")
    request = bind_parts(method, method.descriptor.input_type, {Part.READ_OPTIONS, Part.READ_MASK})
    response = bind_parts(method, method.descriptor.output_type, {Part.READ_INFO})
    results = either_field(method, response, other="key")
    index = _named_index(method, options.index)
    keys = _keys_field(method, request)
    if keys is None or (options.index and index is None):
        return None
    fields = _batch_key_fields(method, keys) if index is None else _batch_index_fields(method, keys, index)
    if results is not None and not same_type(keys, results.other):
        text = f"its type is {type_name(results.other)}, and that of a key in the request is {type_name(keys)}"
        method.wrong_field(results.other, text, "give both the same type")
    if results is None or fields is None or len(method.problems.found) > before:
        return None
    return BatchGetQuery(
        **_common(method, timeouts, request, response),
        keys=keys,
        key_fields=fields,
        results=results.outer,
        found=results.row,
        missing=results.other,
        max_keys=options.max_keys or BATCH_KEYS_DEFAULT,
        index=index,
    )


def _named_index(method: Method, name: str) -> Index | None:
    """Return the unique index that a BatchGet names; None where it names none, or where there is a problem."""
    if not name:
        return None
    index = next((each for each in method.table.indexes if each.name == name), None)
    if index is None:
        known = ", ".join(each.name for each in method.table.indexes) or "none"
        text = f'reads by index "{name}", which table "{method.table.name}" does not have'
        method.wrong(text, f"take one of its indexes ({known}), or leave it out")
    elif not index.unique:
        text = f'reads by index "{name}", which is not unique: a key of it may have several rows'
        method.wrong(text, "say `unique: true` of the index, if the job holds that, or make the method a Range")
        return None
    return index


def _batch_index_fields(method: Method, keys: FieldDescriptor, index: Index) -> tuple[FieldDescriptor, ...] | None:
    if keys.message_type is not None and key_type(keys) is None:
        return index_key_fields(method, keys.message_type, index)
    if len(index.columns) == 1 and same_type(keys, index.columns[0].field):
        return ()
    text = f'repeats {type_name(keys)}, which is no key of index "{index.name}"'
    names = ", ".join(index.column_names)
    method.wrong_field(keys, text, f"repeat a message of exactly its columns ({names}), with the row's types")
    return None


def _keys_field(method: Method, request: Fields) -> FieldDescriptor | None:
    if not request.rest:
        hint = "repeat a message of exactly the key columns"
        method.wrong("has no repeated field of keys", hint, message=method.descriptor.input_type)
    for bound in method.descriptor.input_type.fields:
        if option(bound, options_pb2.param) is not None:
            method.wrong_field(bound, "has a param option, which means nothing in a BatchGet", "remove the option")
    for bound in request.rest:
        if not bound.is_repeated:
            method.wrong_field(bound, "is not repeated, and a BatchGet takes keys alone", "repeat or remove it")
    repeated = [bound for bound in request.rest if bound.is_repeated]
    for bound in repeated[1:]:
        method.wrong_field(bound, "a BatchGet takes its keys from one repeated field", "remove it")
    return repeated[0] if len(request.rest) == len(repeated) == 1 else None


def _batch_key_fields(method: Method, keys: FieldDescriptor) -> tuple[FieldDescriptor, ...] | None:
    if keys.message_type is not None and key_type(keys) is None:
        return key_fields(method, keys.message_type)
    key = method.table.key
    if len(key) == 1 and same_type(keys, method.table.row.fields_by_name[key[0].name]):
        return ()
    text = f'repeats {type_name(keys)}, which is no key of table "{method.table.name}"'
    method.wrong_field(keys, text, "repeat a message of exactly the key columns, with the row's types")
    return None


def bind_range(method: Method, options: options_pb2.RangeQuery, timeouts: Timeouts) -> RangeQuery | None:
    """Return the Range; None where there was a problem."""
    before = len(method.problems.found)
    method = replace(method, reads_indexes=True)
    sizes = _page_sizes(method, options)
    paging = {Part.PAGE_SIZE, Part.PAGE_TOKEN}
    request = bind_request(method, {Part.READ_OPTIONS, Part.READ_MASK, Part.ORDER} | paging)
    response = bind_parts(method, method.descriptor.output_type, {Part.READ_INFO, Part.NEXT_PAGE_TOKEN})
    rows = row_field(method, response, repeated=True)
    for fields, parts, message in (
        (request, (Part.PAGE_SIZE, Part.PAGE_TOKEN), method.descriptor.input_type),
        (response, (Part.NEXT_PAGE_TOKEN,), method.descriptor.output_type),
    ):
        _check_has(method, fields, parts, message=message)
    run = _bind_run(method, request.params, scatter=options.scatter, before=before)
    if rows is None or run is None:
        return None
    return RangeQuery(
        **_common(method, timeouts, request, response),
        **run,
        rows=rows,
        order=request.parts.get(Part.ORDER),
        page_size=request.parts[Part.PAGE_SIZE],
        page_token=request.parts[Part.PAGE_TOKEN],
        next_page_token=response.parts[Part.NEXT_PAGE_TOKEN],
        default_page_size=sizes[0],
        max_page_size=sizes[1],
    )


def _bind_run(method: Method, params: Sequence[Param], *, scatter: bool, before: int) -> _Run | None:
    """Return the run of a Range or a Count; None where there was a problem, of it or since there were `before`."""
    index, run = _range_run(method, params)
    if len(method.problems.found) == before and index is None:
        _check_run_of_keys(method, run)
    if len(method.problems.found) == before:
        _check_scatter(method, params, scatter)
    if len(method.problems.found) > before:
        return None
    place = _place_in_key if index is None else _place_in(index)
    return _Run(
        prefix=tuple(sorted((param for param in run if param.required), key=place)),
        bounds=tuple(param for param in run if not param.required),
        filters=tuple(param for param in params if param not in run),
        scatter=scatter,
        index=index,
    )


def _range_run(method: Method, params: Sequence[Param]) -> tuple[Index | None, Sequence[Param]]:
    """Return the index by which a Range reads, None for the key, and the params that ask for a run; others filter.

    A run of all params comes first, then one of some: of the key, or of the first index that has one.
    """
    required = [param for param in params if param.required]
    optional = [param for param in params if not param.required and param.op is not Op.IN]
    runs: list[tuple[Index | None, Sequence[Param]]] = []
    if {param.key_index for param in required} == set(range(len(required))):
        runs.append((None, [*required, *(param for param in optional if param.key_index == len(required))]))
    for index in method.table.indexes:
        bounded = index.column_names[len(required) : len(required) + 1]
        run = [*required, *(param for param in optional if param.column_name in bounded)]
        if run_index([index], run) is not None:
            runs.append((index, run))
    whole = [run for run in runs if len(run[1]) == len(required) + len(optional)]
    partial = [run for run in runs if run[1]]
    # Without any, what must be given is what is wrong.
    return next(iter([*whole, *partial, *runs]), (None, required))


def _page_sizes(method: Method, options: options_pb2.RangeQuery) -> tuple[int, int]:
    largest = options.max_page_size or PAGE_SIZE_MAX
    if not 0 < largest <= PAGE_SIZE_MAX:
        method.wrong(f"max_page_size is {largest}", f"take 1 to {PAGE_SIZE_MAX}, or leave it out")
        return PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX
    default = options.default_page_size or min(PAGE_SIZE_DEFAULT, largest)
    if not 0 < default <= largest:
        method.wrong(f"default_page_size is {default}", f"take 1 to {largest} (max_page_size), or leave it out")
    return default, largest


def _check_has(method: Method, fields: Fields, parts: Sequence[Part], *, message: Any) -> None:
    for part in parts:
        name = part.value.split()[-1]
        # A page_size of a wrong type is not bound, and has had its problem.
        if part not in fields.parts and name not in message.fields_by_name:
            text = f"has no {name}, which {method.kind} needs"
            method.wrong(text, f"add a field: {_example(part)}", message=message)


def _example(part: Part) -> str:
    if " " in part.value:
        return part.value
    return f"{part.value} {'subscribe_options' if part is Part.SUBSCRIBE_OPTIONS else 'progress'}"


def _check_run_of_keys(method: Method, run: Sequence[Param]) -> None:
    """Check that the params that must be given are on leading key columns; the others bound the next one, or filter."""
    columns = method.table.key
    prefix_count = sum(param.required and param.key_index is not None for param in run)
    if prefix_count == len(columns):
        method.wrong("gives the whole key, which is one row", "make the method a Get")
        return
    for param in run:
        if param.key_index is None:
            method.wrong_field(param.field, *_no_run(method, param))
        elif param.required and param.key_index >= prefix_count:
            before = ", ".join(column.name for column in columns[: param.key_index])
            text = f'key column "{param.column_name}" is given without all columns before it ({before})'
            hint = 'add required fields for those, remove it, or write "optional" before its type to filter by it'
            method.wrong_field(param.field, text, hint)


def _no_run(method: Method, param: Param) -> tuple[str, str]:
    """Return why a Range cannot read by a column of an index so, and what to do."""
    shown = "; ".join(f"{index.name}: {', '.join(index.column_names)}" for index in method.table.indexes)
    text = f'column "{param.column_name}" is in no index whose columns are given from the first on, with bounds on the '
    hint = 'give required fields for the columns before it, declare another index, or write "optional" before its type'
    return f"{text}next alone ({shown})", f"{hint} to filter by it"


def _check_scatter(method: Method, params: Sequence[Param], scatter: bool) -> None:
    leading = method.table.key[: method.table.partition_by_count]
    given = {param.key_index for param in params if param.required}
    fixed = given.issuperset(range(len(leading)))
    if not fixed and not scatter:
        names = ", ".join(column.name for column in leading)
        text = f"reads every partition, because its request does not fix {names}"
        method.wrong(text, "say `scatter: true` in its query option, or add required fields for these columns")
    if fixed and scatter:
        method.wrong("says scatter, and its request fixes one partition", "remove `scatter: true`")


def bind_count(method: Method, options: options_pb2.CountQuery, timeouts: Timeouts) -> CountQuery | None:
    """Return the Count; None where there was a problem."""
    before = len(method.problems.found)
    method = replace(method, reads_indexes=True)
    request = bind_request(method, {Part.READ_OPTIONS})
    response = bind_parts(method, method.descriptor.output_type, {Part.READ_INFO})
    count = number_field(method, response)
    run = _bind_run(method, request.params, scatter=options.scatter, before=before)
    if count is None or run is None:
        return None
    return CountQuery(**_common(method, timeouts, request, response), **run, count=count)


def bind_scan(method: Method, options: options_pb2.ScanQuery, timeouts: Timeouts) -> ScanQuery | None:
    """Return the Scan; None where there was a problem."""
    before = len(method.problems.found)
    if options.max_rows < 0:
        method.wrong(f"max_rows is {options.max_rows}", "take a positive number, or leave it out")
    request = bind_request(method, {Part.READ_OPTIONS, Part.READ_MASK, Part.SCAN_OPTIONS})
    response = bind_parts(method, method.descriptor.output_type, {Part.SCAN_PROGRESS})
    for param in request.params:
        if param.required:
            text = "must be given, and a Scan has filters, which need not"
            method.wrong_field(param.field, text, 'write "optional" before its type, or make the method a Range')
    rows = row_field(method, response, repeated=True)
    if Part.SCAN_OPTIONS in request.parts:
        _check_has(method, response, (Part.SCAN_PROGRESS,), message=method.descriptor.output_type)
    if rows is None or len(method.problems.found) > before:
        return None
    return ScanQuery(
        **_common(method, timeouts, request, response),
        filters=tuple(request.params),
        rows=rows,
        scan_options=request.parts.get(Part.SCAN_OPTIONS),
        progress=response.parts.get(Part.SCAN_PROGRESS),
        max_rows=options.max_rows,
    )


def bind_subscribe(method: Method, options: options_pb2.SubscribeQuery, timeouts: Timeouts) -> SubscribeQuery | None:
    """Return the Subscribe; None where there was a problem."""
    before = len(method.problems.found)
    keys = _subscribed_keys(method)
    fields = None if keys is None else _batch_key_fields(method, keys)
    request = bind_request(method, {Part.SUBSCRIBE_OPTIONS, Part.READ_MASK}, keys=keys)
    response = bind_parts(method, method.descriptor.output_type, {Part.SUBSCRIBE_PROGRESS})
    changes = either_field(method, response, other="key message")
    if changes is not None:
        if changes.other.message_type is None or key_type(changes.other) is not None:
            text = f"its type is {type_name(changes.other)}, and a deleted row is told by its key message"
            method.wrong_field(changes.other, text, "make it a message of exactly the key columns")
        else:
            key_fields(method, changes.other.message_type)
    _check_has(method, request, (Part.SUBSCRIBE_OPTIONS,), message=method.descriptor.input_type)
    _check_has(method, response, (Part.SUBSCRIBE_PROGRESS,), message=method.descriptor.output_type)
    if len(method.problems.found) == before:
        _check_scatter(method, request.params, options.scatter)
    if changes is None or len(method.problems.found) > before:
        return None
    return SubscribeQuery(
        **_common(method, timeouts, request, response),
        params=tuple(request.params),
        keys=keys,
        key_fields=fields or (),
        changes=changes.outer,
        upsert=changes.row,
        delete=changes.other,
        subscribe_options=request.parts[Part.SUBSCRIBE_OPTIONS],
        progress=response.parts[Part.SUBSCRIBE_PROGRESS],
        scatter=options.scatter,
        disconnects_slow=options.slow == options_pb2.SLOW_SUBSCRIBER_DISCONNECT,
    )


def _subscribed_keys(method: Method) -> FieldDescriptor | None:
    """Return the repeated field that takes keys, where there is one."""
    repeated = [bound for bound in method.descriptor.input_type.fields if bound.is_repeated and not is_choice(bound)]
    for bound in repeated[1:]:
        method.wrong_field(bound, "a Subscribe takes its keys from one repeated field", "remove it")
    return repeated[0] if repeated else None


class Kind(NamedTuple):
    """A kind of query: its name in sentences, the shape of its methods, its function."""

    name: str
    streams: bool
    bind: Callable[[Method, Any, Timeouts], Query | None]


KINDS = {
    "get": Kind("a Get", False, bind_get),
    "batch_get": Kind("a BatchGet", False, bind_batch_get),
    "range": Kind("a Range", False, bind_range),
    "count": Kind("a Count", False, bind_count),
    "scan": Kind("a Scan", True, bind_scan),
    "subscribe": Kind("a Subscribe", True, bind_subscribe),
}
"""Kinds by the name of their field in QueryOptions."""
