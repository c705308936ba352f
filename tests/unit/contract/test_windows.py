"""Windows and retention in a contract, and what they make of keys."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tablegate.gateway.contract.binder.binder import ContractError
from tablegate.gateway.contract.catalogue import Catalogue, GetQuery, RangeQuery, ScanQuery, SubscribeQuery, Table
from tablegate.gateway.contract.keys import (
    InvalidKey,
    KeyColumn,
    KeyType,
    after_prefix,
    column_place,
    decode_key,
    encode_key,
)
from tablegate.gateway.contract.windows import Expiry, Window
from tests.kit.table.contracts import RATINGS, bind_ratings, bind_sources
from tests.kit.table.filled import ACTIONS as ACTIONS_PATH
from tests.kit.table.filled import catalogue_of
from tests.kit.table.wrong_contracts import Edit, edit

ACTIONS = ACTIONS_PATH.read_text("utf-8")
SERVICE = "/examples.actions.v1.ActionCountsService"

_WINDOW = ACTIONS[ACTIONS.index("    window: {") : ACTIONS.index("    retention:")]
_SIZE, _HOP = "size: {seconds: 5}", "hop: {seconds: 2}"
_START, _END = 'start_column: "window_start"', 'end_column: "window_end"'
_RETENTION = "    retention: {seconds: 86400}\n"

WRONG = [
    edit("no size", _SIZE, "", 'field "window.size"', "no size"),
    *[
        edit(f"size of {text}", _SIZE, f"size: {{{text}}}", 'field "window.size"', "whole microseconds")
        for text in ("", "seconds: -5", "seconds: 5 nanos: 1", "seconds: 315576000001")
    ],
    edit("size too long", _SIZE, "size: {seconds: 9223372036854775807}", 'field "window.size"', "10,000 years"),
    edit("no hop", _HOP, "hop: {}", 'field "window.hop"', "0 s is no length", "above 0"),
    edit("negative hop", _HOP, "hop: {seconds: -1}", 'field "window.hop"', "-1 s is no length"),
    edit("hop above size", _HOP, "hop: {seconds: 6}", 'field "window.hop"', "longer than the window"),
    edit("no start", _START, "", 'field "window.start_column"', "no start column"),
    edit("unknown start", _START, 'start_column: "begin"', 'field "window.start_column"', '"begin" is no column'),
    Edit(
        "start not in key",
        ((_START, 'start_column: "window_end"'), (_END, "")),
        ("window.start_column", "no column of the key"),
    ),
    edit("text as start", _START, 'start_column: "browser"', "window.start_column", '"browser" is a string'),
    edit("start as end", _END, 'end_column: "window_start"', "window.end_column", "the start column too"),
    edit("unknown end", _END, 'end_column: "close"', "window.end_column", '"close" is no field of message ActionCount'),
    edit("number as end", _END, 'end_column: "action_count"', "window.end_column", '"action_count" is a int64'),
    edit("retention without window", _WINDOW, "", 'field "retention"', "no window", "how old a row is"),
    edit("retention of nothing", _RETENTION, "    retention: {}\n", 'field "retention"', "0 s is no length"),
    edit("negative retention", _RETENTION, "    retention: {nanos: -1000}\n", 'field "retention"', "-1e-06 s is no"),
    edit("retention too fine", _RETENTION, "    retention: {nanos: 1500}\n", 'field "retention"', "microseconds"),
]


def bind_actions(directory: Path, text: str = ACTIONS) -> Catalogue:
    return bind_sources(directory, examples__actions__v1__actions=text)


def actions() -> Table:
    return catalogue_of(ACTIONS_PATH).tables["action_counts"]


@pytest.mark.parametrize("wrong", WRONG, ids=[wrong.name for wrong in WRONG])
def test_a_wrong_window_is_refused(wrong: Edit, tmp_path: Path) -> None:
    with pytest.raises(ContractError) as raised:
        bind_actions(tmp_path, wrong.apply(ACTIONS))
    [line] = str(raised.value).splitlines()
    assert line.startswith("examples/actions/v1/actions.proto: message ActionCount, field ")
    for word in wrong.words:
        assert word in line


def test_problems_of_key_and_window_come_at_once(tmp_path: Path) -> None:
    text = ACTIONS.replace('    key: "window_start"\n', '    key: "window_begin"\n').replace(_SIZE, "")
    with pytest.raises(ContractError) as raised:
        bind_actions(tmp_path, text)
    wrong = {problem.field for problem in raised.value.problems if problem.subject == "message ActionCount"}
    assert wrong == {"window_begin", "window.size", "window.start_column"}


def test_the_example_binds() -> None:
    catalogue = catalogue_of(ACTIONS_PATH)
    table = actions()
    assert table.window is not None
    assert (table.window.size_us, table.window.hop_us) == (5_000_000, 2_000_000)
    assert (table.window.start_index, table.window.end_column) == (1, "window_end")
    assert table.window.leading == (KeyColumn("browser", KeyType.STRING),)
    assert table.retention_us == 86_400_000_000
    get, listed, scan, subscribe = (
        catalogue.queries[f"{SERVICE}/{name}"]
        for name in ("GetActionCount", "ListActionCounts", "ScanActionCounts", "SubscribeActionCounts")
    )
    assert isinstance(get, GetQuery)
    assert get.missing_is_empty
    assert isinstance(listed, RangeQuery)
    assert [param.column.name for param in listed.prefix] == ["browser"]
    assert [param.field.name for param in listed.bounds] == ["window_start_from", "window_start_before"]
    assert not listed.scatter
    assert isinstance(scan, ScanQuery)
    assert isinstance(subscribe, SubscribeQuery)
    assert {route.path for route in catalogue.routes} == set(catalogue.queries)


def test_a_window_without_hop_or_end_column(tmp_path: Path) -> None:
    table = bind_actions(tmp_path, ACTIONS.replace(_HOP, "").replace(_END, "")).tables["action_counts"]
    assert table.window is not None
    assert (table.window.hop_us, table.window.end_column) == (5_000_000, None)


def test_a_window_without_retention_keeps_its_rows(tmp_path: Path) -> None:
    table = bind_actions(tmp_path, ACTIONS.replace(_RETENTION, "")).tables["action_counts"]
    assert table.window is not None
    assert table.expiry is table.retention_us is None


def test_a_table_without_windows(tmp_path: Path) -> None:
    table = bind_ratings(tmp_path, RATINGS).tables["ratings"]
    assert table.window is table.expiry is None


def test_the_fingerprint_is_of_the_window_and_not_of_the_retention(tmp_path: Path) -> None:
    def fingerprint(old: str = "", new: str = "") -> bytes:
        return bind_actions(tmp_path, ACTIONS.replace(old, new)).tables["action_counts"].fingerprint

    same = fingerprint()
    assert fingerprint(_RETENTION) == fingerprint(_RETENTION, "    retention: {seconds: 1}\n") == same
    assert fingerprint(_END) == same  # start + size, whatever it is called
    others = {
        fingerprint(_SIZE, "size: {seconds: 6}"),
        fingerprint(_HOP, "hop: {seconds: 1}"),
        fingerprint(_WINDOW + _RETENTION),
    }
    assert len(others) == 3
    assert same not in others


def test_the_fingerprint_is_of_the_start_column(tmp_path: Path) -> None:
    key = '    key: "window_start"\n'
    text = ACTIONS.replace(key, f'{key}    key: "window_end"\n').replace(_END, "")
    required = "[(google.api.field_behavior) = REQUIRED];"
    start = f"google.protobuf.Timestamp window_start = 2 {required}"
    text = text.replace(start, f"{start}\n  google.protobuf.Timestamp window_end = 9 {required}")
    one, other = (
        bind_actions(tmp_path, text.replace(_START, f'start_column: "{column}"')).tables["action_counts"]
        for column in ("window_start", "window_end")
    )
    assert one.key == other.key
    assert one.fingerprint != other.fingerprint


def test_a_hop_that_is_said_is_the_size(tmp_path: Path) -> None:
    said = bind_actions(tmp_path, ACTIONS.replace(_HOP, "hop: {seconds: 5}"))
    unsaid = bind_actions(tmp_path, ACTIONS.replace(_HOP, ""))
    assert said.tables["action_counts"].fingerprint == unsaid.tables["action_counts"].fingerprint


_VALUES = {
    KeyType.INT64: st.integers(-(2**63), 2**63 - 1),
    KeyType.TIMESTAMP: st.integers(-(2**63), 2**63 - 1),
    KeyType.BOOL: st.booleans(),
    KeyType.STRING: st.text(max_size=4) | st.sampled_from(["", "\x00", "a\x00"]),
    KeyType.BYTES: st.binary(max_size=4) | st.sampled_from([b"", b"\x00", b"\xff"]),
}


@st.composite
def keys(draw: st.DrawFn) -> tuple[list[KeyColumn], int, bytes]:
    """Draw key columns, the place of a timestamp among them, and a key."""
    types = draw(st.lists(st.sampled_from(KeyType), max_size=3))
    index = draw(st.integers(0, len(types)))
    types.insert(index, KeyType.TIMESTAMP)
    columns = [KeyColumn(str(place), type_) for place, type_ in enumerate(types)]
    return columns, index, encode_key(columns, [draw(_VALUES[type_]) for type_ in types])


def expiry_of(columns: list[KeyColumn], index: int, *, size_us: int = 5, retention_us: int = 7) -> Expiry:
    leading, place = tuple(columns[:index]), column_place(columns, index)
    window = Window(size_us=size_us, hop_us=size_us, leading=leading, end_column=None, start_place=place)
    return Expiry(window, retention_us)


@given(keys())
def test_a_row_expires_its_retention_after_its_window(drawn: tuple[list[KeyColumn], int, bytes]) -> None:
    columns, index, key = drawn
    start_us = decode_key(columns, key)[index]
    assert isinstance(start_us, int)
    expiry = expiry_of(columns, index)
    assert expiry.at_us(key) == start_us + 5 + 7
    assert not expiry.is_gone(key, start_us + 11)
    assert expiry.is_gone(key, start_us + 12)
    assert key.startswith(expiry.window.run(key))


@given(keys(), st.binary(max_size=20) | st.just(b""))
def test_what_is_no_key_never_raises_anything_else(drawn: tuple[list[KeyColumn], int, bytes], other: bytes) -> None:
    columns, index, key = drawn
    expiry = expiry_of(columns, index)
    for damaged in (other, key[: len(other)], key[len(other) :]):
        expiry.is_gone(damaged, 0)
        try:
            expiry.window.run(damaged)
        except InvalidKey:
            continue


@pytest.mark.parametrize("key", [b"", b"\x00\x00", b"a\x00\x00" + b"\x80" * 4])
def test_a_key_without_a_start_is_none(key: bytes) -> None:
    expiry = actions().expiry
    assert expiry is not None
    with pytest.raises(InvalidKey, match="the start of the window is missing"):
        expiry.at_us(key)
    assert expiry.is_gone(key, -(2**70))


@given(
    st.lists(st.tuples(st.sampled_from(["", "a", "a\x00", "b", "\x7f"]), st.integers(-40, 40)), max_size=30),
    st.integers(-60, 60),
)
def test_a_run_is_one_stretch_whose_beginning_is_gone(windows: list[tuple[str, int]], now_us: int) -> None:
    table = actions()
    expiry = expiry_of(list(table.key), 1)
    every = sorted(encode_key(table.key, window) for window in windows)
    for key in every:
        run = expiry.window.run(key)
        end = after_prefix(run)
        assert end is not None
        stretch = [other for other in every if run <= other < end]
        assert stretch == [other for other in every if decode_key(table.key, other)[0] == decode_key(table.key, key)[0]]
        kept_from = expiry.kept_from(run, now_us)
        for other in stretch:
            assert expiry.is_gone(other, now_us) is (other < kept_from)


def test_the_ends_of_time_are_no_trouble() -> None:
    expiry = expiry_of([KeyColumn("start", KeyType.TIMESTAMP)], 0)
    assert expiry.kept_from(b"", -(2**70)) == b"\x00" * 8
    assert expiry.kept_from(b"", 2**70) == b"\xff" * 8
