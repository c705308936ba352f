"""The console's files, and what it is told of the contracts; its screens are tested in a browser."""

import base64
import gzip
import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest

from tablegate.gateway.http.console.contracts import contracts_value
from tests.kit.gateways_in_process.console import ConsoleGateway
from tests.kit.gateways_in_process.web import WebClient, client_of, web_clients
from tests.kit.table.accounts import ACCOUNTS
from tests.kit.table.filled import RATINGS, catalogue_of

PAGE = Path(str(files("tablegate.gateway.http.console"))) / "page"
SCRIPTS = sorted(str(file.relative_to(PAGE)) for file in (*PAGE.glob("*.js"), *PAGE.glob("vendor/*.mjs")))


@pytest.fixture(scope="module")
def server() -> Iterator[ConsoleGateway]:
    with ConsoleGateway({"ratings": 3}, contracts=[RATINGS]) as served:
        yield served


@pytest.fixture(params=["http1", "http2"])
def client(request: pytest.FixtureRequest, server: ConsoleGateway) -> WebClient:
    return client_of(web_clients(server), request.param)


@pytest.mark.parametrize(
    ("path", "content_type"),
    [
        ("", "text/html; charset=utf-8"),
        ("/app.js", "text/javascript; charset=utf-8"),
        ("/console.css", "text/css; charset=utf-8"),
        ("/icon.svg", "image/svg+xml"),
        ("/vendor/preact.mjs", "text/javascript; charset=utf-8"),
        ("/contracts.json", "application/json"),
    ],
)
def test_a_file(client, path, content_type):
    answer = client.ask("GET", f"/console{path}", accept_encoding="gzip")
    assert (answer.status, answer.headers["content-type"]) == (200, content_type)
    assert answer.headers["content-encoding"] == "gzip"
    assert gzip.decompress(answer.body) == client.ask("GET", f"/console{path}").body
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none';" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-cache"
    assert client.ask("GET", f"/console{path}", if_none_match=answer.headers["etag"]).status == 304
    assert client.ask("POST", f"/console{path}", b"{}").status == 405


def test_a_file_is_asked_about_by_head(client):
    got, asked = client.ask("GET", "/console/app.js"), client.ask("HEAD", "/console/app.js")
    assert (asked.status, asked.body) == (200, b"")
    assert asked.headers["etag"] == got.headers["etag"]
    assert client.ask("HEAD", "/console/").status == 308


def test_a_file_is_unpacked_for_who_wants_it_so(client):
    answer = client.ask("GET", "/console/app.js", accept_encoding="gzip;q=0, identity")
    assert "content-encoding" not in answer.headers


def test_nothing_else_is_a_file(client):
    names = ("README.md", "vendor/README.md", "vendor/preact.LICENSE", "index.html", "console.py", "page/app.js")
    ways_up = (
        "../console.py",
        "%2e%2e/console.py",
        "..%2fconsole.py",
        "vendor/../../console.py",
        "/etc/passwd",
        "\\app.js",
    )
    for path in (*names, *ways_up, "app.js/", "vendor", "vendor/", "app.js%00"):
        assert client.ask("GET", f"/console/{path}").status == 404, path


def test_a_slash_at_the_end_leads_to_the_page(client):
    answer = client.ask("GET", "/console/")
    assert (answer.status, answer.headers["location"]) == (308, "../console")
    assert client.ask("POST", "/console/", b"").status == 405


def test_the_one_script_in_the_page_is_the_one_that_is_allowed(client):
    answer = client.ask("GET", "/console")
    [imports] = re.findall(rb"<script[^>]*>([^<]+)</script>", answer.body)
    digest = base64.b64encode(hashlib.sha256(imports).digest()).decode()
    assert f"script-src 'self' 'sha256-{digest}';" in answer.headers["content-security-policy"]
    for path in json.loads(imports)["imports"].values():
        assert client.ask("GET", path.removeprefix(".")).status == 200


@pytest.mark.tools
def test_every_import_is_a_file_that_is_served(client):
    page = client.ask("GET", "/console").body.decode()
    assert all(client.ask("GET", f"/{path}").status == 200 for path in re.findall(r'(?:href|src)="([^"]+)"', page))
    for name in SCRIPTS:
        for imported in re.findall(r'from ?"(\./[^"]+)"', (PAGE / name).read_text()):
            assert client.ask("GET", f"/console/{imported.removeprefix('./')}").status == 200, (name, imported)


def test_files_name_no_other_place():
    """Licences and comments may; what a browser would fetch may not."""
    for name in (*SCRIPTS, "index.html", "console.css"):
        text = re.sub(r"(?m)^\s*//.*$", "", (PAGE / name).read_text())
        places = [each for each in re.findall(r"https?://[\w.]+", text) if "w3.org" not in each]
        assert not places, name


def test_pinned_files_are_those_of_their_packages():
    digests = {file.name: hashlib.sha256(file.read_bytes()).hexdigest()[:16] for file in PAGE.glob("vendor/*.mjs")}
    assert digests == {
        "preact.mjs": "bdcbd9abdf2c77c5",
        "preact-hooks.mjs": "e862ab2973aa6455",
        "htm.mjs": "ab33dd3f38059b9b",
    }


@pytest.mark.tools
@pytest.mark.skipif(shutil.which("node") is None, reason="Node is not installed")
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_javascript(name, tmp_path):
    copy = tmp_path / f"{Path(name).stem}.mjs"  # a module, whatever it is called
    shutil.copy(PAGE / name, copy)
    checked = subprocess.run(["node", "--check", str(copy)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


def test_contracts_say_how_each_query_is_asked():
    value = contracts_value(catalogue_of(RATINGS), data_port=7)
    [table] = value["tables"]
    assert (value["dataPort"], table["name"], table["key"]) == (7, "ratings", ["movieId"])
    assert table["columns"][0] == {"name": "movieId", "field": "movie_id", "type": "int64", "about": "Movie."}
    queries = {query["kind"]: query for query in table["queries"]}
    assert sorted(queries) == ["batchGet", "count", "get", "range", "scan", "subscribe"]
    assert queries["get"]["path"] == "examples.ratings.v1.RatingsService/GetRating"
    assert queries["get"]["requestFile"] == "examples/ratings/v1/ratings.proto"
    [param] = queries["get"]["params"]
    assert (param["name"], param["column"], param["op"], param["required"]) == ("movieId", "movieId", "EQ", True)
    assert queries["range"]["nextPageToken"] == "nextPageToken"
    assert [param["label"] for param in queries["range"]["params"]] == ["movie_id", "movie_id"]
    assert queries["subscribe"]["upsert"] == "upsert"


def test_contracts_name_indexes_and_columns_in_messages():
    [table] = contracts_value(catalogue_of(ACCOUNTS), data_port=7)["tables"]
    assert {"by_number"} < {query["index"] for query in table["queries"] if "index" in query}
    params = [param for query in table["queries"] for param in query["params"]]
    assert {"address.city"} <= {param["label"] for param in params}
