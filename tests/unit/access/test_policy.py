from pathlib import Path
from typing import Any

import pytest

from tablegate.gateway.access.policy import Forbidden, Policy, Right, claim_of
from tablegate.gateway.access.principal import AccessFileError, Principal
from tablegate.gateway.access.views import View
from tests.kit.table.contracts import bind_sources
from tests.kit.table.filled import ROOT, catalogue_of

CATALOGUE = catalogue_of(ROOT / "tests/kit/table/tenants.proto")
GET_INVOICE = "/tenants.v1.InvoicesService/GetInvoice"
LIST_INVOICES = "/tenants.v1.InvoicesService/ListInvoices"
GET_TICKET = "/tenants.v1.TicketsService/GetTicket"


def policy(*rules: dict[str, Any], **more: Any) -> Policy:
    return Policy({"rule": list(rules), **more}, CATALOGUE)


def who(name: str = "ann", **claims: Any) -> Principal:
    return Principal(name, claims)


def refusal(asked: Policy, principal: Principal | None, path: str) -> str:
    with pytest.raises(Forbidden) as caught:
        asked.view(principal, path)
    return str(caught.value)


def test_nobody_may_do_what_no_rule_says() -> None:
    rules = policy({"tables": ["invoices"]})
    assert rules.view(who(), GET_INVOICE) is None
    assert refusal(rules, who(), GET_TICKET) == "you may not call this method; ask the operator"
    assert refusal(rules, who(), "/nobody.v1.Knows/This") == "you may not call this method; ask the operator"
    assert refusal(rules, None, GET_INVOICE) == "who shows no credential may not call this method; show one"


def test_the_first_rule_that_fits_counts() -> None:
    rules = policy(
        {"roles": ["support"], "tables": ["invoices"]},
        {"principals": ["key reports"], "methods": [GET_INVOICE[1:]], "hide": ["margin"]},
        {"tables": ["invoices"], "rows": {"tenant": "tenant"}},
    )
    assert rules.view(who(roles=["x", "support"]), GET_INVOICE) is None
    assert rules.view(who(roles="x support"), GET_INVOICE) is None
    assert rules.view(who("key reports", tenant="t"), GET_INVOICE) == View((), ("margin",))
    assert rules.view(who("key reports", tenant="t"), LIST_INVOICES) == View((("tenant", ("t",)),))
    assert rules.view(who(roles=[["support"]], tenant=["b", "a", "b"]), GET_INVOICE) == View((("tenant", ("a", "b")),))


def test_claims_of_a_rule() -> None:
    rules = policy({"claims": {"department": "support", "level": 2, "staff": True}, "tables": ["*"]})
    assert rules.view(who(department=["x", "support"], level=2, staff=True), GET_TICKET) is None
    for claims in (
        {"department": "support", "level": 2},
        {"department": "support", "level": 2, "staff": 1},
        {"department": "support", "level": True, "staff": True},
        {"department": "supporters", "level": 2, "staff": True},
    ):
        assert refusal(rules, who(**claims), GET_TICKET)


def test_whoever_shows_no_credential() -> None:
    rules = policy({"anonymous": True, "methods": ["tenants.v1.TicketsService/*"]})
    assert rules.view(None, GET_TICKET) is None
    assert rules.view(who(), GET_TICKET) is None
    assert refusal(rules, None, GET_INVOICE)


@pytest.mark.parametrize(
    ("claims", "text"),
    [
        ({}, 'your credential has no claim "owner", by which your rows are found; get one that has it'),
        ({"owner": "1"}, 'the claim "owner" of your credential is no whole number, or list of them'),
        ({"owner": True}, 'the claim "owner" of your credential is no whole number, or list of them'),
        ({"owner": 1.0}, 'the claim "owner" of your credential is no whole number, or list of them'),
        ({"owner": 2**63}, 'the claim "owner" of your credential is no whole number, or list of them'),
        ({"owner": [1, None]}, 'the claim "owner" of your credential is no whole number, or list of them'),
        ({"owner": {"a": 1}}, 'the claim "owner" of your credential is no whole number, or list of them'),
        ({"owner": list(range(101))}, 'the claim "owner" of your credential has more than 100 values, or is too long'),
    ],
)
def test_claims_that_say_no_rows(claims: dict[str, Any], text: str) -> None:
    assert refusal(policy({"tables": ["tickets"], "rows": {"owner": "owner"}}), who(**claims), GET_TICKET) == text


@pytest.mark.parametrize("tenant", ["", "\ud800", ["a", ""], 7, "a" * 5_000])
def test_texts_that_say_no_rows(tenant: Any) -> None:
    assert refusal(policy({"tables": ["invoices"], "rows": {"tenant": "t"}}), who(t=tenant), GET_INVOICE)


def test_a_claim_that_lists_nothing_shows_nothing() -> None:
    rules = policy({"tables": ["tickets"], "rows": {"owner": "owner"}})
    assert rules.view(who(owner=[]), GET_TICKET) == View((("owner", ()),))


