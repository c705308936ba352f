"""Money columns: Avro decimals, as fastavro writes them, to what the generated Money class reads and writes."""

import json
import struct
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pytest
from google.type.money_pb2 import Money
from hypothesis import given
from hypothesis import strategies as st

from tablegate.examples import CONTRACTS
from tablegate.gateway.contract.binder.binder import ContractError
from tablegate.gateway.contract.catalogue import Table
from tablegate.gateway.contract.rows import RowDecoder, UndecodableRecord, UnfitSchema, row_schema
from tests.kit.seeds import examples
from tests.kit.table.contracts import bind_sources
from tests.kit.table.filled import catalogue_of

BALANCES = CONTRACTS / "examples/balances/v1/balances.proto"
UNITS_MAX = 2**63 - 1
DECIMAL_TYPE = {"type": "bytes", "logicalType": "decimal", "precision": 28, "scale": 9}


def balances() -> Table:
    return catalogue_of(BALANCES).tables["balances"]


def schema_with(avro: Any) -> dict[str, Any]:
    schema = row_schema(balances())
    [at] = [at for at, field in enumerate(schema["fields"]) if field["name"] == "balance"]
    schema["fields"][at] = {"name": "balance", "type": avro}
    return schema


def decoder(schema: dict[str, Any]) -> RowDecoder:
    return RowDecoder(balances(), {1: json.dumps(schema)})


def framed(schema: dict[str, Any], balance: Decimal | None, **more: Any) -> bytes:
    body = BytesIO()
    columns = {"customer_id": "c-1", "balance": balance, "booking_count": 3, "update_time": None, **more}
    fastavro.schemaless_writer(body, fastavro.parse_schema(json.loads(json.dumps(schema))), columns)
    return struct.pack(">bI", 0, 1) + body.getvalue()


def raw_value(raw: bytes) -> bytes:
    """Return a value whose balance has these bytes."""
    plain = schema_with(["null", "bytes"])
    return framed(plain, raw)  # type: ignore[arg-type]


def decoded(row_bytes: bytes) -> Money:
    row: Any = balances().row_class.FromString(row_bytes)
    assert row.HasField("balance")
    return Money.FromString(row.balance.SerializeToString())


def amount(money: Money) -> Decimal:
    return Decimal(money.units) + Decimal(money.nanos).scaleb(-9)


def test_the_schema_of_an_amount() -> None:
    [field] = [field for field in row_schema(balances())["fields"] if field["name"] == "balance"]
    assert field == {"name": "balance", "type": ["null", DECIMAL_TYPE], "default": None}


@examples(500)
@given(unscaled=st.integers(-(10**28) + 1, 10**28 - 1), scale=st.integers(0, 9), nullable=st.booleans())
def test_every_decimal_is_the_same_amount_of_money(unscaled: int, scale: int, nullable: bool) -> None:
    avro = {"type": "bytes", "logicalType": "decimal", "precision": 28, "scale": scale}
    schema = schema_with(["null", avro] if nullable else avro)
    value = Decimal(unscaled).scaleb(-scale)
    if abs(unscaled) // 10**scale > UNITS_MAX + (unscaled < 0):
        with pytest.raises(UndecodableRecord, match="a decimal that its column cannot hold"):
            decoder(schema).decode(framed(schema, value))
        return
    row_bytes = decoder(schema).decode(framed(schema, value))
    money = decoded(row_bytes)
    assert amount(money) == value
    assert money.currency_code == ""
    assert abs(money.nanos) < 10**9
    assert money.units * money.nanos >= 0
    expected: Any = balances().row_class(customer_id="c-1", booking_count=3)
    expected.balance.units, expected.balance.nanos = money.units, money.nanos
    assert row_bytes == expected.SerializeToString(deterministic=True)


@pytest.mark.parametrize(
    ("text", "units", "nanos"),
    [
        ("14.75", 14, 750_000_000),
        ("-1.75", -1, -750_000_000),
        ("-0.000000001", 0, -1),
        ("0", 0, 0),
        ("9223372036854775807.999999999", UNITS_MAX, 999_999_999),
        ("-9223372036854775808.999999999", -UNITS_MAX - 1, -999_999_999),
    ],
)
def test_edges(text: str, units: int, nanos: int) -> None:
    schema = row_schema(balances())
    money = decoded(decoder(schema).decode(framed(schema, Decimal(text))))
    assert (money.units, money.nanos) == (units, nanos)


def test_no_amount_is_unset_and_an_amount_of_zero_is_not() -> None:
    schema = row_schema(balances())
    row: Any = balances().row_class.FromString(decoder(schema).decode(framed(schema, None)))
    assert not row.HasField("balance")
    assert decoded(decoder(schema).decode(framed(schema, Decimal(0)))) == Money()


