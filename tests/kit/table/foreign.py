"""Topics that others write, of every codec: what a manifest says of each, and records as their producers write them.

The bytes are made here from the documentation of each format, by nothing of the product.
"""

import base64
import io
import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import fastavro
from google.protobuf.message_factory import GetMessageClass

from tablegate.gateway.contract.binder.binder import bind
from tablegate.gateway.contract.catalogue import Catalogue, Table
from tablegate.gateway.contract.descriptors import load_descriptors
from tablegate.v1 import changelog_pb2
from tablegate.v1.changelog_pb2 import ForeignTopic, Manifest, SourceTopic

FOREIGN = Path(__file__).with_name("foreign.proto")
SCHEMA_ID = 41
TIME_MS = 1_790_000_000_123
FRAME = b"\x00" + SCHEMA_ID.to_bytes(4, "big")
BAD_VALUE = b"\x07SECRE\xff\x00\x00\x07SECRET\xff"
"""A value of no codec; of a versioned store it is no delete."""

Columns = Mapping[str, Any]
Bytes = Callable[[Columns], bytes]


@cache
def foreign_catalogue() -> Catalogue:
    return bind(load_descriptors(FOREIGN))


def message(name: str, columns: Columns) -> Any:
    """Return a message of the contract with some columns; a time is in milliseconds."""
    pool = foreign_catalogue().pool
    made = GetMessageClass(pool.FindMessageTypeByName(f"shop.others.v1.{name}"))()
    for column, value in columns.items():
        if column.endswith("_time"):
            getattr(made, column).FromMilliseconds(value)
        elif column == "price":
            made.price.units, made.price.nanos = divmod(round(value * 100) * 10_000_000, 10**9)
        else:
            setattr(made, column, value)
    return made


def avro_writer(schema: Any, prefix: bytes) -> Bytes:
    parsed = fastavro.parse_schema(json.loads(json.dumps(schema)))

    def write(columns: Any) -> bytes:
        body = io.BytesIO()
        fastavro.schemaless_writer(body, parsed, columns)
        return prefix + body.getvalue()

    return write


def compact(columns: Any) -> bytes:
    return json.dumps(columns, separators=(",", ":")).encode()


@dataclass
class Topic:
    """A topic of a codec. `key` and `value` make a record's bytes of the columns of a row.

    `placed_by`: what producers of murmur2 place a key by, of windows the key in them; None: the key.
    """

    name: str
    table: str
    description: ForeignTopic
    key: Bytes
    value: Callable[[Columns], bytes | None]
    key_schemas: Mapping[int, str] = field(default_factory=dict)
    value_schemas: Mapping[int, str] = field(default_factory=dict)
    placed_by: Bytes | None = None
    delete: Callable[[Columns], bytes | None] = lambda _: None

    @property
    def contract(self) -> Table:
        return foreign_catalogue().tables[self.table]

    def columns(self, number: int) -> Columns:
        """Return a row, another one for each number."""
        return _ROWS[self.table](number)

    def row(self, columns: Columns) -> Any:
        """Return the row message that must be served."""
        return message(self.contract.row.name, columns)

    def place(self, columns: Columns) -> bytes:
        return (self.placed_by or self.key)(columns)

    def manifest(
        self, *, topic: str = "theirs", topic_id: str = "id", partitions: int = 1, generation: int = 1
    ) -> Manifest:
        table = self.contract
        manifest = table.manifest(
            generation=generation,
            changelog_topic=topic,
            changelog_topic_id=topic_id,
            partition_count=partitions,
            value_schemas=self.value_schemas,
            sources=[SourceTopic(topic=topic, partition_count=partitions, keyed=True)],
            foreign=self.description,
        )
        manifest.foreign.key_schemas.update(self.key_schemas)
        return manifest


def _order(number: int) -> Columns:
    return {
        "order_id": f"o-{number}é",
        "customer": "ann" if number % 3 else "",
        "quantity": number - 2,
        "price": 12.5 + number,
        "placed_time": TIME_MS + number,
        "paid": number % 2 == 0,
    }


