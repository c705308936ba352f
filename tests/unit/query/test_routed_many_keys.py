"""BatchGet of as many keys as a contract may allow, of a table whose partitions are spread over three gateways."""

import random
from collections.abc import Iterator

import grpc
import pytest

from tests.kit.gateways_in_process.cluster import ALONE, EACH_ON_ONE, GrpcCluster
from tests.kit.table.filled import RATINGS, rating

KEYS = 1_000
ROWS = 900


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GrpcCluster]:
    path = tmp_path_factory.mktemp("contract") / "examples/ratings/v1/ratings.proto"
    path.parent.mkdir(parents=True)
    text = RATINGS.read_text("utf-8")
    path.write_text(text.replace("max_keys: 500", f"max_keys: {KEYS}"), "utf-8")
    with GrpcCluster(EACH_ON_ONE, contract=path) as cluster:
        cluster.put(rating(number, count=number) for number in range(ROWS))
        yield cluster


@pytest.mark.parametrize("gateway_id", EACH_ON_ONE)
def test_each_other_gateway_is_called_once(cluster: GrpcCluster, gateway_id: str) -> None:
    numbers = random.Random(gateway_id).sample(range(KEYS), KEYS)
    keys = [{"movie_id": number} for number in numbers]
    answer = cluster.ask(gateway_id, "BatchGetRatings", keys=keys)
    assert sorted(cluster.calls()) == sorted(set("abc") - {gateway_id})
    assert answer.results == cluster.ask(ALONE, "BatchGetRatings", keys=keys).results
    assert [result.found.rating_count for result in answer.results if result.HasField("found")] == [
        number for number in numbers if number < ROWS
    ]


def test_keys_of_one_gateway_take_one_call(cluster: GrpcCluster) -> None:
    table = cluster.whole.table
    keys = [{"movie_id": number} for number in range(ROWS) if table.partition_of(rating(number)) in EACH_ON_ONE["c"]]
    assert len(cluster.ask("a", "BatchGetRatings", keys=keys).results) == len(keys) > ROWS / 4
    assert cluster.calls() == ["c"]


def test_one_key_more_is_refused_where_it_is_asked(cluster: GrpcCluster) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        cluster.ask("a", "BatchGetRatings", keys=[{"movie_id": number} for number in range(KEYS + 1)])
    error: grpc.Call = raised.value  # type: ignore[assignment]
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert cluster.calls() == []
