"""Whom the client asks: from the contract's annotations, the request, and what gateways said; no network."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from google.protobuf.message import Message
from tablegate.gateway.contract.catalogue import Catalogue
from tablegate.gateway.contract.keys import crc32_partition, encode_key
from tablegate.v1.options_pb2 import PARTITIONER_CRC32, PARTITIONER_MURMUR2
from tablegate.v1.status_pb2 import REPLICA_ROLE_OWNER, REPLICA_ROLE_STANDBY, WatchTableRequest, WatchTableResponse

from tablegate.client.failures import Failure
from tablegate.client.owners import ENDPOINTS_MAX, HEALTH_PAUSE_S, REFUSED_S, Owners, route_of, watch_request
from tests.kit.table.filled import ACTIONS, RATINGS, catalogue_of

PARTITIONS = 6
AWAY_REASONS = Failure("UNAVAILABLE", "connection refused")


class _Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now_s


def _owners(clock: _Clock | None = None) -> Owners:
    return Owners(now_s=clock or _Clock(), random_s=lambda most_s: most_s)


def _told(
    endpoints: Sequence[Sequence[str]],
    *,
    key: Iterable[tuple[str, int]] = (("movie_id", 1),),
    partitioner: Any = PARTITIONER_MURMUR2,
    by: int = 1,
) -> bytes:
    """Return what WatchTable says of a table; the first endpoint of a partition is its owner's."""
    response = WatchTableResponse()
    table = response.table
    table.partitioner, table.partition_count, table.partition_by_count = partitioner, len(endpoints), by
    for name, key_type in key:
        table.key.add(name=name, type=key_type)  # type: ignore[arg-type]
    for number, names in enumerate(endpoints):
        partition = table.partitions.add(partition=number)
        for place, endpoint in enumerate(names):
            role = REPLICA_ROLE_STANDBY if place else REPLICA_ROLE_OWNER
            partition.replicas.add(gateway_id=endpoint, endpoint=endpoint, role=role)
        partition.replicas.add(gateway_id="coming", endpoint="coming:7")
    return response.SerializeToString()


def _path(catalogue: Catalogue, method: str) -> str:
    return next(path for path in catalogue.queries if path.endswith(f"/{method}"))


def _request(method: str, contract: Any = RATINGS, **fields: Any) -> tuple[str, Message]:
    catalogue = catalogue_of(contract)
    path = _path(catalogue, method)
    return path, catalogue.queries[path].request_class(**fields)


def _prove(owners: Owners) -> Sequence[str]:
    due = owners.due_health_checks()
    for endpoint in due:
        owners.health_checked(endpoint, answers=True)
    return sorted(due)


def _endpoints(owners: Owners, path: str, request: Message) -> Sequence[str]:
    route = owners.route(path, request)
    assert route is not None
    return owners.endpoints(route, request)


def test_a_get_goes_to_the_owner_of_its_key() -> None:
    owners = _owners()
    owners.apply("ratings", _told([(f"gw-{number}:7", "other:7") for number in range(PARTITIONS)]))
    assert _prove(owners) == [*(f"gw-{number}:7" for number in range(PARTITIONS)), "other:7"]
    table = catalogue_of().tables["ratings"]
    for number in range(50):
        partition = table.partition_of(_key_of(number), PARTITIONS)
        path, request = _request("GetRating", movie_id=number)
        assert _endpoints(owners, path, request) == [f"gw-{partition}:7", "other:7"]


def _key_of(number: int) -> bytes:
    return encode_key(catalogue_of().tables["ratings"].key, [number])


def test_which_methods_are_routed_by_their_keys() -> None:
    for method, is_routed in (("GetRating", True), ("ListRatings", True), ("BatchGetRatings", False)):
        path, request = _request(method)
        route = _owners().route(path, request)
        assert (route is not None) == is_routed
        assert route is None or route.table == "ratings"
    assert route_of("/no.Service/Get", _request("GetRating")[1].DESCRIPTOR) is None


def test_a_range_that_fixes_no_prefix_goes_anywhere() -> None:
    owners = _owners()
    owners.apply("ratings", _told([("gw:7",)] * PARTITIONS))
    _prove(owners)
    # movie_id_from is a bound, and says no key.
    assert _endpoints(owners, *_request("ListRatings", movie_id_from=3)) == ()


def test_a_range_of_a_prefix_goes_to_its_partition() -> None:
    catalogue = catalogue_of(ACTIONS)
    table = catalogue.tables["action_counts"]
    path = next(path for path, query in catalogue.queries.items() if type(query).__name__ == "RangeQuery")
    request_class = catalogue.queries[path].request_class
    owners = _owners()
    owners.apply(
        "action_counts",
        _told(
            [(f"gw-{number}:7",) for number in range(PARTITIONS)],
            key=[(column.name, int(column.type)) for column in table.key],
            partitioner=PARTITIONER_CRC32 if table.partition_by_count < len(table.key) else PARTITIONER_MURMUR2,
            by=table.partition_by_count,
        ),
    )
    _prove(owners)
    [column, *_] = table.key
    assert table.partition_by_count == 1
    for number in range(20):
        value = f"browser-{number}"
        key = encode_key(table.key, [value])
        found = _endpoints(owners, path, request_class(**{column.name: value}))
        assert found == [f"gw-{crc32_partition(key, PARTITIONS)}:7"]


