"""Protobuf records: which struct a message is, what its bytes become, and the errors of wrong declarations."""

import pickle
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry.common.protobuf import _create_index_array
from google.protobuf.message_factory import GetMessageClass
from pyspark import cloudpickle
from pyspark.sql import functions as sql

from tablegate.jobs.dataflow.decoding import Decoder, decoded_message
from tablegate.jobs.messages import files_of, frame_indexes
from tablegate.jobs.table import DeclarationError, Json, Mode, Protobuf, RowOutput, Source, Table, Text
from tablegate.jobs.testing import Event, UnfitEvent
from tablegate.jobs.testing.events import encode_events
from tests.kit.job.orders.declared import LEGACY, LINE, ORDER, table_of

LINE_TYPE = (
    "struct<product:string,pieces:int,price:struct<currency_code:string,amount:decimal(28,9)>,parts:array<string>>"
)
EMPTY_ORDER: dict[str, Any] = {
    "lines_by_name": [],
    "order_id": "",
    "is_gift": False,
    "delta": 0,
    "small": 0,
    "big": 0,
    "biggest": 0,
    "weight": 0.0,
    "distance": 0.0,
    "raw": b"",
    "status": "STATUS_UNSPECIFIED",
    "history": [],
    "counts": [],
    "lines": [],
    "remark": None,
    "order_time": None,
    "took": None,
    "points": None,
    "extra": None,
    "nothing": None,
    "card": None,
    "cash": None,
}


def decoder_of(form: Protobuf) -> Decoder:
    descriptor = form.descriptor
    return Decoder(files_of(descriptor), descriptor.full_name)


def order(**fields: Any) -> bytes:
    encoded: bytes = GetMessageClass(ORDER.descriptor)(**fields).SerializeToString()
    return encoded


def decoded(form: Protobuf, *messages: bytes | None) -> list[Any]:
    return list(decoder_of(form)(pa.array(messages, pa.binary())).to_pylist())


def test_types() -> None:
    found = {field.name: field.dataType.simpleString() for field in decoder_of(ORDER).schema}
    assert found == {
        "lines_by_name": f"map<string,{LINE_TYPE}>",
        "order_id": "string",
        "is_gift": "boolean",
        "delta": "int",
        "small": "bigint",
        "big": "bigint",
        "biggest": "decimal(20,0)",
        "weight": "float",
        "distance": "double",
        "raw": "binary",
        "status": "string",
        "history": "array<string>",
        "counts": "map<int,bigint>",
        "lines": f"array<{LINE_TYPE}>",
        "remark": "string",
        "order_time": "timestamp",
        "took": "interval day to second",
        "points": "decimal(20,0)",
        "extra": "string",
        "nothing": "struct<>",
        "card": "string",
        "cash": "struct<currency_code:string,amount:decimal(28,9)>",
    }
    assert tuple(found) == ORDER.field_names


