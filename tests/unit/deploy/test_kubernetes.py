"""The Kubernetes manifests, without a cluster: by the API's own schemas, and against what their command would meet."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tablegate.gateway.server.admin import HEALTH_PATH, READY_PATH
from tablegate.gateway.server.config import ServeConfig
from tablegate.gateway.server.supervisor import KILL_MARGIN_S, REPLICATOR_STOP_S
from tests.kit.programs.deployment import DEPLOY, compose, kubernetes_objects, kubernetes_validator, serve_arguments

OBJECTS = kubernetes_objects()


def _named(kind: str, name: str) -> dict[str, Any]:
    (found,) = (each for each in OBJECTS if each["kind"] == kind and each["metadata"]["name"] == name)
    return found


STATEFUL_SET = _named("StatefulSet", "tablegate")["spec"]
POD = STATEFUL_SET["template"]["spec"]
(CONTAINER,) = POD["containers"]
SETTINGS = _named("ConfigMap", "tablegate")["data"]


def _arguments(pod: str = "tablegate-0", node: str = "node-a") -> dict[str, Any]:
    values = {"POD_NAME": pod, "NODE_NAME": node}
    assert list(values) == [variable["name"] for variable in CONTAINER["env"]]
    words = [re.sub(r"\$\((\w+)\)", lambda found: values[found[1]], word) for word in CONTAINER["args"]]
    return serve_arguments(["tablegate", *words, f"--bootstrap={SETTINGS['TABLEGATE_BOOTSTRAP']}"])


@pytest.mark.parametrize("value", OBJECTS, ids=lambda value: f"{value['kind']}-{value['metadata']['name']}")
def test_schema(value: dict[str, Any]) -> None:
    assert [f"{error.json_path}: {error.message}" for error in kubernetes_validator(value).iter_errors(value)] == []


def test_schema_refuses_what_is_misspelt() -> None:
    wrong = json.loads(json.dumps(_named("StatefulSet", "tablegate")))
    wrong["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    assert list(kubernetes_validator(wrong).iter_errors(wrong))


def test_settings_are_read() -> None:
    assert CONTAINER["envFrom"] == [{"configMapRef": {"name": "tablegate"}}]
    assert set(SETTINGS) == {"TABLEGATE_BOOTSTRAP"}
    assert SETTINGS.items() <= compose()["services"]["gateway-1"]["environment"].items()


def test_ports_and_probes() -> None:
    arguments = _arguments()
    port = int(arguments["listen"].rpartition(":")[2])
    admin_port = int(arguments["admin"].rpartition(":")[2])
    declared, admin = CONTAINER["ports"]
    assert declared == {"name": "grpc", "containerPort": port}
    assert admin == {"name": "admin", "containerPort": admin_port}
    assert CONTAINER["readinessProbe"]["httpGet"] == {"path": READY_PATH.decode(), "port": "admin"}
    for probe in ("startupProbe", "livenessProbe"):  # a gateway that restores is alive, and not ready
        assert CONTAINER[probe]["httpGet"] == {"path": HEALTH_PATH.decode(), "port": "admin"}
    for name in ("tablegate", "tablegate-gateways"):
        (offered,) = _named("Service", name)["spec"]["ports"]
        assert (offered["port"], offered["targetPort"]) == (port, declared["name"])
    annotations = STATEFUL_SET["template"]["metadata"]["annotations"]
    assert (annotations["prometheus.io/port"], annotations["prometheus.io/path"]) == (str(admin_port), "/metrics")


def test_gateways_reach_each_other_by_names_that_last() -> None:
    arguments = _arguments("tablegate-2", "node-b")
    headless = _named("Service", STATEFUL_SET["serviceName"])["spec"]
    assert headless["clusterIP"] == "None"
    assert headless["publishNotReadyAddresses"], "a gateway that restores from others' placement has a name"
    assert arguments["gateway_id"] == "tablegate-2"
    assert arguments["advertise"] == f"tablegate-2.{STATEFUL_SET['serviceName']}:50051"
    assert arguments["zone"] == "node-b"


def test_everything_selects_the_gateways() -> None:
    labels = STATEFUL_SET["template"]["metadata"]["labels"]
    assert STATEFUL_SET["selector"]["matchLabels"] == labels
    assert _named("PodDisruptionBudget", "tablegate")["spec"]["selector"]["matchLabels"] == labels
    for name in ("tablegate", "tablegate-gateways"):
        assert _named("Service", name)["spec"]["selector"] == labels


def test_there_is_time_to_drain() -> None:
    serve = ServeConfig(contracts=(), bootstrap="", data=Path())
    ends_s = serve.drain_s + REPLICATOR_STOP_S + 2 * KILL_MARGIN_S
    before_s = CONTAINER["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert POD["terminationGracePeriodSeconds"] >= before_s + ends_s


def test_container_is_the_image_and_no_more() -> None:
    assert CONTAINER["image"] == compose()["services"]["gateway-1"]["image"]
    user = re.findall(r"^USER (\d+):(\d+)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert set(user) == {(str(POD["securityContext"]["runAsUser"]), str(POD["securityContext"]["runAsGroup"]))}
    assert POD["securityContext"]["runAsNonRoot"]
    assert CONTAINER["securityContext"]["readOnlyRootFilesystem"]


def test_what_is_written_and_read_is_mounted() -> None:
    arguments = _arguments()
    mounts = {mount["mountPath"]: mount["name"] for mount in CONTAINER["volumeMounts"]}
    (claim,) = STATEFUL_SET["volumeClaimTemplates"]
    assert mounts[str(arguments["data"])] == claim["metadata"]["name"]
    secrets = {volume["name"]: volume.get("secret") for volume in POD["volumes"]}
    assert secrets[mounts[str(arguments["token_key"].parent)]] == {"secretName": "tablegate-token-key"}
    assert set(mounts.values()) == {claim["metadata"]["name"], *secrets}
