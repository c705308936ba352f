"""Ids of Avro schemas: the writers' of a source, and those of a table's values."""

import json
from collections.abc import Mapping

from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError

from gateway.v1 import changelog_pb2
from streamjobs.runtime.errors import JobError
from streamjobs.table import Source

REGISTRY_TIMEOUT_S = 10
SUBJECT_NOT_FOUND = 40401  # the registry's own error code


class SchemaRegistry:
    """A Confluent-compatible schema registry, subjects named after topics. Every method raises `JobError`."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._client = SchemaRegistryClient({"url": url, "timeout": REGISTRY_TIMEOUT_S, "max.retries": 1})

    def writer_schemas(self, source: Source) -> dict[int, str]:
        """Return every schema that writers of the source have registered, by id."""
        subject = f"{source.topic}-value"
        try:
            versions = self._client.get_versions(subject)
            registered = [self._client.get_version(subject, version) for version in versions]
        except SchemaRegistryError as error:
            if error.error_code != SUBJECT_NOT_FOUND:
                raise self._failure(f'subject "{subject}" cannot be read', error) from None
            raise JobError(
                f'the schema registry at {self._url} has no subject "{subject}"; let a producer register its schema '
                "first, or run without --schema-registry"
            ) from None
        except Exception as error:  # noqa: BLE001 - the client's HTTP library has errors of its own
            raise self._failure(f'subject "{subject}" cannot be read', error) from None
        schemas: dict[int, str] = {}
        for version in registered:
            text = version.schema.schema_str if version.schema is not None else None
            if version.schema_id is None or text is None or version.schema.schema_type not in (None, "AVRO"):
                raise JobError(
                    f'the schema registry at {self._url} has a schema of subject "{subject}" that is not Avro; '
                    "give the job a topic of Avro records"
                )
            schemas[version.schema_id] = text
        return schemas

    def register_value_schema(self, topic: str, schema: str) -> int:
        """Register the schema of a changelog's values and return its id."""
        subject = f"{topic}-value"
        try:
            return self._client.register_schema(subject, Schema(schema, "AVRO"))
        except Exception as error:  # noqa: BLE001 - as above
            raise self._failure(f'subject "{subject}" takes no schema', error) from None

    def _failure(self, what: str, error: Exception) -> JobError:
        if isinstance(error, SchemaRegistryError):
            return JobError(f"schema registry at {self._url}: {what}: {error.error_message}")
        return JobError(f"no schema registry answers at {self._url}; start it, or correct --schema-registry")


def choose_value_schema(
    schema: Mapping[str, object],
    topic: str,
    generation: int,
    old: changelog_pb2.Manifest | None,
    registry: SchemaRegistry | None,
) -> tuple[int, dict[int, str]]:
    """Return the id of the values' schema, and all schemas of this changelog by id: those before it stay readable."""
    kept = dict(old.value_schemas) if old is not None and old.generation == generation else {}
    text = json.dumps(schema, separators=(",", ":"))
    if registry is not None:
        schema_id = registry.register_value_schema(topic, text)
        if kept.get(schema_id, text) != text:
            raise JobError(
                f'topic "{topic}" already has another value schema with id {schema_id}, from a run without this schema '
                "registry; raise the table's generation"
            )
    else:
        known = [schema_id for schema_id, known_text in kept.items() if known_text == text]
        schema_id = known[0] if known else max(kept, default=0) + 1
    return schema_id, {**kept, schema_id: text}
