"""Records that others write, of every codec: each good one is its row, and no bad one is an error of ours."""

import random
from typing import Any

import pytest

from tablegate.gateway.contract.foreign.framing import ProtobufFrame
from tablegate.gateway.contract.foreign.topics import ForeignRows, partition_function, unfit_reason
from tablegate.gateway.contract.keys import decode_key, murmur2_partition
from tablegate.gateway.contract.rows import UndecodableRecord
from tablegate.gateway.contract.types import Partition
from tablegate.v1 import changelog_pb2
from tests.kit.seeds import seeds
from tests.kit.table.foreign import FRAME, TOPICS, Topic, compact

PARTITIONS = 5

each_topic = pytest.mark.parametrize("topic", [pytest.param(one, id=one.name) for one in TOPICS])


def _named(name: str) -> Topic:
    return next(one for one in TOPICS if one.name == name)


def _reader(topic: Topic, **changes: Any) -> ForeignRows:
    manifest = topic.manifest(partitions=PARTITIONS)
    for name, value in changes.items():
        setattr(manifest.foreign, name, value)
    return ForeignRows(topic.contract, manifest)


def _partition_of(topic: Topic, key: bytes) -> Partition:
    return partition_function(topic.contract, topic.manifest(partitions=PARTITIONS))(key, PARTITIONS)


@each_topic
def test_a_record_is_its_row(topic: Topic) -> None:
    rows, keys = _reader(topic), []
    for number in range(30):
        columns = topic.columns(number)
        partition = murmur2_partition(topic.place(columns), PARTITIONS)
        key, row = rows.read(topic.key(columns), topic.value(columns), partition)
        assert row is not None
        assert topic.contract.row_class.FromString(row) == topic.row(columns)
        assert rows.read(topic.key(columns), topic.delete(columns), partition) == (key, None)
        assert rows.read(topic.key(columns), None, partition) == (key, None)
        if topic.description.record_partitioner == changelog_pb2.RECORD_PARTITIONER_MURMUR2:
            assert _partition_of(topic, key) == partition
            with pytest.raises(UndecodableRecord, match="belongs to another partition"):
                rows.read(topic.key(columns), None, Partition((partition + 1) % PARTITIONS))
        keys.append((decode_key(topic.contract.key, key), key))
    assert sorted(keys) == sorted(keys, key=lambda pair: pair[1])  # key bytes are in the order of their columns
    assert len({key for _, key in keys}) == 30


@each_topic
def test_a_null_key_is_none(topic: Topic) -> None:
    with pytest.raises(UndecodableRecord, match="key is null"):
        _reader(topic).read(None, b"", Partition(0))


@pytest.mark.parametrize("seed", seeds(5, in_check=1))
@each_topic
def test_many_records_at_once_are_read_as_each_alone(topic: Topic, seed: int) -> None:
    """Also where some of them cannot be read, whatever the reason."""
    rng, rows = random.Random(seed), _reader(topic)
    place = murmur2_partition(topic.place(topic.columns(3)), PARTITIONS)
    records: list[tuple[bytes | None, bytes | None]] = [(None, b"")]
    for _ in range(100):
        columns = topic.columns(rng.randrange(50))
        key, value = topic.key(columns), topic.value(columns)
        assert value is not None
        spoiled = [(key, value), (key, None), (_mutated(key, rng), value), (key, _mutated(value, rng))]
        records.append(rng.choice(spoiled))
    found = rows.read_all(records, place)
    assert [_outcome(each) for each in found] == [_outcome_alone(rows, record, place) for record in records]
    assert {isinstance(each, Exception) for each in found} == {True, False}


def _outcome(found: Any) -> Any:
    return (type(found), str(found)) if isinstance(found, Exception) else found


def _outcome_alone(rows: ForeignRows, record: tuple[bytes | None, bytes | None], place: Partition) -> Any:
    try:
        return rows.read(*record, place)
    except UndecodableRecord as error:
        return _outcome(error)


@pytest.mark.parametrize("seed", seeds(40, in_check=4))
@each_topic
def test_mutated_records_are_rows_or_reasons(topic: Topic, seed: int) -> None:
    _mutate(topic, random.Random(seed), count=50)


