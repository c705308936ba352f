"""The TypeScript client: what of it needs no gateway, and its package as an application gets it."""

import re
import subprocess
import tarfile
from pathlib import Path

import pytest
from grpc_tools import protoc

from tests.kit.client_scenarios.built import CLIENTS, built_typescript, make_clients
from tests.kit.table.contracts import INSTALLED
from tests.kit.table.filled import ROOT

pytestmark = pytest.mark.timeout(1_200)  # the first test builds a client, and others wait for it

PACKAGE = CLIENTS / "typescript"
HOW_TO = ROOT / "docs/how-to/subscribe-from-typescript.md"
RUN_TIMEOUT_S = 120
CONFIG = (
    '{"extends": "%s", "compilerOptions": {"noEmit": true, "noUnusedLocals": false, "rootDir": "/"}, "include": ["."]}'
)

# What a reader of the how-to has from the blocks above, or from an application.
GIVEN = {
    "RatingsService": 'import { RatingsService } from "./gen/examples/ratings/v1/ratings_pb.js";',
    "GetRatingRequestSchema": 'import { GetRatingRequestSchema } from "./gen/examples/ratings/v1/ratings_pb.js";',
    "transport": 'declare const transport: import("@connectrpc/connect").Transport;',
    "session": "declare const session: { readonly token: string };",
}


@pytest.fixture(scope="module")
def built() -> Path:
    return built_typescript()


def _run(*words: str | Path, cwd: Path) -> None:
    command = [str(word) for word in words]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-5_000:]}{done.stderr[-5_000:]}"


@pytest.mark.tools
def test_what_of_the_typescript_client_needs_no_gateway(built: Path, tmp_path: Path) -> None:
    contract = (ROOT / "tests/kit/table/parcels.proto").read_text("utf-8")
    (tmp_path / "parcels.proto").write_text(
        contract.replace('key: "depot"\n    key: "number"', 'key: "number"\n    key: "depot"'), "utf-8"
    )
    includes = [f"-I{directory}" for directory in (tmp_path, *INSTALLED, ROOT / "proto", ROOT / "proto/googleapis")]
    descriptors = tmp_path / "parcels.binpb"
    words = ["protoc", *includes, "--include_imports", f"--descriptor_set_out={descriptors}", "parcels.proto"]
    assert protoc.main(words) == 0
    (tmp_path / "tokens").mkdir()
    _run("node", "--test-reporter=tap", built / "units.js", descriptors, tmp_path / "tokens", cwd=tmp_path)


@pytest.mark.tools
def test_the_how_to_compiles_with_the_packed_client(built: Path, tmp_path: Path) -> None:
    make_clients("typescript-pack")
    packages = tmp_path / "node_modules"
    packages.mkdir()
    for package in (PACKAGE / "node_modules").iterdir():
        (packages / package.name).symlink_to(package)
    with tarfile.open(ROOT / "dist/tablegate-client-0.2.0.tgz") as packed:
        packed.extractall(tmp_path, filter="data")
    (tmp_path / "package").rename(packages / "tablegate-client")
    (tmp_path / "gen").symlink_to(PACKAGE / "example/gen")
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "tsconfig.json").write_text(CONFIG % (PACKAGE / "example/tsconfig.json"))
    blocks = re.findall(r"```(tsx?)\n(.*?)```", HOW_TO.read_text("utf-8"), re.DOTALL)
    for number, (kind, block) in enumerate(blocks):
        given = [line for name, line in GIVEN.items() if _is_missing(block, name)]
        (tmp_path / f"block{number}.{kind}").write_text("\n".join([*given, block, "export {};\n"]))
    assert len(blocks) >= 5
    _run(PACKAGE / "node_modules/.bin/tsc", "--project", tmp_path, cwd=tmp_path)


def _is_missing(block: str, name: str) -> bool:
    is_made = re.search(rf"(const {name} =|import {{[^}}]*\b{name}\b[^}}]*}}|{{ {name} }}:)", block)
    return is_made is None and re.search(rf"\b{name}\b", block) is not None
