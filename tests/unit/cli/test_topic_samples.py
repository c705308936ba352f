"""What `table show` says of a topic's newest records, with their contract and without it."""

from collections.abc import Iterable

import pytest

from tablegate.gateway.cli.topic_samples import sample_of
from tablegate.gateway.contract.keys import murmur2_partition
from tablegate.gateway.contract.types import Offset, Partition
from tablegate.gateway.kafka.log import Record
from tests.kit.table.foreign import BAD_VALUE, TOPICS, Topic

PARTITIONS = 3
each_topic = pytest.mark.parametrize("topic", [pytest.param(one, id=one.name) for one in TOPICS])


def records(topic: Topic, values: Iterable[bytes | None]) -> list[tuple[Partition, Record]]:
    found = []
    for number, value in enumerate(values):
        columns = topic.columns(number)
        partition = murmur2_partition(topic.place(columns), PARTITIONS)
        found.append((partition, Record(Offset(number), topic.key(columns), value, None, 0)))
    return found


@each_topic
def test_without_the_contract_codecs_say_what_can_be_read(topic: Topic) -> None:
    manifest = topic.manifest(partitions=PARTITIONS)
    good = records(topic, [topic.value(topic.columns(number)) for number in range(4)])
    for table in (topic.contract, None):
        assert sample_of([*good, *records(topic, [None])], manifest, table).good == 5
        bad = sample_of(records(topic, [BAD_VALUE, BAD_VALUE]), manifest, table)
        assert next(iter(bad.lines("theirs"))) == "none of the newest 2 records can be read as a row:"
    some = sample_of([*good, *records(topic, [BAD_VALUE])], manifest, None)
    first, reason = some.lines("theirs")
    assert first == "4 of the newest 5 records can be read by their codecs; --contract says which are rows"
    assert reason.startswith("  1 not: value ")


@each_topic
def test_deletes_alone_are_no_rows_where_values_are_none(topic: Topic) -> None:
    """By a mistyped codec of values, the newest records may be deletes and nothing else: a table would be emptied."""
    manifest = topic.manifest(partitions=PARTITIONS)
    deletes = records(topic, [topic.delete(topic.columns(number)) for number in range(3)])
    good, bad = records(topic, [topic.value(topic.columns(1))]), records(topic, [BAD_VALUE])
    found = [sample_of(each, manifest, topic.contract) for each in ([*deletes, *bad], bad, [*deletes, *good, *bad])]
    assert [each.has_no_row for each in found] == [True, True, False]
    assert not sample_of(deletes, manifest, topic.contract).has_no_row
    assert not sample_of([], manifest, topic.contract).has_no_row


def test_an_empty_topic_has_no_records_yet() -> None:
    empty = sample_of([], TOPICS[0].manifest(), None)
    assert [*empty.lines("theirs")] == ['topic "theirs" has no records yet']
    assert empty.described() == {
        "records": 0,
        "readable": 0,
        "reasons": {},
        "by_codecs": True,
        "columns_without_field": [],
        "fields_without_column": [],
    }


def test_a_key_that_is_not_of_its_codec_is_no_row() -> None:
    topic = next(one for one in TOPICS if one.name == "int64, json")
    sample = sample_of([(Partition(0), Record(Offset(0), b"text", b"{}", None, 0))], topic.manifest(), None)
    assert [*sample.lines("theirs")][1:] == ["  1 not: key has not 8 bytes"]
