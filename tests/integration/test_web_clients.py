"""Generated TypeScript clients, in Node and in a page of another origin: gRPC, Connect and gRPC-Web."""

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.rpc import error_details_pb2
from grpc_tools import protoc

from tablegate.examples import CONTRACTS
from tests.kit.client_scenarios.built import site
from tests.kit.gateways_in_process.web import WebServer
from tests.kit.programs.chromium import PROGRAM, Chromium
from tests.kit.programs.npm import SOURCES, installed, run
from tests.kit.table.filled import RATINGS, ROOT

TOLD = {
    "movie": "7",
    "role": "owner",
    "code": "NotFound",
    "reason": "ROW_NOT_FOUND",
    "table": "ratings",
    "rows": 100,
    "streamError": "InvalidArgument",
}


def _generate(build: Path, tools: Path) -> None:
    """Generate clients of the contract, and of the details of errors, as its users do: with buf and its plugin."""
    descriptors = build / "contract.binpb"
    site_packages = Path(error_details_pb2.__file__).parents[2]
    includes = (ROOT / "proto", CONTRACTS, site_packages, Path(protoc.__file__).parent / "_proto")
    words = ["protoc", *(f"-I{directory}" for directory in includes), "--include_imports", "--include_source_info"]
    words += [f"--descriptor_set_out={descriptors}", str(RATINGS), "google/rpc/error_details.proto"]
    assert protoc.main(words) == 0
    plugin = {"local": str(tools / "protoc-gen-es"), "out": "gen", "opt": ["target=ts", "import_extension=js"]}
    template = json.dumps({"version": "v2", "plugins": [plugin]})
    buf = Path(sys.executable).parent / "buf"
    run(buf, "generate", descriptors, "--template", template, "--include-imports", cwd=build)


@pytest.fixture(scope="module")
def built() -> Iterator[Path]:
    """The directory of the programs, made from the sources and from generated code."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("TypeScript clients need Node and npm")
    packages = installed()
    tools = packages / "node_modules/.bin"
    with tempfile.TemporaryDirectory(dir=packages) as scratch:  # below it, so that its packages are found
        build = Path(scratch)
        for source in [*SOURCES.glob("*.ts"), SOURCES / "tsconfig.json", SOURCES / "package.json"]:
            shutil.copy(source, build)
        _generate(build, tools)
        run(tools / "tsc", "--project", build, cwd=build)
        words = ("--bundle", "--platform=node", "--format=esm", "--packages=external")
        run(tools / "esbuild", "node_client.ts", *words, "--outfile=node_client.js", cwd=build)
        run(tools / "esbuild", "page.ts", "--bundle", "--format=iife", "--outfile=site/page.js", cwd=build)
        (build / "site/index.html").write_text('<!doctype html><title>test</title><script src="page.js"></script>')
        yield build


@pytest.mark.tools
def test_a_client_in_node(built: Path) -> None:
    with WebServer() as server:
        told = json.loads(run("node", "node_client.js", f"http://127.0.0.1:{server.port}", cwd=built))
    assert len(told) == 6
    assert told == dict.fromkeys(told, TOLD)


@pytest.mark.tools
def test_a_page_of_another_origin(built: Path) -> None:
    if PROGRAM is None:
        pytest.skip("pages need Chromium")
    with Chromium() as browser, site(built / "site") as allowed:
        other = allowed.replace("127.0.0.1", "localhost")
        with WebServer(origins=(allowed,)) as server:
            address = json.dumps(f"http://127.0.0.1:{server.port}")
            told = {}
            for page in (allowed, other):
                browser.open(page)
                browser.wait_for(f"location.origin === {json.dumps(page)} && globalThis.askFromPage")
                told[page] = browser.run(f"askFromPage({address}).catch(error => error.message)")
    assert len(told[allowed]) == 4
    assert told[allowed] == dict.fromkeys(told[allowed], TOLD)
    assert "Failed to fetch" in told[other], "an origin that is not allowed reads nothing"
