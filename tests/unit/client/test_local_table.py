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
    copy.mkdir()
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
