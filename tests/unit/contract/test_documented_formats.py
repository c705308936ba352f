"""Records as the documentation of Debezium and of Flink says that these write them: the rows that come of it.

Debezium: documentation/modules/ROOT/pages/connectors/postgresql.adoc (change events, data types, temporal types,
decimal types, truncate and message events). Flink: docs/connectors/table/upsert-kafka.md, formats/json.md and avro.md.
"""

import base64
import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from google.protobuf import json_format

from tablegate.gateway.contract.catalogue import Table
from tablegate.gateway.contract.foreign.topics import ForeignRows
from tablegate.gateway.contract.keys import murmur2_partition
from tablegate.gateway.contract.rows import UndecodableRecord
from tablegate.gateway.contract.types import Partition
from tablegate.v1 import changelog_pb2
from tablegate.v1.changelog_pb2 import ForeignTopic
from tests.kit.table.contracts import bind_sources

CUSTOMERS = """syntax = "proto3";
package inventory.v1;
import "google/protobuf/duration.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/timestamp.proto";
import "google/type/money.proto";
import "tablegate/v1/options.proto";
enum Size { SIZE_UNSPECIFIED = 0; SIZE_BIG = 1; }
message Customer {
  option (tablegate.v1.table) = {name: "customers", key: "id"};
  int32 id = 1;
  string first_name = 2;
  string email = 3;
  google.protobuf.Timestamp day = 4;
  google.protobuf.Timestamp created = 5;
  google.protobuf.Timestamp seen = 6;
  google.type.Money balance = 7;
  google.type.Money weight = 8;
  google.protobuf.Struct settings = 9;
  map<string, string> labels = 10;
  repeated int32 marks = 11;
  google.protobuf.Duration wait = 12;
  Size size = 13;
  bytes picture = 14;
  bool is_known = 15;
  int64 clock = 16;
  google.type.Money free_weight = 17;
}
message View {
  option (tablegate.v1.table) = {name: "pageviews_per_region", key: "user_region"};
  string user_region = 1;
  int64 pv = 2;
  int64 uv = 3;
  google.protobuf.Timestamp first_seen = 4;
  google.protobuf.Timestamp last_seen = 5;
  google.type.Money revenue = 6;
  map<string, int64> visitors = 7;
  bytes picture = 8;
  string day = 9;
  google.protobuf.Timestamp another_day = 10;
}
"""
ZERO_SCALE = base64.b64encode((12345).to_bytes(2, "big")).decode()


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Table]:
    return dict(bind_sources(tmp_path_factory.mktemp("documented"), inventory__v1__tables=CUSTOMERS).tables)


def reader(table: Table, key: str, value: str, partitions: int = 1, **schemas: Any) -> ForeignRows:
    foreign = ForeignTopic(
        key_codec=getattr(changelog_pb2, f"KEY_CODEC_{key}"),
        value_codec=getattr(changelog_pb2, f"VALUE_CODEC_{value}"),
        record_partitioner=changelog_pb2.RECORD_PARTITIONER_MURMUR2
        if partitions > 1
        else changelog_pb2.RECORD_PARTITIONER_UNKNOWN,
        key_schemas=schemas.get("keys", {}),
    )
    manifest = table.manifest(
        generation=1,
        changelog_topic="theirs",
        changelog_topic_id="id",
        partition_count=partitions,
        value_schemas=schemas.get("values", {}),
        foreign=foreign,
    )
    return ForeignRows(table, manifest)


def row_of(table: Table, row: bytes | None) -> dict[str, Any]:
    assert row is not None
    found: dict[str, Any] = json_format.MessageToDict(table.row_class.FromString(row), preserving_proto_field_name=True)
    return found


# Debezium.


def connect(kind: str, field: str, name: str | None = None, **more: Any) -> dict[str, Any]:
    """Return a field of a schema of Kafka Connect, as its JSON converter writes it."""
    named = {} if name is None else {"name": name, "version": 1}
    return {"type": kind, "optional": True, **named, **more, "field": field}


def struct(field: str | None, name: str, fields: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "struct", "fields": fields, "optional": True, "name": name, **({"field": field} if field else {})}


