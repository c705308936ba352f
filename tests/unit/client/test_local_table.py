"""A local table of the Python client, where it takes no gateway: its age, its directory, and the bytes of keys."""

import random
import subprocess
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

import lmdb
import pytest

from tablegate.client.local.directory import CopyDirectory, CopyState, LocalTableError
from tablegate.client.local.freshness import Freshness
from tablegate.client.local.keys import KeyEncoder
from tablegate.gateway.contract.keys import encode_key
from tests.kit.table.contracts import bind_visits

PAGE_BYTES = 4_096
FORKING = """
import os, sys
from tablegate.client.local.directory import CopyDirectory, LocalTableError

def opened():
    return CopyDirectory(sys.argv[1], "rows", map_bytes=2**30, boot_id="run")

directory = opened()
heard, says = os.pipe()
if not os.fork():
    os.close(says)
    try:
        directory.get(b"key")
    except LocalTableError as error:
        print(error, flush=True)
    directory.close()
    os.read(heard, 1)  # until its parent is gone
    os._exit(0)
os.close(heard)
assert directory.get(b"key") is None
directory.close()
opened().close()
print("opened again", flush=True)
"""


def _directory(path: Path) -> CopyDirectory:
    return CopyDirectory(path, "rows", map_bytes=2**30, boot_id="run")


def test_a_copy_of_an_open_directory_is_made_anew(tmp_path: Path) -> None:
    choice = random.Random(5)
    source = _directory(tmp_path / "source")

    def write(numbers: Iterable[int], state: CopyState) -> CopyState:
        for number in numbers:
            source.put(state, b"%08d" % number, choice.randbytes(100))
        state = replace(state, token=f"{state.token}.")
        source.commit(state)
        return state

    state = write(range(5_000), source.publish_copy(source.state))
    state = write([1], state)
    copy = tmp_path / "copy"
    _directory(copy).close()
    with (tmp_path / "source/data.mdb").open("rb", buffering=0) as read, (copy / "data.mdb").open("wb") as written:
        while piece := read.read(64 * PAGE_BYTES if read.tell() else 8 * PAGE_BYTES):
            written.write(piece)
            state = write([choice.randrange(5_000)], state)
    source.close()
    torn = _directory(copy)
    assert (torn.state, torn.count()) == (CopyState(), 0)
    torn.close()
    whole = _directory(tmp_path / "source")
    assert (whole.state.token, whole.count()) == (state.token, 5_000)
    whole.close()


def test_entries_of_rows_that_are_over_are_hidden(tmp_path: Path) -> None:
    over = set[bytes]()
    directory = CopyDirectory(
        tmp_path,
        "rows",
        map_bytes=2**30,
        boot_id="run",
        index_keys=lambda row: [row[:1]],
        gone_now=lambda: over.__contains__,
    )
    state = directory.begin_copy(directory.state)
    for row in (b"a1", b"a2", b"b3"):
        directory.put(state, b"key " + row, row)
    directory.commit(directory.publish_copy(state))

    def found(*, is_descending: bool = False) -> list[bytes]:
        return directory.read(
            lambda moment: [row for *_, row in moment.entries(b"", None, None, is_descending=is_descending)]
        )

    assert found() == found(is_descending=True)[::-1] == [b"a1", b"a2", b"b3"]
    over |= {b"key a2", b"key b3"}
    assert found() == found(is_descending=True) == [b"a1"]
    assert (directory.get(b"key a2"), directory.count()) == (None, 1)
    directory.roll_back()
    directory.close()


@pytest.mark.parametrize("is_lmdb", [True, False])
def test_data_of_another_program_stays(tmp_path: Path, is_lmdb: bool) -> None:
    if is_lmdb:
        with lmdb.open(str(tmp_path)) as environment, environment.begin(write=True) as transaction:
            transaction.put(b"key", b"mine")
    else:
        (tmp_path / "data.mdb").write_text("mine")
    before = (tmp_path / "data.mdb").read_bytes()
    with pytest.raises(LocalTableError, match=r"has a data\.mdb of another program: give a directory of your own"):
        _directory(tmp_path)
    assert (tmp_path / "data.mdb").read_bytes() == before
    assert not (tmp_path / "owner").exists()