@pytest.mark.long
@each_topic
def test_many_mutated_records_are_rows_or_reasons(topic: Topic) -> None:
    _mutate(topic, random.Random(0), count=20_000)


def _mutate(topic: Topic, rng: random.Random, count: int) -> None:
    rows, reasons = _reader(topic), set()
    good = topic.columns(3)
    place = murmur2_partition(topic.place(good), PARTITIONS)
    expected = rows.read(topic.key(good), topic.value(good), place)
    for _ in range(count):
        columns = topic.columns(rng.randrange(100))
        key, value = topic.key(columns), topic.value(columns)
        assert value is not None
        if rng.random() < 0.5:
            key = _mutated(key, rng)
        else:
            value = _mutated(value, rng)
        try:
            own, row = rows.read(key, value, Partition(rng.randrange(PARTITIONS)))
        except UndecodableRecord as error:
            reasons.add(str(error))
        else:
            assert decode_key(topic.contract.key, own)
            assert row is None or topic.contract.row_class.FromString(row) is not None
        assert rows.read(topic.key(good), topic.value(good), place) == expected
    assert len(reasons) < 40  # they are counted by reason, so none has data


def _mutated(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        at = rng.randint(0, len(changed))
        match rng.randrange(4):
            case 0:
                changed[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                del changed[at : at + rng.randint(1, 4)]
            case 2:
                changed[at:at] = rng.randbytes(rng.randint(1, 9))
            case _:
                del changed[at:]
    return bytes(changed)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("utf8, json", b"[]", "value is no object"),
        ("utf8, json", b'{"quantity": "many"}', 'value has a "quantity" that its column cannot hold'),
        ("utf8, json", b'{"quantity": 1e400}', 'value has a "quantity" that its column cannot hold'),
        ("utf8, json", b'{"quantity": true}', 'value has a "quantity" that its column cannot hold'),
        ("utf8, json", b'{"customer": "\\ud800"}', 'value has a "customer" that its column cannot hold'),
        ("utf8, json", b'{"price": "0.0000000001"}', 'value has a "price" that its column cannot hold'),
        ("utf8, json", b'{"price": "1e99"}', 'value has a "price" that its column cannot hold'),
        ("utf8, json", b'{"price": "1.%s1"}' % (b"0" * 30), 'value has a "price" that its column cannot hold'),
        ("utf8, json", b'{"price": [0, [1, 2], -1]}', 'value has a "price" that its column cannot hold'),
        ("utf8, json", b"[" * 100_000, "value is not JSON"),
        ("utf8, avro", b"\x01" + FRAME[1:], "value is not in the Confluent wire format"),
        ("utf8, avro", b"\x00\x00\x00\x00\x09", "value has a schema id that is not in the manifest"),
        ("utf8, avro", FRAME, "value ends early"),
        ("avro, protobuf", FRAME + b"\x02\x02", "value is not of message 0 of its schema"),
        ("avro, protobuf", FRAME + b"\x00\x18\x05", "value has a field of another type than the contract"),
        ("json, debezium json", b"{}", "value is no envelope of Debezium"),
        ("json, debezium json", compact({"op": "t"}), "value is a truncation of the table, which names no rows"),
        ("json, debezium json", compact({"op": "c"}), "value is an envelope without the row after the change"),
        ("json, debezium json", compact({"op": "?"}), "value is an envelope of an unknown operation"),
        ("time windows of a store, timestamped", b"1234567", "value has no time before it"),
    ],
)
def test_a_bad_value_has_a_reason(name: str, value: bytes, reason: str) -> None:
    topic = _named(name)
    columns = topic.columns(1)
    with pytest.raises(UndecodableRecord) as refused:
        _reader(topic).read(topic.key(columns), value, murmur2_partition(topic.place(columns), PARTITIONS))
    assert str(refused.value) == reason


def test_columns_may_be_called_schema_and_payload() -> None:
    topic = _named("utf8, json")
    columns = topic.columns(1)
    place = murmur2_partition(topic.place(columns), PARTITIONS)
    for value in (b'{"schema": "a", "payload": {"quantity": 5}}', b'{"schema": {"quantity": 5}, "payload": "a"}'):
        assert _reader(topic).read(topic.key(columns), value, place) == _reader(topic).read(
            topic.key(columns), b"{}", place
        )


