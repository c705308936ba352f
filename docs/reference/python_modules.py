"""What the modules that users import export, as Markdown: signatures as they are written, and docstrings."""

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

SIGNATURE_WIDTH = 96


def about_module(module: ModuleType) -> str:
    """Return what a module says of itself, as Markdown."""
    return escaped_prose(inspect.getdoc(module) or "")


def members(module: ModuleType, names: list[str] | None = None) -> str:
    """Return a section for each exported name of a module, or for those of `names`."""
    text = ""
    for name in sorted(names or public(module), key=lambda each: (each.isupper(), each.lower())):
        member = getattr(module, name)
        text += f"\n## {name}\n\n"
        if inspect.isclass(member):
            text += _class(member)
        elif inspect.isfunction(member):
            text += _function(member)
        elif inspect.ismodule(member):
            text += escaped_prose(inspect.getdoc(member) or "") + "\n"
        else:
            text += _value(module, name, member)
    return text


def public(module: ModuleType) -> list[str]:
    """Return what a module exports; without a list, the classes and functions that it defines itself."""
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return list(listed)
    own = [name for name, member in vars(module).items() if getattr(member, "__module__", "") == module.__name__]
    return [name for name in own if not name.startswith("_")]


def _class(kind: type) -> str:
    tree = _tree(kind)
    assert isinstance(tree, ast.ClassDef)
    text = ""
    constructor = _constructor(kind, tree)
    if constructor:
        text += f"```python\n{constructor}\n```\n\n"
    bases = [base.__name__ for base in kind.__bases__ if issubclass(base, Exception)]
    if bases:
        text += "*Exception.*\n\n" if bases == ["Exception"] else f"*Exception, a `{bases[0]}`.*\n\n"
    own = kind.__doc__ or ""
    if own and not own.startswith(f"{kind.__name__}("):
        text += escaped_prose(inspect.cleandoc(own)) + "\n"
    if _is_enum(kind):
        values = [f"`{kind.__name__}.{member.name}`" for member in kind]  # type: ignore[attr-defined]
        return text + f"\nValues: {', '.join(values)}.\n"
    if hasattr(kind, "__dataclass_fields__"):
        return text  # plain data: its fields are all there is to know
    for name, member in _methods(kind):
        text += f"\n### {kind.__name__}.{name}\n\n"
        if isinstance(member, property):
            about = inspect.getdoc(member) or ""
            text += f"*Property.* {escaped_prose(about)}\n"
        else:
            text += _function(member)
    return text


def _methods(kind: type) -> Iterator[tuple[str, Any]]:
    seen: set[str] = set()
    foreign = {name for owner in kind.__mro__ if not _is_ours(owner) for name in vars(owner)}  # a dict's `keys`, say
    seen |= foreign
    for owner in filter(_is_ours, kind.__mro__):
        for name, member in vars(owner).items():
            if name.startswith("_") or name in seen:
                continue
            seen.add(name)
            plain = member.__func__ if isinstance(member, classmethod | staticmethod) else member
            if isinstance(plain, property) or inspect.isfunction(plain):
                about = plain.fget if isinstance(plain, property) else plain
                if inspect.getdoc(about):
                    yield name, plain


def _is_ours(kind: type) -> bool:
    return kind.__module__.startswith("tablegate.")


def _constructor(kind: type, tree: ast.ClassDef) -> str:
    if _is_enum(kind) or getattr(kind, "_is_protocol", False):
        return ""
    if hasattr(kind, "__dataclass_fields__"):
        return _signature(kind.__name__, list(_fields(kind)), "")
    if issubclass(kind, tuple):
        return _signature(kind.__name__, list(_annotated(tree)), "")
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            return _signature(kind.__name__, _parameters(node)[1:], "")
    return ""


def _is_enum(kind: type) -> bool:
    return hasattr(kind, "__members__")


def _fields(kind: type) -> Iterator[str]:
    found: dict[str, str] = {}
    for owner in reversed(kind.__mro__):
        if hasattr(owner, "__dataclass_fields__"):
            tree = _tree(owner)
            assert isinstance(tree, ast.ClassDef)
            if any("kw_only=True" in ast.unparse(decorator) for decorator in tree.decorator_list):
                found["*"] = "*"
            found.update((text.partition(":")[0], text) for text in _annotated(tree))
    yield from found.values()