def test_a_directory_is_closed_to_what_its_process_forks(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKING, str(tmp_path)], capture_output=True, text=True, timeout=60, check=True
    )
    closed = f'the local table in "{tmp_path}" is closed to a process that was forked: open tables afterwards'
    assert sorted(done.stdout.splitlines()) == ["opened again", closed]


def test_a_directory_closes_while_threads_read_for_the_first_time(tmp_path: Path) -> None:
    directory = _directory(tmp_path)
    over = threading.Event()

    def read() -> None:
        with suppress(LocalTableError):
            directory.get(b"key")
        over.wait()

    threads: list[threading.Thread] = []

    def start() -> None:
        threads.append(threading.Thread(target=read))
        threads[-1].start()
        threads[-1].join(0.02)  # by then it has read, or waits

    def on_event(frame: FrameType, event: str, _: object) -> Any:
        # One more thread reads at each line of the close where the readers are gone through.
        if frame.f_code.co_qualname == "WeakSet.__iter__" and event == "line" and len(threads) < 8:
            start()
        return on_event

    start()
    start()
    before = sys.gettrace()
    sys.settrace(on_event)
    try:
        directory.close()
    finally:
        sys.settrace(before)
        over.set()
    for thread in threads:
        thread.join()
    _directory(tmp_path).close()


@pytest.mark.parametrize("wrong_s", [-3_600.0, 3_600.0])
def test_a_clock_that_is_wrong_makes_nothing_fresh(wrong_s: float) -> None:
    now_s, elapsed_s = [1_000_000.0], [0.0]
    freshness = Freshness(lambda: now_s[0] + wrong_s, lambda: elapsed_s[0])
    assert freshness.age_s is None

    def pass_(seconds: float) -> None:
        now_s[0] += seconds
        elapsed_s[0] += seconds

    freshness.heard(now_s[0] - 0.1)
    for _ in range(10):
        pass_(1.0)
        freshness.heard(now_s[0] - 0.1)
    pass_(7.0)
    assert freshness.age_s is not None
    assert freshness.age_s >= 7.0
    as_of_s = now_s[0]
    for _ in range(5):  # a gateway that is cut off from Kafka sends the same moment again and again
        freshness.heard(as_of_s)
        pass_(10.0)
    assert freshness.age_s >= 50.0
    freshness.disconnected()
    freshness.heard(now_s[0] - 7_200)  # the next gateway's clock is two hours behind
    assert freshness.age_s == pytest.approx(7_200 + wrong_s)


def test_keys_of_several_columns(tmp_path: Path) -> None:
    table = bind_visits(tmp_path).tables["visits"]
    row: Any = table.row_class
    encoder = KeyEncoder(row.DESCRIPTOR)
    moment = datetime(2026, 11, 26, 12, 0, 0, 250, tzinfo=UTC)
    micros = 1_795_694_400_000_250
    for name in ("", "ann", "ann\x00", "büro"):
        key = (name, moment)
        assert encoder.encode(key) == encode_key(table.key, [name, micros])
        visit = row(shop_name=name)
        visit.start_time.FromDatetime(moment)
        assert encoder.key_of(visit) == key
    for wrong, words in {
        "ann": "a key here is a tuple of shop_name, start_time",
        ("ann", datetime(2026, 1, 1)): "needs a datetime with a time zone",
        ("ann", 3): '"start_time" is of type datetime, and int was given',
        (True, moment): '"shop_name" is of type str, and bool was given',
        ("\ud800", moment): '"shop_name" does not hold such a value',
    }.items():
        with pytest.raises(TypeError) as caught:
            encoder.encode(wrong)  # type: ignore[arg-type]
        assert words in str(caught.value)
