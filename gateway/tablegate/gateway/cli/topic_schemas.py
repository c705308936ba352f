"""The schemas of a topic's keys and values: what a manifest says of them, and whether they fit the contract."""

import base64
import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError

from tablegate.gateway.cli.foreign_tables import Definition, DefinitionError, read_schemas
from tablegate.gateway.cli.registry import (
    JSON_SCHEMA,
    PROTOBUF,
    RegisteredSchema,
    RegistryError,
    avro_schemas,
    newest_schema,
)
from tablegate.gateway.contract.binder.files import build_pool
from tablegate.gateway.contract.binder.problems import ContractError
from tablegate.gateway.contract.catalogue import Table
from tablegate.gateway.contract.descriptors import DescriptorError, load_descriptors
from tablegate.gateway.contract.foreign.avro import AvroSchemas
from tablegate.gateway.contract.foreign.fit import (
    AvroDescription,
    JsonDescription,
    Misfit,
    message_misfits,
    misfits,
)
from tablegate.gateway.contract.foreign.keys import UnfitTopic, key_message
from tablegate.gateway.contract.foreign.values import row_schema_of
from tablegate.gateway.contract.registry_settings import RegistrySettings
from tablegate.gateway.contract.rows import UnfitSchema

_AVRO = ("avro", "debezium-avro")
REGISTERED = (*_AVRO, "protobuf", "json-schema")
"""Codecs whose records have the id of a schema in a registry."""


@dataclass(frozen=True, slots=True)
class TopicSchemas:
    """Avro schemas by id, as a manifest has them; 0 is that of records without ids. `guids`: ids by GUID."""

    keys: dict[int, str]
    values: dict[int, str]
    guids: dict[str, int]


def topic_schemas(definition: Definition, table: Table, registry: RegistrySettings | None) -> TopicSchemas:
    """Return the schemas of a topic that fit a table; raise `DefinitionError`, `RegistryError`, `UnfitTopic`."""
    key, value = (_Part(definition, name, table, registry) for name in ("key", "value"))
    return TopicSchemas(key.schemas(), value.schemas(), {**key.guids, **value.guids})


class _Part:
    """The keys or the values of a topic. `name`: "key" or "value"."""

    def __init__(self, definition: Definition, name: str, table: Table, registry: RegistrySettings | None) -> None:
        self._table = table
        self._name = name
        self._codec: str = getattr(definition, name)
        self._path: str = getattr(definition, f"{name}_schema")
        self._key_message = definition.key_message
        self._index: str = getattr(definition, f"{name}_index")
        subject: str = getattr(definition, f"{name}_subject")
        if subject and (self._codec not in REGISTERED or registry is None):
            needed = "a schema registry; give --schema-registry" if registry is None else f"--{name} avro or the like"
            raise DefinitionError(f"--{name}-subject needs {needed}, or leave it out")
        self._subject = subject or f"{definition.topic}-{name}"
        self._registry = registry
        self.guids: dict[str, int] = {}

    def schemas(self) -> dict[int, str]:
        """Return the Avro schemas; raise what `topic_schemas` does."""
        if self._codec not in REGISTERED:
            found = read_schemas(self._path)
            if found:
                self._check_avro(found, f'"{self._path}"')
            return found
        if self._registry is None:
            if self._codec not in _AVRO:
                return {}  # their ids say nothing that the contract does not
            raise DefinitionError(
                f"--{self._name} {self._codec} needs the schemas of the registry; give --schema-registry "
                "http://host:port"
            )
        if self._codec in _AVRO:
            registered = [
                one
                for one in avro_schemas(self._registry, self._subject)
                if not (one.is_deleted and self._is_unreadable(one))
            ]
            self.guids = {one.guid: one.schema_id for one in registered if one.guid is not None}
            found = {one.schema_id: one.text for one in registered}
            self._check_avro(found, f'schema {next(reversed(found))} of subject "{self._subject}"')
            return found
        language = PROTOBUF if self._codec == "protobuf" else JSON_SCHEMA
        schema = newest_schema(self._registry, self._subject).checked(language)
        self._refuse(self._protobuf(schema) if language == PROTOBUF else self._json(schema), str(schema))
        return {}

    def _columns(self) -> Sequence[FieldDescriptor]:
        key = [column.name for column in self._table.key]
        if self._name == "value":
            return [column for column in self._table.row.fields if column.name not in key]
        return [self._table.row.fields_by_name[name] for name in key]

    def _check_avro(self, schemas: dict[int, str], what: str) -> None:
        """Look at the newest schema: what older records have instead is counted."""
        try:
            parsed = [*AvroSchemas(self._name, schemas).parsed.values()][-1]
            if self._codec == "debezium-avro":
                parsed = row_schema_of(parsed)
        except UnfitSchema as error:
            raise DefinitionError(f"{what}: {error}") from None
        of = AvroDescription(parsed)
        if isinstance(parsed, dict) and parsed.get("type") == "record":
            fields: Any = of.fields(parsed)
        else:
            fields = {self._columns()[0].name: parsed}  # a key that is a value alone
        self._refuse(misfits(self._columns(), fields, of, every=False), what)

    def _is_unreadable(self, schema: RegisteredSchema) -> bool:
        """Return whether a schema is of no rows: one may have been deleted for that."""
        try:
            [parsed] = AvroSchemas(self._name, {schema.schema_id: schema.text}).parsed.values()
            if self._codec == "debezium-avro" and self._name == "value":
                row_schema_of(parsed)
        except UnfitSchema:
            return True
        return self._name == "value" and not (isinstance(parsed, dict) and parsed.get("type") == "record")

    def _json(self, schema: RegisteredSchema) -> Iterator[Misfit]:
        try:
            whole = json.loads(schema.text)
        except ValueError:
            raise DefinitionError(f"{schema} is not JSON; register it again") from None
        of = JsonDescription(whole)
        for _, one in of.kinds(whole):
            if (fields := of.fields(one) if isinstance(one, dict) else None) is not None:
                yield from misfits(self._columns(), fields, of, every=True)
                return

    def _protobuf(self, schema: RegisteredSchema) -> Iterator[Misfit]:
        theirs = _message_at(schema, self._index)
        if self._name == "key":
            return message_misfits(key_message(self._table, self._key_message), theirs)
        return message_misfits(self._table.row, theirs, [column.name for column in self._table.key])

    def _refuse(self, found: Iterable[Misfit], what: str) -> None:
        pairs = [*found]
        if not pairs:
            return
        width = max(len(pair.contract) for pair in pairs)
        lines = "".join(f"\n  {pair.contract:{width}}   |   {pair.schema}" for pair in pairs)
        raise UnfitTopic(
            f"its contract (left) does not fit {what} (right); change the contract, or say which subject it is: "
            f"--{self._name}-subject{lines}"
        )


