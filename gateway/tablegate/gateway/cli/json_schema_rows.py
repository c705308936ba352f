"""Row messages of JSON Schema: what a registry has of a topic whose values are JSON."""

import json
from collections.abc import Collection, Iterator
from typing import Any

from tablegate.gateway.cli.row_messages import (
    INSIDE,
    Column,
    Inner,
    Inners,
    Row,
    RowError,
    column_name,
    is_scalar,
    is_skipped,
    json_name_of,
    make_row,
    message_name,
    refusal,
    sentence,
)
from tablegate.gateway.contract.columns import TIMESTAMP
from tablegate.gateway.contract.foreign.fit import (
    ANY,
    BOOLEAN,
    INTEGER,
    LIST,
    NULL,
    NUMBER,
    OBJECT,
    TEXT,
    JsonDescription,
)

_SCALARS = {BOOLEAN: "bool", INTEGER: "int64", NUMBER: "double", TEXT: "string"}


def json_schema_row(text: str, name: str, skipped: Collection[str], *, what: str) -> Row:
    """Return the row of a schema of objects; raise `RowError`."""
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        whole = None
    of = JsonDescription(whole)
    objects = [one for kind, one in of.kinds(whole) if kind == OBJECT and of.fields(one)]
    if len(objects) != 1:
        raise RowError(f"{what} is not the schema of an object with properties; name another subject")
    made = name or message_name(column_name(str(objects[0].get("title") or "row"), "title").rpartition(".")[2])
    types = _Types(of)
    columns = [*types.columns(objects[0], skipped=skipped)]
    return make_row(made, columns, what, comment=sentence(objects[0].get("description")), inner=types.inners.all())


class _Types:
    """Columns of the properties of a schema, and of the objects in it."""

    def __init__(self, of: JsonDescription) -> None:
        self._of = of
        self.inners = Inners()

    def columns(self, schema: Any, path: str = "", skipped: Collection[str] = ()) -> Iterator[Column]:
        """Yield the columns of an object."""
        required = schema.get("required")
        for source, inside in (self._of.fields(schema) or {}).items():
            if not path and is_skipped(source, skipped):
                continue
            place = f"{path}{source}"
            type_ = self._type(inside, place)
            is_always = source in (required if isinstance(required, list) else ())
            is_always = is_always and NULL not in dict(self._of.kinds(inside))
            doc = inside.get("description") if isinstance(inside, dict) else None
            name = column_name(source, place)
            optional, json_name = not is_always and is_scalar(type_), json_name_of(source, name)
            yield Column(place, name, type_, optional, sentence(doc), json_name=json_name)

    def _type(self, schema: Any, place: str) -> str:
        kind, one = self._only(schema, place)
        if kind == LIST:
            return f"repeated {self._one(self._of.items(one), place)}"
        if kind == OBJECT and not self._of.fields(one) and self._of.items(one) is not None:
            return f"map<string, {self._one(self._of.items(one), place)}>"
        return self._one(schema, place)

    def _only(self, schema: Any, place: str) -> tuple[str, Any]:
        kinds = {kind: one for kind, one in self._of.kinds(schema) if kind != NULL}
        if len(kinds) != 1 or ANY in kinds:
            raise refusal(place, "has a schema of several types, or of none")
        [found] = kinds.items()
        return found

    def _one(self, schema: Any, place: str) -> str:
        """Return the type of one value: no list of them, and no map."""
        kind, one = self._only(schema, place)
        if kind in _SCALARS:
            return TIMESTAMP if kind == TEXT and one.get("format") == "date-time" else _SCALARS[kind]
        if kind == LIST:
            raise refusal(place, "has lists in a list")
        if not self._of.fields(one):
            raise refusal(place, "is an object without properties")
        wanted = message_name(column_name(str(one.get("title") or place.rpartition(INSIDE)[2]), place))
        source = json.dumps(one, sort_keys=True)

        def make(name: str) -> Inner:
            return Inner(
                name, source, [*self.columns(one, f"{place}{INSIDE}")], comment=sentence(one.get("description"))
            )

        return self.inners.add(source, wanted, make, field=place)
