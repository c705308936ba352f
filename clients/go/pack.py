"""Write the module as a proxy of Go modules serves it, into a directory: `GOPROXY=file://DIRECTORY` finds it there.

Decision: docs/decisions/0160-the-go-client-reads-descriptors.md
"""

import json
import sys
import tomllib
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SOURCES = ("*.go", "go.mod", "go.sum", "README.md")
EPOCH = (1980, 1, 1, 0, 0, 0)  # the same sources are the same bytes


def pack(directory: Path) -> None:
    """Write the list of versions, and of this version what it is, its go.mod and its zip."""
    module = (HERE / "go.mod").read_text("utf-8").split()[1]
    project = tomllib.loads((ROOT / "clients/python/pyproject.toml").read_text("utf-8"))["project"]
    version = f"v{project['version']}"
    files = {path.name: path for pattern in SOURCES for path in HERE.glob(pattern)} | {"LICENSE": ROOT / "LICENSE"}
    target = directory / module / "@v"
    target.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(target / f"{version}.zip", "w") as packed:
        for name, path in sorted(files.items()):
            info = zipfile.ZipInfo(f"{module}@{version}/{name}", EPOCH)
            packed.writestr(info, path.read_bytes(), zipfile.ZIP_DEFLATED)
    (target / f"{version}.mod").write_bytes((HERE / "go.mod").read_bytes())
    (target / f"{version}.info").write_text(json.dumps({"Version": version}), "utf-8")
    (target / "list").write_text(f"{version}\n", "utf-8")


if __name__ == "__main__":
    pack(Path(sys.argv[1]))