@pytest.mark.parametrize("raw", [b"\x00" * 40 + b"\x03\x6f\x2c\x8d\x80", b"\xff" * 40 + b"\xfc\x90\xd3\x72\x80"])
def test_bytes_that_only_repeat_the_sign_are_taken(raw: bytes) -> None:
    money = decoded(decoder(row_schema(balances())).decode(raw_value(raw)))
    assert abs(amount(money)) == Decimal("14.750092672")


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "value has a decimal without a byte"),
        (b"\x7f" + b"\xff" * 11, "value has a decimal that its column cannot hold"),
        (b"\x80" * 500, "value has a decimal that its column cannot hold"),
    ],
)
def test_an_amount_that_is_none_is_poison(raw: bytes, reason: str) -> None:
    with pytest.raises(UndecodableRecord) as refused:
        decoder(row_schema(balances())).decode(raw_value(raw))
    assert str(refused.value) == reason


@pytest.mark.parametrize(
    ("avro", "words"),
    [
        ({**DECIMAL_TYPE, "scale": 10}, "a scale of 0 to 9"),
        ({**DECIMAL_TYPE, "scale": -1}, "a scale of 0 to 9"),
        ({**DECIMAL_TYPE, "scale": "2"}, "a scale of 0 to 9"),
        (["null", {**DECIMAL_TYPE, "scale": 10}], "a scale of 0 to 9"),
        ("double", 'field "balance" is "double", the contract wants decimal'),
        ("bytes", 'field "balance" is "bytes", the contract wants decimal'),
        ({"type": "fixed", "name": "d", "size": 12, "logicalType": "decimal", "scale": 2}, "wants decimal"),
        ({"type": "long", "logicalType": "decimal", "scale": 2}, "wants decimal"),
        ({"type": "bytes", "logicalType": ["decimal"]}, "wants decimal"),
    ],
)
def test_another_type_is_unfit(avro: Any, words: str) -> None:
    with pytest.raises(UnfitSchema) as refused:
        decoder(schema_with(avro))
    assert str(refused.value).startswith('table "balances", value schema 1: field "balance"')
    assert words in str(refused.value)


def test_a_scale_may_be_left_out_and_a_type_wrapped() -> None:
    whole = {"type": "bytes", "logicalType": "decimal", "precision": 9}
    assert decoded(decoder(schema_with(whole)).decode(framed(schema_with(whole), Decimal(-42)))).units == -42
    cents = {"type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}}
    value = framed(schema_with(cents["type"]), Decimal("0.05"))
    assert decoded(decoder(schema_with(cents)).decode(value)).nanos == 50_000_000


def test_a_decimal_that_is_no_column_is_passed_over() -> None:
    schema = row_schema(balances())
    schema["fields"].insert(1, {"name": "limit", "type": ["null", {**DECIMAL_TYPE, "scale": 12}]})
    row: Any = balances().row_class.FromString(
        decoder(schema).decode(framed(schema, Decimal("1.5"), limit=Decimal("0.000000000001")))
    )
    assert (row.customer_id, row.balance.units, row.booking_count) == ("c-1", 1, 3)


def test_a_decimal_is_no_other_column() -> None:
    schema = row_schema(balances())
    next(field for field in schema["fields"] if field["name"] == "booking_count")["type"] = DECIMAL_TYPE
    with pytest.raises(UnfitSchema, match=r'field "booking_count" is .*, the contract wants long'):
        decoder(schema)


SCAN = "examples/balances/v1/balances.proto: method BalancesService.ScanBalances"
FILTER = "optional int64 min_booking_count = 1"


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        (
            'key: "customer_id"',
            'key: "balance"',
            (
                'examples/balances/v1/balances.proto: message Balance, field "balance": '
                "a google.type.Money cannot be in the key: messages have no key bytes; "
                "take a string, bytes, bool, integer, enum or google.protobuf.Timestamp"
            ),
        ),
        (
            FILTER + ' [(tablegate.v1.param) = {\n    column: "booking_count"',
            'optional google.type.Money min_balance = 1 [(tablegate.v1.param) = {\n    column: "balance"',
            (
                f"{SCAN}, message ScanBalancesRequest, "
                'field "min_balance": constrains column "balance", and no operator compares a google.type.Money; '
                "constrain another column, or remove the field"
            ),
        ),
        (
            FILTER + ' [(tablegate.v1.param) = {\n    column: "booking_count"',
            'optional double balance = 1 [(tablegate.v1.param) = {\n    column: "balance"',
            (
                f"{SCAN}, message ScanBalancesRequest, "
                'field "balance": constrains column "balance", and no operator compares a google.type.Money; '
                "constrain another column, or remove the field"
            ),
        ),
    ],
)
def test_amounts_in_keys_and_params_are_refused(old: str, new: str, line: str, tmp_path: Path) -> None:
    text = BALANCES.read_text("utf-8")
    assert old in text
    with pytest.raises(ContractError) as refused:
        bind_sources(tmp_path, examples__balances__v1__balances=text.replace(old, new))
    assert line in str(refused.value).splitlines()
