"""What a user's function does, as a short text: two that differ compute something else.

It is made of the function's source as Python reads it, so comments, docstrings and layout are not in it, and of what
the function names in its own file: other functions, classes and their objects, plain values. What it imports is not in
it, nor a model that it loads: nobody can compare what these mean.
"""

import ast
import functools
import hashlib
import inspect
import linecache
import re
import textwrap
import types
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from types import MappingProxyType

_DIGITS = 12  # of a hash: two functions of one table do not share them
_PLAIN = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    bytearray,
    range,
    Decimal,
    date,
    time,
    timedelta,
    re.Pattern,
)
_TYPES_OF_SPARK = "pyspark.sql.types"
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def function_code(function: object) -> str:
    """Return a hash of what a function does, in hex digits; of a UDF of Spark's, of the function in it."""
    return hashlib.sha256(function_text(function).encode()).hexdigest()[:_DIGITS]


def function_text(function: object) -> str:
    """Return what a function does, with all that it names in its own file."""
    return _Description(_module_of(plain_function(function))).of(function)


def plain_function(function: object) -> object:
    """Return the function within a UDF of Spark's, a partial, a decorated one, or a method."""
    seen: set[int] = set()
    while (inner := _inner(function)) is not None and id(function) not in seen:
        seen.add(id(function))
        function = inner
    if isinstance(function, types.MethodType):
        return plain_function(function.__func__)
    return function


def _inner(value: object) -> object | None:
    """Return what a value is made around. It is not asked by name, as a column of Spark's has any attribute."""
    if isinstance(value, functools.partial):
        return value.func
    if not callable(value):
        return None
    own = inspect.getattr_static(value, "func", None) or inspect.getattr_static(value, "__wrapped__", None)
    return own if callable(own) else None


def _module_of(value: object) -> str:
    if isinstance(value, types.FunctionType):
        return str(value.__globals__.get("__name__"))  # its `__module__` may be that of the function it wraps
    return str(inspect.getattr_static(value if isinstance(value, type) else type(value), "__module__", ""))


class _Description:
    """Says what values of one module are made of. What was said before is named by its number."""

    def __init__(self, module: str, numbers: Mapping[int, int] = MappingProxyType({})) -> None:
        self._module = module
        self._numbers = dict(numbers)
        self._next_number = len(numbers)

    def of(self, value: object) -> str:
        """Return what a value is; "" for what is of another module."""
        if isinstance(value, _PLAIN) or type(value).__module__ == _TYPES_OF_SPARK:
            return repr(value)
        if id(value) in self._numbers:
            return f"#{self._numbers[id(value)]}"
        self._numbers[id(value)] = self._next_number
        self._next_number += 1
        match value:
            case list() | tuple():
                listed = ", ".join(map(self.of, value))
                del self._numbers[id(value)]  # two that are equal may be one, or not
                return f"[{listed}]"
            case set() | frozenset():
                # In the order of their texts, as they have another in each process.
                found = sorted(_Description(self._module, self._numbers).of(one) for one in value)
                return f"{{{', '.join(found)}}}"
            case dict():
                return self._fields(value.items())
            case types.MethodType():
                return self._fields({"function": value.__func__, "of": value.__self__}.items())
            case type():
                return self._class(value) if _module_of(value) == self._module else ""
        own = _module_of(value) == self._module
        parts: dict[str, object] = {}
        if own and isinstance(value, types.FunctionType):
            parts = {"defaults": value.__defaults__, "keywords": value.__kwdefaults__, **_named(value)}
        elif own:
            parts = {"class": type(value), **_state(value)}
        elif isinstance(value, functools.partial):
            parts = {"of": value.args, "keywords": value.keywords}
        if (inner := _inner(value)) is not None:
            parts["around"] = inner
            parts["returns"] = getattr(value, "returnType", None)  # of a UDF
            parts["kind"] = getattr(value, "evalType", None)
        text = ""
        if own and isinstance(value, types.FunctionType):
            text = _source(value) or self._compiled(value.__code__)
        return f"{text} {self._fields(parts.items())}"

    def _class(self, found: type) -> str:
        try:
            source = ast.unparse(_without_docstrings(ast.parse(textwrap.dedent(inspect.getsource(found)))))
        except (OSError, TypeError, SyntaxError):
            source = ""
        parts: dict[str, object] = {"bases": found.__bases__}
        for name, member in vars(found).items():
            for number, one in enumerate(_functions_of(member)):
                # Those that dataclasses make have no source, and are what the class says.
                if not source or one.__code__.co_filename != "<string>":
                    parts[f"{name} {number}"] = one
            if isinstance(member, _PLAIN) and not _is_dunder(name):
                parts[name] = member
        return f"{source} {self._fields(parts.items())}"

    def _fields(self, items: Iterable[tuple[object, object]]) -> str:
        return f"{{{', '.join(f'{self.of(name)}: {self.of(value)}' for name, value in items)}}}"

    def _compiled(self, code: types.CodeType) -> str:
        constants = [self._compiled(one) if isinstance(one, types.CodeType) else self.of(one) for one in code.co_consts]
        return f"{code.co_code.hex()} {code.co_names} {constants}"


