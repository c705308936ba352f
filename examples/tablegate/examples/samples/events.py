"""Events as producers send them: key, value and time, and values in Avro."""

import itertools
import json
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from confluent_kafka.schema_registry import (
    Schema,
    SchemaRegistryClient,
    topic_record_subject_name_strategy,
    topic_subject_name_strategy,
)
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from tablegate.gateway.contract.registry_settings import RegistrySettings
from tablegate.jobs.errors import JobError
from tablegate.jobs.jars import SetupError
from tablegate.jobs.planning.registry_client import client_settings, refusal


class Event(NamedTuple):
    """A record to be written; a tombstone has value None.

    Without a partition it goes to the one that a Java producer would choose for the key; without a timestamp it gets
    the time at which it is sent.
    """

    topic: str
    key: bytes | None
    value: bytes | None
    partition: int | None = None
    timestamp_ms: int | None = None


Clock = Callable[[], int]
"""Tells the milliseconds since 1970."""

START_MS = int(datetime(2026, 11, 21, 10, tzinfo=UTC).timestamp() * 1000)


def steady_clock(start_ms: int = START_MS, *, step_ms: int = 1) -> Clock:
    """Return a clock that starts at `start_ms` and is `step_ms` later each time it is asked."""
    return itertools.count(start_ms, step_ms).__next__


def numbers(count: int | None) -> Iterable[int]:
    """Return 0 … `count` - 1; without a count, all numbers from 0 on."""
    return itertools.count() if count is None else range(count)


def json_bytes(fields: Mapping[str, object]) -> bytes:
    """Return the JSON object in UTF-8, without spaces."""
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


class AvroValues:
    """Values of a topic; raises `SetupError` where the registry does not take their schemas. For one thread.

    The schema of a topic with one type of record has the subject `<topic>-value`. Several types have
    `<topic>-<full record name>` each, and are registered in their order. Without a schema registry, a
    registry in this process counts schema ids from 1.
    """

    def __init__(self, topic: str, *schemas: str, registry: RegistrySettings | None) -> None:
        self._context = SerializationContext(topic, MessageField.VALUE)
        subject_of = topic_subject_name_strategy if len(schemas) == 1 else topic_record_subject_name_strategy
        try:
            asked = client_settings(registry) if registry is not None else {"url": "mock://samples"}
            client = SchemaRegistryClient.new_client(asked)
            for schema in schemas:
                record = json.loads(schema)
                subject = subject_of(self._context, f"{record['namespace']}.{record['name']}")
                client.register_schema(subject or "", Schema(schema, "AVRO"))
        except JobError as error:
            raise SetupError(str(error)) from None
        except Exception as error:  # noqa: BLE001  the registry's client lets faults of its HTTP library through
            assert registry is not None, "the one in this process takes all"
            raise SetupError(refusal(registry, f'the schema of topic "{topic}" cannot be registered', error)) from None
        options = {"subject.name.strategy": subject_of}
        self._serializers = {schema: AvroSerializer(client, schema, conf=options) for schema in schemas}

    def frame(self, schema: str, record: Mapping[str, object]) -> bytes:
        """Return 00, the schema's id and the Avro of `record`."""
        framed: bytes | None = self._serializers[schema](dict(record), self._context)
        assert framed is not None, "only None is serialized to None"
        return framed
