"""What a user's function does, as a short text: two that differ compute something else.

It is made of the function's source as Python reads it, so comments, docstrings and layout are not in it, and of what
the function names in its own file: other functions, classes, plain values. What it imports is not in it, nor a model
that it loads: nobody can compare what these mean.
"""

import ast
import functools
import hashlib
import inspect
import textwrap
import types
from collections.abc import Iterator, Mapping
from typing import Any

_DIGITS = 12  # of a hash: two functions of one table do not share them
_PLAIN = (type(None), bool, int, float, str, bytes)


def function_code(function: object) -> str:
    """Return a hash of what a function does, in hex digits; of a UDF of Spark's, of the function in it."""
    parts: dict[str, str] = {}
    _collect("", function, parts)
    text = "\n".join(f"{name}: {part}" for name, part in sorted(parts.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def plain_function(function: object) -> object:
    """Return the function within a UDF of Spark's, a partial or a decorated one."""
    while True:
        inner = getattr(function, "func", None) or getattr(function, "__wrapped__", None)
        if inner is None:
            return function
        function = inner


def _collect(name: str, value: object, parts: dict[str, str]) -> None:
    """Add what a name stands for, with all that is named in it; what is of another file is left out."""
    returns = getattr(value, "returnType", None)  # of a UDF
    if isinstance(value, functools.partial) and (value.args or value.keywords):
        parts[f"{name} of"] = f"{value.args} {value.keywords}"
    code = plain_function(value)
    if isinstance(code, types.MethodType):
        code = code.__func__
    key = f"{name}{f' returns {returns}' if returns is not None else ''}"
    if isinstance(code, types.FunctionType):
        own = getattr(code, "__qualname__", name)
        if own in parts:
            return
        parts[own] = _source(code) or _compiled(code.__code__)
        parts[f"{own} {key}"] = ""
        for other, found in _named(code.__code__, code.__globals__, inspect.getclosurevars(code).nonlocals):
            if _is_of_file(found, code.__module__):
                _collect(other, found, parts)
    elif isinstance(code, type):
        parts[name] = _source(code) or name
    elif _is_plain(code):
        parts[name] = repr(code)


def _is_of_file(value: object, module: str) -> bool:
    if _is_plain(value):
        return True
    return getattr(plain_function(value), "__module__", None) == module


def _is_plain(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(_is_plain(one) for pair in value.items() for one in pair)
    return isinstance(value, _PLAIN)


def _named(
    code: types.CodeType, globals_: Mapping[str, Any], closure: Mapping[str, Any]
) -> Iterator[tuple[str, object]]:
    for name in (*code.co_names, *code.co_freevars):
        if name in closure:
            yield name, closure[name]
        elif name in globals_:
            yield name, globals_[name]
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _named(inner, globals_, closure)


def _source(code: Any) -> str | None:
    """Return the source as Python would write it; None where there is none to be had, as of a lambda in a call."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
    except (OSError, TypeError, SyntaxError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)


def _compiled(code: types.CodeType) -> str:
    constants = [_compiled(one) if isinstance(one, types.CodeType) else repr(one) for one in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {constants}"


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
