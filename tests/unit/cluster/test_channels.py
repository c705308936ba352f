"""Calls between real cluster: over TLS, with certificates that change, to gateways that come and go."""

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from tablegate.gateway.http.tls import TlsFiles
from tests.kit.gateways_in_process.cluster import GrpcCluster
from tests.kit.http.certificates import Authority
from tests.kit.table.filled import rating

HELD = {"a": [0, 1, 2], "b": [3, 4, 5]}
ROWS = 60


def filled(cluster: GrpcCluster) -> GrpcCluster:
    cluster.put(rating(number, count=number) for number in range(ROWS))
    return cluster


def movies_at(cluster: GrpcCluster, gateway_id: str) -> list[int]:
    """Return the movies that one gateway has."""
    return [number for number in range(ROWS) if cluster.whole.table.partition_of(rating(number)) in HELD[gateway_id]]


def count_of(cluster: GrpcCluster, number: int) -> int:
    return int(cluster.ask("a", "GetRating", movie_id=number).rating.rating_count)


@pytest.fixture
def tls(tmp_path: Path) -> TlsFiles:
    authority = Authority(tmp_path)
    pair = authority.issue()
    return TlsFiles(pair.certificate, pair.key, authority.certificate)


@pytest.fixture
def secured(tls: TlsFiles) -> Iterator[GrpcCluster]:
    with GrpcCluster(HELD, tls=tls) as cluster:
        yield filled(cluster)


def test_gateways_show_each_other_their_certificates(secured: GrpcCluster) -> None:
    for number in range(ROWS):
        assert count_of(secured, number) == number
    assert set(secured.calls()) == {"b"}


def test_other_certificates_are_used_once_they_are_there(secured: GrpcCluster, tmp_path: Path) -> None:
    there = movies_at(secured, "b")[0]
    assert count_of(secured, there) == there
    secured["b"].stop()
    Authority(tmp_path).issue()
    secured["b"].start()
    assert count_of(secured, there) == there


def test_streams_go_over_the_same_channels(secured: GrpcCluster) -> None:
    for _ in range(2):
        found = [row.movie_id for message in secured.stream("a", "ScanRatings") for row in message.ratings]
        assert sorted(found) == list(range(ROWS))


def test_a_gateway_that_is_back_is_asked_again() -> None:
    with GrpcCluster(HELD) as cluster:
        filled(cluster)
        there = movies_at(cluster, "b")[0]
        for _ in range(2):
            cluster["b"].stop()
            cluster.announce(dead=["b"])
            with pytest.raises(grpc.RpcError):
                count_of(cluster, there)
            cluster["b"].start()
            cluster.announce()
            assert count_of(cluster, there) == there


def test_a_gateway_may_come_back_elsewhere() -> None:
    with GrpcCluster(HELD) as cluster:
        filled(cluster)
        there = movies_at(cluster, "b")[0]
        assert count_of(cluster, there) == there
        old_port = cluster["b"].port
        cluster["b"].stop()
        cluster["b"].port = 0
        cluster["b"].start()
        assert cluster["b"].port != old_port
        cluster.announce()
        assert count_of(cluster, there) == there


def test_calls_to_a_gateway_that_is_taken_for_dead_end() -> None:
    with GrpcCluster(HELD) as cluster:
        filled(cluster)
        cluster["b"].hangs = True
        cluster["b"].on_call = lambda: cluster["a"].router.forwarder.keep(())
        with pytest.raises(grpc.RpcError) as raised:
            count_of(cluster, movies_at(cluster, "b")[0])
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE


def test_reads_that_ask_for_freshness_count_as_answers_too() -> None:
    """What may be asked twice is a share of all answers: clients that pass tokens are to have it as well."""
    with GrpcCluster(HELD) as cluster:
        filled(cluster)
        there = movies_at(cluster, "b")[0]
        token = cluster.ask("a", "GetRating", movie_id=there).read_info.consistency_token
        forwarder = cluster["a"].router.forwarder
        cluster.ask_nobody_twice()
        for _ in range(20):
            cluster.ask("a", "GetRating", movie_id=there, read_options={"at_least": token})
        assert forwarder.may_hedge()


def test_a_proxy_of_the_environment_is_not_for_gateways(monkeypatch: pytest.MonkeyPatch) -> None:
    with GrpcCluster(HELD) as cluster:
        filled(cluster)
        assert count_of(cluster, movies_at(cluster, "a")[0]) >= 0  # our own channel is there before
        for name in ("no_grpc_proxy", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        for name in ("grpc_proxy", "http_proxy"):
            monkeypatch.setenv(name, "http://127.0.0.1:9")  # where nobody listens
        there = movies_at(cluster, "b")[0]
        assert count_of(cluster, there) == there
