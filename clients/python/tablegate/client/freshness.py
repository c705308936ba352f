"""Reads that see what one has written."""

from typing import Any, NamedTuple, TypeVar

from google.protobuf.message import Message

from tablegate.client.fields import READ_OPTIONS, field_of_type

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
