"""Ids of Avro schemas: the writers' of a source, and those of a table's values."""

import base64
import json
import re
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Self, TypeVar

from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from tablegate.gateway.contract.avro_references import written_out
from tablegate.gateway.contract.registry_settings import RegistrySettings
from tablegate.jobs.errors import JobError
from tablegate.jobs.planning.registry_client import client_settings, refusal
from tablegate.jobs.planning.schemas import (
    WITHOUT_ID,
    Registered,
    SchemaId,
    WriterSchemas,
    other_kind,
    record_names,
    sort_schemas,
)
from tablegate.v1 import changelog_pb2

NOT_FOUND = (40401, 40402, 40403)  # the registry's own error codes: no such subject, version, schema
_BUILT_IN = ("google/protobuf/", "google/type/", "confluent/")  # files that registries have
_RECORD_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)

T = TypeVar("T")


class SchemaRegistry:
    """A Confluent-compatible schema registry. Every method raises `JobError`, and leaves no connection open."""

    def __init__(self, settings: RegistrySettings) -> None:
        self._settings = settings

    def writer_schemas(
        self, topic: str, schema: str, *, seen: Collection[SchemaId] = (), needs_one: bool = True
    ) -> WriterSchemas:
        """Return what the topic's writers have registered, sorted by how `schema`, the reader's, takes it.

        Subjects may be named after the topic, after topic and record, or after the record alone. `seen` are ids and
        GUIDs of records in the topic that none of these subjects has: they count by the names of their records. One
        that the registry does not know cannot be read. `needs_one`: raise where there is none.
        """
        lost: dict[int, uuid.UUID | None] = {}
        with _Connection(self._settings) as connection:
            found = [*connection.of_topic(topic), *connection.of_records(record_names(schema))]
            known = {one.schema_id for one in found} | {one.guid for one in found}
            for place, name in enumerate(sorted((one for one in seen if one not in known), key=str)):
                guid = name if isinstance(name, uuid.UUID) else None
                number = WITHOUT_ID + place if isinstance(name, uuid.UUID) else name
                alone = connection.by_id(name)
                if alone is not None:
                    found.append(Registered(number, alone, guid=guid))
                else:
                    lost[number] = guid
        if not found and not needs_one:
            return WriterSchemas({}, {}, {}).and_lost(lost)
        if not found:
            raise JobError(
                f'the schema registry at {self._settings.url} has no subject "{topic}-value", and none of topic '
                f'"{topic}" and a record; let a producer register its schema first, or run without the registry'
            )
        return sort_schemas(topic, schema, found, needs_one=needs_one).and_lost(lost)

    def register_value_schema(self, topic: str, schema: str) -> int:
        """Register the schema of a changelog's values and return its id."""
        return self.register(f"{topic}-value", schema)

    def register(self, subject: str, schema: str) -> int:
        """Register an Avro schema and return its id."""
        with _Connection(self._settings) as connection:
            return connection.register(subject, Schema(schema, "AVRO"))

    def register_message(self, subject: str, files: Sequence[bytes]) -> int:
        """Register a Protobuf file, the last of these serialized descriptors, and return its id.

        The files that it imports are registered before, each under its own name, as Confluent's serializers do it.
        """
        with _Connection(self._settings) as connection:
            return connection.register_files(subject, files)


