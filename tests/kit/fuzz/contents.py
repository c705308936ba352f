"""What a contract gives a meaning to: requests, tokens, keys, rows."""

import asyncio
import io
import json
import struct
from collections.abc import AsyncIterator, Sequence
from functools import cache
from typing import Any

import fastavro
from google.protobuf.message import DecodeError

from tablegate.gateway.contract.catalogue import Table
from tablegate.gateway.contract.keys import (
    InvalidKey,
    KeyColumn,
    KeyType,
    column_place,
    decode_key,
    encode_key,
    key_prefix,
)
from tablegate.gateway.contract.rows import RowDecoder, UndecodableRecord, row_schema
from tablegate.gateway.contract.tokens import InvalidToken, StaleGeneration, TokenSigner, positions_of
from tablegate.gateway.query.call import StreamMethod, UnaryMethod
from tablegate.gateway.query.errors import QueryError
from tablegate.internal.v1.tokens_pb2 import Token, TokenKind
from tests.kit.call.asker import make_ratings
from tests.kit.fuzz.pieces import pieces_of
from tests.kit.table.filled import SIGNER, LocalCall, catalogue_of, orders, rating
from tests.kit.table.values import plain

_MESSAGES_MAX = 50  # that are read of a stream
_KEYS: Sequence[Sequence[KeyColumn]] = [
    [KeyColumn(f"column_{place}", kind) for place, kind in enumerate(kinds)]
    for kinds in (
        (KeyType.INT64,),
        (KeyType.STRING, KeyType.INT64),
        (KeyType.BYTES, KeyType.BOOL, KeyType.STRING),
        (KeyType.TIMESTAMP, KeyType.BYTES, KeyType.BYTES),
    )
]


@cache
def _ratings() -> Any:
    ratings = make_ratings()
    ratings.table.put(rating(number) for number in range(20))
    ratings.asker.ends.offsets = {"ratings-g1-changelog": ratings.table.next_offsets}  # for who asks for the latest
    return ratings


async def _first_messages(method: UnaryMethod | StreamMethod, request: bytes) -> list[bytes]:
    call = LocalCall(left_s=0.0)  # nothing that must be waited for comes
    if isinstance(method, UnaryMethod):
        answer = method.handler(request, call)
        return [answer if isinstance(answer, bytes) else await asyncio.wait_for(answer, 1.0)]
    messages: AsyncIterator[bytes] = method.handler(request, call)
    found: list[bytes] = []
    try:
        while len(found) < _MESSAGES_MAX:
            found.append(await asyncio.wait_for(anext(messages), 0.05))
    except (StopAsyncIteration, TimeoutError):
        pass
    return found


def request(data: bytes) -> None:
    """A byte that chooses the method, and its request: there is an answer that parses, or an error with a reason."""
    if not data:
        return
    asker = _ratings().asker
    # A subscription has no end: it is asked in tests of its own.
    paths = [path for path in sorted(asker.catalogue.queries) if "Subscribe" not in path]
    path = paths[data[0] % len(paths)]
    try:
        answers = asyncio.run(_first_messages(asker.methods[path], data[1:]))
    except (QueryError, TimeoutError):
        return
    for answer in answers:
        asker.catalogue.queries[path].response_class.FromString(answer)


def token(data: bytes) -> None:
    """A text, and what a token may hold: no text opens that was not signed; what was signed is refused or served."""
    if not data:
        return
    signer = SIGNER.sealing() if data[0] & 1 else SIGNER
    text = data[1:].decode("latin-1")
    try:
        _ = signer.open(text, kind=TokenKind.TOKEN_KIND_PAGE, table="ratings", generation=None)
        raise AssertionError(f"{text!r} opens")
    except InvalidToken:
        pass
    try:
        signed = Token.FromString(data[1:])
        positions_of(signed)
    except (DecodeError, ValueError):
        return  # no gateway signs positions of unlike length
    sealed = signer.sign(signed)
    try:
        opened = SIGNER.open(
            sealed, kind=signed.kind, table=signed.table, generation=None, request_hash=signed.request_hash
        )
    except InvalidToken:
        assert len(sealed) > 1_000, "short tokens open"
    else:
        assert opened == signed
    other = TokenSigner([b"another key of thirty-two bytes!!"])
    try:
        other.open(sealed, kind=signed.kind, table=signed.table, generation=None, request_hash=signed.request_hash)
    except (InvalidToken, StaleGeneration):
        pass
    else:
        raise AssertionError("a token opens by another key")
    signed.table = "ratings"
    for name, field in (("ListRatings", "page_token"), ("GetRating", "read_options"), ("ScanRatings", "scan_options")):
        asked = catalogue_of().queries[f"/examples.ratings.v1.RatingsService/{name}"].request_class()
        text = signer.sign(signed)
        if field == "page_token":
            asked.page_token = text
        elif field == "read_options":
            asked.read_options.at_least = text
        else:
            asked.scan_options.resume_token = text
        method = _ratings().asker.methods[f"/examples.ratings.v1.RatingsService/{name}"]
        try:
            asyncio.run(_first_messages(method, asked.SerializeToString()))
        except (QueryError, TimeoutError):
            continue


def key(data: bytes) -> None:
    """A byte that chooses columns, and two keys: each is what its values encode to, and they sort as their values."""
    if not data:
        return
    columns, decoded = _KEYS[data[0] % len(_KEYS)], []
    for raw in pieces_of(data[1:])[:2]:
        try:
            values = decode_key(columns, raw)
        except InvalidKey:
            continue
        assert encode_key(columns, values) == raw, (columns, raw)
        for count in range(len(columns) + 1):
            prefix = encode_key(columns, values[:count])
            assert key_prefix(columns[:count], raw) == prefix
            if count < len(columns):
                assert column_place(columns, count)(raw) == len(prefix)
        decoded.append((values, raw))
    if len(decoded) == 2:
        (values, raw), (other_values, other_raw) = decoded
        comparable = [
            [each.encode() if isinstance(each, str) else each for each in one] for one in (values, other_values)
        ]
        assert (comparable[0] < comparable[1]) == (raw < other_raw), decoded


@cache
def _tables() -> Sequence[tuple[Table, RowDecoder, Any]]:
    found = []
    for table in (catalogue_of().tables["ratings"], orders()):
        schema = row_schema(table)
        text = schema if isinstance(schema, str) else json.dumps(schema)
        found.append((table, RowDecoder(table, {1: text}), fastavro.parse_schema(plain(json.loads(text)))))
    return found


def row(data: bytes) -> None:
    """A byte that chooses the table, and Avro: what becomes a row parses, and fastavro reads it to the same end."""
    if not data:
        return
    table, decoder, schema = _tables()[data[0] % len(_tables())]
    try:
        found = decoder.decode(struct.pack(">bI", 0, 1) + data[1:])
    except UndecodableRecord:
        return
    table.row_class.FromString(found)
    left = io.BytesIO(data[1:])
    fastavro.schemaless_reader(left, schema, None)
    assert left.tell() == len(data) - 1, "fastavro ends elsewhere"
