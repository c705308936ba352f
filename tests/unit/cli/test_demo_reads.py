"""The reads of the cluster demo: what a gateway must not do is noticed, and one that is away is passed over."""

import itertools
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from tablegate.examples.demo.failover import Reads
from tablegate.examples.demo.gateways import start_redis
from tablegate.gateway.contract.catalogue import GetQuery
from tests.kit.table.filled import catalogue_of

MOVIE = 1
PATH = "/examples.ratings.v1.RatingsService/GetRating"

Handle = Callable[[Any, grpc.ServicerContext], Any]


def _query() -> GetQuery:
    query = catalogue_of().queries[PATH]
    assert isinstance(query, GetQuery)
    return query


def _response(count: int) -> Any:
    response: Any = _query().response_class()
    response.rating.movie_id, response.rating.rating_count = MOVIE, count
    response.read_info.consistency_token = f"seen {count}"
    return response


@contextmanager
def _server(handle: Handle) -> Iterator[str]:
    """A server that gives the answers of `handle`, however wrong, and the address that it listens on."""
    handler = grpc.unary_unary_rpc_method_handler(
        handle,
        request_deserializer=_query().request_class.FromString,
        response_serializer=_query().response_class.SerializeToString,
    )
    with ThreadPoolExecutor(4) as pool:
        server = grpc.server(pool)
        service, method = PATH.strip("/").split("/")
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, {method: handler})])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield f"127.0.0.1:{port}"
        server.stop(None).wait()


def _named(context: grpc.ServicerContext, name: str) -> None:
    context.set_trailing_metadata((("tablegate-gateway", name), ("tablegate-role", "owner")))


def _read(*handles: Handle, count: int = 4) -> Reads:
    """Read `count` times at servers, one after the other."""
    with ExitStack() as stack:
        addresses = [stack.enter_context(_server(handle)) for handle in handles]
        reads = stack.enter_context(Reads(addresses, _query(), MOVIE))
        for number in range(count):
            while len(reads.answers) <= number:
                reads.step()
                time.sleep(0.001)
            reads.finish()
    return reads


def test_right_answers_are_no_problem_and_each_read_asks_for_what_was_seen() -> None:
    counts = itertools.count(1)
    asked: list[str] = []

    def handle(request: Any, context: grpc.ServicerContext) -> Any:
        asked.append(request.read_options.at_least)
        _named(context, "g1")
        return _response(next(counts))

    reads = _read(handle)
    assert reads.problems() == []
    # A read begins when it is due, whether the one before has its answer or not.
    seen = [int(token.removeprefix("seen ") or 0) for token in asked]
    assert seen[0] == 0
    assert 0 < max(seen) < len(asked)
    assert reads.by_gateway == {"g1": len(asked)}
    # What the last read has seen: of two that are under way the server may answer the later one first.
    assert max(seen) <= reads.rating_count <= len(asked)
    assert {answer.role for answer in reads.answers} == {"owner"}
    second = reads.answers[1]
    assert reads.first_after(second.began_s) == second
    assert reads.first_after(reads.answers[-1].ended_s) is None


def test_an_answer_that_goes_back_is_noticed() -> None:
    counts = iter([5, 4, 5, 5, 5, 5])

    def handle(_request: Any, context: grpc.ServicerContext) -> Any:
        _named(context, "g2")
        return _response(next(counts))

    assert _read(handle).problems() == ["1 answers were older than one before: g2 answered with 4 ratings after 5"]


def test_not_found_is_noticed() -> None:
    def handle(_request: Any, context: grpc.ServicerContext) -> Any:
        context.abort(grpc.StatusCode.NOT_FOUND, "no row has this key")

    reads = _read(handle)
    assert reads.problems() == [
        f"{len(reads.answers)} of {len(reads.answers)} reads failed: NOT_FOUND: no row has this key",
        f"{len(reads.answers)} reads got NOT_FOUND for a row that exists",
    ]
    assert not reads.by_gateway
    assert reads.first_after(0) is None


def test_a_gateway_that_is_away_is_passed_over() -> None:
    def away(_request: Any, context: grpc.ServicerContext) -> Any:
        context.abort(grpc.StatusCode.UNAVAILABLE, "it is being restored")

    def handle(_request: Any, context: grpc.ServicerContext) -> Any:
        _named(context, "g2")
        return _response(1)

    reads = _read(away, handle, count=8)
    assert reads.problems() == []
    assert set(reads.by_gateway) == {"g2"}
    reads = _read(away, away)
    assert reads.problems() == [
        f"{len(reads.answers)} of {len(reads.answers)} reads failed: UNAVAILABLE: it is being restored"
    ]


def test_the_demo_does_without_a_redis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "logs").mkdir()
    with ExitStack() as stack:
        monkeypatch.setenv("PATH", str(tmp_path))
        assert shutil.which("redis-server") is None
        assert start_redis(stack, tmp_path) is None
        broken = tmp_path / "redis-server"
        broken.write_text("#!/bin/sh\nexit 1\n")
        broken.chmod(0o755)
        assert start_redis(stack, tmp_path) is None
