"""Values of a changelog: written by fastavro, and damaged."""

import random
import struct
from collections.abc import Mapping
from io import BytesIO
from typing import Any

import fastavro

from tablegate.gateway.contract.catalogue import Table
from tablegate.gateway.contract.rows import RowDecoder, UndecodableRecord


def plain(schema: Any) -> Any:
    """Return a schema without logical types, so that fastavro takes integers for times, and bytes for decimals."""
    if isinstance(schema, list):
        return [plain(branch) for branch in schema]
    if isinstance(schema, dict):
        return {name: plain(part) for name, part in schema.items() if name != "logicalType"}
    return schema


def framed(schema: Any, columns: Mapping[str, Any], schema_id: int = 1) -> bytes:
    """Return a value in the Confluent wire format."""
    body = BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(plain(schema)), dict(columns))
    return struct.pack(">bI", 0, schema_id) + body.getvalue()


def reasons_of_mutated(rows: RowDecoder, table: Table, good: bytes, *, seed: int, kept: int = 0) -> set[str]:
    """Return why 5,000 values are poison that were made of a good one, of which so many bytes are kept.

    All others are rows that parse.
    """
    random_, reasons = random.Random(seed), set()
    for _ in range(5_000):
        value = bytearray(good)
        for _ in range(random_.randrange(1, 4)):
            value[random_.randrange(kept, len(value))] = random_.randrange(256)
        if random_.random() < 0.3:
            del value[random_.randrange(kept, len(value)) :]
        try:
            row_bytes = rows.decode(bytes(value))
        except UndecodableRecord as reason:
            reasons.add(str(reason))
        else:
            table.row_class.FromString(row_bytes)
    return reasons
