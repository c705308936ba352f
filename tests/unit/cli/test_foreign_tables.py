"""What a command and a file say of a topic that others write: how both become one definition, and what is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tablegate.examples.demo.kafka import free_port
from tablegate.gateway.cli.foreign_tables import CHOICES, Definition, DefinitionError, bound_table, foreign_topic
from tablegate.gateway.cli.registry import RegistryError, avro_schemas
from tablegate.gateway.cli.tables import KeyWord, StoredWord, ValueWord, WindowWord
from tablegate.gateway.contract.registry_settings import RegistrySettings, load_registry
from tablegate.v1 import changelog_pb2
from tests.kit.programs.listed_registry import ListedRegistry
from tests.kit.table.foreign import FOREIGN

ORDERS = Definition(table="orders", topic="orders", key="utf8", value="json", contract=str(FOREIGN))


def test_options_have_the_words_that_manifests_have() -> None:
    assert [word.value for word in KeyWord] == [*CHOICES["key"]]
    assert [word.value for word in ValueWord] == [*CHOICES["value"]]
    assert [word.value for word in WindowWord] == [*CHOICES["windowed"]][1:]
    assert [word.value for word in StoredWord] == [*CHOICES["stored"]][1:]


def test_a_file_says_the_same_and_options_go_over_it(tmp_path: Path) -> None:
    file = tmp_path / "orders.toml"
    file.write_text('table = "orders"\ntopic = "theirs"\nkey = "utf8"\nvalue = "json"\ncontract = "orders.proto"\n')
    found = Definition(value="avro").with_file(file)
    assert found == replace(ORDERS, topic="theirs", value="avro", contract=str(tmp_path / "orders.proto"))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("table = ", "is no TOML"),
        ('tabel = "orders"', 'has an unknown key "tabel"; it may have contract, key,'),
        ("topic = 7", '"topic" is no text; write it in quotes'),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "orders.toml"
    file.write_text(text)
    with pytest.raises(DefinitionError, match=why):
        Definition().with_file(file)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"topic": ""}, "a table of a topic needs --topic; give it, or write it into --file"),
        ({"table": ""}, "a table of a topic needs the table's name"),
        ({"key": ""}, r"a table of a topic needs --key \(utf8, int32, int64, .*\); give it, or write it into --file"),
        ({"value": ""}, r"a table of a topic needs --value \(json, json-schema, avro, .*\); give it"),
        *(({"topic": name}, "is no name of a topic") for name in ("a b", "a/b", "é", ".", "..", "o" * 250)),
        ({"key": "text"}, '--key "text" is none of utf8, int32'),
        ({"windowed": "hopping"}, '--windowed "hopping" is none of no, time'),
        ({"partitioner": "consistent_random"}, "is librdkafka's, by CRC-32"),
        ({"partitioner": "random"}, '--partitioner "random" is none of murmur2, unknown'),
    ],
)
def test_a_bad_definition_is_refused(changes: dict[str, str], why: str) -> None:
    with pytest.raises(DefinitionError, match=why):
        replace(ORDERS, **changes).checked()


def test_a_partitioner_is_chosen_by_the_keys() -> None:
    assert ORDERS.checked().partitioner == "murmur2"
    assert replace(ORDERS, key="json").checked().partitioner == "unknown"


@pytest.mark.parametrize(("retention", "seconds"), [("7d", 604_800), ("12h", 43_200), ("30m", 1_800), ("5s", 5)])
def test_a_retention_is_a_duration(retention: str, seconds: int) -> None:
    topic = foreign_topic(replace(ORDERS, retention=retention).checked(), {})
    assert topic.retention.seconds == seconds
    assert topic.key_codec == changelog_pb2.KEY_CODEC_UTF8


def test_what_is_no_duration_is_refused() -> None:
    with pytest.raises(DefinitionError, match="is no duration; give one such as 7d or 12h"):
        foreign_topic(replace(ORDERS, retention="a week").checked(), {})


@pytest.mark.parametrize(("place", "index"), [("", []), ("0", []), ("2", [2]), ("1.0", [1, 0])])
def test_a_place_of_a_message_is_its_index(place: str, index: list[int]) -> None:
    topic = foreign_topic(replace(ORDERS, value="protobuf", value_index=place).checked(), {})
    assert topic.value_index == index


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"value_index": "1"}, "--value-index is of --value protobuf alone, which has an index; leave it out"),
        ({"value": "protobuf", "value_index": "-1"}, '--value-index "-1" is no place of a message; give one such as 1'),
        ({"key": "protobuf", "key_index": "Order"}, '--key-index "Order" is no place of a message'),
    ],
)
def test_what_is_no_place_of_a_message_is_refused(changes: dict[str, str], why: str) -> None:
    with pytest.raises(DefinitionError, match=why):
        foreign_topic(replace(ORDERS, **changes).checked(), {})


def test_a_table_that_the_contract_lacks_is_refused() -> None:
    with pytest.raises(DefinitionError, match='has no table "parcels", only orders, lines'):
        bound_table(replace(ORDERS, table="parcels"))


def test_a_registry_that_is_away_says_so_without_its_password() -> None:
    port = free_port()
    who = {"TABLEGATE_KAFKA_REGISTRY_USERNAME": "ann", "TABLEGATE_KAFKA_REGISTRY_PASSWORD": "secret"}
    registry = load_registry(url=f"http://127.0.0.1:{port}", environ=who)
    assert registry is not None
    with pytest.raises(RegistryError) as refused:
        avro_schemas(registry, "orders-value")
    assert str(refused.value).startswith(f"no schema registry answers at http://127.0.0.1:{port}")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("answer", [{}, {"id": 1}, {"id": 1, "schema": "{", "references": [{}]}, {"schema": "{}"}])
def test_an_answer_that_is_no_registrys_is_a_sentence(answer: dict[str, Any]) -> None:
    with ListedRegistry({"orders-value": [{"id": None, **answer}]}) as running, pytest.raises(RegistryError) as refused:
        avro_schemas(RegistrySettings(url=running.url), "orders-value")
    assert "its answer is not one of Confluent's API; correct --schema-registry" in str(refused.value)
