"""A table that is found by other columns than its key."""

import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tablegate.gateway.contract.catalogue import Table
from tablegate.gateway.contract.indexes import INDEX_ID_BYTES, Index, make_entry
from tests.kit.table.filled import catalogue_of

ACCOUNTS = Path(__file__).with_name("accounts.proto")
SERVICE = "/accounts.v1.AccountsService"
BANKS = ("ash", "ash\x00", "birch")
CITIES = ("Bonn", "Bonn\x00", "", "Ulm", "x" * 600, "x" * 600 + "y")  # the last two are cut, and then one
TAGS = ("a", "b", "a\x00b")


def accounts_table() -> Table:
    return catalogue_of(ACCOUNTS).tables["accounts"]


def index(name: str) -> Index:
    return next(each for each in accounts_table().indexes if each.name == name)


def account(choice: random.Random, **fields: Any) -> Any:
    """Return an account of few values, so that rows share them."""
    row: Any = accounts_table().row_class(
        bank=choice.choice(BANKS), account_id=choice.randrange(-3, 4), tags=choice.choices(TAGS, k=choice.randrange(3))
    )
    row.number = f"{row.bank}/{row.account_id}/{choice.randrange(3)}"
    if choice.random() < 0.8:
        row.address.city = choice.choice(CITIES)
    if choice.random() < 0.8:
        row.balance = choice.choice((-(2**63), -1, 0, 7, 2**63 - 1))
    if choice.random() < 0.7:
        row.state = choice.randrange(3)
    if choice.random() < 0.7:
        row.opened_time.FromNanoseconds(choice.choice((-1, 0, 1, 10**18)))
    for name, value in fields.items():
        setattr(row, name, value)
    return row


def entries_of(index: Index, rows: Mapping[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    """Return what an index of these rows has: entries and rows, in order."""
    found: Iterable[tuple[bytes, bytes]] = (
        (make_entry(index_key[INDEX_ID_BYTES:], key), row)
        for key, row in rows.items()
        for index_key in index.keys_of(row)
    )
    return sorted(found)