def _annotated(tree: ast.ClassDef) -> Iterator[str]:
    for node in tree.body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        kind = ast.unparse(node.annotation)
        if kind == "KW_ONLY":
            yield "*"
        elif not node.target.id.startswith("_") and node.target.id != "declared_at" and not kind.startswith("ClassVar"):
            default = ast.unparse(node.value) if node.value is not None else None
            factory = re.search(r"default_factory=(\w+)", default or "")
            if factory:
                default = {"dict": "{}", "list": "[]", "tuple": "()"}.get(factory[1], "...")
            yield f"{node.target.id}: {kind}" + (f" = {default}" if default is not None else "")


def _function(function: Callable[..., Any]) -> str:
    tree = _tree(function)
    assert isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef)
    parameters = _parameters(tree)
    if parameters and parameters[0] in ("self", "cls"):
        parameters = parameters[1:]
    returns = f" -> {ast.unparse(tree.returns)}" if tree.returns else ""
    kind = "async " if isinstance(tree, ast.AsyncFunctionDef) else ""
    about = escaped_prose(inspect.getdoc(function) or "")
    return f"```python\n{kind}{_signature(tree.name, parameters, returns)}\n```\n\n{about}\n"


def _parameters(tree: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    given = tree.args
    plain = [*given.posonlyargs, *given.args]
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(given.defaults)) + list(given.defaults)
    texts = [_parameter(each, default) for each, default in zip(plain, defaults, strict=True)]
    if given.vararg:
        texts.append(f"*{_parameter(given.vararg, None)}")
    elif given.kwonlyargs:
        texts.append("*")
    texts += [_parameter(each, default) for each, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    if given.kwarg:
        texts.append(f"**{_parameter(given.kwarg, None)}")
    return texts


def _parameter(parameter: ast.arg, default: ast.expr | None) -> str:
    text = parameter.arg + (f": {ast.unparse(parameter.annotation)}" if parameter.annotation else "")
    if default is None:
        return text
    return f"{text} = {ast.unparse(default)}" if parameter.annotation else f"{text}={ast.unparse(default)}"


def _signature(name: str, parameters: list[str], returns: str) -> str:
    line = f"{name}({', '.join(parameters)}){returns}"
    if len(line) <= SIGNATURE_WIDTH:
        return line
    return f"{name}(\n" + "".join(f"    {parameter},\n" for parameter in parameters) + f"){returns}"


def _value(module: ModuleType, name: str, value: object) -> str:
    """Return what a constant or the name of a type is, and the docstring after its assignment."""
    for source in (module, *_imported(module)):
        body = ast.parse(inspect.getsource(source)).body
        for node, after in zip(body, [*body[1:], None], strict=True):
            target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
            if isinstance(target, ast.Name) and target.id == name:
                text = f"```python\n{ast.unparse(node)}\n```\n"
                if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                    text += f"\n{escaped_prose(inspect.cleandoc(str(after.value.value)))}\n"
                return text
    return f"```python\n{name} = {value!r}\n```\n"


def _imported(module: ModuleType) -> Iterator[ModuleType]:
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tablegate."):
            yield importlib.import_module(node.module or "")


def _tree(member: Any) -> ast.stmt:
    return ast.parse(textwrap.dedent(inspect.getsource(member))).body[0]


def escaped(text: str) -> str:
    """Return text in which Markdown sees no HTML."""
    return re.sub(r"<(?=[a-zA-Z/])", "&lt;", text)


def escaped_prose(text: str) -> str:
    """Return a docstring as Markdown: what is indented in it is code."""
    code: list[str] = []
    lines: list[str] = []
    for line in [*text.splitlines(), ""]:
        if line.startswith("    ") or (code and not line.strip() and lines):
            code.append(line[4:])
            continue
        if code:
            lines += ["```python", *"\n".join(code).rstrip().splitlines(), "```", ""]
            code = []
        lines.append(escaped(line))
    if code:
        lines += ["```python", *"\n".join(code).rstrip().splitlines(), "```"]
    return "\n".join(lines).strip()
