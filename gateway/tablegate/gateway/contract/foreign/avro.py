"""Avro of any shape, into the Python values that its schema describes: for what no row reader takes."""

import importlib
import io
import json
from collections.abc import Collection, Mapping
from typing import Any

from tablegate.gateway.contract.foreign.framing import PLAIN_ID, schema_id_of
from tablegate.gateway.contract.rows import VALUE_PREFIX_BYTES, UndecodableRecord, UnfitSchema

_REASON_CHARACTERS_MAX = 200  # the library repeats schemas in what it says


class AvroSchemas:
    """Schemas by id, parsed. `what`: "key" or "value", for reasons. Raises `UnfitSchema` when made."""

    def __init__(self, what: str, schemas: Mapping[int, str]) -> None:
        self._what = what
        self.is_plain = PLAIN_ID in schemas
        if not schemas:
            raise UnfitSchema(f"its manifest has no {what} schema")
        try:
            # Not with the module: a gateway of none but our own changelogs does without.
            self._fastavro: Any = importlib.import_module("fastavro")
        except ImportError:
            raise UnfitSchema('Avro of others needs a library: pip install "tablegate-gateway[avro]"') from None
        self.parsed = {
            schema_id: self._parsed(f"{what} schema {schema_id}", text) for schema_id, text in schemas.items()
        }
        self._read = {schema_id: self._reader(parsed) for schema_id, parsed in self.parsed.items()}

    def id_of(self, data: bytes) -> int:
        """Return the id of the schema of bytes; raise `UndecodableRecord` where there is none."""
        schema_id = PLAIN_ID if self.is_plain else schema_id_of(data, self._what)
        if schema_id not in self.parsed:
            raise UndecodableRecord(f"{self._what} has a schema id that is not in the manifest")
        return schema_id

    def read(self, data: bytes) -> tuple[int, Any]:
        """Return the schema id of bytes, and what they are; raise `UndecodableRecord`."""
        schema_id = self.id_of(data)
        body = io.BytesIO(data)
        body.seek(0 if self.is_plain else VALUE_PREFIX_BYTES)
        try:
            found = self._read[schema_id](body, self.parsed[schema_id], None)
        except Exception:  # noqa: BLE001  the library has no list of what it may raise
            raise UndecodableRecord(f"{self._what} is not Avro of its schema") from None
        if body.tell() != len(data):
            raise UndecodableRecord(f"{self._what} has bytes after its end")
        return schema_id, found

    def write(self, schema_id: int, found: Any) -> bytes:
        """Return the bytes of what a schema describes; raise `UndecodableRecord`."""
        body = io.BytesIO(b"" if self.is_plain else bytes(1) + schema_id.to_bytes(4, "big"))
        body.seek(0, io.SEEK_END)
        try:
            self._fastavro.schemaless_writer(body, self.parsed[schema_id], found)
        except Exception:  # noqa: BLE001  as above
            raise UndecodableRecord(f"{self._what} cannot be written by its schema") from None
        return body.getvalue()

    def _reader(self, parsed: Any) -> Any:
        """Return what reads values of a schema.

        Values in values of the same type have no end but that of the stack: the library's reader in C dies of that, the
        one in Python raises an error.
        """
        if not _contains_itself(parsed, set()):
            return self._fastavro.schemaless_reader
        return importlib.import_module("fastavro._read_py").schemaless_reader

    def _parsed(self, where: str, text: str) -> Any:
        try:
            parsed = self._fastavro.parse_schema(json.loads(text))
            if _has_endless_array(parsed, {}):
                # A few bytes would say that there are billions of them.
                raise ValueError("it has an array of what takes no bytes")
            return parsed
        except Exception as error:  # noqa: BLE001  as above
            why = " ".join(str(error).split())[:_REASON_CHARACTERS_MAX] or type(error).__name__
            raise UnfitSchema(f"{where} cannot be used as an Avro schema: {why}") from None


def _has_endless_array(schema: Any, named: dict[str, Any]) -> bool:
    """Return whether a schema has an array whose items take no bytes. `named`: the types that it has named so far."""
    if isinstance(schema, list):
        return any(_has_endless_array(branch, named) for branch in schema)
    if not isinstance(schema, dict):
        return False
    if "name" in schema:
        named[schema["name"]] = schema
    inside = [schema.get("type"), schema.get("items"), schema.get("values")]
    inside += [field["type"] for field in schema.get("fields") or ()]
    if any(_has_endless_array(one, named) for one in inside):
        return True
    return schema.get("type") == "array" and _is_empty(schema["items"], named)


def _contains_itself(schema: Any, above: Collection[str]) -> bool:
    """Return whether a type is in itself, by its name. `above`: the types that it is in."""
    if isinstance(schema, str):
        return schema in above
    if isinstance(schema, list):
        return any(_contains_itself(branch, above) for branch in schema)
    above = {*above, schema["name"]} if "name" in schema else above
    inside = [schema["type"], schema.get("items", "null"), schema.get("values", "null")]
    inside += [field["type"] for field in schema.get("fields") or ()]
    return any(_contains_itself(one, above) for one in inside)


def _is_empty(schema: Any, named: dict[str, Any]) -> bool:
    """Return whether a value takes no bytes. A record within itself has a union, an array or a map on the way."""
    if isinstance(schema, str):
        return schema == "null" or (schema in named and _is_empty(named[schema], named))
    if not isinstance(schema, dict):
        return False  # a union begins with the number of its branch
    match schema["type"]:
        case "record":
            return all(_is_empty(field["type"], named) for field in schema["fields"])
        case "fixed":
            return bool(schema["size"] == 0)
        case "null":
            return True
        case dict() | list():
            return _is_empty(schema["type"], named)
    return False
