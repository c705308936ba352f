"""Fields of a contract's messages, found by their types, as a contract may name them freely; and read options."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from tablegate.client.events import Key

SUBSCRIBE_OPTIONS = "tablegate.v1.SubscribeOptions"
SUBSCRIBE_PROGRESS = "tablegate.v1.SubscribeProgress"
READ_OPTIONS = "tablegate.v1.ReadOptions"
ANNOTATION = 50731  # (tablegate.v1.table) of messages, (tablegate.v1.query) of methods, (tablegate.v1.param) of fields
TABLE_KEY = 2  # TableOptions.key


class ContractMismatch(TypeError):
    """A message is not one of a contract's query; the text says what is missing."""


@dataclass(frozen=True, slots=True)
class ResponseFields:
    """Names of the fields of a Subscribe's response, its row, and the function from a row or key message to the key."""

    progress: str
    changes: str
    upsert: str
    delete: str
    row: Descriptor
    key_of: Callable[[Message], Key]


def field_of_type(message: Any, type_name: str) -> str:
    """Return the name of the one field of this type; raise `ContractMismatch`."""
    for field in message.fields:
        if field.message_type is not None and field.message_type.full_name == type_name:
            return str(field.name)
    raise ContractMismatch(f"{message.full_name} has no field of type {type_name}: it is no message of that query")


def response_fields(response: Any) -> ResponseFields:
    """Return what there is in a Subscribe's response; raise `ContractMismatch`."""
    progress = field_of_type(response, SUBSCRIBE_PROGRESS)
    for field in response.fields:
        change = field.message_type
        if field.name != progress and field.is_repeated and change is not None and len(change.fields) == 2:
            return _with_change(progress, str(field.name), change)
    raise ContractMismatch(f"{response.full_name} repeats no message with a row and a key: it is no Subscribe's")


def _with_change(progress: str, changes: str, change: Any) -> ResponseFields:
    row, key = change.fields
    if key_columns(key.message_type) or _more_fields(key, row):
        row, key = key, row
    columns = key_columns(row.message_type)
    if not columns:  # generated without the annotations
        if not _more_fields(row, key):
            raise ContractMismatch(
                f"{change.full_name} does not tell its row from its key: "
                "generate code from the contract with its annotations"
            )
        columns = [str(field.name) for field in key.message_type.fields]
    key_of = _key_reader(row.message_type, columns)
    return ResponseFields(progress, changes, str(row.name), str(key.name), row.message_type, key_of)


def _more_fields(one: FieldDescriptor, other: FieldDescriptor) -> bool:
    counts = [len(field.message_type.fields) if field.message_type is not None else 0 for field in (one, other)]
    return counts[0] > counts[1]


def key_columns(message: Descriptor | None) -> Sequence[str]:
    """Return the key columns that the annotation of a row names; none where there is no annotation.

    It is read by its number: so this needs no generated code of the annotations, and finds them in every pool.
    """
    if message is None:
        return ()
    tables = numbered(message.GetOptions().SerializeToString(), ANNOTATION)
    return [name.decode() for table in tables for name in numbered(table, TABLE_KEY)]


def numbered(data: bytes, number: int) -> list[Any]:
    """Return the values of a field of a message's bytes, in order: bytes of texts and messages, and numbers."""
    fields: Any = UnknownFieldSet(Empty.FromString(data))
    return [field.data for field in fields if field.field_number == number]


def _key_reader(row: Descriptor, columns: Sequence[str]) -> Callable[[Message], Key]:
    read: Callable[[Message], Any] = attrgetter(*columns)
    times = [row.fields_by_name[name].message_type is not None for name in columns]
    if not any(times):
        return read

    def read_times(message: Message) -> Key:
        values = [getattr(message, name) for name in columns]
        plain = tuple(
            value.ToDatetime(tzinfo=UTC) if is_time else value for value, is_time in zip(values, times, strict=True)
        )
        return plain if len(plain) > 1 else plain[0]

    return read_times


Request = TypeVar("Request", bound=Message)


class SourceRecord(NamedTuple):
    """Where a record of a source topic is."""

    topic: str
    partition: int
    offset: int


def at_least_source(request: Request, *acknowledged: Any) -> Request:
    """Return the request, asking for an answer that has these records of the table's source topics in it.

    `acknowledged`: what a producer gave for them (confluent_kafka's Message, aiokafka's or kafka-python's
    RecordMetadata), or a `SourceRecord` each. The gateway waits for them as long as `max_wait` says, or half of the
    deadline; then it answers UNAVAILABLE, NOT_CAUGHT_UP.
    Raise `ContractMismatch` where the request has no ReadOptions, `ValueError` where a record has no offset.
    """
    made = type(request)()
    made.CopyFrom(request)
    options: Any = getattr(made, field_of_type(request.DESCRIPTOR, READ_OPTIONS))
    topics = {position.topic: position for position in options.at_least_source.topics}
    for record in map(_source_record, acknowledged):
        if record.topic not in topics:
            topics[record.topic] = options.at_least_source.topics.add(topic=record.topic)
        offsets = topics[record.topic].offsets
        offsets[record.partition] = max(record.offset, offsets.get(record.partition, 0))
    return made


def _source_record(acknowledged: Any) -> SourceRecord:
    values = [getattr(acknowledged, name, None) for name in SourceRecord._fields]
    topic, partition, offset = [value() if callable(value) else value for value in values]
    if not topic or partition is None or partition < 0 or offset is None or offset < 0:
        raise ValueError(
            f"a {type(acknowledged).__name__} without topic, partition or offset is not acknowledged: "
            "give what the delivery callback got, with acks=1 or acks=all"
        )
    return SourceRecord(topic, partition, offset)
