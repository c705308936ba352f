"""A schema registry with TLS that asks who comes: by a password, a token, an OpenID provider or a certificate."""

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from tablegate.examples.demo.kafka import Broker
from tablegate.examples.tables.ratings import RATING_SCHEMA
from tablegate.gateway.cli.registry import RegistryError, avro_schemas
from tablegate.gateway.contract.registry_settings import RegistrySettings, load_registry
from tablegate.jobs.errors import JobError
from tablegate.jobs.planning.registry import SchemaRegistry
from tests.kit.job.avro_pairs import field, record
from tests.kit.job.process import JobProcess
from tests.kit.job.ratings_job import rating_record, write_job
from tests.kit.programs.kafka import new_topic, produce
from tests.kit.programs.secure_registry import STRANGER, USER, WAYS, SecureRegistry

pytestmark = pytest.mark.jvm

TOPIC = f"orders-{uuid.uuid4().hex[:12]}"
SUBJECT = f"{TOPIC}-value"
SCHEMA = json.dumps(record(field("id", "long"), name="Order"))


@pytest.fixture(scope="module")
def registry(schema_registry: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureRegistry]:
    with SchemaRegistryClient({"url": schema_registry}) as client:
        client.register_schema(SUBJECT, Schema(SCHEMA, "AVRO"))
    with SecureRegistry(tmp_path_factory.mktemp("secure"), schema_registry) as running:
        yield running


def asked(settings: RegistrySettings | None) -> list[str]:
    assert settings is not None
    return list(SchemaRegistry(settings).writer_schemas(TOPIC, SCHEMA).decoded.values())


def refusal(file: Path) -> str:
    with pytest.raises(JobError) as caught:
        asked(load_registry(file, environ={}))
    return str(caught.value)


@pytest.mark.parametrize("way", WAYS)
def test_who_may_ask_is_answered(registry: SecureRegistry, way: str) -> None:
    settings = load_registry(registry.settings(way), environ={})
    assert asked(settings) == [SCHEMA]
    assert settings is not None
    assert SchemaRegistry(settings).register_value_schema(f"{way}-{uuid.uuid4().hex}", SCHEMA) > 0


@pytest.mark.parametrize(
    ("way", "sentence"),
    [
        ("basic", f'it does not let in user "{USER}"; correct username or its password in [registry]'),
        ("token", 'secret"; write a new one there'),
        ("oauth", f'/token gives client "{USER}" no token (HTTP 401); correct oauth_client_id, its secret'),
    ],
)
def test_a_wrong_secret_is_a_sentence(registry: SecureRegistry, way: str, sentence: str) -> None:
    line = refusal(registry.settings(way, secret="wrong-4711"))
    assert sentence in line
    assert "wrong-4711" not in line


@pytest.mark.parametrize("way", WAYS[:3])
def test_a_missing_right_is_a_sentence(registry: SecureRegistry, way: str) -> None:
    line = refusal(registry.settings(way, STRANGER))
    assert f'subject "{SUBJECT}" cannot be read: it gives ' in line
    assert line.endswith("no right to do so; add that right there")


@pytest.mark.parametrize("way", WAYS)
def test_table_add_asks_by_the_same_file(registry: SecureRegistry, way: str) -> None:
    """The command has a client of its own: a gateway's package has no client of registries."""
    settings = load_registry(registry.settings(way), environ={})
    assert settings is not None
    assert [json.loads(one.text) for one in avro_schemas(settings, SUBJECT)] == [json.loads(SCHEMA)]


def test_table_add_says_what_a_registry_wants(registry: SecureRegistry) -> None:
    for way, more, words in (
        ("basic", {"secret": "wrong-4711"}, f'does not let in user "{USER}"; correct it in'),
        ("basic", {"more": registry.other_ca()}, "has a certificate that ca_file "),
    ):
        settings = load_registry(registry.settings(way, **more), environ={})
        assert settings is not None
        with pytest.raises(RegistryError, match=words) as caught:
            avro_schemas(settings, SUBJECT)
        assert "wrong-4711" not in str(caught.value)


def test_a_password_that_changes_is_taken_up(registry: SecureRegistry) -> None:
    file = registry.settings("basic", secret="old", more="# rotated")
    settings = load_registry(file, environ={})
    with pytest.raises(JobError, match="does not let in user"):
        asked(settings)
    (file.parent / "secret").write_text(registry.password(USER))
    assert asked(settings) == [SCHEMA]


def test_what_tls_wants_is_a_sentence(registry: SecureRegistry, schema_registry: str) -> None:
    at = f"the schema registry at {registry.url('basic')} "
    wrong = refusal(registry.settings("basic", more=registry.other_ca()))
    assert wrong.startswith(f"{at}has a certificate that ca_file ")
    unknown = refusal(registry.settings("basic", more="# ca_file"))
    assert unknown.startswith(f"{at}has a certificate of a CA that this machine does not know; name the CA's file as")
    nobody = refusal(registry.settings("mtls", STRANGER))
    assert "wants a certificate of the client; give certificate_file and key_file in [registry]" in nobody
    plain = load_registry(url=schema_registry.replace("http:", "https:"), environ={})
    with pytest.raises(JobError, match="has no TLS there; give its url with http://"):
        asked(plain)


def test_files_that_do_not_fit_are_named(registry: SecureRegistry) -> None:
    file = registry.settings("mtls")
    other = registry.other_ca().partition('"')[2].rstrip('"')
    file.write_text(file.read_text().replace("registrar.pem", Path(other).name))
    assert "cannot be used" in refusal(file)


def test_a_job_asks_the_registry_and_shows_no_secret(broker: Broker, registry: SecureRegistry, tmp_path: Path) -> None:
    name = f"asking_{uuid.uuid4().hex[:12]}"
    source = new_topic(broker.bootstrap, prefix="ratings")
    file = registry.settings("oauth")
    settings = load_registry(file, environ={})
    assert settings is not None
    schema_id = SchemaRegistry(settings).register_value_schema(source, RATING_SCHEMA)
    produce(broker.bootstrap, source, [rating_record(362, 10.0, schema_id)])
    arguments = ["--table", write_job(tmp_path, name, source), "--kafka", str(file), "--bootstrap", broker.bootstrap]
    arguments += ["--checkpoints", str(tmp_path / "checkpoint"), "--mode", "microbatch"]
    with JobProcess(tmp_path / "logs", *arguments) as running:
        running.wait_for("running")
        shown = {}
        for line in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):  # of a process that has ended
                shown[str(line)] = line.read_bytes()
        assert running.stop() == 0
    shown |= {str(path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert [place for place, content in shown.items() if registry.password(USER).encode() in content] == []
    assert avro_schemas(settings, f"{name}-g1-changelog-value") != []


@pytest.mark.parametrize("way", WAYS)
def test_contract_new_by_the_file_of_kafka(registry: SecureRegistry, tmp_path: Path, way: str) -> None:
    words = ["contract", "new", "orders.proto", "--from", f"registry:{SUBJECT}", "--key", "id"]
    variables = {**os.environ, "TABLEGATE_KAFKA": str(registry.settings(way))}
    run = [sys.executable, "-m", "tablegate.gateway.cli", *words]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False, env=variables)
    assert done.returncode == 0, done.stderr
    assert "int64 id = 1;" in (tmp_path / "orders.proto").read_text()
