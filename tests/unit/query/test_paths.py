"""How many files a Get passes, socket to store and back: a reader has to open each of them to follow one call."""

import asyncio

from tests.bench.paths import FORWARDED_MAX, LOCAL_MAX, measure


def test_a_get_passes_few_files() -> None:
    local, forwarded = asyncio.run(measure())
    assert (LOCAL_MAX, FORWARDED_MAX) == (13, 20)
    assert len(local) <= LOCAL_MAX, sorted(local)
    assert len(forwarded) <= FORWARDED_MAX, sorted(forwarded)
    assert "http/h2/connection.py" in local
    assert "query/get.py" in local
    assert "stores/lmdb/store.py" in local
    assert "cluster/peers.py" in forwarded
