"""Avro schemas that refer to types of other subjects, written out: one text, as Spark and a manifest have it."""

import json
from collections.abc import Iterable
from typing import Any

_NAMED = ("record", "error", "enum", "fixed")


def written_out(schema: str, referred: Iterable[str]) -> str:
    """Return a schema with each type of `referred` in the place where it is used first; all are JSON texts.

    Raise `ValueError` where one is no JSON.
    """
    types = _Types()
    for text in referred:
        types.collect(json.loads(text), "")
    return json.dumps(types.written_out(json.loads(schema), ""), separators=(",", ":"))


class _Types:
    """Named types that are known from elsewhere, by full name, and what of them is in the schema by now."""

    def __init__(self) -> None:
        self._types: dict[str, Any] = {}
        self._written: set[str] = set()

    def collect(self, schema: Any, space: str) -> None:
        """Note the types that a schema defines, each as it is with its namespace."""
        if isinstance(schema, list):
            for branch in schema:
                self.collect(branch, space)
        elif isinstance(schema, dict):
            if schema.get("type") in _NAMED:
                space, name = _space_and_name(schema, space)
                full = _full(name, space)
                self._types.setdefault(full, {**schema, "name": name, "namespace": space})
            for part in _parts(schema):
                self.collect(part, space)

    def written_out(self, schema: Any, space: str) -> Any:
        """Return a schema that stands in a namespace; a type comes before those that use it again."""
        if isinstance(schema, str):
            names = [schema] if "." in schema else [_full(schema, space), schema]
            for name in names:
                if name in self._written:
                    return name
                if name in self._types:
                    return self.written_out(self._types[name], "")
            return schema
        if isinstance(schema, list):
            return [self.written_out(branch, space) for branch in schema]
        if not isinstance(schema, dict):
            return schema
        found = dict(schema)
        if schema.get("type") in _NAMED:
            space, name = _space_and_name(schema, space)
            full = _full(name, space)
            if full in self._written:
                return full
            self._written.add(full)
            if "fields" in schema:
                found["fields"] = [{**one, "type": self.written_out(one["type"], space)} for one in schema["fields"]]
            return found
        for key in ("type", "items", "values"):
            if key in schema:
                found[key] = self.written_out(schema[key], space)
        return found["type"] if list(found) == ["type"] else found


def _parts(schema: dict[str, Any]) -> Iterable[Any]:
    yield from (one["type"] for one in schema.get("fields", ()))
    yield from (schema[key] for key in ("type", "items", "values") if isinstance(schema.get(key), dict | list))


def _space_and_name(schema: dict[str, Any], space: str) -> tuple[str, str]:
    own, _, name = str(schema["name"]).rpartition(".")
    return own or str(schema.get("namespace", space)), name


def _full(name: str, space: str) -> str:
    return f"{space}.{name}" if space else name