ROW_FIELDS = [
    connect("int32", "id"),
    connect("string", "first_name"),
    connect("string", "email"),
    connect("int32", "day", "io.debezium.time.Date"),
    connect("int64", "created", "io.debezium.time.MicroTimestamp"),
    connect("string", "seen", "io.debezium.time.ZonedTimestamp"),
    connect("bytes", "balance", "org.apache.kafka.connect.data.Decimal", parameters={"scale": "2"}),
    connect("double", "weight"),
    connect("string", "settings", "io.debezium.data.Json"),
    connect("map", "labels", keys={"type": "string"}, values={"type": "string"}),
    connect("array", "marks", items={"type": "int32"}),
    connect("int64", "wait", "io.debezium.time.MicroDuration"),
    connect("string", "size", "io.debezium.data.Enum", parameters={"allowed": "SIZE_BIG,SIZE_SMALL"}),
    connect("bytes", "picture"),
    connect("boolean", "is_known"),
    connect("int64", "clock", "io.debezium.time.MicroTime"),
    {
        **struct(
            "free_weight",
            "io.debezium.data.VariableScaleDecimal",
            [connect("int32", "scale"), connect("bytes", "value")],
        ),
        "version": 1,
    },
]
ROW = {
    "id": 7,
    "first_name": "Ann",
    "email": None,
    "day": 20_000,
    "created": 1_529_507_596_945_104,
    "seen": "2026-11-25T10:00:00.123456Z",
    "balance": ZERO_SCALE,
    "weight": 1.5,
    "settings": '{"theme": "dark"}',
    "labels": {"key": "val"},
    "marks": [1, 2],
    "wait": 1_500_000,
    "size": "SIZE_BIG",
    "picture": "AAE=",
    "is_known": True,
    "clock": 3_600_000_000,
    "free_weight": {"scale": 3, "value": ZERO_SCALE},
}
SERVED = {
    "id": 7,
    "first_name": "Ann",
    "day": "2024-10-04T00:00:00Z",
    "created": "2018-06-20T15:13:16.945104Z",
    "seen": "2026-11-25T10:00:00.123456Z",
    "balance": {"units": "123", "nanos": 450_000_000},
    "weight": {"units": "1", "nanos": 500_000_000},
    "settings": {"theme": "dark"},
    "labels": {"key": "val"},
    "marks": [1, 2],
    "wait": "1.500s",
    "size": "SIZE_BIG",
    "picture": "AAE=",
    "is_known": True,
    "clock": "3600000000",
    "free_weight": {"units": "12", "nanos": 345_000_000},
}
VALUE, ENVELOPE = "server.inventory.customers.Value", "server.inventory.customers.Envelope"
SOURCE = {
    "version": "3.4.0.Final",
    "connector": "postgresql",
    "name": "server",
    "ts_ms": 1_559_033_904_863,
    "ts_us": 1_559_033_904_863_123,
    "ts_ns": 1_559_033_904_863_123_000,
    "snapshot": False,
    "db": "postgres",
    "sequence": '["24023119","24023128"]',
    "schema": "public",
    "table": "customers",
    "txId": 555,
    "lsn": 24_023_128,
    "xmin": None,
}
TIMES = {"ts_ms": 1_559_033_904_863, "ts_us": 1_559_033_904_863_841, "ts_ns": 1_559_033_904_863_841_257}


def event(op: str, after: Any = None, before: Any = None, **more: Any) -> dict[str, Any]:
    return {"before": before, "after": after, "source": SOURCE, "op": op, **TIMES, "transaction": None, **more}


def with_schema(payload: Any) -> bytes:
    fields = [
        struct("before", VALUE, ROW_FIELDS),
        struct("after", VALUE, ROW_FIELDS),
        struct("source", "io.debezium.connector.postgresql.Source", [connect("string", "version")]),
        connect("string", "op"),
        *(connect("int64", name) for name in TIMES),
    ]
    return json.dumps({"schema": struct(None, ENVELOPE, fields), "payload": payload}).encode()


KEY_SCHEMA = {
    "type": "struct",
    "name": "server.inventory.customers.Key",
    "optional": False,
    "fields": [{"name": "id", "index": "0", "schema": {"type": "INT32", "optional": "false"}}],
}
KEYS = [
    pytest.param({"schema": KEY_SCHEMA, "payload": {"id": 7}}, id="with its schema"),
    pytest.param({"schema": KEY_SCHEMA, "payload": {"id": "7"}}, id="a number as text, as the documentation has it"),
    pytest.param({"id": 7}, id="schemas.enable=false"),
]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("op", ["c", "u", "r"])
def test_events_of_debezium_with_schemas_are_rows(tables: dict[str, Table], key: Any, op: str) -> None:
    rows = reader(tables["customers"], "JSON", "DEBEZIUM_JSON")
    before = {"c": None, "u": {"id": 7}, "r": None}[op]
    own, row = rows.read(json.dumps(key).encode(), with_schema(event(op, ROW, before)), Partition(0))
    assert row_of(tables["customers"], row) == SERVED
    # A delete is an event with the row before, or its key alone, and then a tombstone.
    for deleted in (with_schema(event("d", None, {"id": 7})), with_schema(event("d", None, ROW)), None):
        assert rows.read(json.dumps(key).encode(), deleted, Partition(0)) == (own, None)