_ROWS: Mapping[str, Callable[[int], Columns]] = {
    "orders": _order,
    "lines": lambda number: {"order_id": f"o-{number // 4}", "line_number": number % 4, "article": f"a{number}"},
    "counters": lambda number: {"counter_id": (number - 3) * 2**33, "total": number},
    "gauges": lambda number: {"gauge_id": number - 5, "level": number / 2},
    "devices": lambda number: {"address": bytes((number % 256, 0, 255, 0)), "name": f"d{number}"},
    "page_views": lambda number: {
        "page": f"/{number // 3}",
        "start_time": TIME_MS + 60_000 * (number % 3),
        "view_count": number,
    },
    "sessions": lambda number: {
        "user_name": f"u{number // 3}",
        "start_ms": 1_000 * (number % 3),
        "end_ms": 1_000 * (number % 3) + 7,
        "event_count": number,
    },
}


def _described(key: str, value: str, *, placed: bool = True, **more: Any) -> ForeignTopic:
    return ForeignTopic(
        key_codec=getattr(changelog_pb2, f"KEY_CODEC_{key}"),
        value_codec=getattr(changelog_pb2, f"VALUE_CODEC_{value}"),
        record_partitioner=changelog_pb2.RECORD_PARTITIONER_MURMUR2
        if placed
        else changelog_pb2.RECORD_PARTITIONER_UNKNOWN,
        **more,
    )


def _without(columns: Columns, *names: str) -> dict[str, Any]:
    return {name: value for name, value in columns.items() if name not in names}


def _order_id(columns: Columns) -> bytes:
    return str(columns["order_id"]).encode()


def _json_order(columns: Columns) -> dict[str, Any]:
    return {**_without(columns, "order_id", "price"), "price": str(columns["price"]), "unasked": [1, {"a": None}]}


def _money_bytes(columns: Columns) -> bytes:
    return round(columns["price"] * 100).to_bytes(8, "big", signed=True)


_ORDER_FIELDS: list[Any] = [
    {"name": "customer", "type": ["null", "string"], "default": None},
    {"name": "quantity", "type": "long"},
    {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 18, "scale": 2}},
    {"name": "placed_time", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    {"name": "paid", "type": ["null", "boolean"], "default": None},
]
ORDER_SCHEMA = {"type": "record", "name": "Order", "fields": [{"name": "order_id", "type": "string"}, *_ORDER_FIELDS]}
_NESTED_SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [
        {
            "name": "address",
            "type": {"type": "record", "name": "Address", "fields": [{"name": "city", "type": "string"}]},
        },
        *_ORDER_FIELDS[:3],
        {"name": "placed_time", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        _ORDER_FIELDS[4],
    ],
}
LINE_KEY_SCHEMA = {
    "type": "record",
    "name": "Key",
    "fields": [{"name": "order_id", "type": "string"}, {"name": "line_number", "type": "int"}],
}
_CONNECT_ROW = {
    "type": "record",
    "name": "Value",
    "fields": [
        {"name": "order_id", "type": "string"},
        {"name": "customer", "type": ["null", "string"], "default": None},
        {"name": "quantity", "type": "long"},
        {
            "name": "price",
            "type": {
                "type": "bytes",
                "connect.name": "org.apache.kafka.connect.data.Decimal",
                "connect.parameters": {"scale": "2"},
            },
        },
        {"name": "placed_time", "type": {"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"}},
        {"name": "paid", "type": ["null", "boolean"], "default": None},
    ],
}
ENVELOPE_SCHEMA = {
    "type": "record",
    "name": "Envelope",
    "namespace": "shop.orders",
    "fields": [
        {"name": "before", "type": ["null", _CONNECT_ROW], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {
            "name": "source",
            "type": {"type": "record", "name": "Source", "fields": [{"name": "version", "type": "string"}]},
        },
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"], "default": None},
    ],
}


def avro_order(columns: Columns) -> dict[str, Any]:
    time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=columns["placed_time"])
    return {**columns, "price": Decimal(str(columns["price"])), "placed_time": time, "address": {"city": "x"}}


def _connect_row(columns: Columns) -> dict[str, Any]:
    return {**columns, "price": _money_bytes(columns), "placed_time": columns["placed_time"] * 1_000}


def _envelope(after: Any, op: str, before: Any = None) -> dict[str, Any]:
    return {"before": before, "after": after, "source": {"version": "3.0"}, "op": op, "ts_ms": TIME_MS}


