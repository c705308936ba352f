"""The wire format of Confluent's schema registry: 00, the schema's id in 4 bytes, and, of Protobuf, which message."""

from tablegate.gateway.contract.rows import VALUE_PREFIX_BYTES, UndecodableRecord

PLAIN_ID = 0
"""Id of the only schema of what is Avro alone; no registry has it."""


def schema_id_of(data: bytes, what: str) -> int:
    """Return the schema id before what begins at `VALUE_PREFIX_BYTES`; raise `UndecodableRecord`."""
    if len(data) < VALUE_PREFIX_BYTES or data[0] != 0:
        raise UndecodableRecord(f"{what} is not in the Confluent wire format")
    return int.from_bytes(data[1:VALUE_PREFIX_BYTES], "big")


def protobuf_body(data: bytes, what: str) -> bytes:
    """Return the Protobuf of the wire format: it must be of the first message of its schema.

    Raise `UndecodableRecord`.
    """
    schema_id_of(data, what)
    # The list of indexes has one, 0, and is written as one zero; some writers write its length, 1, before it.
    for path in (b"\x00", b"\x02\x00"):
        if data.startswith(path, VALUE_PREFIX_BYTES):
            return data[VALUE_PREFIX_BYTES + len(path) :]
    raise UndecodableRecord(f"{what} is not of the first message of its schema")
