"""Programs written in Go that tests and measurements run, installed with Go where there is Go."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

TOOLS = Path(".cache/tools").resolve()


def go_tool(package: str, name: str | None = None) -> str | None:
    """Return the path of the program of a package such as "host/path/name@v1.2.3"; None where it cannot be had.

    `name` is what it is called here, where its own name says too little.
    """
    own_name = package.partition("@")[0].rpartition("/")[2]
    name = name or own_name
    where = f"{TOOLS}{os.pathsep}{os.environ['PATH']}"
    if shutil.which(name, path=where) is None and shutil.which("go"):
        TOOLS.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=TOOLS) as built:
            subprocess.run(["go", "install", package], env=os.environ | {"GOBIN": built}, check=False)
            if Path(built, own_name).exists():
                Path(built, own_name).rename(TOOLS / name)
    return shutil.which(name, path=where)
