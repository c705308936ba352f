"""Schema ids in headers of topics of others, as Confluent's clients write them, beside those before the bytes."""

from uuid import UUID

import pytest

from tablegate.gateway.contract.foreign.framing import SchemaIds
from tablegate.gateway.contract.foreign.topics import ForeignRow, ForeignRows
from tablegate.gateway.contract.rows import UndecodableRecord
from tablegate.gateway.contract.types import Partition
from tests.kit.table.foreign import FRAME, SCHEMA_ID, TOPICS, Topic

GUID = UUID("89791762-2336-4186-9674-299b90a802e2")
OTHER = UUID(int=7)
KNOWN = b"\x01" + GUID.bytes
PLACE = Partition(0)

FRAMED = [one for one in TOPICS for row in [one.columns(1)] if FRAME in (one.key(row)[:5], (one.value(row) or b"")[:5])]
"""Topics whose keys or values have the id of a schema; one whose values are of Avro, and one of Protobuf."""
AVRO, PROTOBUF = (next(one for one in TOPICS if one.name == name) for name in ("utf8, avro", "protobuf, protobuf"))


def reader(topic: Topic) -> ForeignRows:
    manifest = topic.manifest()
    manifest.foreign.schema_guids[str(GUID)] = SCHEMA_ID
    return ForeignRows(topic.contract, manifest)


def unframed(data: bytes, *, is_protobuf: bool, by_guid: bool) -> tuple[bytes, bytes | None]:
    """Return bytes without their frame, and the header that a client writes instead."""
    if not data.startswith(FRAME):
        return data, None
    # Of Protobuf, the message of the schema goes with the id: 0, or a list of one which is 0.
    end = len(FRAME) + is_protobuf * (2 if data[5:7] == b"\x02\x00" else 1)
    return data[end:], (KNOWN if by_guid else FRAME) + data[len(FRAME) : end]


def in_headers(topic: Topic, key: bytes, value: bytes, *, by_guid: bool) -> ForeignRow:
    """Return what a record of these bytes comes to, whose ids are in headers."""
    key_codec, value_codec = topic.name.split(", ")
    plain_key, key_header = unframed(key, is_protobuf=key_codec == "protobuf", by_guid=by_guid)
    plain_value, value_header = unframed(value, is_protobuf=value_codec == "protobuf", by_guid=by_guid)
    assert (key_header or value_header) is not None
    return reader(topic).read(plain_key, plain_value, PLACE, SchemaIds(key_header, value_header))


@pytest.mark.parametrize("by_guid", [True, False], ids=["guid", "id"])
@pytest.mark.parametrize("topic", [pytest.param(one, id=one.name) for one in FRAMED])
def test_a_record_is_the_same_row_by_its_headers(topic: Topic, by_guid: bool) -> None:
    for number in range(10):
        columns = topic.columns(number)
        key, value = topic.key(columns), topic.value(columns)
        assert value is not None
        expected = reader(topic).read(key, value, PLACE)
        assert in_headers(topic, key, value, by_guid=by_guid) == expected
        assert expected[1] is not None


def test_one_topic_may_mix_both() -> None:
    rows = [AVRO.columns(number) for number in range(20)]
    records = [
        (AVRO.key(row), (AVRO.value(row) or b"")[len(FRAME) * (number % 2) :]) for number, row in enumerate(rows)
    ]
    ids = [SchemaIds(None, KNOWN) if number % 2 else None for number in range(20)]
    found = reader(AVRO).read_all_with_ids(records, ids, PLACE)
    assert found == reader(AVRO).read_all([(AVRO.key(row), AVRO.value(row)) for row in rows], PLACE)
    assert not any(isinstance(one, Exception) for one in found)


@pytest.mark.parametrize(
    ("header", "why"),
    [
        (b"", "is of no known kind"),
        (b"\x02" + GUID.bytes, "is of no known kind"),
        (b"\x01", "ends early"),
        (KNOWN[:-1], "ends early"),
        (FRAME[:-1], "ends early"),
        (KNOWN + b"\x00", "goes on"),
        (FRAME + b"\x00", "goes on"),
        (b"\x01" + OTHER.bytes, "value has a schema GUID in a header that is not in the manifest"),
        (b"\x00\x00\x00\x00\x07", "value has a schema id that is not in the manifest"),
    ],
)
def test_an_odd_header_is_a_record_that_cannot_be_read(header: bytes, why: str) -> None:
    """And those beside it can."""
    columns = AVRO.columns(1)
    key, value = AVRO.key(columns), AVRO.value(columns)
    assert value is not None
    ids = [None, SchemaIds(None, header), SchemaIds(None, KNOWN)]
    first, odd, last = reader(AVRO).read_all_with_ids(
        [(key, value), (key, value[len(FRAME) :]), (key, value[len(FRAME) :])], ids, PLACE
    )
    assert first == last == reader(AVRO).read(key, value, PLACE)
    assert isinstance(odd, UndecodableRecord)
    assert why in str(odd)


@pytest.mark.parametrize("path", [b"", b"\x02\x02", b"\x04\x02\x00", b"\x00\x08\x01"])
def test_another_message_of_the_schema_is_not_read(path: bytes) -> None:
    columns = PROTOBUF.columns(1)
    value = (PROTOBUF.value(columns) or b"")[len(FRAME) + 2 :]
    with pytest.raises(UndecodableRecord, match="goes on with what its codec has not"):
        reader(PROTOBUF).read(PROTOBUF.key(columns), value, PLACE, SchemaIds(None, KNOWN + path))


def test_a_delete_needs_no_schema() -> None:
    key = AVRO.key(AVRO.columns(1))
    assert reader(AVRO).read(key, None, PLACE, SchemaIds(None, b"odd")) == reader(AVRO).read(key, None, PLACE)


@pytest.mark.parametrize("topic", [pytest.param(one, id=one.name) for one in TOPICS if one not in FRAMED])
def test_codecs_without_ids_take_no_notice(topic: Topic) -> None:
    columns = topic.columns(1)
    key, value = topic.key(columns), topic.value(columns)
    assert not reader(topic).reads_headers
    expected = reader(topic).read(key, value, PLACE)
    assert reader(topic).read(key, value, PLACE, SchemaIds(b"odd", b"\x01odd")) == expected


def test_a_header_goes_behind_the_time_of_a_store() -> None:
    """A store of Kafka Streams has the time before what a serializer wrote."""
    columns = AVRO.columns(1)
    key, value = AVRO.key(columns), AVRO.value(columns)
    assert value is not None
    for stored, before in ((1, bytes(8)), (2, bytes(9))):
        manifest = AVRO.manifest()
        manifest.foreign.schema_guids[str(GUID)] = SCHEMA_ID
        manifest.foreign.stored_format = stored  # type: ignore[assignment]
        rows = ForeignRows(AVRO.contract, manifest)
        found = rows.read(key, before + value[len(FRAME) :], PLACE, SchemaIds(None, KNOWN))
        assert found == reader(AVRO).read(key, value, PLACE)
        with pytest.raises(UndecodableRecord):
            rows.read(key, b"", PLACE, SchemaIds(None, KNOWN))