def test_what_is_not_set_is_null_where_that_can_be_told() -> None:
    assert decoded(ORDER, b"", None) == [EMPTY_ORDER, None]
    set_to_zero = order(remark="", order_time={}, points={}, nothing={}, card="", extra={}, took={})
    assert decoded(ORDER, set_to_zero) == [
        {
            **EMPTY_ORDER,
            "remark": "",
            "order_time": datetime(1970, 1, 1, tzinfo=UTC),
            "took": timedelta(),
            "points": 0,
            "nothing": {},
            "card": "",
            "extra": "{}",
        }
    ]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"delta": -(2**31)}, {"delta": -(2**31)}),
        ({"small": 2**32 - 1}, {"small": 2**32 - 1}),
        ({"big": -(2**63)}, {"big": -(2**63)}),
        ({"biggest": 2**64 - 1}, {"biggest": 2**64 - 1}),
        ({"points": {"value": 2**64 - 1}}, {"points": 2**64 - 1}),
        ({"weight": float("inf")}, {"weight": float("inf")}),
        ({"raw": b"\0\xff"}, {"raw": b"\0\xff"}),
        ({"order_id": "\0ü😀"}, {"order_id": "\0ü😀"}),
        (
            {"status": 1, "history": [0, 1, -7]},
            {"status": "STATUS_PAID", "history": ["STATUS_UNSPECIFIED", "STATUS_PAID", "-7"]},
        ),
        ({"counts": {-1: 1}}, {"counts": [(-1, 1)]}),
        (
            {"lines_by_name": {"a": {"pieces": 2}}},
            {"lines_by_name": [("a", {"product": "", "pieces": 2, "price": None, "parts": []})]},
        ),
        (
            {"lines": [{"parts": [{"product": "ü", "parts": [{"pieces": 1}]}]}]},
            {
                "lines": [
                    {"product": "", "pieces": 0, "price": None, "parts": ['{"product": "ü", "parts": [{"pieces": 1}]}']}
                ]
            },
        ),
        ({"extra": {"a": [1, None, {"b": "c"}]}}, {"extra": '{"a": [1.0, null, {"b": "c"}]}'}),
        (
            {"order_time": {"seconds": -1, "nanos": 999_999_999}},
            {"order_time": datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)},
        ),
        ({"order_time": {"seconds": -62_135_596_800}}, {"order_time": datetime(1, 1, 1, tzinfo=UTC)}),
        ({"order_time": {"seconds": 253_402_300_799}}, {"order_time": datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)}),
        ({"took": {"seconds": -1, "nanos": -500_000_000}}, {"took": timedelta(seconds=-1.5)}),
        (
            {"cash": {"currency_code": "EUR", "units": -(2**63), "nanos": -999_999_999}},
            {"cash": {"currency_code": "EUR", "amount": Decimal("-9223372036854775808.999999999")}},
        ),
    ],
)
def test_values(given: dict[str, Any], found: dict[str, Any]) -> None:
    assert decoded(ORDER, order(**given)) == [{**EMPTY_ORDER, **found}]


@pytest.mark.parametrize(
    "message",
    [
        b"\xff",
        order(order_id="order-1")[:-1],
        b"\x12\x01\xff",  # a text that is not UTF-8
        order(order_time={"seconds": 253_402_300_800}),
        order(order_time={"seconds": -62_135_596_801}),
        order(order_time={"nanos": -1}),
        order(order_time={"nanos": 1_000_000_000}),
        order(took={"seconds": 315_576_000_001}),
        order(cash={"nanos": 1_000_000_000}),
        order(extra={"a": float("nan")}),
        b"\xa2\x01\x02" * 200,
    ],
)
def test_malformed_messages_are_null_and_harm_no_others(message: bytes) -> None:
    assert decoded(ORDER, b"", message, b"") == [EMPTY_ORDER, None, EMPTY_ORDER]


def test_proto2() -> None:
    assert decoder_of(LEGACY).schema.simpleString() == "struct<name:string,amount:int,box:struct<size:int>>"
    assert decoded(LEGACY, b"\x0a\x01a", b"", b"\x0a\x01\xff", b"\x0a\x00\x10\x00\x1b\x20\x02\x1c") == [
        {"name": "a", "amount": None, "box": None},
        None,  # without what is required
        None,  # a text that is not UTF-8
        {"name": "", "amount": 0, "box": {"size": 2}},
    ]


def test_pickled_decoder_does_the_same() -> None:
    again = pickle.loads(pickle.dumps(decoder_of(ORDER)))
    assert again(pa.array([order(delta=7)])).to_pylist() == [{**EMPTY_ORDER, "delta": 7}]


