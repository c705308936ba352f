"""What the project's Python files define and import: each file is parsed once in a process, for all tests of rules."""

import ast
import functools
from collections.abc import Mapping
from typing import NamedTuple

from tests.kit.docs.pages import ROOT
from tests.kit.patches import patched_constants

FOLDERS = ("gateway", "streamjobs", "clients", "examples", "tests")

_DEFINING = {ast.Name, ast.Attribute, ast.arg, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef}
_TELLING = {*_DEFINING, ast.Call, ast.Import, ast.ImportFrom}
_PLAIN_FIELDS = frozenset(("ctx", "op", "ops", "id", "attr", "arg", "module", "level", "type_comment"))


class Source(NamedTuple):
    """What a file has, each with its line; of syntax trees nothing is kept, as they are large.

    `definitions`: what our code names, arguments too. `patched`: constants that it sets (`tests.kit.patches`).
    """

    imports: list[tuple[int, str]]
    definitions: list[tuple[int, str]]
    tests: list[tuple[int, str]]
    patched: list[tuple[int, str]]


@functools.cache
def sources() -> Mapping[str, Source]:
    """Return all files by path, relative to the repository and sorted; generated code is left out."""
    return {
        str(path.relative_to(ROOT)): _source(ast.parse(path.read_text("utf-8")))
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not path.name.endswith("_pb2.py") and "node_modules" not in path.parts
    }


def _source(module: ast.Module) -> Source:
    nodes = [node for node in _nodes(module) if type(node) in _TELLING]
    found = Source([], [], [], list(patched_constants(nodes)))
    for node in nodes:
        name = _name(node)
        if name is None:
            found.imports.extend(_imports(node))
            continue
        line = getattr(node, "lineno", 0)
        is_test = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and name.startswith("test_")
        (found.tests if is_test else found.definitions).append((line, name))
    return found


def _nodes(module: ast.Module) -> list[ast.AST]:
    """Return what `ast.walk` yields but for what nothing is in, such as operators, in its order and in less time."""
    nodes: list[ast.AST] = [module]
    for node in nodes:  # it grows meanwhile
        for name in _inner_fields(type(node)):
            value = getattr(node, name)
            if isinstance(value, list):
                nodes += [child for child in value if isinstance(child, ast.AST)]
            elif isinstance(value, ast.AST):
                nodes.append(value)
    return nodes


@functools.cache
def _inner_fields(kind: type[ast.AST]) -> list[str]:
    """Return the fields of a kind of node that may have nodes we look for: a million have none."""
    return [] if issubclass(kind, ast.Constant) else [name for name in kind._fields if name not in _PLAIN_FIELDS]


def _imports(node: ast.AST) -> list[tuple[int, str]]:
    """Return line and full name of all that is imported."""
    if isinstance(node, ast.Import):
        return [(node.lineno, alias.name) for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [(node.lineno, f"{'.' * node.level}{node.module or ''}.{alias.name}") for alias in node.names]
    return []


def _name(node: ast.AST) -> str | None:
    """Return the name that a node defines: what others' code is called is not ours to mend."""
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return name
        case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
            return name
    return None