def _functions_of(member: object) -> Iterator[types.FunctionType]:
    match member:
        case staticmethod() | classmethod():
            yield from _functions_of(member.__func__)
        case property():
            yield from (one for part in (member.fget, member.fset) for one in _functions_of(part))
        case types.FunctionType():
            yield member


def _state(value: object) -> Mapping[str, object]:
    """Return what an object has."""
    slots = [name for one in type(value).__mro__ for name in _names_in(vars(one).get("__slots__", ()))]
    found = {name: getattr(value, name) for name in slots if not _is_dunder(name) and hasattr(value, name)}
    return dict(sorted({**found, **getattr(value, "__dict__", {})}.items()))


def _names_in(slots: str | Iterable[str]) -> Iterable[str]:
    return [slots] if isinstance(slots, str) else slots


def _named(function: types.FunctionType) -> Mapping[str, object]:
    """Return what a function names, of its file and of the functions that it is in."""
    found: dict[str, object] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # it has nothing yet, or no more
            continue
    for name in _names(function.__code__):
        # Where the file is, `__file__`, is nothing that it computes.
        if name in function.__globals__ and name not in found and not _is_dunder(name):
            found[name] = function.__globals__[name]
    return found


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _names(inner)


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _source(function: types.FunctionType) -> str | None:
    """Return the source as Python would write it; None where there is none to be had."""
    code = function.__code__
    linecache.checkcache(code.co_filename)
    tree = _parsed("".join(linecache.getlines(code.co_filename, function.__globals__)))
    found = [node for node in ast.walk(tree) if isinstance(node, _Function) and _is_of(code, node)]
    # The innermost of several that begin alike.
    return ast.unparse(found[-1]) if found else None


@functools.lru_cache(maxsize=16)
def _parsed(text: str) -> ast.Module:
    try:
        return _without_docstrings(ast.parse(text))
    except (SyntaxError, ValueError):
        return ast.Module(body=[], type_ignores=[])


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            and ast.get_docstring(node) is not None
        ):
            node.body = node.body[1:] or [ast.Pass()]
    return tree


def _is_of(code: types.CodeType, node: _Function) -> bool:
    if isinstance(node, ast.Lambda):
        if code.co_name != "<lambda>" or node.lineno != code.co_firstlineno:
            return False
        # Several may be in one line: what it does is within its own body.
        first, last = (node.body.lineno, node.body.col_offset), (node.body.end_lineno, node.body.end_col_offset)
        places = [(line, end, column, to) for line, end, column, to in code.co_positions() if to]
        return all(first <= (line, column) and (end, to) <= last for line, end, column, to in places)
    first_line = min([node.lineno, *(one.lineno for one in node.decorator_list)])
    return node.name == code.co_name and first_line == code.co_firstlineno


def line_of(function: object, error: BaseException) -> str | None:
    """Return the line of the function's file that an error came from, as file and number; None where none did."""
    code = getattr(plain_function(function), "__code__", None)
    file = getattr(code, "co_filename", None)
    at, found = error.__traceback__, None
    while at is not None:
        if at.tb_frame.f_code.co_filename == file:
            found = f"{file}:{at.tb_lineno}"
        at = at.tb_next
    return found