def test_nobody_is_asked_who_has_not_answered_yet() -> None:
    clock = _Clock()
    owners = _owners(clock)
    path, request = _request("GetRating", movie_id=1)
    assert _endpoints(owners, path, request) == ()
    owners.apply("ratings", _told([("a:7", "b:7", "c:7")] * PARTITIONS))
    assert _endpoints(owners, path, request) == []
    assert sorted(owners.due_health_checks()) == ["a:7", "b:7", "c:7"], "who does not answer from it yet is not asked"
    assert owners.due_health_checks() == []
    owners.health_checked("a:7", answers=False)
    owners.health_checked("b:7", answers=True)
    assert _endpoints(owners, path, request) == ["b:7"]
    assert owners.due_health_checks() == []
    clock.now_s += HEALTH_PAUSE_S
    assert owners.due_health_checks() == ["a:7"]
    owners.health_checked("a:7", answers=True)
    owners.health_checked("c:7", answers=True)
    assert _endpoints(owners, path, request) == ["a:7", "b:7", "c:7"][:ENDPOINTS_MAX]


@pytest.mark.parametrize(
    ("failure", "goes_on", "is_away"),
    [
        (AWAY_REASONS, True, True),
        (Failure("UNAVAILABLE", "going", "SHUTTING_DOWN"), True, True),
        (Failure("DEADLINE_EXCEEDED", "silent"), True, True),
        (Failure("UNAVAILABLE", "moved", "PARTITION_UNAVAILABLE"), True, False),
        (Failure("UNAVAILABLE", "behind", "NOT_CAUGHT_UP"), True, False),
        (Failure("NOT_FOUND", "no row", "ROW_NOT_FOUND"), False, False),
        (Failure("INVALID_ARGUMENT", "bad", "INVALID_FIELD"), False, False),
    ],
)
def test_what_a_failed_call_leads_to(failure: Failure, goes_on: bool, is_away: bool) -> None:
    clock = _Clock()
    owners = _owners(clock)
    owners.apply("ratings", _told([("a:7", "b:7")] * PARTITIONS))
    _prove(owners)
    assert owners.asks_next("a:7", failure) == goes_on
    path, request = _request("GetRating", movie_id=1)
    assert _endpoints(owners, path, request) == (["b:7"] if is_away else ["a:7", "b:7"])
    assert owners.due_health_checks() == []
    clock.now_s += HEALTH_PAUSE_S
    assert owners.due_health_checks() == (["a:7"] if is_away else [])


def test_gateways_that_are_gone_are_forgotten() -> None:
    owners = _owners()
    owners.apply("ratings", _told([("a:7", "b:7")] * PARTITIONS))
    _prove(owners)
    owners.apply("ratings", _told([("b:7", "c:7")] * PARTITIONS))
    assert owners.usable == ["b:7"]
    owners.health_checked("a:7", answers=True)  # an answer that came late
    assert owners.usable == ["b:7"]
    assert _prove(owners) == ["c:7"]


def test_a_gateway_alone_names_nobody() -> None:
    owners = _owners()
    owners.apply("ratings", _told([("",)] * PARTITIONS))
    assert owners.due_health_checks() == []
    assert _endpoints(owners, *_request("GetRating", movie_id=1)) == []


def test_what_is_not_understood_goes_anywhere() -> None:
    path, request = _request("GetRating", movie_id=1)
    for damaged in (
        b"\xff",
        b"",
        _told([("a:7",)] * PARTITIONS, partitioner=9),
        _told([("a:7",)] * PARTITIONS, key=[("movie_id", 9)]),
        _told([("a:7",)] * PARTITIONS, key=[("another", 1)]),
    ):
        owners = _owners()
        owners.apply("ratings", damaged)
        _prove(owners)
        assert list(_endpoints(owners, path, request)) == []


def test_a_watch_that_breaks_is_begun_elsewhere_after_pauses_that_grow() -> None:
    owners = _owners()
    assert WatchTableRequest.FromString(watch_request("ratings")).table == "ratings"
    assert owners.watch_endpoint("ratings") == ""
    owners.apply("ratings", _told([("a:7", "b:7")] * PARTITIONS))
    _prove(owners)
    places, pauses = [], []
    for _ in range(8):
        places.append(owners.watch_endpoint("ratings"))
        pauses.append(owners.watch_ended("ratings", AWAY_REASONS))
    assert places[:4] == ["", "a:7", "b:7", ""]
    assert pauses == sorted(pauses)
    assert pauses[0] < pauses[-1] == 5.0
    owners.apply("ratings", _told([("a:7", "b:7")] * PARTITIONS))
    assert owners.watch_ended("ratings", AWAY_REASONS) == pauses[0]
    assert owners.watch_ended("ratings", Failure("UNIMPLEMENTED", "an older gateway")) == REFUSED_S
    assert owners.usable == ["a:7", "b:7"]
