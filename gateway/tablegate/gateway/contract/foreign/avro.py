"""Avro of any shape, into the Python values that its schema describes: for what no row reader takes."""

import importlib
import io
import json
from collections.abc import Mapping
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
            found = self._fastavro.schemaless_reader(body, self.parsed[schema_id], None)
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

    def _parsed(self, where: str, text: str) -> Any:
        try:
            return self._fastavro.parse_schema(json.loads(text))
        except Exception as error:  # noqa: BLE001  as above
            why = " ".join(str(error).split())[:_REASON_CHARACTERS_MAX] or type(error).__name__
            raise UnfitSchema(f"{where} is not an Avro schema: {why}") from None
