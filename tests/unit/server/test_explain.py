"""Who would answer a request, and why: told as it is answered, by each gateway of a cluster."""

from typing import Any

import pytest

from tablegate.gateway.contract.tokens import request_hasher
from tablegate.internal.v1.tokens_pb2 import TOKEN_KIND_SCAN, Token
from tablegate.v1 import cluster_pb2
from tablegate.v1 import status_pb2 as own
from tablegate.v1.status_pb2 import ExplainRequest, ExplainResponse, GetStatusResponse, PartitionPlan
from tests.kit.gateway_processes.gateway import soon
from tests.kit.gateways_in_process.cluster import ALONE, EACH_ON_TWO, GrpcCluster, movie_of
from tests.kit.gateways_in_process.metadata import RATINGS_SERVICE, at, ranked_ids, refused
from tests.kit.table.filled import SIGNER


def _routes(answer: ExplainResponse) -> dict[int, tuple[str, str]]:
    return {
        plan.partition: (own.PartitionRoute.Name(plan.route).removeprefix("PARTITION_ROUTE_"), plan.gateway_id)
        for plan in answer.partitions
    }


def _plan(answer: ExplainResponse) -> PartitionPlan:
    [plan] = answer.partitions
    return plan


def test_a_get_is_explained_as_it_is_answered(cluster: GrpcCluster) -> None:
    cluster.ask_nobody_twice()
    for gateway_id in "abc":
        with at(cluster, gateway_id) as asked:
            for partition in range(6):
                number = movie_of(cluster, partition)
                answer = asked.explain("GetRating", {"movieId": str(number)})
                _, trailer = cluster.ask_whole(gateway_id, "GetRating", movie_id=number)
                assert (answer.query, answer.table, answer.generation) == ("Get", "ratings", 1)
                assert answer.reads == "1 of 6 partitions: that of its movie_id"
                assert answer.freshness == "whatever the gateway has"
                plan = _plan(answer)
                assert plan.partition == partition == int(trailer["tablegate-partition"])
                assert plan.gateway_id == trailer["tablegate-gateway"]
                assert plan.replicas[0].gateway_id == trailer["tablegate-owner"]
                is_here = partition in EACH_ON_TWO[gateway_id]
                assert _routes(answer)[partition][0] == ("HERE" if is_here else "FORWARDED")
                owner = plan.replicas[0].gateway_id
                assert plan.why == ("this gateway has it" if is_here else f'"{owner}" is its owner')


def test_bytes_and_json_are_explained_alike(cluster: GrpcCluster) -> None:
    with at(cluster, "a") as asked:
        request = cluster.request("GetRating", movie_id=7)
        assert asked.explain("GetRating", request.SerializeToString()) == asked.explain("GetRating", {"movie_id": 7})
        assert asked.explain_raw(ExplainRequest(method=f"/{RATINGS_SERVICE}/ScanRatings")).query == "Scan"


def test_a_batch_is_explained_by_its_keys(cluster: GrpcCluster) -> None:
    keys = [{"movieId": movie_of(cluster, partition)} for partition in (5, 0, 4, 0)]
    with at(cluster, "a") as asked:
        answer = asked.explain("BatchGetRatings", {"keys": keys})
    assert answer.reads == "3 of 6 partitions: those of its 4 keys"
    assert [plan.partition for plan in answer.partitions] == [0, 4, 5]
    assert _routes(answer)[0] == ("HERE", "a")
    givers = {_routes(answer)[partition] for partition in (4, 5)}
    assert len(givers) == 1, "one gateway is asked for both"
    [(route, giver)] = givers
    assert route == "FORWARDED"
    cluster.calls()
    cluster.ask_nobody_twice()
    cluster.ask("a", "BatchGetRatings", keys=[{"movie_id": each["movieId"]} for each in keys])
    assert cluster.calls() == [giver]


