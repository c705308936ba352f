import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import google.api
import grpc_tools
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from tablegate.examples import CONTRACTS
from tablegate.gateway.contract.catalogue import Catalogue
from tablegate.gateway.http.rest.openapi import openapi_document
from tests.kit.gateways_in_process.rest import RestServer
from tests.kit.gateways_in_process.web import WebClient
from tests.kit.table.contracts import VISITS, bind_visits
from tests.kit.table.filled import RATINGS, ROOT, catalogue_of

pytestmark = pytest.mark.tools

validation = pytest.importorskip("openapi_spec_validator", reason="openapi-spec-validator is not installed")
schemas = pytest.importorskip("openapi_schema_validator")

RULES = {
    "GetVisit": '{get: "/v1/{start_time}/of/{shop_name=shops/*/parts/**}"}',
    "ListVisits": """{
        get: "/v1/shops/{shop_name}/visits"
        response_body: "visits"
        additional_bindings {post: "/v1/shops/{page_token}/visits" body: "start_time_from"}
        additional_bindings {get: "/v1/*/visits"}
    }""",
    "SubscribeVisits": '{get: "/v1/shops/{shop_name}/visits:subscribe"}',
}


def document_of(catalogue: Catalogue) -> Any:
    document = json.loads(openapi_document(catalogue))
    validation.validate(document)
    return document


def with_rules(text: str) -> str:
    text = text.replace('import "tablegate', 'import "google/api/annotations.proto";\nimport "tablegate', 1)
    for method, rule in RULES.items():
        head, tail = text.split(f"rpc {method}(", 1)
        text = f"{head}rpc {method}({tail.replace('{', '{ option (google.api.http) = ' + rule + ';', 1)}"
    return text


def with_comments() -> Catalogue:
    """Return the ratings contract with its source info."""
    places = [
        ROOT / "proto",
        CONTRACTS,
        Path(next(iter(google.api.__path__)), "../.."),
        Path(grpc_tools.__path__[0], "_proto"),
    ]
    command = [sys.executable, "-m", "grpc_tools.protoc", "--include_imports", "--include_source_info"]
    command += [f"-I{place}" for place in places]
    done = subprocess.run([*command, "-o/dev/stdout", str(RATINGS)], check=True, stdout=subprocess.PIPE)
    return dataclasses.replace(catalogue_of(), files=FileDescriptorSet.FromString(done.stdout))


def test_ratings():
    document = document_of(dataclasses.replace(catalogue_of(), files=FileDescriptorSet()))  # without comments
    operations = [(path, method) for path, item in document["paths"].items() for method in item]
    assert operations == [
        ("/v1/ratings/{movieId}", "get"),
        ("/v1/ratings:batchGet", "post"),
        ("/v1/ratings", "get"),
        ("/v1/ratings:scan", "get"),
        ("/v1/ratings:count", "get"),
        ("/v1/ratings:subscribe", "get"),
    ]
    get = document["paths"]["/v1/ratings/{movieId}"]["get"]
    [movie, *options] = get["parameters"]
    assert movie == {
        "name": "movieId",
        "in": "path",
        "required": True,
        "example": "1",
        "schema": {"type": "string", "format": "int64", "pattern": "^-?[0-9]{1,19}$"},
    }
    assert [one["name"] for one in options] == [
        f"readOptions.{name}" for name in ("minimizeLatency", "atLeast", "maxStaleness", "latest", "maxWait")
    ] + ["readMask"]
    assert options[-1]["schema"] == {"type": "string"}
    assert options[0]["description"] == "Not with atLeast, maxStaleness, latest."
    assert set(get["responses"]) == {"200", "404", "default"}
    batch = document["paths"]["/v1/ratings:batchGet"]["post"]["requestBody"]["content"]["application/json"]
    assert batch["example"] == {"keys": [{"movieId": "1"}]}
    scan = document["paths"]["/v1/ratings:scan"]["get"]["responses"]["200"]["content"]
    arrow = "application/vnd.apache.arrow.stream"
    assert set(scan) == {"application/x-ndjson", "text/event-stream", arrow}
    ways = {
        path: arrow in way["get"]["responses"]["200"]["content"]
        for path, way in document["paths"].items()
        if "get" in way
    }
    assert [path for path, is_there in ways.items() if is_there] == ["/v1/ratings", "/v1/ratings:scan"]
    rating = document["components"]["schemas"]["Rating"]["properties"]
    assert rating["updateTime"] == {"type": "string", "format": "date-time"}


def test_comments_become_descriptions():
    document = document_of(with_comments())
    get = document["paths"]["/v1/ratings/{movieId}"]["get"]
    assert (get["summary"], get["parameters"][0]["description"]) == ("One movie", "Movie.")
    assert document["tags"] == [{"name": "RatingsService", "description": "Average rating per movie."}]
    schemas = document["components"]["schemas"]
    assert schemas["Rating"]["properties"]["ratingCount"]["description"] == "Number of ratings."
    assert schemas["RatingResult"]["description"] == "One result of a batch. At most one of found, missing."
    assert "- `ORDER_DESCENDING`: Highest key first." in schemas["Order"]["description"]