class AtWorker:
    """Runs a function as a worker does that has neither the project nor the declaration."""

    PROGRAM = (
        "import sys, pickle, pyarrow as pa; sys.modules.update(tablegate=None, tests=None); "
        "decode = pickle.load(sys.stdin.buffer); print(decode(pa.array([b'\\n\\x01a', b''])).to_pylist())"
    )

    def __init__(self, function: Any, _schema: object) -> None:
        self._function = function

    def asNondeterministic(self) -> Self:  # noqa: N802 - as Spark has it
        return self

    def __call__(self, _message: object) -> str:
        command = [sys.executable, "-c", self.PROGRAM]
        return subprocess.run(
            command, input=cloudpickle.dumps(self._function), capture_output=True, check=True
        ).stdout.decode()


@pytest.mark.tools
def test_workers_need_none_of_our_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql, "arrow_udf", AtWorker)
    printed: Any = decoded_message(LEGACY, None)
    assert printed == "[{'name': 'a', 'amount': None, 'box': None}, None]\n"


def test_message_indexes() -> None:
    # Order is the second message of its file; of those nested in it, the second is the entry of a map.
    assert frame_indexes(ORDER.descriptor) == (bytes([2, 2]),)
    assert frame_indexes(LEGACY.descriptor) == (b"\0", bytes([2, 0]))
    nested = {one.name: one for one in ORDER.descriptor.nested_types}
    for name, without_entries in (("Line", 0), ("Note", 1)):
        path = _create_index_array(nested[name])
        assert frame_indexes(nested[name])[0] == bytes([4, *(2 * number for number in path)])
        assert frame_indexes(nested[name])[-1] == bytes([4, 2, 2 * without_entries])


def test_long_message_index(tmp_path: Path) -> None:
    messages = "\n".join(f"message M{number} {{ int32 a = 1; }}" for number in range(65))
    (tmp_path / "many.proto").write_text(f'syntax = "proto3";\n{messages}')
    assert frame_indexes(Protobuf("M64", file=str(tmp_path / "many.proto")).descriptor) == (bytes([2, 0x80, 1]),)


@pytest.mark.parametrize(
    ("form", "words"),
    [
        (Protobuf("tests.orders.Order", file="none.proto"), 'message file "none.proto" is neither in '),
        (
            Protobuf("Order", file="../../kit/job/orders/orders.proto"),
            'has no message "Order"; give its full name, like "tests.orders.Cancelled"',
        ),
        (
            Protobuf("tests.orders.Nothing", file="../../kit/job/orders/legacy.proto"),
            'message "tests.orders.Nothing" has no fields',
        ),
    ],
)
def test_wrong_message_is_refused(form: Protobuf, words: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        Source("orders", form)
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"{__file__}:")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        (
            "bad.proto",
            b'syntax = "proto3";\nmessage Order { int32 }',
            "bad.proto:2:23: Expected field name; correct the message file",
        ),
        ("bad.binpb", b"no descriptors", "is not a descriptor set"),
    ],
)
def test_wrong_file_is_refused(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DeclarationError) as caught:
        Source("orders", Protobuf("Order", file=str(tmp_path / name)))
    assert words in str(caught.value)
    assert "contract" not in str(caught.value).replace("contract.binpb", "").replace(str(Path(__file__).parent), "")


def test_descriptor_set(tmp_path: Path) -> None:
    directory = Path(ORDER.declared_at.file).parent
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{directory}", "--include_imports"]
    command += [f"--descriptor_set_out={tmp_path / 'legacy.binpb'}", "legacy.proto"]
    subprocess.run(command, check=True)
    assert Protobuf("tests.orders.Legacy", file=str(tmp_path / "legacy.binpb")).field_names == LEGACY.field_names


def test_realtime_mode_is_refused() -> None:
    good = {"name": "t", "contract": "c.proto", "key": {"a": "a"}, "columns": {"b": "count(*)"}}
    for source in (Source("orders", ORDER), Source("orders", Json("b INT"), key=LINE)):
        with pytest.raises(DeclarationError) as caught:
            Table(**good, source=source)
        assert (
            f'does not support the Protobuf of source "orders" ({source.declared_at}), which Python decodes; '
            "use mode=Mode.MICROBATCH"
        ) in str(caught.value)


