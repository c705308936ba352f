"""docker-compose.yml, without Docker: by the schema of its format, and against what its commands would meet."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from typer.main import get_command

from tablegate.gateway.cli.main import app
from tablegate.gateway.server.config import ServeConfig
from tablegate.gateway.server.supervisor import KILL_MARGIN_S, REPLICATOR_STOP_S
from tests.kit.programs.deployment import (
    COMPOSE_FILE,
    DEPLOY,
    ROOT,
    compose,
    compose_command,
    job_arguments,
    serve_arguments,
)

FILE = compose()
SERVICES: dict[str, dict[str, Any]] = FILE["services"]
GATEWAYS = ["gateway-1", "gateway-2", "gateway-3"]
WORKERS = ["spark-worker-1", "spark-worker-2"]
BROKERS = {"one": ["kafka-one"], "three": ["kafka-1", "kafka-2", "kafka-3"]}
SCHEMA = Path(__file__).with_name("schemas") / "compose-spec.json"
RATINGS_PARTITIONS = 2


def _seconds(text: str) -> int:
    assert text.endswith("s")
    return int(text[:-1])


def _gateway(name: str) -> dict[str, Any]:
    service = SERVICES[name]
    bootstrap = service["environment"]["TABLEGATE_BOOTSTRAP"]
    return serve_arguments([*service["entrypoint"], *service["command"], f"--bootstrap={bootstrap}"])


def test_schema() -> None:
    errors = Draft202012Validator(json.loads(SCHEMA.read_text())).iter_errors(FILE)
    assert [f"{error.json_path}: {error.message}" for error in errors] == []


def test_schema_refuses_what_is_misspelt() -> None:
    wrong = {"services": {"a": {"image": "b:1", "helthcheck": {}}}}
    assert list(Draft202012Validator(json.loads(SCHEMA.read_text())).iter_errors(wrong))


@pytest.mark.parametrize("name", SERVICES)
def test_images_have_a_version(name: str) -> None:
    image, colon, version = SERVICES[name]["image"].partition(":")
    assert colon
    assert re.fullmatch(r"v?\d+\.\d+\.\d+[.\w-]*", version), f"{image} is not pinned: {version}"
    if "build" in SERVICES[name]:
        assert f'version = "{version}"' in (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize("name", SERVICES)
def test_what_a_service_names_is_declared(name: str) -> None:
    service = SERVICES[name]
    assert set(service.get("depends_on", ())) <= set(SERVICES)
    for secret in service.get("secrets", ()):
        assert "file" in FILE["secrets"][secret] or not service.get("read_only"), "Compose cannot write it there"
    for volume in service.get("volumes", ()):
        source = volume.split(":")[0]
        assert (ROOT / source).is_file() if source.startswith(".") else source in FILE["volumes"]


@pytest.mark.parametrize("name", SERVICES)
def test_published_ports_are_for_this_machine_alone(name: str) -> None:
    for port in SERVICES[name].get("ports", ()):
        assert port.startswith("127.0.0.1:")


@pytest.mark.parametrize(("profile", "names"), BROKERS.items())
def test_brokers_of_a_profile(profile: str, names: list[str]) -> None:
    assert names == [name for name, service in SERVICES.items() if profile in service.get("profiles", ())]
    voters = ",".join(f"{number}@{name}:9093" for number, name in enumerate(names, start=1))
    for number, name in enumerate(names, start=1):
        settings = SERVICES[name]["environment"]
        assert settings["KAFKA_NODE_ID"] == str(number)
        assert settings["KAFKA_CONTROLLER_QUORUM_VOTERS"] == voters
        assert settings["KAFKA_ADVERTISED_LISTENERS"] == f"PLAINTEXT://{name}:9092"
        # Whatever the profile, clients find a broker by one name.
        assert SERVICES[name]["networks"]["default"]["aliases"] == ["kafka"]


def test_gateways_are_a_cluster() -> None:
    found = [_gateway(name) for name in GATEWAYS]
    assert [each["gateway_id"] for each in found] == GATEWAYS
    assert [each["advertise"] for each in found] == [f"{name}:50051" for name in GATEWAYS]
    assert len({each["zone"] for each in found}) == len(GATEWAYS)
    secret = f"/run/secrets/{SERVICES['gateway-1']['secrets'][0]}"
    assert {str(each["token_key"]) for each in found} == {secret}, "any gateway must open the tokens of the others"


@pytest.mark.parametrize("name", GATEWAYS)
def test_gateway(name: str) -> None:
    arguments, service = _gateway(name), SERVICES[name]
    host, _, port = arguments["listen"].rpartition(":")
    assert host == "0.0.0.0"
    assert arguments["insecure"], "without TLS it must be said"
    assert service["ports"][0].endswith(f":{port}")
    assert arguments["advertise"].endswith(f":{port}")
    assert f"{name}:{arguments['data']}" in service["volumes"], "all else is read-only"
    host, _, admin = arguments["admin"].rpartition(":")
    assert host == "0.0.0.0", "Prometheus is another container"
    assert service["ports"][1].endswith(f":{admin}")
    assert f"/dev/tcp/127.0.0.1/{admin}" in service["healthcheck"]["test"][-1]
    assert _seconds(service["stop_grace_period"]) >= _stop_s()


def _stop_s() -> float:
    """Return how long a gateway may take to end: its workers, then its replicator."""
    return ServeConfig(contracts=(), bootstrap="", data=Path()).drain_s + REPLICATOR_STOP_S + 2 * KILL_MARGIN_S


def test_gateways_may_keep_one_copy_in_redis() -> None:
    found = {SERVICES[name]["environment"]["TABLEGATE_STORE"] for name in GATEWAYS}
    assert found == {"${STORE:+redis://redis:6379/0}"}
    (store,) = (option for option in get_command(app).commands["serve"].params if option.name == "store")
    assert store.envvar == "TABLEGATE_STORE"
    command = SERVICES["redis"]["command"]
    assert command[command.index("--maxmemory-policy") + 1] == "noeviction"


def test_spark_cluster_has_room_for_the_job() -> None:
    master = SERVICES["spark-master"]["command"]
    host, port = (master[master.index(option) + 1] for option in ("--host", "--port"))
    slots = 0
    for name in WORKERS:
        command = SERVICES[name]["command"]
        assert command[-1] == f"spark://{host}:{port}"
        slots += int(command[command.index("--cores") + 1])
        assert SERVICES[name]["volumes"] == SERVICES["ratings"]["volumes"], "state is written by all of them"
    assert f"--master=spark://{host}:{port}" in SERVICES["ratings"]["command"]
    assert slots >= 2 * RATINGS_PARTITIONS + 2, "Real-time Mode takes a slot for each partition, and two more"
    topics = SERVICES["topics"]["command"]
    assert topics[topics.index("--partitions") + 1] == str(RATINGS_PARTITIONS)


def test_job() -> None:
    command = SERVICES["ratings"]["command"]
    (script,) = (number for number, word in enumerate(command) if word.endswith("tablegate/jobs/running/__main__.py"))
    arguments = job_arguments(command[script + 1 :])
    assert arguments["table"] == ["ratings"]
    assert any(volume.endswith(f":{arguments['checkpoints']}") for volume in SERVICES["ratings"]["volumes"])
    assert arguments["schema_registry"] == "http://schema-registry:8080/apis/ccompat/v7"


def test_prometheus_asks_where_somebody_listens() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())
    targets = {job["job_name"]: job["static_configs"][0]["targets"] for job in config["scrape_configs"]}
    assert targets["gateways"] == [f"{name}:{_gateway(name)['admin'].rpartition(':')[2]}" for name in GATEWAYS]
    spark = [(name, SERVICES[name]["command"]) for name in ("spark-master", *WORKERS)]
    assert targets["spark"] == [f"{name}:{command[command.index('--webui-port') + 1]}" for name, command in spark]
    paths = {job["job_name"]: job.get("metrics_path", "/metrics") for job in config["scrape_configs"]}
    sink = (DEPLOY / "spark" / "metrics.properties").read_text()
    assert f"path={paths['spark'].rstrip('/')}\n" in sink


@pytest.mark.tools
@pytest.mark.parametrize("has_secret", [True, False])
@pytest.mark.parametrize("profiles", [("one",), ("three",), ("one", "redis")])
def test_compose_itself_takes_the_file(tmp_path: Path, profiles: tuple[str, ...], has_secret: bool) -> None:
    """Compose knows rules that the schema does not. It asks no daemon for this."""
    command = compose_command()
    if command is None:
        pytest.skip("Docker Compose is not here")
    if has_secret:
        (tmp_path / "token.key").write_text("secret")
    command += ["--file", str(COMPOSE_FILE), "--project-directory", str(tmp_path)]
    for profile in profiles:
        command += ["--profile", profile]
    done = subprocess.run([*command, "config", "--format", "json"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    wanted = {name for name, service in SERVICES.items() if {*service.get("profiles", profiles)} & {*profiles}}
    assert set(found["services"]) == wanted
    for name in GATEWAYS:
        assert [secret["source"] for secret in found["services"][name]["secrets"]] == ["token-key"]
        assert found["services"][name]["read_only"] is True
    assert found["secrets"]["token-key"]["file"] == str(tmp_path / "token.key")


@pytest.mark.tools
def test_compose_refuses_a_secret_that_nobody_declares(tmp_path: Path) -> None:
    command = compose_command()
    if command is None:
        pytest.skip("Docker Compose is not here")
    (tmp_path / "wrong.yml").write_text("services: {a: {image: b, secrets: [token-key]}}")
    done = subprocess.run([*command, "--file", str(tmp_path / "wrong.yml"), "config"], check=False, capture_output=True)
    assert done.returncode != 0
