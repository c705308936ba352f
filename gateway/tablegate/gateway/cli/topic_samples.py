"""What some of the newest records of a topic come to: how many are rows, why others are not, and what is in none."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.timestamp_pb2 import Timestamp

from tablegate.gateway.cli.topic_fields import TopicFields, Unmatched
from tablegate.gateway.contract.binder.binder import bind
from tablegate.gateway.contract.catalogue import Table
from tablegate.gateway.contract.foreign.topics import ForeignRows
from tablegate.gateway.contract.rows import UndecodableRecord
from tablegate.gateway.contract.types import Partition
from tablegate.gateway.kafka.log import Record
from tablegate.v1 import changelog_pb2, options_pb2
from tablegate.v1.changelog_pb2 import Manifest

SAMPLE_RECORDS_MAX = 1_000

_TYPES = {
    changelog_pb2.KEY_TYPE_INT64: FieldDescriptorProto.TYPE_INT64,
    changelog_pb2.KEY_TYPE_BOOL: FieldDescriptorProto.TYPE_BOOL,
    changelog_pb2.KEY_TYPE_STRING: FieldDescriptorProto.TYPE_STRING,
    changelog_pb2.KEY_TYPE_BYTES: FieldDescriptorProto.TYPE_BYTES,
}
_SCALARS = (
    changelog_pb2.KEY_CODEC_UTF8,
    changelog_pb2.KEY_CODEC_INT32,
    changelog_pb2.KEY_CODEC_INT64,
    changelog_pb2.KEY_CODEC_BYTES,
)
_FIELD_NUMBER = 536_870_911  # the highest, downwards: a value of Protobuf has hardly a field of that number


@dataclass(frozen=True, slots=True)
class Sample:
    """How many records are rows or deletes, and how many not, by reason.

    `deletes`: how many of the good ones have no row, so that their values say nothing. `fields`: what those with a row
    had for its columns; None without the contract.
    """

    good: int
    deletes: int
    reasons: Counter[str]
    fields: TopicFields | None

    @property
    def by_codecs(self) -> bool:
        """Return whether records were read without the contract."""
        return self.fields is None

    @property
    def total(self) -> int:
        """Return how many records were read."""
        return self.good + self.reasons.total()

    @property
    def has_no_row(self) -> bool:
        """Return whether there should be rows and is none."""
        return bool(self.reasons) and self.good == self.deletes

    def lines(self, topic: str) -> Iterator[str]:
        """Yield what to print."""
        rows = (
            "can be read by their codecs; --contract says which are rows" if self.by_codecs else "are rows or deletes"
        )
        if not self.total:
            yield f'topic "{topic}" has no records yet'
        elif not self.good:
            yield f"none of the newest {self.total} records can be read as a row:"
        else:
            yield f"{self.good} of the newest {self.total} records {rows}{'' if self.by_codecs else ' of the table'}"
        yield from (f"  {count} not: {reason}" for reason, count in self.reasons.most_common())
        if self.fields is not None:
            yield from self.fields.lines()

    def described(self) -> dict[str, object]:
        """Return the same as JSON has it."""
        unmatched = Unmatched([], []) if self.fields is None else self.fields.unmatched()
        return {
            "records": self.total,
            "readable": self.good,
            "reasons": dict(self.reasons),
            "by_codecs": self.by_codecs,
            "columns_without_field": unmatched.columns,
            "fields_without_column": unmatched.fields,
        }


def sample_of(records: Iterable[tuple[Partition, Record]], manifest: Manifest, table: Table | None) -> Sample:
    """Return what records come to. Without a table, by what the manifest says; raise `UnfitTopic`."""
    rows = _rows_by_codecs(manifest) if table is None else ForeignRows(table, manifest)
    fields = None if table is None else TopicFields(table.row, [column.name for column in table.key])
    reasons, good, deletes = Counter[str](), 0, 0
    for partition, record in records:
        try:
            _, row = rows.read(record.key, record.value, partition, record.schema_ids)
            good += 1
            deletes += row is None
            if row is not None and record.value is not None and fields is not None:
                fields.add(rows.content(record.value, record.schema_ids))
        except UndecodableRecord as error:
            reasons[str(error)] += 1
    return Sample(good, deletes, reasons, fields)


def _rows_by_codecs(manifest: Manifest) -> ForeignRows:
    """Return what reads records without their contract: a table of the key columns alone, as the manifest has them.

    A key of Protobuf is a message that only the contract has, and a number of JSON or Avro may be an enum's: such keys
    are taken as they are.
    """
    foreign = manifest.foreign
    is_known = foreign.key_codec in _SCALARS or not (
        foreign.key_message or any(column.type == changelog_pb2.KEY_TYPE_INT64 for column in manifest.key)
    )
    read = Manifest()
    read.CopyFrom(manifest)
    if not is_known:
        del read.key[1:]
        read.key[0].type = changelog_pb2.KEY_TYPE_BYTES
        read.foreign.key_codec = changelog_pb2.KEY_CODEC_BYTES
        read.foreign.ClearField("key_window")
        read.foreign.record_partitioner = changelog_pb2.RECORD_PARTITIONER_UNKNOWN
    file = FileDescriptorProto(name="keys.proto", package="keys", syntax="proto3")
    row = file.message_type.add(name="Row")
    options: Any = row.options.Extensions[options_pb2.table]  # type: ignore[index, unused-ignore]
    options.name = manifest.table
    for place, column in enumerate(read.key):
        options.key.append(column.name)
        made = row.field.add(name=column.name, number=_FIELD_NUMBER - place, label=FieldDescriptorProto.LABEL_OPTIONAL)
        if column.type == changelog_pb2.KEY_TYPE_TIMESTAMP:
            made.type, made.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".{Timestamp.DESCRIPTOR.full_name}"
        else:
            made.type = _TYPES[column.type]
    given = {one.name: one for one in _with_imports((options_pb2.DESCRIPTOR, Timestamp.DESCRIPTOR.file))}
    file.dependency.extend((options_pb2.DESCRIPTOR.name, Timestamp.DESCRIPTOR.file.name))
    files = [FileDescriptorProto.FromString(one.serialized_pb) for one in given.values()]
    return ForeignRows(bind(FileDescriptorSet(file=[*files, file])).tables[manifest.table], read)


def _with_imports(files: Iterable[FileDescriptor]) -> Iterator[FileDescriptor]:
    for file in files:
        yield from _with_imports(file.dependencies)
        yield file