def test_events_of_debezium_without_schemas_are_rows(tables: dict[str, Table]) -> None:
    """Nothing says the unit of a time then, or the scale of an amount: `time.precision.mode=connect` and the like."""
    plain = {
        "created": 1_529_507_596_945,  # org.apache.kafka.connect.data.Timestamp
        "balance": "123.45",  # decimal.handling.mode=string
        "weight": 1.5,  # decimal.handling.mode=double
        "seen": "2026-11-25T10:00:00.123456Z",
        "first_name": "Ann",
    }
    rows = reader(tables["customers"], "JSON", "DEBEZIUM_JSON")
    _, row = rows.read(b'{"id":7}', json.dumps(event("c", plain)).encode(), Partition(0))
    assert row_of(tables["customers"], row) == {
        "id": 7,
        "first_name": "Ann",
        "created": "2018-06-20T15:13:16.945Z",
        "balance": SERVED["balance"],
        "weight": SERVED["weight"],
        "seen": SERVED["seen"],
    }


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (event("t"), "value is a truncation of the table, which names no rows"),
        (
            event("m", message={"prefix": "foo", "content": "Ymfy"}),
            "value is a message of the database, which is no row",
        ),
        (event("c", {**ROW, "balance": "NAN"}), 'value has a "balance" that its column cannot hold'),
        (
            event("c", {**ROW, "created": 9_223_372_036_825_200_000}),
            'value has a "created" that its column cannot hold',
        ),
    ],
)
def test_events_of_debezium_that_are_no_rows(tables: dict[str, Table], value: Any, reason: str) -> None:
    rows = reader(tables["customers"], "JSON", "DEBEZIUM_JSON")
    with pytest.raises(UndecodableRecord) as refused:
        rows.read(b'{"id":7}', with_schema(value), Partition(0))
    assert str(refused.value) == reason


def avro(name: str, fields: list[Any], *, space: str = "server.inventory.customers") -> Any:
    return {"type": "record", "name": name, "namespace": space, "fields": fields, "connect.name": f"{space}.{name}"}


def avro_bytes(schema: Any, value: Any, prefix: bytes = b"") -> bytes:
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(json.loads(json.dumps(schema))), value)
    return prefix + body.getvalue()


def optional(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": ["null", kind], "default": None}


def test_events_of_debezium_by_the_avro_converter_are_rows(tables: dict[str, Table]) -> None:
    def named(kind: str, name: str, **more: Any) -> dict[str, Any]:
        return {"type": kind, "connect.version": 1, "connect.name": name, **more}

    decimal = named(
        "bytes", "org.apache.kafka.connect.data.Decimal",
        scale=2, precision=10, logicalType="decimal", **{"connect.parameters": {"scale": "2"}},
    )  # fmt: skip
    value = avro(
        "Value",
        [
            {"name": "id", "type": "int"},
            optional("first_name", "string"),
            optional("day", named("int", "io.debezium.time.Date")),
            optional("created", named("long", "io.debezium.time.MicroTimestamp")),
            optional("balance", decimal),
            optional("settings", named("string", "io.debezium.data.Json")),
            optional("marks", {"type": "array", "items": ["null", "int"]}),
            optional("picture", "bytes"),
            optional(
                "free_weight",
                {
                    **avro(
                        "VariableScaleDecimal",
                        [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}],
                        space="io.debezium.data",
                    ),
                    "connect.version": 1,
                },
            ),
        ],
    )
    envelope = avro(
        "Envelope", [optional("before", value), optional("after", "Value"), {"name": "op", "type": "string"}]
    )
    frame = b"\x00\x00\x00\x00\x07"
    rows = reader(
        tables["customers"], "AVRO", "DEBEZIUM_AVRO",
        keys={7: json.dumps(avro("Key", [{"name": "id", "type": "int"}]))}, values={7: json.dumps(envelope)},
    )  # fmt: skip
    after = {
        **{name: ROW[name] for name in ("id", "first_name", "day", "created", "settings", "marks")},
        "balance": Decimal("123.45"),
        "picture": b"\x00\x01",
        "free_weight": {"scale": 3, "value": (12345).to_bytes(2, "big")},
    }
    key = avro_bytes(avro("Key", [{"name": "id", "type": "int"}]), {"id": 7}, frame)
    own, row = rows.read(key, avro_bytes(envelope, {"before": None, "after": after, "op": "c"}, frame), Partition(0))
    assert row_of(tables["customers"], row) == {name: SERVED[name] for name in after}
    gone = avro_bytes(envelope, {"before": {"id": 7}, "after": None, "op": "d"}, frame)
    assert rows.read(key, gone, Partition(0)) == (own, None)


# Flink.


