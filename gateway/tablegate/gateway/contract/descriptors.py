"""Reads contracts from disk: a `.proto` file, or a descriptor set that buf or protoc made.

This is the only module of the room that touches files. A `.proto` is compiled by protoc in a process of its own. Its
include paths are guessed from where its package begins and where its imports lie, so that nobody has to give them; what
this project ships (`tablegate/v1`, `google/api`) comes after those.
"""

import os
import re
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message import DecodeError

import tablegate.v1
from tablegate.v1 import options_pb2  # noqa: F401 - options are only read where their extensions are registered

PROTOC_TIMEOUT_S = 60

_PROTOC = """
import sys
sys.path.append(sys.argv[1])
from grpc_tools._protoc_compiler import run_main
encoding = sys.getfilesystemencoding()
sys.exit(run_main([each.encode(encoding, "surrogateescape") for each in ("protoc", *sys.argv[2:])]))
"""

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_PACKAGE = re.compile(r"^[^\S\n]*package\s+([\w.]+)\s*;", re.MULTILINE)
_IS_NO_ERROR = re.compile(r": warning:|^WARNING: All log messages before|^[IWE]\d{4} .*\] ")  # the rest is of its log
_IMPORT = re.compile(r"""^[^\S\n]*import\s+(?:public\s+|weak\s+)?["']([^"']+)["']\s*;""", re.MULTILINE)


class DescriptorError(Exception):
    """A contract file that is not there, does not compile or is not a descriptor set; the message says what to do."""


def load_descriptors(path: Path, *, what: str = "contract") -> FileDescriptorSet:
    """Return the files of the contract at `path`, imports included; raise `DescriptorError`, which calls it `what`."""
    if not path.is_file():
        raise DescriptorError(f'{what} "{path}" is not a file; give a .proto file or a descriptor set')
    try:
        raw = _compile(path.resolve(), what) if path.suffix == ".proto" else path.read_bytes()
    except OSError as error:
        raise DescriptorError(f'{what} "{path}" cannot be read: {error.strerror or error}') from None
    try:
        files = FileDescriptorSet.FromString(raw)
    except DecodeError:
        files = FileDescriptorSet()
    # A name that is not UTF-8 comes as bytes.
    if not files.file or not all(file.name and isinstance(file.name, str) for file in files.file):
        raise DescriptorError(f'{what} "{path}" is not a descriptor set; make one with `buf build -o contract.binpb`')
    return files


def proto_directory() -> Path:
    """Return the directory that holds tablegate/v1/options.proto: what contracts import."""
    return Path(tablegate.v1.__file__).parents[2]


def _compile(path: Path, what: str) -> bytes:
    tools = find_spec("grpc_tools")
    if tools is None or not tools.submodule_search_locations:
        raise DescriptorError(
            f'{what} "{path}" needs the protobuf compiler: pip install "tablegate-gateway[compile]", or give a '
            "descriptor set (`buf build -o contract.binpb`)"
        )
    if os.pathsep in str(path):
        # It parts the directories that protoc is given.
        raise DescriptorError(
            f'{what} "{path}" does not compile: protoc takes no path with "{os.pathsep}"; give it another name'
        )
    includes = _include_directories(path)
    with tempfile.TemporaryDirectory(prefix="tablegate-") as scratch:
        out = Path(scratch, "contract.binpb")
        # -P: no module of the working directory stands in for protoc's own. What `-m grpc_tools.protoc` does besides,
        # and the modules of `site`, take as long again as compiling.
        command = [sys.executable, "-P", "-S", "-c", _PROTOC, str(Path(tools.submodule_search_locations[0]).parent)]
        command += ["--include_imports", f"--descriptor_set_out={out}", "--include_source_info"]
        command += [f"-I{directory}" for directory in includes]
        try:
            # What protoc says has names as they are in the contract and on the disk, in whatever encoding that is.
            done = subprocess.run(
                [*command, str(path)],
                check=False,
                capture_output=True,
                encoding="utf-8",
                errors="backslashreplace",
                timeout=PROTOC_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            raise DescriptorError(f'{what} "{path}" does not compile within {PROTOC_TIMEOUT_S} s') from None
        if done.returncode != 0:
            raise DescriptorError(_first_error(done.stderr, path, what))
        return out.read_bytes()


def _first_error(stderr: str, path: Path, what: str) -> str:
    lines = [line for line in stderr.splitlines() if line.strip() and not _IS_NO_ERROR.search(line)]
    if not lines:
        return f'{what} "{path}" does not compile, and protoc gives no reason'
    more = f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""
    first = lines[0].strip().rstrip(".")
    hint = f"correct the {what}"
    if first.endswith("File not found"):
        hint = f"put it below a directory that the {what} is in too, or give a descriptor set (`buf build -o`)"
        if first.startswith("tablegate/v1/"):
            hint = 'import "tablegate/v1/options.proto" for annotations, "tablegate/v1/query.proto" for messages'
    return f"{what} does not compile: {first}{more}; {hint}"


def _include_directories(path: Path) -> list[Path]:
    """Return the include paths of `path`: where its own package starts, where its imports lie, and what is shipped."""
    given = [proto_directory(), *_library_directories()]
    roots = [_package_root(path)]
    waiting, seen = [path], {path}
    while waiting:
        file = waiting.pop()
        for name in _IMPORT.findall(_source(file)):
            places = [*roots, *given, *path.parents]
            root = next((place for place in places if (place / name).is_file()), None)
            if root is None or root in given:
                continue
            if root not in roots:
                roots.append(root)
            if root / name not in seen:
                seen.add(root / name)
                waiting.append(root / name)
    return [*roots, *(directory for directory in given if directory not in roots)]


def _source(file: Path) -> str:
    return _COMMENT.sub("", file.read_text("utf-8", errors="replace"))


def _package_root(path: Path) -> Path:
    package = _PACKAGE.search(_source(path))
    parts = tuple(package.group(1).split(".")) if package else ()
    directory = path.parent
    if parts and directory.parts[-len(parts) :] == parts:
        return directory.parents[len(parts) - 1]
    return directory


def _library_directories() -> list[Path]:
    """Return where google/api/*.proto and google/protobuf/*.proto are installed."""
    directories = []
    for package, inside in (("google.api", "../.."), ("grpc_tools", "_proto")):
        found = find_spec(package)
        locations = found.submodule_search_locations if found is not None else None
        directories += [Path(location, inside).resolve() for location in locations or []]
    return directories
