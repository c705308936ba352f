"""Programs written in Go that tests and measurements run, installed with Go where there is Go."""

import os
import shutil
import subprocess
from pathlib import Path

TOOLS = Path(".cache/tools").resolve()


def go_tool(package: str) -> str | None:
    """Return the path of the program of a package such as "host/path/name@v1.2.3"; None where it cannot be had."""
    name = package.partition("@")[0].rpartition("/")[2]
    where = f"{TOOLS}{os.pathsep}{os.environ['PATH']}"
    if shutil.which(name, path=where) is None and shutil.which("go"):
        subprocess.run(["go", "install", package], env=os.environ | {"GOBIN": str(TOOLS)}, check=False)
    return shutil.which(name, path=where)
