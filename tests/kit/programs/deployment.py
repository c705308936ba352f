"""What the deployment files say: the services of docker-compose.yml, Kubernetes objects, and their command lines."""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
import yaml
from jsonschema import Draft7Validator
from typer.main import get_command

from tablegate.gateway.cli.main import app as tablegate
from tablegate.jobs.running.__main__ import main as run_job
from tests.kit.programs.go_tools import TOOLS

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
COMPOSE_FILE = ROOT / "docker-compose.yml"
KUBERNETES_FILE = DEPLOY / "kubernetes" / "gateway.yaml"
KUBERNETES_SCHEMAS = ROOT / "tests" / "unit" / "deploy" / "schemas" / "kubernetes-1.34.json"


def compose() -> dict[str, Any]:
    """Return docker-compose.yml, its anchors resolved."""
    found: dict[str, Any] = yaml.load(COMPOSE_FILE.read_text(), yaml.CSafeLoader)
    return found


def compose_command() -> list[str] | None:
    """Return the words that run Docker Compose, Docker's plugin or a program of its own; None where it is not here."""
    if shutil.which("docker") is not None:
        asked = subprocess.run(["docker", "compose", "version"], check=False, capture_output=True)
        if asked.returncode == 0:
            return ["docker", "compose"]
    alone = shutil.which("docker-compose", path=f"{TOOLS}{os.pathsep}{os.environ['PATH']}")
    return None if alone is None else [alone]


def kubernetes_objects() -> list[dict[str, Any]]:
    """Return the objects of the manifests, in their order."""
    return list(yaml.load_all(KUBERNETES_FILE.read_text(), yaml.CSafeLoader))


def kubernetes_validator(value: Mapping[str, Any]) -> Draft7Validator:
    """Return what checks an object by the schema that Kubernetes has for its kind."""
    group = value["apiVersion"].rpartition("/")[0].partition(".")[0] or "core"
    name = f"io.k8s.api.{group}.v1.{value['kind']}"
    return Draft7Validator({"$ref": f"#/$defs/{name}", "$defs": json.loads(KUBERNETES_SCHEMAS.read_text())["$defs"]})


def command_line(service: str, replacements: Mapping[str, str]) -> list[str]:
    """Return the whole command of a service, with what differs on this machine replaced, each of which must occur."""
    found = compose()["services"][service]
    words = [*found.get("entrypoint", ()), *found["command"]]
    for old, new in replacements.items():
        assert any(old in word for word in words), f'no "{old}" in the command of {service}: {words}'
        words = [word.replace(old, new) for word in words]
    return words


def serve_arguments(words: Sequence[str]) -> dict[str, Any]:
    """Return the values of `tablegate serve …` as the command line takes them; fail where it would not."""
    assert words[:2] == ["tablegate", "serve"], words
    return _parsed(get_command(tablegate), ["serve", *words[2:]])


def job_arguments(words: Sequence[str]) -> dict[str, Any]:
    """Return the values that a job would be run with, given what follows its script."""
    app = typer.Typer(add_completion=False)
    app.command()(run_job)
    return _parsed(get_command(app), list(words))


def job_run_arguments(words: Sequence[str]) -> dict[str, Any]:
    """Return the values of `tablegate job run …` as the command line takes them; fail where it would not."""
    assert words[:3] == ["tablegate", "job", "run"], words
    return _parsed(get_command(tablegate), list(words[1:]))


def _parsed(command: Any, words: list[str]) -> dict[str, Any]:
    name, context = words[0], None
    while hasattr(command, "commands"):
        context = command.make_context(name, list(words), parent=context)
        name, command, words = command.resolve_command(context, words)
    with command.make_context(name, words, parent=context) as inner:
        return dict(inner.params)
