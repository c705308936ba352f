"""The declaration on events, without Kafka: pytest."""

from orders import TABLE

from tablegate.jobs.testing import Event, run_table


def order(customer: str, amount: float) -> Event:
    return Event("orders", value={"customer": customer, "amount": amount})


def test_totals() -> None:
    result = run_table(TABLE, [order("ann", 10.0), order("bob", 5.0), order("ann", 2.5), order("bob", -1.0)])
    assert result.rows == {
        ("ann",): {"order_count": 2, "amount": 12.5},
        ("bob",): {"order_count": 1, "amount": 5.0},
    }


def test_what_is_no_order_is_set_aside() -> None:
    result = run_table(TABLE, [Event("orders", value=b"no JSON"), order("ann", 1.0)])
    assert len(result.dead_letters) == 1
    assert list(result.rows) == [("ann",)]
