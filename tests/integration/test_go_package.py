"""The Go client: its own tests, its module as an application gets it, and its how-to, compiled with that."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.client_scenarios.built import CLIENTS, built_go
from tests.kit.table.filled import ROOT

pytestmark = pytest.mark.timeout(1_200)  # the first test builds a client, and others wait for it

MODULE = CLIENTS / "go"
HOW_TO = ROOT / "docs/how-to/subscribe-from-go.md"
RUN_TIMEOUT_S = 600
PATH = "example.org/tablegate"

# What a reader of the how-to has from the first block, and what its imports are.
BLOCK = """package main

import (
{imports}
)

func block{number}(ctx context.Context, client ratings.RatingsServiceClient) error {{
{text}
return nil
}}
"""
IMPORTS = {
    "context": '"context"',
    "fmt": '"fmt"',
    "os": '"os"',
    "strings": '"strings"',
    "grpc": '"google.golang.org/grpc"',
    "credentials": '"google.golang.org/grpc/credentials"',
    "tablegate": f'"{PATH}"',
    "ratings": f'ratings "{PATH}/example/gen/examples/ratings/v1"',
}


@pytest.fixture(scope="module")
def example() -> Path:
    return built_go()


def _run(*words: str, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        words,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout[-5_000:]}{done.stderr[-5_000:]}"
    return done.stdout


@pytest.mark.tools
@pytest.mark.parametrize("directory", [".", "example"])
def test_what_of_the_go_client_needs_no_gateway(directory: str, example: Path) -> None:
    del example
    where = MODULE / directory
    assert not _run("gofmt", "-l", ".", cwd=where)
    assert not _run("go", "mod", "tidy", "-diff", cwd=where)
    _run("go", "vet", "./...", cwd=where)
    # One that hangs ends by itself before ours does, and says where.
    _run("go", "test", "-timeout=120s", *(["-race"] if shutil.which("gcc") else []), "./...", cwd=where)


@pytest.mark.tools
def test_the_go_how_to_compiles_with_the_packed_module(example: Path, tmp_path: Path) -> None:
    _run(sys.executable, str(MODULE / "pack.py"), str(tmp_path / "proxy"), cwd=tmp_path)
    # By its own cache the module is that of now, and Go has checked its zip; whatever it needs is where it always is.
    proxy = {"GOPROXY": f"file://{tmp_path}/proxy", "GONOSUMDB": PATH, "GOFLAGS": "-modcacherw -mod=mod"}
    asked = _run(
        *("go", "mod", "download", "-json", f"{PATH}@latest"), cwd=tmp_path, GOMODCACHE=str(tmp_path / "cache"), **proxy
    )
    packed = Path(json.loads(asked)["Dir"])
    assert {path.name for path in packed.iterdir()} >= {"LICENSE", "README.md", "go.mod", "table.go"}

    (app := tmp_path / "app").mkdir()
    shutil.copytree(example / "gen", app / "gen")
    shutil.copy(example / "go.sum", app)
    (app / "go.mod").write_text((example / "go.mod").read_text("utf-8").replace("=> ..", f"=> {packed}"), "utf-8")
    blocks = re.findall(r"```go\n(.*?)```", HOW_TO.read_text("utf-8"), re.DOTALL)
    (app / "main.go").write_text(blocks[0], "utf-8")
    assert not _run("gofmt", "-l", "main.go", cwd=app)
    for number, text in enumerate(blocks[1:], 1):
        used = {"context", "ratings", *re.findall(r"\b([a-z]+)\.", text)} & IMPORTS.keys()
        imports = "\n".join(IMPORTS[name] for name in sorted(used))
        (app / f"block{number}.go").write_text(BLOCK.format(imports=imports, number=number, text=text), "utf-8")
    assert len(blocks) >= 5
    _run("go", "build", "-o", os.devnull, ".", cwd=app)