@pytest.mark.parametrize("method", ["ListRatings", "ScanRatings", "SubscribeRatings"])
def test_what_reads_all_partitions_says_so(cluster: GrpcCluster, method: str) -> None:
    with at(cluster, "a") as asked:
        answer = asked.explain(method)
    why = "one after the other" if method == "ScanRatings" else "as it does not fix movie_id"
    assert answer.reads == f"6 of 6 partitions: all, {why}"
    routes = _routes(answer)
    assert [routes[partition] for partition in range(4)] == [("HERE", "a")] * 4
    assert [routes[partition][0] for partition in (4, 5)] == ["FORWARDED"] * 2


def test_a_subscription_of_some_keys_reads_their_partitions(cluster: GrpcCluster) -> None:
    with at(cluster, "a") as asked:
        [one] = asked.explain("SubscribeRatings", {"movieId": movie_of(cluster, 3)}).partitions
        assert (one.partition, one.gateway_id) == (3, "a")


def test_a_partition_that_nobody_serves_says_what_is_missing(cluster: GrpcCluster) -> None:
    status = GetStatusResponse.FromString(cluster["a"].status)
    for told in status.gateways:
        if told.record.gateway_id != "a":
            told.record.tables[0].serving.phases[:] = [cluster_pb2.REPLICA_PHASE_RESTORING] * 4
    cluster.announce_to(cluster["a"], status.SerializeToString())
    request = {"movieId": movie_of(cluster, 4)}
    with at(cluster, "a") as asked:
        plan = _plan(asked.explain("GetRating", request))
        assert (plan.route, plan.gateway_id) == (own.PARTITION_ROUTE_NONE, "")
        first, second = ranked_ids(4, "bc")
        assert plan.why == f'"{first}" restores it, at offset 0, "{second}" restores it, at offset 0'
        cluster.announce(dead={"b", "c"})
        assert _plan(asked.explain("GetRating", request)).why == "no live gateway has it"
    cluster.whole.hold([0])
    with at(cluster, ALONE) as asked:
        plan = _plan(asked.explain("GetRating", request))
        assert plan.route == own.PARTITION_ROUTE_NONE
        assert plan.why.startswith("this gateway restores it, at offset ")


def test_a_replica_that_does_what_is_not_known_here_is_named_and_not_asked(cluster: GrpcCluster) -> None:
    status = GetStatusResponse.FromString(cluster["a"].status)
    for told in status.gateways:
        if told.record.gateway_id != "a":
            told.record.tables[0].serving.phases[:] = [99] * 4  # type: ignore[list-item]
            del told.record.tables[0].serving.next_offsets[:]
    cluster.announce_to(cluster["a"], status.SerializeToString())
    with at(cluster, "a") as asked:
        plan = _plan(asked.explain("GetRating", {"movieId": movie_of(cluster, 4)}))
    assert plan.route == own.PARTITION_ROUTE_NONE
    first, second = ranked_ids(4, "bc")
    text = "does with it what this gateway does not know, at offset 0"
    assert plan.why == f'"{first}" {text}, "{second}" {text}'


def test_a_standby_is_asked_where_the_owner_did_not_answer(cluster: GrpcCluster) -> None:
    first, second = ranked_ids(4, "bc")
    request = {"movieId": movie_of(cluster, 4)}
    cluster[first].stop()
    with at(cluster, "a") as asked:

        def plan() -> tuple[str, str]:
            cluster.ask("a", "GetRating", movie_id=request["movieId"])  # who fails is avoided for a moment only
            plan = _plan(asked.explain("GetRating", request))
            return plan.gateway_id, plan.why

        why = f'"{second}" is a standby; its owner "{first}" did not answer lately'
        soon(lambda: plan() == (second, why), "the owner that is down is passed over")


def test_a_copy_that_is_not_announced_answers_still(cluster: GrpcCluster) -> None:
    cluster["b"].hold([2, 3, 4])
    cluster.announce()
    cluster["b"].hold([2, 3, 4, 5])  # before it says so
    with at(cluster, "b") as asked:
        plan = _plan(asked.explain("GetRating", {"movieId": movie_of(cluster, 5)}))
    assert (plan.route, plan.gateway_id) == (own.PARTITION_ROUTE_HERE, "b")
    assert plan.why == "this gateway has it, though it does not announce it"


