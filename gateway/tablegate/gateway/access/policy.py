"""The policy: who may call which method, and see which rows and columns.

It is the part of the access file that says what principals may do. A rule says for whom it is (`roles`, `principals`,
`claims`, `anonymous`), to what it lets them (`tables`, `methods`, `rights`), and how much of it they see (`rows`,
`hide`). Nobody may do what no rule says. Of several rules that let a principal to a method the first one counts, so
that what somebody sees is in one place of the file.

    [policy]
    roles = "realm_access.roles"            # the claim that lists a principal's roles; default: roles

    [[rule]]
    roles = ["operator"]
    tables = ["*"]
    rights = ["status", "metadata", "explain", "history", "metrics", "reflection"]

    [[rule]]                                # every principal
    tables = ["orders"]
    rows = { tenant_id = "tenant" }         # column = claim: those rows alone
    hide = ["margin"]

A claim may list values: then rows with any of them are seen. Where a principal lacks the claim, the call is refused.

Decision: docs/decisions/0101-a-view-is-compiled-into-its-queries.md
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from tablegate.gateway.access.principal import AccessFileError, Principal
from tablegate.gateway.access.sections import Section
from tablegate.gateway.access.views import VALUES_CHARS_MAX, VALUES_MAX, Value, View
from tablegate.gateway.contract.catalogue import Catalogue, Query, Table
from tablegate.gateway.contract.keys import INT64_MAX

ALL = "*"
ROLES_CLAIM = "roles"
INT64_MIN = -(2**63)

_STRINGS = frozenset({FieldDescriptor.CPPTYPE_STRING})
_INTEGERS = frozenset(
    {
        FieldDescriptor.CPPTYPE_INT32,
        FieldDescriptor.CPPTYPE_INT64,
        FieldDescriptor.CPPTYPE_UINT32,
        FieldDescriptor.CPPTYPE_UINT64,
    }
)
_BOOLS = frozenset({FieldDescriptor.CPPTYPE_BOOL})


class Right(Enum):
    """What may be allowed beside queries."""

    STATUS = "status"
    METADATA = "metadata"
    EXPLAIN = "explain"
    HISTORY = "history"
    METRICS = "metrics"
    REFLECTION = "reflection"


class Forbidden(Exception):
    """A principal may not do what it asks for; the message is for it, and names no other principal or rule."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """One rule, checked."""

    roles: frozenset[str]
    principals: frozenset[str]
    claims: tuple[tuple[str, Value], ...]
    for_anonymous: bool
    paths: frozenset[str]
    rights: frozenset[Right]
    rows: tuple[tuple[str, str], ...]  # column, claim
    hidden: tuple[str, ...]

    def is_for(self, principal: Principal | None, roles: Collection[str]) -> bool:
        """Return whether the rule is for a principal; None: for whoever shows no credential."""
        if principal is None:
            return self.for_anonymous
        if any(not _has(claim_of(principal.claims, name), value) for name, value in self.claims):
            return False
        if not self.roles and not self.principals:
            return True
        return principal.name in self.principals or not self.roles.isdisjoint(roles)


class Policy:
    """Who may do what, of the contracts of a catalogue. One thread."""

    def __init__(self, settings: Mapping[str, Any], catalogue: Catalogue) -> None:
        """Read the parsed access file; raise `AccessFileError`."""
        self._catalogue = catalogue
        policy = Section(settings.get("policy", {}), "[policy]", ("roles",))
        self._roles_claim = policy.text("roles", ROLES_CLAIM)
        rules = settings.get("rule", [])
        if not isinstance(rules, list) or not rules:
            raise AccessFileError("the file has no [[rule]]; without one nobody may do anything")
        self._rules = [_rule(rule, number, catalogue) for number, rule in enumerate(rules, 1)]

    def view(self, principal: Principal | None, path: str) -> View | None:
        """Return what a principal sees of the table of a query; None: all of it. Raise `Forbidden`."""
        roles = self.roles(principal)
        for rule in self._rules:
            if path in rule.paths and rule.is_for(principal, roles):
                return self._seen(rule, principal, path)
        raise Forbidden(_refusal(principal, "may not call this method"))

    def check(self, principal: Principal | None, right: Right) -> None:
        """Raise `Forbidden` where a principal has not got a right."""
        roles = self.roles(principal)
        if not any(right in rule.rights and rule.is_for(principal, roles) for rule in self._rules):
            raise Forbidden(_refusal(principal, f"may not ask for {right.value}"))

    def roles(self, principal: Principal | None) -> frozenset[str]:
        """Return the roles that a principal's credential lists."""
        if principal is None:
            return frozenset()
        listed = claim_of(principal.claims, self._roles_claim)
        if isinstance(listed, str):
            return frozenset(listed.split())
        if isinstance(listed, (list, tuple)):
            return frozenset(role for role in listed if isinstance(role, str))
        return frozenset()

    def _seen(self, rule: _Rule, principal: Principal | None, path: str) -> View | None:
        if not rule.rows and not rule.hidden:
            return None
        query = self._catalogue.queries[path]
        claims = {} if principal is None else principal.claims
        rows = tuple(
            (column, _values(claims, claim, query.table.row.fields_by_name[column])) for column, claim in rule.rows
        )
        return View(rows, rule.hidden)