_CONNECT_SCHEMA = {
    "type": "struct",
    "fields": [
        {"type": "string", "field": "order_id"},
        {"type": "string", "optional": True, "field": "customer"},
        {"type": "int64", "field": "quantity"},
        {
            "type": "bytes",
            "name": "org.apache.kafka.connect.data.Decimal",
            "parameters": {"scale": "2"},
            "field": "price",
        },
        {"type": "int64", "name": "io.debezium.time.MicroTimestamp", "field": "placed_time"},
        {"type": "boolean", "optional": True, "field": "paid"},
    ],
}


def _schemas_enabled(payload: Any) -> Any:
    fields = [{**_CONNECT_SCHEMA, "field": name, "optional": True} for name in ("before", "after")]
    return {"schema": {"type": "struct", "fields": [*fields, {"type": "string", "field": "op"}]}, "payload": payload}


def _json_connect_row(columns: Columns) -> dict[str, Any]:
    return {**_connect_row(columns), "price": base64.b64encode(_money_bytes(columns)).decode()}


def _window(columns: Columns) -> bytes:
    return struct.pack(">q", columns["start_time"])


_AVRO_ORDER = avro_writer(ORDER_SCHEMA, FRAME)
_NESTED_ORDER = avro_writer(_NESTED_SCHEMA, FRAME)
_ENVELOPE = avro_writer(ENVELOPE_SCHEMA, FRAME)
_TOTAL_SCHEMA = {"type": "record", "name": "T", "fields": [{"name": "total", "type": "long"}]}
_ORDER_KEY_SCHEMA = {"type": "record", "name": "K", "fields": [{"name": "order_id", "type": "string"}]}
_TIME_WINDOW = changelog_pb2.KEY_WINDOW_TIME