def test_claims_by_name_and_by_path() -> None:
    claims = {"https://shop.example/roles": ["a"], "realm_access": {"roles": ["b"]}}
    assert claim_of(claims, "https://shop.example/roles") == ["a"]
    assert claim_of(claims, "realm_access.roles") == ["b"]
    assert claim_of(claims, "realm_access.roles.x") is None
    rules = policy({"roles": ["b"], "tables": ["*"]}, policy={"roles": "realm_access.roles"})
    assert rules.view(who(**claims), GET_TICKET) is None


def test_rights() -> None:
    rules = policy({"roles": ["operator"], "rights": ["status", "metrics"]}, {"tables": ["*"]})
    rules.check(who(roles=["operator"]), Right.METRICS)
    for principal, right in ((who(roles=["operator"]), Right.EXPLAIN), (who(), Right.STATUS), (None, Right.STATUS)):
        with pytest.raises(Forbidden):
            rules.check(principal, right)


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (
            {"tables": ["orders"]},
            '[[rule]] number 1 "tables" has "orders", which is no table of the contracts; there are invoices, tickets',
        ),
        ({"tables": 1}, '[[rule]] number 1 "tables" is no text or list of texts; correct it, or leave it out'),
        ({"tables": ["tickets"], "roles": []}, '"roles" is no text or list of texts; correct it, or leave it out'),
        ({"methods": ["tenants.v1.X/Y"]}, '"tenants.v1.X/Y", which is no query of the contracts; see tablegate tables'),
        ({"table": ["invoices"]}, '[[rule]] number 1 "table" is unknown; known are anonymous, claims, hide, methods,'),
        ({"rights": ["root"]}, '"rights" has "root", which is none; there are explain, history, metadata, metrics,'),
        ({}, '[[rule]] number 1 allows nothing; add "tables", "methods" or "rights"'),
        ({"roles": ["a"]}, "allows nothing"),
        ({"rights": ["status"], "hide": ["margin"]}, '"rows" or "hide", which are of tables; name those in "tables"'),
        (
            {"tables": ["*"], "hide": ["margin"]},
            'is of table "tickets", which has no column "margin"; it has note, owner, state, ti',
        ),
        ({"tables": ["tickets"], "rows": {"note": ""}}, '"rows" has "note", which is not the name of a claim'),
        ({"tables": ["tickets"], "rows": {"state.x": "a"}}, 'has no column "state.x"'),
        ({"tables": ["tickets"], "hide": ["ticket_id"]}, 'column "ticket_id", by which rows of table "tickets" are'),
        ({"tables": ["tickets"], "rows": {"note": "n"}, "hide": ["note"]}, 'has column "note" in "rows" and in "hide"'),
        ({"tables": ["tickets"], "anonymous": "yes"}, '[[rule]] number 1 "anonymous" is neither true nor false'),
        ({"tables": ["tickets"], "claims": {"a": 1.5}}, '"a", which is no text, whole number, true or false'),
        ({"tables": ["tickets"], "claims": ["a"]}, '[[rule]] number 1 "claims" is no table; write claims = { … }'),
    ],
)
def test_wrong_rules_are_named(rule: dict[str, Any], text: str) -> None:
    with pytest.raises(AccessFileError) as caught:
        policy(rule)
    assert text in str(caught.value)


REQUIRED = """
syntax = "proto2";
package notes.v1;
import "tablegate/v1/options.proto";
service NotesService {
  rpc GetNote(GetNoteRequest) returns (GetNoteResponse) { option (tablegate.v1.query) = { get: {} }; }
}
message Note {
  option (tablegate.v1.table) = { name: "notes" key: "note_id" };
  required int64 note_id = 1;
  required string text = 2;
  optional string mood = 3;
}
message GetNoteRequest { optional int64 note_id = 1; }
message GetNoteResponse { optional Note note = 1; }
"""


def test_what_no_row_can_be_without_is_not_hidden(tmp_path: Path) -> None:
    notes = bind_sources(tmp_path, notes=REQUIRED)
    Policy({"rule": [{"tables": ["notes"], "hide": ["mood"]}]}, notes)
    for column, reason in (("text", "a client can read no row without it"), ("note_id", "it is in their key")):
        with pytest.raises(AccessFileError, match=reason):
            Policy({"rule": [{"tables": ["notes"], "hide": [column]}]}, notes)


def test_columns_of_other_kinds_find_no_rows() -> None:
    with pytest.raises(AccessFileError, match="is no text, whole number or bool"):
        Policy(
            {"rule": [{"tables": ["ratings"], "rows": {"average_rating": "a"}}]},
            catalogue_of(),
        )


def test_a_file_without_rules_is_refused() -> None:
    with pytest.raises(AccessFileError, match=r"the file has no \[\[rule\]\]"):
        Policy({}, CATALOGUE)


def test_principals_of_one_name_have_their_own_claims() -> None:
    rules = policy({"tables": ["invoices"], "rows": {"tenant": "tenant"}})
    for _ in range(2):
        assert rules.view(who(tenant="a"), GET_INVOICE) == View((("tenant", ("a",)),))
        assert rules.view(who(tenant="b"), GET_INVOICE) == View((("tenant", ("b",)),))