def test_freshness_is_told_and_what_it_lacks(cluster: GrpcCluster) -> None:
    number = movie_of(cluster, 0)
    with at(cluster, "a") as asked:
        for options, text, waits in (
            ({"latest": True}, "latest: all that the changelog has; it waits for half of the time left", ""),
            ({"minimizeLatency": True}, "whatever the gateway has", ""),
            ({"maxStaleness": "3600s", "maxWait": "2s"}, "max_staleness: 3600 s; it waits up to 2 s", ""),
            ({"maxStaleness": "0s"}, "max_staleness: 0 s; it waits for", " s old"),
            (
                {"atLeastSource": {"topics": [{"topic": "ratings", "offsets": {"0": 5}}]}},
                "at_least_source: records of ratings; it waits for",
                "its job has not reported the source offset",
            ),
        ):
            for method, request in (("GetRating", {"movieId": number}), ("ListRatings", {})):
                answer = asked.explain(method, {**request, "readOptions": options})
                assert answer.freshness.startswith(text)
                why = answer.partitions[0].why
                assert why.startswith("this gateway has it; it waits first: ") == bool(waits), why
                assert waits in why


@pytest.mark.parametrize(
    ("method", "request_", "reason"),
    [
        ("GetRating", {"movieId": "many"}, "INVALID_FIELD"),
        ("GetRating", {"movie": 1}, "INVALID_FIELD"),
        ("GetRating", b"\xff", "INVALID_FIELD"),
        ("BatchGetRatings", {"keys": [{"movieId": number} for number in range(1_001)]}, "TOO_MANY_KEYS"),
        ("ListRatings", {"pageSize": -1}, "INVALID_FIELD"),
        ("ListRatings", {"readMask": "nothing"}, "INVALID_FIELD"),
        ("ListRatings", {"pageToken": "x"}, "INVALID_PAGE_TOKEN"),
        ("ScanRatings", {"scanOptions": {"resumeToken": "x"}}, "INVALID_RESUME_TOKEN"),
        ("SubscribeRatings", {"subscribeOptions": {"resumeToken": "x"}}, "INVALID_RESUME_TOKEN"),
        ("SubscribeRatings", {"subscribeOptions": {"progressInterval": "0s"}}, "INVALID_FIELD"),
        ("GetRating", {"movieId": 1, "readOptions": {"atLeast": "x"}}, "INVALID_CONSISTENCY_TOKEN"),
        ("GetRating", {"movieId": 1, "readOptions": {"maxWait": "-1s", "latest": True}}, "INVALID_FIELD"),
        ("ListRatings", {"readOptions": {"atLeastSource": {}}}, "INVALID_FIELD"),
        ("RateMovie", {}, "INVALID_FIELD"),
    ],
)
def test_a_bad_request_is_refused_as_its_method_refuses_it(
    cluster: GrpcCluster, method: str, request_: Any, reason: str
) -> None:
    for gateway_id in "abc":
        with at(cluster, gateway_id) as asked:
            code, told, _ = refused(lambda asked=asked: asked.explain(method, request_))  # type: ignore[misc]
            assert (code, told) == ("INVALID_ARGUMENT", reason)


def test_a_scan_that_goes_on_reads_the_rest(cluster: GrpcCluster) -> None:
    query = cluster.catalogue.queries[cluster.path("ScanRatings")]
    token = Token(kind=TOKEN_KIND_SCAN, table="ratings", generation=1, partition=4)
    token.request_hash = request_hasher(query)(query.request_class())
    with at(cluster, "b") as asked:
        answer = asked.explain("ScanRatings", {"scanOptions": {"resumeToken": SIGNER.sign(token)}})
    assert answer.reads == "2 of 6 partitions: those behind its resume token, one after the other"
    assert [plan.partition for plan in answer.partitions] == [4, 5]
