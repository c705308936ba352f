"""Indexes agree with their rows whenever and wherever their writer is killed."""

import random
import shutil
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from tablegate.gateway.stores.lmdb.store import LmdbStore
from tablegate.gateway.stores.redis.store import RedisStore
from tests.kit.programs.redis import RedisServer, needs_redis
from tests.kit.store.crash_indexes import KILLS_PER_POINT, POINTS, check_indexes

LMDB_KILLS = 15
REDIS_KILLS = 5
LONG_KILLS = 300


def kill_writer(where: str, after_s: float) -> None:
    writer = subprocess.Popen([sys.executable, "-m", "tests.kit.store.crash_indexes", where], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    assert writer.stdout.readline() == b"writing\n"
    time.sleep(after_s)
    writer.kill()
    writer.wait()
    writer.stdout.close()


def kill_writers_to_lmdb(directory: Path, kills: int) -> int:
    """Return how many whole indexes were seen."""
    random_ = random.Random(8)
    whole = 0
    for _ in range(kills):
        kill_writer(str(directory), random_.uniform(0, 0.08))
        store = LmdbStore(directory)
        whole += check_indexes(store)
        store.abandon()
        if random_.random() < 0.1:
            shutil.rmtree(directory)
    return whole


def kill_writers_to_redis(server: RedisServer, kills: int) -> int:
    """Return how many whole indexes were seen."""
    random_ = random.Random(9)
    whole, url = 0, server.new_url()
    for _ in range(kills):
        kill_writer(url, random_.uniform(0, 0.2))
        with closing(RedisStore(url)) as store:
            whole += check_indexes(store)
        if random_.random() < 0.1:
            url = server.new_url()
    return whole


@pytest.mark.tools
def test_indexes_agree_with_rows_whenever_the_store_is_killed(tmp_path: Path) -> None:
    """Batches come, indexes are built and removed: each that is whole has the entries of the rows, and no others."""
    assert kill_writers_to_lmdb(tmp_path / "store", LMDB_KILLS) > LMDB_KILLS


@needs_redis
@pytest.mark.tools
def test_indexes_in_redis_agree_with_rows_whenever_the_writer_is_killed(redis_server: RedisServer) -> None:
    assert kill_writers_to_redis(redis_server, REDIS_KILLS) > REDIS_KILLS


@pytest.mark.tools
def test_indexes_agree_with_rows_wherever_a_write_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.kit.store.crash_indexes", str(tmp_path / "store"), "POINTS"]
    ended = subprocess.run(command, capture_output=True, check=False, text=True)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("killed at") == KILLS_PER_POINT * len(POINTS)


@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_indexes_agree_with_rows_after_hundreds_of_kills(tmp_path: Path) -> None:
    assert kill_writers_to_lmdb(tmp_path / "store", LONG_KILLS) > LONG_KILLS


@needs_redis
@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_indexes_in_redis_agree_with_rows_after_hundreds_of_kills(redis_server: RedisServer) -> None:
    assert kill_writers_to_redis(redis_server, LONG_KILLS) > LONG_KILLS