def claim_of(claims: Mapping[str, Any], name: str) -> Any:
    """Return the claim of a name, or by a path such as realm_access.roles; None where there is none."""
    if name in claims:  # names that are URLs have dots
        return claims[name]
    found: Any = claims
    for part in name.split("."):
        if not isinstance(found, Mapping) or part not in found:
            return None
        found = found[part]
    return found


def _has(claim: Any, value: Value) -> bool:
    """Return whether a claim is a value, or lists it; true is not 1."""
    listed = claim if isinstance(claim, (list, tuple)) else [claim]
    return any(type(each) is type(value) and each == value for each in listed)


def _values(claims: Mapping[str, Any], claim: str, column: FieldDescriptor) -> tuple[Value, ...]:
    """Return the values of a column that a principal may see; raise `Forbidden`."""
    found = claim_of(claims, claim)
    if found is None:
        raise Forbidden(f'your credential has no claim "{claim}", by which your rows are found; get one that has it')
    listed = found if isinstance(found, (list, tuple)) else [found]
    wanted = _python_type(column)
    if any(type(value) is not wanted or not _is_storable(value) for value in listed):
        raise Forbidden(f'the claim "{claim}" of your credential is no {_name_of(wanted)}, or list of them')
    if len(listed) > VALUES_MAX or sum(len(str(value)) for value in listed) > VALUES_CHARS_MAX:
        raise Forbidden(f'the claim "{claim}" of your credential has more than {VALUES_MAX} values, or is too long')
    return tuple(sorted(set(listed)))


def _is_storable(value: Any) -> bool:
    """Return whether rows that somebody has given a value can have this one."""
    if isinstance(value, str):
        try:
            # An empty text is what rows without a value have: nobody is to see those by a claim that says nothing.
            return bool(value.encode())
        except UnicodeEncodeError:  # JSON may have half of a character
            return False
    return INT64_MIN <= int(value) <= INT64_MAX


def _python_type(column: FieldDescriptor) -> type:
    return str if column.cpp_type in _STRINGS else bool if column.cpp_type in _BOOLS else int


def _name_of(wanted: type) -> str:
    return {str: "text", bool: "true or false", int: "whole number"}[wanted]


def _refusal(principal: Principal | None, what: str) -> str:
    return f"who shows no credential {what}; show one" if principal is None else f"you {what}; ask the operator"


_RULE_KEYS = ("roles", "principals", "claims", "anonymous", "tables", "methods", "rights", "rows", "hide")


