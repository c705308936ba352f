"""The world of scenarios about reads: gateways that ask each other over real sockets, and their rows by hand.

What replicators would do is done by the commands, so that a test says when each gateway goes to another generation.
A row's count is 1,000 times its generation, and its movie. Commands:

    gateways a=0..2 b=3..5               begin, with partitions of generation 1 on each; movies 0 to 59 are there
    switch b generation=2 partitions=12 holds=0..11    let one of them answer from another generation
    announce [dead=c]                    let all hear what each has
    store a away | back                  take its store from a gateway
    stop b | start b
    get a 7                              ask a gateway for a row, for rows by key, for all rows a page at a time,
    batch a 1,2,3                        or as a stream
    list a
    scan a
"""

from collections.abc import Iterator
from typing import Any

import grpc
from google.rpc import error_details_pb2, status_pb2

from tablegate.gateway.contract.types import Partition
from tests.kit.gateways_in_process.cluster import GrpcCluster
from tests.kit.scenarios.script import Command, numbers_of, text_of
from tests.kit.store.breaking import GONE
from tests.kit.table.filled import rating

MOVIES = range(60)
TIMEOUT_S = 30.0  # none takes that long
PAGE_ROWS = 25


class GatewayScenario:
    """What the commands are done with."""

    def __init__(self) -> None:
        self._gateways: GrpcCluster | None = None

    def __enter__(self) -> "GatewayScenario":
        return self

    def __exit__(self, *_: object) -> None:
        if self._gateways is not None:
            self._gateways.__exit__()

    def run(self, command: Command) -> Iterator[str]:
        """Do a command; yield what it prints."""
        match command.words:
            case ["gateways"]:
                held = {name: numbers_of(numbers) if numbers else [] for name, numbers in command.options.items()}
                self._gateways = GrpcCluster(held).__enter__()
                self._gateways.put(_rows(1))
            case ["switch", name]:
                self._switch(command, name)
            case ["announce"]:
                self._cluster.announce(dead=tuple(filter(None, command.options.get("dead", "").split(","))))
            case ["store", name, "away" | "back" as state]:
                store = self._cluster[name].store
                store.breaks(GONE) if state == "away" else store.mends()
            case ["stop", name]:
                self._cluster[name].stop()
            case ["start", name]:
                self._cluster[name].start()
                self._cluster.announce()
            case ["get" | "batch" | "list" | "scan" as kind, name, *words]:
                try:
                    yield self._read(kind, name, words)
                except grpc.RpcError as error:
                    yield _failure(error)
            case _:
                command.fail("there is no such command")

    @property
    def _cluster(self) -> GrpcCluster:
        assert self._gateways is not None, '"gateways" comes first'
        return self._gateways

    def _switch(self, command: Command, name: str) -> None:
        options, gateway = command.options, self._cluster[name]
        gateway.table.generation = int(options["generation"])
        gateway.table.partition_count = int(options["partitions"])
        gateway.do(gateway.table.publish)
        gateway.hold(numbers_of(options["holds"]))
        gateway.held = frozenset(map(Partition, numbers_of(options["holds"])))
        gateway.put(_rows(gateway.table.generation))

    def _read(self, kind: str, name: str, words: list[str]) -> str:
        cluster = self._cluster
        rows: list[Any] = []
        match kind:
            case "get":
                answer = cluster.ask(name, "GetRating", timeout_s=TIMEOUT_S, movie_id=int(words[0]))
                rows.append(answer.rating)
            case "batch":
                keys = [{"movie_id": number} for number in numbers_of(words[0])]
                results = cluster.ask(name, "BatchGetRatings", timeout_s=TIMEOUT_S, keys=keys).results
                rows += [result.found for result in results if result.HasField("found")]
            case "list":
                token = ""
                while token or not rows:
                    page = cluster.ask(name, "ListRatings", timeout_s=TIMEOUT_S, page_size=PAGE_ROWS, page_token=token)
                    rows += page.ratings
                    token = page.next_page_token
                    if not token:
                        break
            case "scan":
                rows += [row for message in cluster.stream(name, "ScanRatings") for row in message.ratings]
        generations: dict[int, list[int]] = {}
        for row in rows:
            generations.setdefault(row.rating_count // 1_000, []).append(row.movie_id)
        return "; ".join(
            f"generation {generation}: movies {text_of(movies)}" for generation, movies in sorted(generations.items())
        )


def _rows(generation: int) -> list[Any]:
    return [rating(number, count=1_000 * generation + number) for number in MOVIES]


def _failure(error: Any) -> str:
    details = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin")
    info = error_details_pb2.ErrorInfo()
    if details is not None:
        status = status_pb2.Status.FromString(details)
        any(detail.Unpack(info) for detail in status.details)
    return f"{error.code().name} {info.reason}"