class _Connection:
    """Asks a registry while the block runs; every method raises `JobError`."""

    def __init__(self, settings: RegistrySettings) -> None:
        self._settings = settings
        self._client = SchemaRegistryClient(client_settings(settings))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def of_topic(self, topic: str) -> Iterator[Registered]:
        """Yield the schemas of the subjects `<topic>-value` and `<topic>-<full record name>`."""
        prefix = f"{topic}-"
        yield from self._versions(f"{prefix}value")
        listed = self._ask("its subjects cannot be listed", partial(self._client.get_subjects, prefix)) or []
        for subject in sorted(listed):
            rest = subject.removeprefix(prefix)
            # Other topics' subjects may begin so, too: not all registries filter, and a topic's name may go on.
            if subject.startswith(prefix) and rest != "value" and _RECORD_NAME.fullmatch(rest):
                yield from (one for one in self._versions(subject) if one.name == rest)

    def of_records(self, names: Iterable[str]) -> Iterator[Registered]:
        """Yield the schemas of the subjects that are named after records."""
        for name in names:
            yield from (one for one in self._versions(name) if one.name == name)

    def by_id(self, schema_id: SchemaId) -> Schema | None:
        """Return a schema, None where there is none of that id or GUID."""
        if isinstance(schema_id, uuid.UUID):
            question = partial(self._client.get_schema_by_guid, str(schema_id))
        else:
            question = partial(self._client.get_schema, schema_id)
        found = self._ask(f"schema {schema_id} cannot be read", question)
        return self._written_out(found, f"schema {schema_id}") if found is not None else None

    def register_files(self, subject: str, files: Sequence[bytes]) -> int:
        """Register Protobuf files, the last under `subject` and those before under their names; return its id."""
        found = [FileDescriptorProto.FromString(file) for file in files]
        references: dict[str, list[SchemaReference]] = {}
        schema = Schema("", "PROTOBUF")
        for file in found:
            # A reference brings nothing with it, so each file names all that it is made of.
            named = [one for name in file.dependency for one in references[name]]
            unique = list({one.name: one for one in named}.values())
            # As the clients of Confluent write a file that they have no text of.
            schema = Schema(base64.b64encode(file.SerializeToString()).decode(), "PROTOBUF", unique)
            if file is found[-1]:
                break
            references[file.name] = unique
            if not file.name.startswith(_BUILT_IN):
                self.register(file.name, schema)
                what = f'subject "{file.name}" cannot be read'
                registered = self._ask(what, partial(self._client.lookup_schema, file.name, schema))
                version = registered.version if registered is not None else 1
                references[file.name] = [*unique, SchemaReference(file.name, file.name, version)]
        return self.register(subject, schema)

    def register(self, subject: str, schema: Schema) -> int:
        """Register a schema and return its id."""
        try:
            return self._client.register_schema(subject, schema)
        except Exception as error:  # noqa: BLE001 - the client's HTTP library has errors of its own
            raise self._failure(f'the schema cannot be registered under subject "{subject}"', error) from None

    def _versions(self, subject: str) -> Iterator[Registered]:
        what = f'subject "{subject}" cannot be read'
        for version in self._ask(what, partial(self._client.get_versions, subject)) or []:
            found = self._ask(what, partial(self._client.get_version, subject, version))
            if found is not None and found.schema_id is not None:
                schema = self._written_out(found.schema, f'subject "{subject}"')
                yield Registered(found.schema_id, schema, subject, uuid.UUID(found.guid) if found.guid else None)

    def _written_out(self, schema: Schema, what: str) -> Schema:
        """Return an Avro schema with the types of other subjects that it refers to."""
        if not schema.references or other_kind(schema):
            return schema
        referred = [text for text in self._referred(schema, what, set()) if text]
        try:
            return Schema(written_out(schema.schema_str or "", referred), "AVRO")
        except (ValueError, KeyError, TypeError, AttributeError):
            return schema  # what is no Avro is sorted out later, with the reason

    def _referred(self, schema: Schema, what: str, seen: set[tuple[str, int]]) -> Iterator[str | None]:
        """Yield the schemas that one refers to, and those that they refer to, each once."""
        for one in schema.references or ():
            subject, version = str(one.subject), int(one.version or 0)
            if (subject, version) in seen:
                continue
            seen.add((subject, version))
            found = self._ask(
                f'subject "{subject}" cannot be read', partial(self._client.get_version, subject, version)
            )
            if found is None:
                raise JobError(
                    f"schema registry at {self._settings.url}: {what} refers to version {version} of subject "
                    f'"{subject}", which is not there; register it again'
                )
            yield from self._referred(found.schema, what, seen)
            yield found.schema.schema_str

    def _ask(self, what: str, question: Callable[[], T]) -> T | None:
        """Return the registry's answer; None where it has no such thing."""
        try:
            return question()
        except Exception as error:  # noqa: BLE001 - as above
            if isinstance(error, SchemaRegistryError) and error.error_code in NOT_FOUND:
                return None
            raise self._failure(what, error) from None

    def _failure(self, what: str, error: Exception) -> JobError:
        return error if isinstance(error, JobError) else JobError(refusal(self._settings, what, error))


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