@pytest.mark.parametrize(
    ("name", "key", "reason"),
    [
        ("utf8, json", b"\xff", "key is not UTF-8"),
        ("int64, json", b"1234567", "key has not 8 bytes"),
        ("json placed, json schema", b'{"order_id": "a"}', 'key has no "line_number"'),
        ("json placed, json schema", b"7", "key is no object"),
        ("time windows, protobuf plain", b"1234567", "key has no window behind it"),
        ("time windows, protobuf plain", b"/" + b"\xff" * 8, "key has a window at no time"),
        ("protobuf plain, protobuf plain", b"\x08", "key does not parse"),
        ("utf8, json", b"k" * 600, "key is longer than 500 bytes"),
    ],
)
def test_a_bad_key_has_a_reason(name: str, key: bytes, reason: str) -> None:
    with pytest.raises(UndecodableRecord) as refused:
        _reader(_named(name), record_partitioner=changelog_pb2.RECORD_PARTITIONER_UNKNOWN).read(key, None, Partition(0))
    assert str(refused.value) == reason


def test_keys_written_otherwise_are_not_served_half() -> None:
    topic = _named("json placed, json schema")
    rows, reasons = _reader(topic), set()
    for number in range(40):
        columns = topic.columns(number)
        spaced = topic.key(columns).replace(b":", b": ")
        partition = murmur2_partition(spaced, PARTITIONS)
        try:
            key, _ = rows.read(spaced, None, partition)
        except UndecodableRecord as error:
            reasons.add(str(error))
        else:
            assert _partition_of(topic, key) == partition
    assert reasons == {
        "key is written in another way than its columns say, and would not be found; say --partitioner unknown"
    }


@pytest.mark.parametrize(
    ("name", "changes", "why"),
    [
        (
            "utf8, json",
            {"key_codec": changelog_pb2.KEY_CODEC_INT64},
            "keys of codec int64 are one column of type int64",
        ),
        ("utf8, json", {"key_codec": 99}, "start newer gateways"),
        ("utf8, json", {"value_codec": 99}, "start newer gateways"),
        ("utf8, json", {"key_window": changelog_pb2.KEY_WINDOW_TIME}, "windowed keys need 2 key columns"),
        ("sessions, versioned", {"key_window": changelog_pb2.KEY_WINDOW_TIME}, "keys of codec utf8 are one column"),
        ("utf8, json", {"value_codec": changelog_pb2.VALUE_CODEC_AVRO}, "no value schema"),
        ("utf8, json", {"key_codec": changelog_pb2.KEY_CODEC_PROTOBUF_PLAIN}, "--key-message"),
        ("protobuf plain, protobuf plain", {"key_message": "shop.Nobody"}, "the contract has no message shop.Nobody"),
        ("protobuf plain, protobuf plain", {"key_message": "shop.others.v1.Gauge"}, 'has no string "order_id"'),
        (
            "protobuf, protobuf",
            {"record_partitioner": changelog_pb2.RECORD_PARTITIONER_MURMUR2},
            "say --partitioner unknown",
        ),
    ],
)
def test_a_topic_that_cannot_be_a_table_says_why(name: str, changes: dict[str, Any], why: str) -> None:
    topic = _named(name)
    manifest = topic.manifest()
    for field, value in changes.items():
        setattr(manifest.foreign, field, value)
    assert why in (unfit_reason(topic.contract, manifest) or "")


@pytest.mark.parametrize(
    ("index", "paths"),
    [
        ([], ["00", "0200"]),
        ([0], ["00", "0200"]),
        ([1], ["0202"]),
        ([1, 0], ["040200"]),
        ([0, 0], ["040000"]),
        ([100], ["02c801"]),
    ],
)
def test_a_message_is_found_by_its_place_in_the_schema(index: list[int], paths: list[str]) -> None:
    frame = ProtobufFrame(index, "value")
    for path in paths:
        assert frame.body(FRAME + bytes.fromhex(path) + b"body") == b"body"
    for other in ("0204", "040202", "06", ""):
        with pytest.raises(UndecodableRecord, match="value is not of message"):
            frame.body(FRAME + bytes.fromhex(other))