def _rule(settings: object, number: int, catalogue: Catalogue) -> _Rule:
    rule = Section(settings, f"[[rule]] number {number}", _RULE_KEYS)
    claims = rule.table("claims")
    for name, value in claims.items():
        if not isinstance(value, (str, int)):
            raise rule.refuse(f'"claims" has "{name}", which is no text, whole number, true or false; correct it')
    rows = rule.table("rows")
    for column, claim in rows.items():
        if not isinstance(claim, str) or not claim:
            raise rule.refuse(f'"rows" has "{column}", which is not the name of a claim; correct it')
    hidden = rule.texts("hide", ())
    queries = _queries(rule, catalogue)
    for table in {query.table.name: query.table for query in queries.values()}.values():
        _check_columns(table, rows, hidden, rule)
    if (rows or hidden) and not queries:
        raise rule.refuse('has "rows" or "hide", which are of tables; name those in "tables", or in "methods"')
    rights = [_right(name, rule) for name in rule.texts("rights", ())]
    if not queries and not rights:
        raise rule.refuse('allows nothing; add "tables", "methods" or "rights"')
    return _Rule(
        frozenset(rule.texts("roles", ())),
        frozenset(rule.texts("principals", ())),
        tuple(claims.items()),
        rule.flag("anonymous"),
        frozenset(queries),
        frozenset(rights),
        tuple(rows.items()),
        tuple(sorted(set(hidden))),
    )


def _queries(rule: Section, catalogue: Catalogue) -> dict[str, Query]:
    """Return the queries that a rule is about, by path."""
    found: dict[str, Query] = {}
    for name in rule.texts("tables", ()):
        if name != ALL and name not in catalogue.tables:
            raise rule.refuse(
                f'"tables" has "{name}", which is no table of the contracts; there are {_listed(catalogue.tables)}'
            )
        found |= {path: query for path, query in catalogue.queries.items() if name in (ALL, query.table.name)}
    for name in rule.texts("methods", ()):
        path = f"/{name.removeprefix('/')}"
        service = path.removesuffix(ALL) if path.endswith(f"/{ALL}") else None
        matching = {
            each: query
            for each, query in catalogue.queries.items()
            if (each.startswith(service) if service else each == path)
        }
        if not matching:
            raise rule.refuse(f'"methods" has "{name}", which is no query of the contracts; see tablegate tables')
        found |= matching
    return found


def _check_columns(table: Table, rows: Collection[str], hidden: Collection[str], rule: Section) -> None:
    columns = table.row.fields_by_name
    for name in (*rows, *hidden):
        if name not in columns:
            raise rule.refuse(
                f'is of table "{table.name}", which has no column "{name}"; it has {_listed(columns)}. Give tables '
                "with other columns a rule of their own"
            )
    for name in rows:
        column = columns[name]
        if column.is_repeated or column.cpp_type not in _STRINGS | _INTEGERS | _BOOLS or _is_bytes(column):
            raise rule.refuse(
                f'"rows" has column "{name}" of table "{table.name}", which is no text, whole number or bool; take '
                "another one"
            )
        if name in hidden:
            raise rule.refuse(f'has column "{name}" in "rows" and in "hide"; leave it out of one')
    for key in table.key:
        if key.name in hidden:
            raise rule.refuse(
                f'"hide" has column "{key.name}", by which rows of table "{table.name}" are named: it is in their '
                "key; leave it out"
            )
    for name in hidden:
        if columns[name].is_required:
            raise rule.refuse(
                f'"hide" has column "{name}" of table "{table.name}", which is required: a client can read no row '
                "without it; leave it out, or make it optional in the contract"
            )


def _is_bytes(column: FieldDescriptor) -> bool:
    return bool(column.type == FieldDescriptor.TYPE_BYTES)


def _right(name: str, rule: Section) -> Right:
    try:
        return Right(name)
    except ValueError:
        listed = _listed(right.value for right in Right)
        raise rule.refuse(f'"rights" has "{name}", which is none; there are {listed}') from None


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
