"""How many files below the protocols a Get passes: a reader has to open each of them to follow one call."""

import asyncio
from collections.abc import Mapping

from tests.bench.paths import measure

LOCAL_MAX, FORWARDED_MAX = 7, 14
"""Of the rooms below http/, which is counted by `python -m tests.bench.paths` alone."""


def below_protocols(calls: Mapping[str, int]) -> list[str]:
    return sorted(file for file in calls if not file.startswith("http/"))


def test_a_get_passes_few_files() -> None:
    local, forwarded = asyncio.run(measure())
    assert len(below_protocols(local)) <= LOCAL_MAX, below_protocols(local)
    assert len(below_protocols(forwarded)) <= FORWARDED_MAX, below_protocols(forwarded)
    assert "query/get.py" in local
    assert "stores/lmdb/store.py" in local
    assert "cluster/peers.py" in forwarded