WRITTEN = Path("tests/kit/job/written")
WHOLE = Protobuf("tests.written.Order", file=str(WRITTEN.absolute() / "written.proto"))


def legacy(message: str) -> Protobuf:
    return Protobuf(f"tests.written.{message}", file=str(WRITTEN.absolute() / "legacy.proto"))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([ORDER], 'output "out" is in Protobuf with message "tests.orders.Order.Line" within itself, which no type'),
        ([legacy("Loose")], "in Protobuf with google.protobuf.Struct, whose value has no type; give a message without"),
        ([legacy("Self")], 'in Protobuf with message "tests.written.Self" within itself, which no type of Spark'),
        ([legacy("Grouped")], 'in Protobuf with the group "inner"; give a message without it, or use Json'),
        ([WHOLE, legacy("Legacy")], 'outputs to "out" have different schemas'),
        ([replace(WHOLE, message="tests.written.Nobody")], 'has no message "tests.written.Nobody"; give its full name'),
        ([replace(WHOLE, file="nowhere.proto")], 'output "out": message file "nowhere.proto" is neither in'),
    ],
)
def test_wrong_protobuf_of_an_output_is_refused(values: list[Protobuf], words: str) -> None:
    good = {"name": "t", "contract": "c.proto", "key": {"a": "a"}, "columns": {"b": "count(*)"}}
    outputs = tuple(RowOutput("out", key=Text("a"), value=value) for value in values)
    with pytest.raises(DeclarationError) as caught:
        Table(**good, source=Source("orders", Json("a STRING")), outputs=outputs)
    assert words in str(caught.value)


def test_messages_of_one_file_share_an_output() -> None:
    good = {"name": "t", "contract": "c.proto", "key": {"a": "a"}, "columns": {"b": "count(*)"}}
    values = (WHOLE, replace(WHOLE, message="tests.written.Unused"))
    outputs = tuple(RowOutput("out", key=Text("a"), value=value) for value in values)
    assert Table(**good, source=Source("orders", Json("a STRING")), outputs=outputs).mode is Mode.REALTIME


def test_events_of_the_kit() -> None:
    message = GetMessageClass(ORDER.descriptor)(order_id="a", lines=[{"pieces": 1}])
    fields = {"order_id": "a", "lines": [{"pieces": 1}]}
    ((first, second),) = encode_events(
        table_of(key=LINE), [[Event("orders", value=fields, key={"pieces": 1}), Event("orders", value=message)]]
    )
    assert first.value == second.value == bytes([0, 0, 0, 0, 1, 2, 2]) + message.SerializeToString()
    assert first.key == bytes([0, 0, 0, 0, 1, 4, 2, 0]) + b"\x10\x01"
    ((bare,),) = encode_events(table_of(value=LEGACY), [[Event("orders", value={"name": "a"})]])
    assert bare.value == b"\x0a\x01a"


@pytest.mark.parametrize(
    ("form", "event", "words"),
    [
        (ORDER, Event("orders", value="a"), "value is 'a'; its format Protobuf needs a dict or a tests.orders.Order"),
        (ORDER, Event("orders", value=GetMessageClass(LINE.descriptor)()), "needs a dict or a tests.orders.Order"),
        (ORDER, Event("orders", value={"none": 1}), "value is not a valid tests.orders.Order: "),
        (ORDER, Event("orders", value={"delta": 2**31}), "value is not a valid tests.orders.Order: "),
        (LEGACY, Event("orders", value={"amount": 1}), "value is not a valid tests.orders.Legacy: "),
        (ORDER, Event("orders", value={}, record_type="Order"), "value is in Protobuf, which has no record_type"),
    ],
)
def test_events_that_do_not_fit(form: Protobuf, event: Event, words: str) -> None:
    with pytest.raises(UnfitEvent) as caught:
        encode_events(table_of(value=form), [[event]])
    assert words in str(caught.value)
