"""The Helm chart, rendered by Helm, without a cluster: by the API's own schemas, and as its commands would take it."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from tests.kit.programs.deployment import (
    DEPLOY,
    job_run_arguments,
    kubernetes_objects,
    kubernetes_validator,
    serve_arguments,
)

HELM = shutil.which("helm", path=f"{Path(sys.executable).parent}")
CHART = DEPLOY / "helm" / "tablegate"
MONITORS = json.loads((Path(__file__).with_name("schemas") / "pod-monitor-0.85.json").read_text())
CONTRACT = "gateway/tablegate/gateway/cli/starter-project/orders.proto"
DECLARATION = "gateway/tablegate/gateway/cli/starter-project/orders.py"
OWN_CONTRACT = [f"--set-file=files.orders\\.proto={CONTRACT}", "--set=contracts={orders.proto}"]
JOB = [
    "--set=job.enabled=true,job.declaration=orders.py",
    f"--set-file=job.files.orders\\.py={DECLARATION}",
    f"--set-file=job.files.orders\\.proto={CONTRACT}",
]
EVERYTHING = [
    *OWN_CONTRACT,
    *JOB,
    "--set=kafka.secret=kafka,tls.secret=tls,tls.requireClients=true,access.configMap=access,partitionReplicas=0",
    "--set=podMonitor.enabled=true,podMonitor.labels.release=prometheus,networkPolicy.enabled=true",
    '--set-json=networkPolicy.clients=[{"namespaceSelector":{"matchLabels":{"team":"shop"}}}]',
    "--set=storage.className=fast,job.storage.className=fast,image.pullPolicy=Always",
    "--set=extraArgs={--reflection,--traces}",
    '--set-json=extraEnv=[{"name":"OTEL_EXPORTER_OTLP_ENDPOINT","value":"http://collector:4318"}]',
    "--set=job.extraArgs={--mode=microbatch,--traces}",
    '--set-json=job.extraEnv=[{"name":"OTEL_EXPORTER_OTLP_ENDPOINT","value":"http://collector:4318"}]',
]
WAYS: Mapping[str, Sequence[str]] = {"as it is": [], "own contract": OWN_CONTRACT, "job": JOB, "everything": EVERYTHING}

pytestmark = [pytest.mark.tools, pytest.mark.skipif(HELM is None, reason="Helm has no program for this machine")]


def _helm(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(HELM), *words], check=False, capture_output=True, text=True, timeout=60)


def _rendered(*words: str, name: str = "tablegate") -> list[dict[str, Any]]:
    made = _helm("template", name, str(CHART), *words)
    assert made.returncode == 0, made.stderr
    return [each for each in yaml.load_all(made.stdout, yaml.CSafeLoader) if each]


def _of(kind: str, objects: Sequence[dict[str, Any]], name: str) -> dict[str, Any]:
    (found,) = (each for each in objects if each["kind"] == kind and each["metadata"]["name"] == name)
    return found


def _container(objects: Sequence[dict[str, Any]], kind: str, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    pod = _of(kind, objects, name)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    return pod, container


def test_its_own_values_make_the_plain_manifests() -> None:
    def by_name(objects: Sequence[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
        return {(each["kind"], each["metadata"]["name"]): each for each in objects}

    assert by_name(_rendered()) == by_name(kubernetes_objects())


@pytest.mark.parametrize("way", WAYS)
def test_what_is_made_passes_the_schemas(way: str) -> None:
    for each in _rendered(*WAYS[way], name="shop"):
        validator = Draft7Validator(MONITORS) if each["kind"] == "PodMonitor" else kubernetes_validator(each)
        errors = [f"{each['kind']} {error.json_path}: {error.message}" for error in validator.iter_errors(each)]
        assert errors == []


@pytest.mark.parametrize("way", WAYS)
def test_what_is_named_is_mounted_and_there(way: str) -> None:
    objects = _rendered(*WAYS[way], name="shop")
    kinds = [("StatefulSet", "shop")] + ([("Deployment", "shop-job")] if "job" in " ".join(WAYS[way]) else [])
    for kind, name in kinds:
        pod, container = _container(objects, kind, name)
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        claims = [
            claim["metadata"]["name"] for claim in _of(kind, objects, name)["spec"].get("volumeClaimTemplates", [])
        ]
        assert set(mounts.values()) == {volume["name"] for volume in pod["volumes"]} | set(claims)
        for word in container["args"]:
            for path in re.findall(r"/etc/tablegate/[-./\w]+", word):
                assert str(Path(path).parent) in mounts, f"{word}: nothing is mounted there"
        own = {each["metadata"]["name"]: each.get("data", {}) for each in objects if each["kind"] == "ConfigMap"}
        for volume in pod["volumes"]:
            config = volume.get("configMap", {}).get("name")
            if config in own:
                given = {Path(word).name for word in container["args"] if f"/{volume['name']}/" in word}
                assert given
                assert given <= set(own[config])


def test_gateways_are_started_as_they_are_configured() -> None:
    objects = _rendered(*EVERYTHING, name="shop")
    _, container = _container(objects, "StatefulSet", "shop")
    values = {"POD_NAME": "shop-1", "NODE_NAME": "node-b"}
    words = [re.sub(r"\$\((\w+)\)", lambda found: values[found[1]], word) for word in container["args"]]
    arguments = serve_arguments(["tablegate", *words])
    assert [str(path) for path in arguments["contract"]] == ["/etc/tablegate/contracts/orders.proto"]
    assert str(arguments["kafka"]) == "/etc/tablegate/kafka/kafka.toml"
    assert str(arguments["tls_client_ca"]) == "/etc/tablegate/tls/ca.crt"
    assert str(arguments["access"]) == "/etc/tablegate/access/access.toml"
    assert arguments["advertise"] == "shop-1.shop-gateways:50051"
    assert arguments["replicas"] == ["0"]
    assert arguments["reflection"]
    assert arguments["traces"]
    environment = {each["name"]: each.get("value") for each in container["env"]}
    assert environment["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://collector:4318"
    assert not arguments["insecure"]
    probes = [container[probe]["httpGet"]["scheme"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")]
    assert probes == ["HTTPS"] * 3
    contracts = _of("ConfigMap", objects, "shop-contracts")["data"]
    assert contracts == {"orders.proto": Path(CONTRACT).read_text()}


def test_a_changed_contract_is_a_rolling_restart(tmp_path: Path) -> None:
    def stamp(text: str) -> str:
        (tmp_path / "orders.proto").write_text(text)
        objects = _rendered(
            f"--set-file=files.orders\\.proto={tmp_path / 'orders.proto'}", "--set=contracts={orders.proto}"
        )
        found: str = _of("StatefulSet", objects, "tablegate")["spec"]["template"]["metadata"]["annotations"][
            "tablegate/contracts"
        ]
        return found

    assert stamp("  a\n\tb: {}\r\n") != stamp("  a\n\tb: {}\n")


def test_the_job_is_started_as_it_is_configured() -> None:
    objects = _rendered(*JOB, name="shop")
    _, container = _container(objects, "Deployment", "shop-job")
    arguments = job_run_arguments([*container["command"], *container["args"]])
    assert arguments["bootstrap"] == "kafka:9092"
    assert arguments["checkpoints"] == "/var/lib/tablegate/checkpoints"
    assert container["args"][0] == "/etc/tablegate/declarations/orders.py"
    declared = _of("ConfigMap", objects, "shop-job")["data"]
    assert set(declared) == {"orders.py", "orders.proto"}
    assert _of("Deployment", objects, "shop-job")["spec"]["strategy"] == {"type": "Recreate"}


def test_the_job_has_what_else_is_configured() -> None:
    _, container = _container(_rendered(*EVERYTHING, name="shop"), "Deployment", "shop-job")
    arguments = job_run_arguments([*container["command"], *container["args"]])
    assert arguments["traces"]
    assert arguments["mode"].value == "microbatch"
    assert container["env"] == [{"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://collector:4318"}]


def test_a_network_policy_lets_in_who_is_named() -> None:
    (policy,) = (each for each in _rendered(*EVERYTHING) if each["kind"] == "NetworkPolicy")
    own, clients, monitoring = policy["spec"]["ingress"]
    assert own["from"] == [{"podSelector": {"matchLabels": {"app": "tablegate"}}}]
    assert clients == {
        "from": [{"namespaceSelector": {"matchLabels": {"team": "shop"}}}],
        "ports": [{"port": "grpc"}],
    }
    assert monitoring == {"ports": [{"port": "admin"}]}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["--set=contracts={orders.proto}"],
            'contracts: "orders.proto" is no path in the image, and files has no',
        ),
        (["--set=contracts=null"], "contracts"),
        (["--set=tls.requireClients=true"], "tls.requireClients needs tls.secret"),
        (["--set=job.enabled=true"], "job.declaration is missing"),
        (["--set=job.enabled=true,job.declaration=orders.py"], 'job.files has no "orders.py"'),
        (["--set=replica=3"], "replica"),
        (["--set=replicas=many"], "replicas"),
    ],
)
def test_values_that_make_no_sense_are_refused_in_words(words: list[str], sentence: str) -> None:
    made = _helm("template", "tablegate", str(CHART), *words)
    assert made.returncode != 0
    assert sentence in made.stderr


def test_helm_finds_nothing_to_say_against_it() -> None:
    made = _helm("lint", "--strict", str(CHART))
    assert made.returncode == 0, made.stdout + made.stderr
    assert [line for line in made.stdout.splitlines() if "[WARNING]" in line or "[ERROR]" in line] == []
