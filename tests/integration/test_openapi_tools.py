"""The OpenAPI document as others' tools see it: Spectral lints it, Postman imports it, Schemathesis calls by it."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tablegate.gateway.http.rest.openapi import openapi_document
from tests.kit.gateways_in_process.rest import RestServer
from tests.kit.programs.api_tools import from_npm, from_pypi
from tests.kit.table.filled import catalogue_of

pytestmark = [pytest.mark.tools, pytest.mark.interop]

# What OpenAPI cannot say is left out: that of some parameters only one may be given, and that tokens are opaque. Nor
# is a list without elements refused where the contract says REQUIRED.
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "unsupported_method",
)


def test_spectral_finds_no_fault(tmp_path: Path) -> None:
    program = from_npm("@stoplight/spectral-cli", "6.16.3", program="spectral")
    if program is None:
        pytest.skip("Spectral is not here, and there is no npm to install it")
    (tmp_path / "openapi.json").write_bytes(openapi_document(catalogue_of()))
    rules = {"extends": ["spectral:oas"], "rules": {"info-contact": "off"}}  # whom to ask, the contract does not say
    (tmp_path / "rules.json").write_text(json.dumps(rules))
    words = [program, "lint", "openapi.json", "--ruleset", "rules.json", "--fail-severity", "hint"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_postman_imports_each_query(tmp_path: Path) -> None:
    program = from_npm("openapi-to-postmanv2", "6.3.3", program="openapi2postmanv2")
    if program is None:
        pytest.skip("Postman's converter is not here, and there is no npm to install it")
    document = openapi_document(catalogue_of())
    (tmp_path / "openapi.json").write_bytes(document)
    words = [program, "-s", "openapi.json", "-o", "collection.json"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    collection = json.loads((tmp_path / "collection.json").read_text())
    queries = sum(len(methods) for methods in json.loads(document)["paths"].values())
    assert len(_requests(collection["item"])) == queries


def _requests(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the requests of a collection, whose folders have items of their own."""
    return [request for item in items for request in (_requests(item["item"]) if "item" in item else [item["request"]])]


def test_schemathesis_finds_no_fault(tmp_path: Path) -> None:
    program = from_pypi("schemathesis", "4.32.5")
    if program is None:
        pytest.skip("Schemathesis is not here, and cannot be installed")
    # A row that is not as fresh as was asked for is no fault.
    (tmp_path / "schemathesis.toml").write_text(
        "[checks]\nnot_a_server_error.expected-statuses = ['2xx', '3xx', '4xx', '503']\n"
    )
    with RestServer() as server:
        address = f"http://127.0.0.1:{server.port}"
        words = [program, "run", f"{address}/openapi.json", "--checks", ",".join(CHECKS)]
        words += ["--phases", "examples,coverage,fuzzing", "--max-examples", "10", "--seed", "1", "--no-color"]
        words += ["--exclude-path-regex", ":(scan|subscribe)$"]  # streams, which it does not read
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