def compiled(schema: RegisteredSchema) -> FileDescriptorSet:
    """Return the files of a schema of Protobuf, the last of which is its own; raise `RegistryError`."""
    own = f"schema-{schema.schema_id}.proto"
    texts = {**schema.imports, own: schema.text}
    made = {name: made for name, text in texts.items() if (made := _serialized(name, text)) is not None}
    sources = {name: text for name, text in texts.items() if name not in made}
    if own in made:
        # What comes with protoc is in no registry. It is compiled by a file that imports it.
        given = {name for made_file in made.values() for name in made_file.dependency} - texts.keys()
        sources[own] = "\n".join(['syntax = "proto3";', *(f'import "{name}";' for name in sorted(given))])
    with tempfile.TemporaryDirectory(prefix="tablegate-") as scratch:
        directory = Path(scratch).resolve()
        _write(sources, directory, schema)
        try:
            found = load_descriptors(directory / own, what="schema")
        except DescriptorError as error:
            raise RegistryError(f"{schema}: {str(error).replace(f'{directory}/', '')}") from None
    files = {file.name: file for file in found.file} | made
    return FileDescriptorSet(file=[*(file for name, file in files.items() if name != own), files[own]])


def _write(sources: Mapping[str, str], directory: Path, schema: RegisteredSchema) -> None:
    for name, text in sources.items():
        path = (directory / name).resolve()
        if not path.is_relative_to(directory):
            raise RegistryError(f'{schema} imports "{name}", which is no name of a file; register it again')
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _serialized(name: str, text: str) -> FileDescriptorProto | None:
    """Return the file that a text is in base64, as some clients register it; None where it is a .proto."""
    try:
        file = FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (ValueError, DecodeError):
        return None
    file.name = name
    return file


def _message_at(schema: RegisteredSchema, index: str) -> Descriptor:
    """Return the message of a schema that is at a place; raise `RegistryError` and `DefinitionError`."""
    files = compiled(schema)
    try:
        _, own = build_pool(files)
    except ContractError as error:
        raise DefinitionError(f"{schema}: {error.problems[0].text}; register it again") from None
    # The order of messages is that of the text, which the pool does not keep for the outer ones.
    file, described = files.file[-1], own[-1]
    places = [int(place) for place in (index or "0").split(".")]
    try:
        found = described.message_types_by_name[file.message_type[places[0]].name]
        for place in places[1:]:
            found = found.nested_types[place]
    except IndexError:
        raise DefinitionError(f"{schema} has no message {index or 0}; see --value-index and --key-index") from None
    return found
