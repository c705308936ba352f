"""What the demo asks: one question of each example table, and how to tell its answer to the known events."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from tablegate.examples.samples import balances, browsers, customers, invoices, products, ratings, stocks
from tablegate.examples.samples.systems import (
    BALANCES,
    BROWSERS,
    CUSTOMERS,
    INVOICES,
    PRODUCTS,
    RATINGS,
    STOCKS,
    System,
)
from tablegate.examples.tables import action_counts, product_views, reward_points, stock_ticks, suspicious_browsers
from tablegate.examples.tables import balances as balances_table
from tablegate.examples.tables import customers as customers_table
from tablegate.examples.tables import ratings as ratings_table
from tablegate.gateway.cli.gateway import Gateway
from tablegate.jobs.table import Mode, Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question of a table: the words of a `tablegate` command, and whether rows are the answer to the known events.

    Rows that expire have no answer any more when their events are long past: `expires`.
    """

    table: Table
    system: System
    words: Sequence[str]
    is_known: Callable[[Sequence[Any]], bool]
    expires: bool = False

    @property
    def mode(self) -> str:
        """The mode of the table's job, in words."""
        return "Real-time Mode" if self.table.mode is Mode.REALTIME else "micro-batches"

    def ask(self, gateway: Gateway) -> list[Message]:
        """Return the rows that the command prints; raise `AskError`."""
        command, table, *arguments = self.words
        if command == "get":
            return list(gateway.get(table, arguments))
        assert arguments[1:] == ["--descending", "--limit", "3"], "the only Range that is asked"
        return list(gateway.range(table, arguments[:1], limit=3, descending=True))


# In the order in which the job starts them.
QUESTIONS = (
    Question(
        table=ratings_table.TABLE,
        system=RATINGS,
        words=("get", "ratings", f"movie_id={ratings.KNOWN_MOVIE}"),
        is_known=lambda rows: [(row.average_rating, row.rating_count) for row in rows] == [(9.0, 2)],
    ),
    Question(
        table=balances_table.TABLE,
        system=BALANCES,
        words=("get", "balances", f"customer_id={balances.KNOWN_CUSTOMER}"),
        is_known=lambda rows: [(row.balance.units, row.balance.nanos) for row in rows] == [(14, 750_000_000)],
    ),
    Question(
        table=stock_ticks.TABLE,
        system=STOCKS,
        words=("get", "stock_ticks", f"symbol={stocks.KNOWN_SYMBOL}"),
        is_known=lambda rows: [row.price for row in rows] == [stocks.KNOWN_PRICE],
    ),
    Question(
        table=customers_table.TABLE,
        system=CUSTOMERS,
        words=("get", "customers", f"id={customers.KNOWN_CUSTOMER}"),
        is_known=lambda rows: [(row.name, row.status) for row in rows] == [("augusto", "REGULAR")],
    ),
    Question(
        table=action_counts.TABLE,
        system=BROWSERS,
        words=("range", "action_counts", f"browser={browsers.KNOWN_BROWSER}", "--descending", "--limit", "3"),
        is_known=lambda rows: [row.action_count for row in rows] == 3 * [browsers.KNOWN_ACTION_COUNT],
        expires=True,
    ),
    Question(
        table=suspicious_browsers.TABLE,
        system=BROWSERS,
        words=("get", "suspicious_browsers", f"browser={browsers.KNOWN_BROWSER}"),
        # Known actions are sent again when their windows have expired.
        is_known=lambda rows: len(rows) == 1 and rows[0].action_count % browsers.KNOWN_ACTION_COUNT == 0,
    ),
    Question(
        table=reward_points.TABLE,
        system=INVOICES,
        words=("get", "reward_points", f"customer_card_no={invoices.KNOWN_CARD}"),
        # Not the points: LOYALTY_FACTOR changes them.
        is_known=lambda rows: [row.invoice_count for row in rows] == [1],
    ),
    Question(
        table=product_views.TABLE,
        system=PRODUCTS,
        words=("get", "product_views", f"product={products.KNOWN_PRODUCT}"),
        is_known=lambda rows: [row.view_count for row in rows] == [products.KNOWN_VIEW_COUNT],
    ),
)
