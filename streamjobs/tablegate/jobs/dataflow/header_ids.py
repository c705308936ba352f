"""Schema ids in headers: the record's bytes have no frame then. It is put before them, so that all are read alike.

Confluent's serializers write 01 and the schema's GUID, or 00 and its id, into a header of the value and one of the key
(`header_schema_id_serializer`). Only registries that know GUIDs have such producers.
"""

from collections.abc import Mapping

from tablegate.jobs.errors import UnknownSchema
from tablegate.jobs.planning.schemas import WriterSchemas

HEADERS_COLUMN = "headers"
_VALUE, _KEY = "__value_schema_id", "__key_schema_id"
_ID_BYTES, _GUID_BYTES = 5, 17  # with their first byte


def reads_headers(writers: WriterSchemas | None) -> bool:
    """Return whether the writers of a source may put ids into headers."""
    return writers is not None and bool(writers.guids)


def by_name_sql() -> str:
    """Return the SQL of a map of the headers' values by name: of several with one name, the last value."""
    names = f"array_distinct(transform({HEADERS_COLUMN}, one -> one.key))"
    last = f"element_at(filter({HEADERS_COLUMN}, one -> one.key = name), -1).value"
    return f"map_from_arrays({names}, transform({names}, name -> {last}))"


def framed_sql(writers: WriterSchemas) -> str:
    """Return the SQL of a struct: `key` and `value` in the Confluent wire format, where headers have the ids.

    A GUID that is not known ends the query with `UnknownSchema`. A key is read by the declared schema, so its id is 0.
    """
    return f"struct({_framed_key_sql()} AS key, {_framed_value_sql(writers.guids)} AS value)"


def _framed_value_sql(guids: Mapping[str, int]) -> str:
    header = _header_sql(_VALUE)
    guid = f"hex(substring({header}, 2))"
    branches = " ".join(f"WHEN '{name}' THEN X'00{number:08X}'" for name, number in guids.items())
    unknown = f"raise_error({UnknownSchema.message_sql('topic', guid)})"
    frame = f"CASE {guid} {branches} ELSE {unknown} END"
    return (
        f"CASE WHEN {_is_guid_sql(header)} THEN concat({frame}, value) {_id_branch_sql(header, 'value')} ELSE value END"
    )


def _framed_key_sql() -> str:
    header = _header_sql(_KEY)
    return (
        f"CASE WHEN {_is_guid_sql(header)} THEN concat(X'0000000000', key) {_id_branch_sql(header, 'key')} ELSE key END"
    )


def _header_sql(name: str) -> str:
    return f"try_element_at(filter({HEADERS_COLUMN}, one -> one.key = '{name}'), 1).value"


def _is_guid_sql(header: str) -> str:
    return f"octet_length({header}) = {_GUID_BYTES} AND substring({header}, 1, 1) = X'01'"


def _id_branch_sql(header: str, what: str) -> str:
    return (
        f"WHEN octet_length({header}) = {_ID_BYTES} AND substring({header}, 1, 1) = X'00' THEN concat({header}, {what})"
    )
