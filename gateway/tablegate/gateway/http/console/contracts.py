"""What the console knows of the contracts: tables, their columns, and how each query is asked, as JSON.

Names are those of proto3's JSON, as calls in JSON have them. A param says which column it is about, and how.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from tablegate.gateway.contract.catalogue import (
    BatchGetQuery,
    Catalogue,
    CountQuery,
    GetQuery,
    Param,
    Query,
    RangeQuery,
    ScanQuery,
    SubscribeQuery,
    Table,
)
from tablegate.gateway.http.rest.openapi_schemas import Comments

_KINDS = {
    GetQuery: "get",
    BatchGetQuery: "batchGet",
    RangeQuery: "range",
    CountQuery: "count",
    ScanQuery: "scan",
    SubscribeQuery: "subscribe",
}
_TYPE_NAMES = {
    number: name.removeprefix("TYPE_").lower()
    for name, number in vars(FieldDescriptor).items()
    if name.startswith("TYPE_")
}


def contracts_value(catalogue: Catalogue, data_port: int) -> dict[str, Any]:
    """Return the value of /console/contracts.json."""
    comments = Comments(catalogue.files)
    tables = [_table(table, catalogue, comments) for table in catalogue.tables.values()]
    return {"dataPort": data_port, "tables": sorted(tables, key=lambda table: str(table["name"]))}


def _table(table: Table, catalogue: Catalogue, comments: Comments) -> dict[str, Any]:
    by_column = table.row.fields_by_name
    return {
        "name": table.name,
        "about": comments.of(table.row.full_name),
        "key": [by_column[column.name].json_name for column in table.key],
        "columns": [_field(field) | {"about": comments.of(field.full_name)} for field in table.row.fields],
        "queries": [
            _query(query, catalogue, comments) for query in catalogue.queries.values() if query.table.name == table.name
        ],
    }


def _field(field: FieldDescriptor) -> dict[str, Any]:
    value: dict[str, Any] = {"name": field.json_name, "field": field.name, "type": _type(field)}
    if field.is_repeated:
        value["repeated"] = True
    elif field.has_presence:
        value["optional"] = True
    if field.enum_type is not None:
        value["values"] = [each.name for each in field.enum_type.values]
    return value


def _type(field: FieldDescriptor) -> str:
    return str(field.message_type.full_name) if field.message_type is not None else _TYPE_NAMES[field.type]


def _param(param: Param, role: str) -> dict[str, Any]:
    column = ".".join(field.json_name for field in (*param.within, param.column))
    is_required = param.required or role == "prefix"
    return _field(param.field) | {
        "role": role,
        "column": column,
        "label": param.column_name,
        "op": param.op.name,
        "required": is_required,
    }


def _query(query: Query, catalogue: Catalogue, comments: Comments) -> dict[str, Any]:
    path = query.path.removeprefix("/")
    service = catalogue.pool.FindServiceByName(path.partition("/")[0])
    value: dict[str, Any] = {
        "kind": _KINDS[type(query)],
        "path": path,
        "about": comments.of(path.replace("/", ".")),
        "request": str(query.request_class.DESCRIPTOR.name),
        "requestFile": str(query.request_class.DESCRIPTOR.file.name),
        "serviceFile": str(service.file.name),
        "params": list(_params(query)),
    }
    index = getattr(query, "index", None)
    if index is not None:
        value["index"] = index.name
    value |= {name: field.json_name for name, field in _named(query) if field is not None}
    if isinstance(query, RangeQuery):
        value["maxPageSize"] = query.max_page_size
    if isinstance(query, (BatchGetQuery, SubscribeQuery)):
        value["keyFields"] = [field.json_name for field in query.key_fields]
    return value


def _params(query: Query) -> Iterable[dict[str, Any]]:
    groups: Sequence[tuple[str, Sequence[Param]]] = ()
    match query:
        case GetQuery():
            groups = (("prefix", query.params),)
        case RangeQuery() | CountQuery():
            groups = (("prefix", query.prefix), ("bound", query.bounds), ("filter", query.filters))
        case ScanQuery():
            groups = (("filter", query.filters),)
        case SubscribeQuery():
            groups = (("filter", query.params),)
    for role, params in groups:
        for param in params:
            yield _param(param, role)


def _named(query: Query) -> Iterable[tuple[str, FieldDescriptor | None]]:
    """Return the fields of request and response that have a part in how the query is asked, by that part."""
    yield "readInfo", query.read_info
    match query:
        case GetQuery():
            yield "row", query.row
        case BatchGetQuery():
            yield from (("keys", query.keys), ("results", query.results), ("found", query.found))
        case RangeQuery():
            yield from (("rows", query.rows), ("pageSize", query.page_size), ("pageToken", query.page_token))
            yield from (("nextPageToken", query.next_page_token), ("order", query.order))
        case CountQuery():
            yield "count", query.count
        case ScanQuery():
            yield from (("rows", query.rows), ("scanOptions", query.scan_options))
        case SubscribeQuery():
            yield from (("keys", query.keys), ("changes", query.changes), ("upsert", query.upsert))
            yield from (("delete", query.delete), ("progress", query.progress))
            yield "subscribeOptions", query.subscribe_options
