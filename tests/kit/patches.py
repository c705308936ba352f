"""Where Python code changes a constant of another module: a test gives what it needs to a constructor instead."""

import ast
from collections.abc import Iterable, Iterator


def patched_constants(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield line and name of each constant that is set: by a call, or by an assignment to an attribute in capitals.

    Also of each call that sets a name which only shows when it runs ("?"): nobody can see what it changes.
    """
    for node in nodes:
        if isinstance(node, ast.Call):
            yield from ((node.lineno, name) for name in _set_by(node) if _is_constant(name))
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_constant(node.attr):
            yield node.lineno, node.attr


def _set_by(call: ast.Call) -> Iterator[str]:
    """Yield the names that a call may set, without what they are in; "?" for one that is not written there."""
    is_method = isinstance(call.func, ast.Attribute)
    function = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if function not in ("setattr", "patch", "object"):
        return
    for argument in call.args[:2]:
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
            yield argument.value.rpartition(".")[2]
    # The built-in function sets fields of messages by names that tests list: those are no constants.
    if function == "setattr" and is_method and len(call.args) > 2 and not isinstance(call.args[1], ast.Constant):
        yield "?"


def _is_constant(name: str) -> bool:
    return name == "?" or name.isupper()