TOPICS = [
    Topic("utf8, json", "orders", _described("UTF8", "JSON"), _order_id, lambda row: compact(_json_order(row))),
    Topic(
        "json, json",  # as Flink's upsert-kafka writes
        "orders",
        _described("JSON", "JSON", placed=False),
        lambda row: json.dumps({"order_id": row["order_id"]}).encode(),
        lambda row: compact({**_json_order(row), "order_id": row["order_id"]}),
    ),
    Topic(
        "json placed, json schema",
        "lines",
        _described("JSON", "JSON_SCHEMA"),
        lambda row: compact({name: row[name] for name in ("order_id", "line_number")}),
        lambda row: FRAME + compact(row),
    ),
    Topic(
        "utf8, avro",
        "orders",
        _described("UTF8", "AVRO"),
        _order_id,
        lambda row: _AVRO_ORDER(avro_order(row)),
        value_schemas={SCHEMA_ID: json.dumps(ORDER_SCHEMA)},
    ),
    Topic(
        "utf8, avro nested",
        "orders",
        _described("UTF8", "AVRO"),
        _order_id,
        lambda row: _NESTED_ORDER(avro_order(row)),
        value_schemas={SCHEMA_ID: json.dumps(_NESTED_SCHEMA)},
    ),
    Topic(
        "avro, protobuf",
        "lines",
        _described("AVRO", "PROTOBUF"),
        lambda row: avro_writer(LINE_KEY_SCHEMA, FRAME)(_without(row, "article")),
        lambda row: FRAME + b"\x00" + message("Line", _without(row, "order_id")).SerializeToString(),
        key_schemas={SCHEMA_ID: json.dumps(LINE_KEY_SCHEMA)},
    ),
    Topic(
        "avro plain, avro plain",
        "counters",
        _described("AVRO_PLAIN", "AVRO_PLAIN"),
        lambda row: avro_writer("long", b"")(row["counter_id"]),
        lambda row: avro_writer(_TOTAL_SCHEMA, b"")({"total": row["total"]}),
        key_schemas={0: '"long"'},
        value_schemas={0: json.dumps(_TOTAL_SCHEMA)},
    ),
    Topic(
        "protobuf plain, protobuf plain",
        "orders",
        _described("PROTOBUF_PLAIN", "PROTOBUF_PLAIN", key_message="shop.others.v1.OrderId"),
        lambda row: message("OrderId", {"order_id": row["order_id"]}).SerializeToString(),
        lambda row: message("Order", row).SerializeToString() + b"\xfa\x07\x03new",
    ),
    Topic(
        "protobuf, protobuf",
        "lines",
        _described("PROTOBUF", "PROTOBUF", placed=False, key_message="shop.others.v1.LineId"),
        lambda row: FRAME + b"\x00" + message("LineId", _without(row, "article")).SerializeToString(),
        lambda row: FRAME + b"\x02\x00" + message("Line", row).SerializeToString(),
    ),
    Topic(
        "int64, json",
        "counters",
        _described("INT64", "JSON"),
        lambda row: struct.pack(">q", row["counter_id"]),
        lambda row: compact({"total": str(row["total"])}),
    ),
    Topic(
        "int32, json",
        "gauges",
        _described("INT32", "JSON"),
        lambda row: struct.pack(">i", row["gauge_id"]),
        lambda row: compact({"level": row["level"]}),
    ),
    Topic(
        "bytes, json",
        "devices",
        _described("BYTES", "JSON"),
        lambda row: row["address"],
        lambda row: compact({"name": row["name"]}),
    ),
    Topic(
        "time windows, protobuf plain",
        "page_views",
        _described("UTF8", "PROTOBUF_PLAIN", key_window=_TIME_WINDOW),
        lambda row: row["page"].encode() + _window(row),
        lambda row: message("PageViews", _without(row, "page", "start_time")).SerializeToString(),
        placed_by=lambda row: row["page"].encode(),
    ),
    Topic(
        "time windows of a store, timestamped",
        "page_views",
        _described(
            "UTF8",
            "JSON",
            key_window=changelog_pb2.KEY_WINDOW_TIME_STORE,
            stored_format=changelog_pb2.STORED_FORMAT_TIMESTAMPED,
        ),
        lambda row: row["page"].encode() + _window(row) + bytes(4),
        lambda row: struct.pack(">q", TIME_MS) + compact({"viewCount": row["view_count"]}),
        placed_by=lambda row: row["page"].encode(),
    ),
    Topic(
        "sessions, versioned",
        "sessions",
        _described(
            "UTF8",
            "JSON",
            key_window=changelog_pb2.KEY_WINDOW_SESSION,
            stored_format=changelog_pb2.STORED_FORMAT_VERSIONED,
        ),
        lambda row: row["user_name"].encode() + struct.pack(">qq", row["end_ms"], row["start_ms"]),
        lambda row: struct.pack(">qB", TIME_MS, 0) + compact({"event_count": row["event_count"]}),
        placed_by=lambda row: row["user_name"].encode(),
        delete=lambda _: struct.pack(">qB", TIME_MS, 1),
    ),
    Topic(
        "json, debezium json",
        "orders",
        _described("JSON", "DEBEZIUM_JSON"),
        lambda row: compact({"order_id": row["order_id"]}).decode("unicode-escape").encode(),
        lambda row: compact(_envelope({**_json_order(row), "order_id": row["order_id"]}, "c")),
        delete=lambda row: compact(_envelope(None, "d", {"order_id": row["order_id"]})),
    ),
    Topic(
        "json with schemas, debezium json with schemas",
        "orders",
        _described("JSON", "DEBEZIUM_JSON", placed=False),
        lambda row: compact({"schema": {"type": "struct", "fields": []}, "payload": {"order_id": row["order_id"]}}),
        lambda row: compact(_schemas_enabled(_envelope(_json_connect_row(row), "u", _json_connect_row(row)))),
        delete=lambda row: compact(_schemas_enabled(_envelope(None, "d", _json_connect_row(row)))),
    ),
    Topic(
        "avro, debezium avro",
        "orders",
        _described("AVRO", "DEBEZIUM_AVRO"),
        lambda row: avro_writer(_ORDER_KEY_SCHEMA, FRAME)({"order_id": row["order_id"]}),
        lambda row: _ENVELOPE(_envelope(_connect_row(row), "r")),
        key_schemas={SCHEMA_ID: json.dumps(_ORDER_KEY_SCHEMA)},
        value_schemas={SCHEMA_ID: json.dumps(ENVELOPE_SCHEMA)},
        delete=lambda row: _ENVELOPE(_envelope(None, "d", _connect_row(row))),
    ),
]