def test_methods_without_a_route_are_called_by_connect(tmp_path):
    document = document_of(bind_visits(tmp_path))
    service = "/shop.visits.v1.VisitsService"
    assert list(document["paths"]) == [f"{service}/GetVisit", f"{service}/ListVisits"]
    get = document["paths"][f"{service}/GetVisit"]["post"]
    example = get["requestBody"]["content"]["application/json"]["example"]
    assert example == {"shopName": "text", "startTime": "2026-01-31T12:00:00Z"}
    assert get["responses"]["default"]["content"]["application/json"]["schema"]["$ref"].endswith("/ConnectError")
    listing = document["paths"][f"{service}/ListVisits"]["post"]["requestBody"]["content"]["application/json"]
    assert listing["example"] == {"shopName": "text"}


def test_templates_become_paths(tmp_path):
    document = document_of(bind_visits(tmp_path, with_rules(VISITS)))
    paths = document["paths"]
    assert {path: list(item) for path, item in paths.items()} == {
        "/v1/{startTime}/of/shops/{shopName}/parts/{shopName2}": ["get"],
        "/v1/shops/{shopName}/visits": ["get", "post"],
        "/v1/{part}/visits": ["get"],
        "/v1/shops/{shopName}/visits:subscribe": ["get"],
    }
    listing = paths["/v1/shops/{shopName}/visits"]["get"]
    assert listing["responses"]["200"]["content"]["application/json"]["schema"]["type"] == "array"
    body = paths["/v1/shops/{shopName}/visits"]["post"]["requestBody"]["content"]["application/json"]
    assert body == {"schema": {"type": "string", "format": "date-time"}, "example": "2026-01-31T12:00:00Z"}
    names = [(one["name"], one.get("required", False)) for one in paths["/v1/{part}/visits"]["get"]["parameters"]]
    assert names[:2] == [("part", True), ("shopName", True)]


@pytest.mark.parametrize("routed", [True, False])
def test_examples_are_what_their_schemas_say(tmp_path, routed):
    documents = [
        document_of(bind_visits(tmp_path, with_rules(VISITS) if routed else VISITS)),
        document_of(catalogue_of()),
    ]
    for document in documents:
        assert document["servers"] == [{"url": "/"}]
        for _, _, operation in _operations(document):
            bodies = [operation.get("requestBody", {}), *operation["responses"].values()]
            contents = [one for body in bodies for one in body.get("content", {}).values() if "example" in one]
            for one in [*contents, *(each for each in operation.get("parameters", ()) if "example" in each)]:
                schema = {**one["schema"], "components": document["components"]}
                schemas.OAS31Validator(schema).validate(one["example"])


def test_what_the_gateway_refuses_is_not_valid():
    document = document_of(catalogue_of())
    [movie, minimize, *_] = document["paths"]["/v1/ratings/{movieId}"]["get"]["parameters"]
    with RestServer() as server:
        client = WebClient(server, http2=False)
        for text in ("7", "-7", "007", "", "x", "1e3", "+7", "7.0", "-", "1" * 20):
            is_accepted = client.ask("GET", f"/v1/ratings/{text}").status in (200, 404) and text != ""
            assert schemas.OAS31Validator(movie["schema"]).is_valid(text) is is_accepted, text
        for value in (True, False):
            answer = client.ask("GET", f"/v1/ratings/1?{minimize['name']}={str(value).lower()}")
            assert schemas.OAS31Validator(minimize["schema"]).is_valid(value) is (answer.status == 200)
        assert client.ask("POST", "/v1/ratings:batchGet").status == 200
    assert document["paths"]["/v1/ratings:batchGet"]["post"]["requestBody"]["required"] is False


def test_the_gateway_answers_what_the_document_says():
    document = document_of(catalogue_of())
    components = {"components": document["components"]}
    with RestServer() as server:
        client = WebClient(server, http2=False)
        for path, method, operation in _operations(document):
            if path.endswith(":subscribe"):
                continue
            target = path
            for parameter in operation["parameters"]:
                target = target.replace(f"{{{parameter['name']}}}", parameter.get("example", ""))
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("example")
            answer = client.ask(method.upper(), target, None if body is None else json.dumps(body).encode())
            assert answer.status == 200, answer
            schema = operation["responses"]["200"]["content"][answer.headers["content-type"]]["schema"]
            schema = schema.get("contentSchema", schema)
            for line in answer.body.splitlines():
                schemas.OAS31Validator({**schema, **components}).validate(json.loads(line))
        error = client.ask("GET", "/v1/ratings/x").json
        schemas.OAS31Validator({"$ref": "#/components/schemas/Error", **components}).validate(error)


def _operations(document: Any) -> list[tuple[str, str, Any]]:
    return [(path, method, one) for path, item in document["paths"].items() for method, one in item.items()]