REGION = "Europe/Zürich"
PARTITIONS = 5


@pytest.mark.parametrize(
    "times",
    [
        ("2020-12-30 12:13:14.123", "2020-12-30 12:13:14.123Z"),  # json.timestamp-format.standard=SQL
        ("2020-12-30T12:13:14.123", "2020-12-30T12:13:14.123Z"),  # ISO-8601
        ("2020-12-30T13:13:14.123+01:00", "2020-12-30T12:13:14.123Z"),  # ISO-8601-WITH-OFFSET
        ("2020-12-30 12:13:14.123000000", "2020-12-30 12:13:14.123000000Z"),  # TIMESTAMP(9)
    ],
)
@pytest.mark.parametrize("has_key", [True, False], ids=["ALL", "EXCEPT_KEY"])
def test_upsert_kafka_in_json_is_a_table(tables: dict[str, Table], times: tuple[str, str], *, has_key: bool) -> None:
    table = tables["pageviews_per_region"]
    rows = reader(table, "JSON", "JSON", PARTITIONS)
    key = json.dumps({"user_region": REGION}, separators=(",", ":"), ensure_ascii=False).encode()
    partition = murmur2_partition(key, PARTITIONS)
    value = {
        **({"user_region": REGION} if has_key else {}),
        "pv": 3, "uv": 2, "first_seen": times[0], "last_seen": times[1], "visitors": {"ann": 2}, "picture": "AAE=",
        "day": "2020-12-30", "another_day": "2020-12-30",
    }  # fmt: skip
    text = json.dumps({**value, "revenue": 0}).replace('"revenue": 0', '"revenue": 2.7E-8')
    own, row = rows.read(key, text.encode(), partition)
    assert row_of(table, row) == {
        "user_region": REGION,
        "pv": "3",
        "uv": "2",
        "first_seen": "2020-12-30T12:13:14.123Z",
        "last_seen": "2020-12-30T12:13:14.123Z",
        "revenue": {"nanos": 27},
        "visitors": {"ann": "2"},
        "picture": "AAE=",
        "day": "2020-12-30",
        "another_day": "2020-12-30T00:00:00Z",
    }
    assert rows.read(key, None, partition) == (own, None)


def test_upsert_kafka_in_avro_is_a_table(tables: dict[str, Table]) -> None:
    table = tables["pageviews_per_region"]
    fields = {
        "user_region": "string",
        "pv": "long",
        "uv": "long",
        "first_seen": {"type": "long", "logicalType": "timestamp-millis"},
        "last_seen": {"type": "long", "logicalType": "local-timestamp-millis"},
        "revenue": {
            "type": "fixed",
            "name": "revenue",
            "size": 16,
            "logicalType": "decimal",
            "precision": 12,
            "scale": 2,
        },
        "visitors": {"type": "map", "values": ["null", "long"]},
        "picture": "bytes",
        "day": {"type": "int", "logicalType": "date"},
        "another_day": {"type": "int", "logicalType": "date"},
    }
    key_schema, schema = (
        {
            "type": "record",
            "name": "record",
            "namespace": "org.apache.flink.avro.generated",
            "fields": [
                {"name": name, "type": kind if name == "user_region" else [kind, "null"]} for name, kind in which
            ],
        }
        for which in ([*fields.items()][:1], fields.items())
    )
    rows = reader(
        table, "AVRO_PLAIN", "AVRO_PLAIN", PARTITIONS, keys={0: json.dumps(key_schema)}, values={0: json.dumps(schema)}
    )
    key = avro_bytes(key_schema, {"user_region": REGION})
    value = avro_bytes(
        schema,
        {
            "user_region": REGION,
            "pv": 3,
            "uv": None,
            "first_seen": datetime(2020, 12, 30, 12, 13, 14, 123_000, tzinfo=UTC),
            "last_seen": datetime(2020, 12, 30, 12, 13, 14, 123_000),
            "revenue": Decimal("1.25"),
            "visitors": {"ann": 2},
            "picture": b"\x00\x01",
            "day": date(2020, 12, 30),
            "another_day": date(2020, 12, 30),
        },
    )
    own, row = rows.read(key, value, murmur2_partition(key, PARTITIONS))
    assert row_of(table, row) == {
        "user_region": REGION,
        "pv": "3",
        "first_seen": "2020-12-30T12:13:14.123Z",
        "last_seen": "2020-12-30T12:13:14.123Z",
        "revenue": {"units": "1", "nanos": 250_000_000},
        "visitors": {"ann": "2"},
        "picture": "AAE=",
        "day": "2020-12-30",
        "another_day": "2020-12-30T00:00:00Z",
    }
    assert rows.read(key, None, murmur2_partition(key, PARTITIONS)) == (own, None)
