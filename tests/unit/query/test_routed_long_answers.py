"""Answers that are longer than one gateway hands another: asked for in parts, and no sign of a dead gateway."""

from typing import Any

import grpc
import pytest

from tests.kit.gateways_in_process.answers import failure
from tests.kit.gateways_in_process.cluster import EACH_ON_ONE, EACH_ON_TWO, GrpcCluster, movie_of
from tests.kit.table.filled import rating

KEYS = [{"movie_id": number} for number in range(200)]


def test_a_batch_that_is_too_long_to_be_handed_over_comes_in_parts() -> None:
    with GrpcCluster(EACH_ON_ONE, answer_bytes_max=1_000) as cluster:
        cluster.put(rating(number, count=number) for number in range(150))
        answer, alone = (cluster.ask(each, "BatchGetRatings", keys=KEYS) for each in ("a", ""))
        assert answer.results == alone.results
        options = {"at_least": answer.read_info.consistency_token, "max_wait": {}}
        assert cluster.ask("b", "BatchGetRatings", keys=KEYS, read_options=options).results == alone.results


def test_a_row_that_is_too_long_fails_its_call_alone() -> None:
    with GrpcCluster(EACH_ON_TWO, answer_bytes_max=10, switch_s=30) as cluster:
        there = movie_of(cluster, 2)
        cluster.put([rating(there)])
        cluster.ask_nobody_twice()
        for _ in range(3):
            with pytest.raises(grpc.RpcError) as raised:
                cluster.ask("c", "GetRating", movie_id=there)
            error: Any = raised.value
            code, reason, _ = failure(error)
            assert (code, reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "ANSWER_TOO_LARGE")
        assert len(cluster.calls()) == 3  # one replica each time, as the other has the same row
        forwarder = cluster["c"].router.forwarder
        assert not any(forwarder.is_cooling(peer) for peer in cluster["c"].router.directory.peers)
