"""Writers' and values' schemas, without a registry or with one that does not answer as one."""

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema

from tablegate.gateway.contract.registry_settings import load_registry
from tablegate.jobs.errors import JobError
from tablegate.jobs.planning.registry import SchemaRegistry, choose_value_schema
from tablegate.jobs.planning.schemas import Registered, sort_schemas
from tablegate.v1 import changelog_pb2
from tests.kit.job.avro_pairs import field, record

SCHEMA = {"type": "record", "name": "R", "fields": []}
OTHER = {"type": "record", "name": "Other", "fields": []}

FUNDS = json.dumps(record(field("amount", "long"), name="Funds", namespace="bank", aliases=["Money"]))
"""The reader's."""
VALUES = "funds-value"


def text(schema: dict[str, Any]) -> str:
    return json.dumps(schema, separators=(",", ":"))


def registered(schema_id: int, subject: str | None, name: str, kind: str = "int") -> Registered:
    """Return the schema of a record with one field, `amount`."""
    return Registered(schema_id, Schema(json.dumps(record(field("amount", kind), name=name)), "AVRO"), subject)


def test_records_are_sorted_by_name() -> None:
    found = [
        registered(1, VALUES, "bank.Funds"),
        registered(2, VALUES, "bank.Funds", kind="string"),
        registered(3, "funds-bank.Reserved", "bank.Reserved"),
        registered(4, None, "bank.Money"),
    ]
    schemas = sort_schemas("funds", FUNDS, found)
    assert schemas.decoded == {1: found[0].text, 4: found[3].text}
    assert schemas.ignored == {3: "bank.Reserved"}
    assert schemas.incompatible == {2: 'field "amount" is string, not long'}


def test_lone_type_of_a_topic_may_have_another_name() -> None:
    found = [registered(1, VALUES, "shop.Payment"), registered(2, VALUES, "shop.Payment", kind="string")]
    schemas = sort_schemas("funds", FUNDS, found)
    assert (list(schemas.decoded), list(schemas.ignored), list(schemas.incompatible)) == ([1], [], [2])


@pytest.mark.parametrize(
    ("subject", "name"), [(VALUES, "bank.Funds"), ("funds-bank.Funds", "bank.Funds"), (VALUES, "bank.Money")]
)
def test_another_name_is_another_type_where_the_topic_has_the_readers(subject: str, name: str) -> None:
    found = [registered(1, VALUES, "shop.Payment"), registered(2, subject, name)]
    schemas = sort_schemas("funds", FUNDS, found)
    assert (list(schemas.decoded), schemas.ignored, list(schemas.incompatible)) == ([2], {1: "shop.Payment"}, [])


def test_record_name_of_another_topic_says_nothing_of_this_one() -> None:
    found = [registered(1, VALUES, "shop.Payment"), registered(2, "bank.Funds", "bank.Funds")]
    assert list(sort_schemas("funds", FUNDS, found).decoded) == [1, 2]


def test_schema_of_two_subjects_is_sorted_once() -> None:
    found = [registered(1, VALUES, "shop.Payment"), registered(1, "funds-shop.Payment", "shop.Payment")]
    assert list(sort_schemas("funds", FUNDS, found).decoded) == [1]


def test_what_is_no_avro_record() -> None:
    found = [
        registered(1, VALUES, "bank.Funds"),
        Registered(2, Schema('"string"', "AVRO"), VALUES),
        Registered(3, Schema('{"type": "object"}', "JSON"), VALUES),
        Registered(4, Schema('syntax = "proto3";', "PROTOBUF"), VALUES),
    ]
    schemas = sort_schemas("funds", FUNDS, found)
    assert schemas.incompatible == {
        2: "it is not an Avro record",
        3: "it is of JSON Schema, and the source is declared as Avro",
        4: "it is of Protobuf, and the source is declared as Avro; declare the source as Protobuf",
    }


def test_topic_of_other_types_alone() -> None:
    found = [registered(1, VALUES, "b.X"), registered(2, VALUES, "a.Y"), registered(3, VALUES, "a.Y", kind="long")]
    with pytest.raises(JobError, match=r'topic "funds" has records "a\.Y", "b\.X" and none "bank\.Funds"; give'):
        sort_schemas("funds", FUNDS, found)


def test_topic_of_incompatible_schemas_alone() -> None:
    found = [registered(1, VALUES, "bank.Funds", kind="string"), registered(2, VALUES, "bank.Funds", kind="boolean")]
    with pytest.raises(JobError, match='of schema 2, field "amount" is boolean, not long: correct the schema'):
        sort_schemas("funds", FUNDS, found)


# Values.


def test_first_value_schema_has_id_1() -> None:
    assert choose_value_schema(SCHEMA, "c", 1, None, None) == (1, {1: text(SCHEMA)})


def test_unchanged_value_schema_keeps_its_id() -> None:
    old = changelog_pb2.Manifest(generation=1, value_schemas={1: text(OTHER), 2: text(SCHEMA), 3: text(OTHER)})
    chosen, schemas = choose_value_schema(SCHEMA, "c", 1, old, None)
    assert chosen == 2
    assert schemas == dict(old.value_schemas)


def test_changed_value_schema_gets_the_next_id_and_the_old_stay() -> None:
    old = changelog_pb2.Manifest(generation=1, value_schemas={4: text(OTHER)})
    assert choose_value_schema(SCHEMA, "c", 1, old, None) == (5, {4: text(OTHER), 5: text(SCHEMA)})


def test_new_generation_starts_with_its_own_schemas() -> None:
    old = changelog_pb2.Manifest(generation=1, value_schemas={4: text(OTHER)})
    assert choose_value_schema(SCHEMA, "c", 2, old, None) == (1, {1: text(SCHEMA)})


# Addresses and answers.


def registry_at(url: str, user: str = "", password: str = "") -> SchemaRegistry:
    environ = {"TABLEGATE_KAFKA_REGISTRY_USERNAME": user, "TABLEGATE_KAFKA_REGISTRY_PASSWORD": password}
    settings = load_registry(url=url, environ=environ if user else {})
    assert settings is not None
    return SchemaRegistry(settings)


def test_registry_away() -> None:
    with pytest.raises(
        JobError, match=r"no schema registry answers at http://127\.0\.0\.1:9 \(.+\); start it"
    ) as caught:
        registry_at("http://127.0.0.1:9", "user", "secret").writer_schemas("funds", FUNDS)
    assert "secret" not in str(caught.value)


@pytest.fixture
def guarded() -> Iterator[str]:
    """Address of a server that asks for a user, and then knows no subject."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = f"Basic {base64.b64encode(b'user:pa@ss').decode()}"
            known = self.headers.get("Authorization") == wanted
            body = json.dumps({"error_code": 40403, "message": "none"} if known else {"error_code": 401}).encode()
            self.send_response(404 if known else 401)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("user", "why"),
    [
        (
            "",
            "it asks who comes; give username and password_file, or a token, in \\[registry\\] of the file of --kafka",
        ),
        ("user", 'it does not let in user "user"; correct username or its password'),
    ],
)
def test_user_and_password(guarded: str, user: str, why: str) -> None:
    with pytest.raises(JobError, match=f'at http://{guarded} has no subject "funds-value"'):
        registry_at(f"http://{guarded}", "user", "pa@ss").writer_schemas("funds", FUNDS)
    with pytest.raises(
        JobError, match=rf'schema registry at http://{guarded}: subject "funds-value" cannot be read: {why}'
    ) as caught:
        registry_at(f"http://{guarded}", user, "secret").writer_schemas("funds", FUNDS)
    assert "secret" not in str(caught.value)
