"""A local table of the Python client: against gateways, killed, with other contracts, callers, clocks and disks."""

import contextlib
import math
import os
import random
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import pytest

from tablegate.client import ContractMismatch, SubscribeError, open_channel
from tablegate.client.failures import failure_of
from tablegate.client.local import LocalLimits, LocalReadError, LocalTable, LocalTableError
from tablegate.examples.demo.kafka import HOST, Broker, free_port
from tests.kit.gateway_processes.changelog import RatingsChangelog
from tests.kit.gateway_processes.gateway import GatewayProcess, soon
from tests.kit.gateways_in_process.client_copies import request, stub_method
from tests.kit.gateways_in_process.cluster import ClusterGateway
from tests.kit.gateways_in_process.local_copies import (
    NOWHERE,
    OFTEN,
    ROW,
    SMALL,
    Copier,
    Log,
    counts_of,
    local_ratings,
    prefixes,
)
from tests.kit.gateways_in_process.ratings import RatingsServer
from tests.kit.gateways_in_process.tenants import POLICY, World, write_access
from tests.kit.programs.machine import NoSmallDisk, small_disk
from tests.kit.table.contracts import RATINGS, bind_ratings, bind_visits, edited
from tests.kit.table.filled import catalogue_of

WAIT_S = 60.0
PARTITIONS = 3
KILLS = 12


@pytest.fixture
def server() -> Iterator[RatingsServer]:
    with RatingsServer() as server:
        yield server


def follow(server: RatingsServer, directory: Path, **more: Any) -> dict[int, int]:
    """Return what a local table has once it is current."""
    with local_ratings(server.address, directory, **more) as (table, _):
        table.wait_current(WAIT_S)
        return counts_of(table)


def test_a_local_table_follows(server: RatingsServer, tmp_path: Path) -> None:
    server.put(range(5_000))
    with local_ratings(server.address, tmp_path) as (table, _):
        table.wait_current(WAIT_S)
        assert counts_of(table) == server.counts
        server.put([3, 9_999])
        server.delete([4])
        soon(lambda: counts_of(table) == server.counts, "the changes")
        row = table.get(3)
        assert row is not None
        assert (row.movie_id, table.get(4), table.count()) == (3, None, 5_000)
        assert [row and row.movie_id for row in table.batch_get([9_999, 4, 3])] == [9_999, None, 3]
        assert table.is_current
        assert table.as_of is not None
        assert (datetime.now(UTC) - table.as_of).total_seconds() < WAIT_S
        assert table.age_s is not None
    with pytest.raises(LocalTableError, match="is closed"):
        table.get(3)
    with pytest.raises(RuntimeError, match="closed"):
        table.wait_current(WAIT_S)


def test_ranges_are_in_key_order_and_go_on_behind_a_page(server: RatingsServer, tmp_path: Path) -> None:
    ids = random.Random(1).sample(range(-(2**31), 2**31), 3_000)
    server.put(ids)
    ids.sort()
    with local_ratings(server.address, tmp_path) as (table, _):
        table.wait_current(WAIT_S)

        def ranged(*leading: int, **bounds: Any) -> list[int]:
            return [row.movie_id for row in table.range(*leading, **bounds)]

        assert [row.movie_id for row in table.scan()] == ids
        assert ranged() == ids[:1_000]
        assert ranged(start=ids[10], end=ids[20]) == ids[10:20]
        assert ranged(start=ids[10], end=ids[20], descending=True, limit=3) == ids[19:16:-1]
        assert ranged(ids[7]) == [ids[7]]
        assert ranged(after=ids[9], limit=5) == ids[10:15]
        assert ranged(after=ids[9], descending=True) == ids[8::-1]
        assert ranged(start=ids[-1], end=None) == ids[-1:]
        assert ranged(descending=True, limit=2) == ids[:-3:-1]


def test_a_copy_goes_on_from_its_directory(server: RatingsServer, tmp_path: Path) -> None:
    server.put(range(5_000))
    follow(server, tmp_path)
    server.put(range(7))
    server.delete([5, 4_000])
    with local_ratings(server.address, tmp_path) as (table, stream):
        assert table.get(3) is not None, "it answers before it has heard from anybody"
        table.wait_current(WAIT_S)
        assert counts_of(table) == server.counts
        assert (stream.resets, stream.changes) == (0, 9)


def test_a_copy_is_answered_while_no_gateway_is_there(server: RatingsServer, tmp_path: Path) -> None:
    server.put(range(100))
    follow(server, tmp_path)
    with local_ratings(NOWHERE, tmp_path) as (table, _):
        assert counts_of(table) == server.counts
        assert table.as_of is not None
        with pytest.raises(LocalReadError, match="has not heard from a gateway yet") as caught:
            table.get(3, max_staleness_s=3_600)
        assert (caught.value.code(), caught.value.reason) == (grpc.StatusCode.UNAVAILABLE, "NOT_CAUGHT_UP")
        assert (table.age_s, table.is_current) == (None, False)
        soon(lambda: "UNAVAILABLE" in table.trouble, "it says why")


def test_a_broken_fill_goes_on_where_it_was(server: RatingsServer, tmp_path: Path) -> None:
    server.put(range(20_000))
    with local_ratings(server.address, tmp_path, break_after=8) as (table, first):
        soon(lambda: first.changes > 5_000, "some rows")
        with pytest.raises(LocalReadError, match="has not all rows yet") as caught:
            table.get(3)
        assert (caught.value.reason, failure_of(caught.value).reason) == ("PARTITION_UNAVAILABLE",) * 2
        soon(lambda: table.trouble, "the stream breaks")
    with local_ratings(server.address, tmp_path) as (table, second):
        table.wait_current(WAIT_S)
        assert counts_of(table) == server.counts
        assert second.resets == 0
        assert second.changes < 20_000


def test_killed_copies_are_prefixes_and_lose_nothing(server: RatingsServer, tmp_path: Path) -> None:
    """The oracle is a list of what was written: of each partition a copy is the fold of some prefix of it."""
    choice = random.Random(20)
    log: list[tuple[int, int | None]] = []

    def put(movies: list[int]) -> None:
        server.put(movies)
        log.extend((movie, server.counts[movie]) for movie in movies)

    def write() -> None:
        put(choice.sample(range(6_000), choice.randrange(1, 40)))
        gone = choice.sample(range(6_000), choice.randrange(1, 5))
        server.delete(gone)
        log.extend((movie, None) for movie in gone)

    put(list(range(6_000)))
    copier, reached = Copier(server.address, tmp_path), [0] * PARTITIONS
    for turn in range(KILLS):
        copier.start()
        end_s = time.monotonic() + choice.random() * (0.1 if turn < KILLS // 3 else 0.5)
        while time.monotonic() < end_s:
            write()
        copier.kill()
        reached = check_prefixes(tmp_path, log, reached)
        for _ in range(choice.randrange(3)):
            write()
    with local_ratings(server.address, tmp_path) as (table, stream):
        table.wait_current(WAIT_S)
        assert counts_of(table) == server.counts
        assert stream.resets == 0, "it went on where it was"
        missed = sum(len(log_of(log, partition)) - reached[partition] for partition in range(PARTITIONS))
        assert stream.changes <= missed, "nothing that it had came again"
    assert all(reached), "no copy was ever whole"


def log_of(log: Log, partition: int) -> Log:
    """Return what was written to a partition."""
    return [change for change in log if prefixes([change], {change[0]: 0}, partition, PARTITIONS) is None]


def check_prefixes(directory: Path, log: Log, reached: list[int]) -> list[int]:
    """Hold a directory that nobody uses to what was written; return how much of each partition it has, at least."""
    with local_ratings(NOWHERE, directory) as (table, _):
        if table.as_of is None:
            assert not any(reached), "a whole copy was lost"
            return reached
        copy = counts_of(table)
    found = []
    for partition, before in enumerate(reached):
        fitting = prefixes(log, copy, partition, PARTITIONS)
        assert fitting is not None, f"partition {partition} is the fold of no prefix"
        assert fitting[1] >= before, f"partition {partition} went back"
        found.append(max(before, fitting[0]))
    return found


def test_a_new_generation_takes_the_place_of_the_rows_at_once(server: RatingsServer, tmp_path: Path) -> None:
    server.put(range(2_000))
    sizes: set[int] = set()
    with local_ratings(server.address, tmp_path) as (table, stream):
        table.wait_current(WAIT_S)
        server.rebuild([*range(1_000), 5_000])
        while counts_of(table) != server.counts:
            sizes.add(table.count())
        assert sizes <= {2_000, 1_001}
        assert stream.resets == 2
    server.rebuild([1, 2])
    assert follow(server, tmp_path) == server.counts


def test_rows_of_another_contract_or_request_are_removed(server: RatingsServer, tmp_path: Path) -> None:
    server.put(range(100))
    follow(server, tmp_path)
    with local_ratings(NOWHERE, tmp_path, fields={"movie_id": 7}) as (table, _):
        assert table.as_of is None
    assert follow(server, tmp_path, fields={"movie_id": 7}) == {7: server.counts[7]}

    text = edited(RATINGS, ("int64 rating_count = 3;", "int64 rating_count = 3;\n  string note = 99;"))
    changed = bind_ratings(tmp_path / "contract", text).tables["ratings"].row_class
    follow(server, tmp_path)
    with open_channel(NOWHERE) as channel, LocalTable(stub_method(channel), request(), tmp_path, row=changed) as table:
        assert table.as_of is None
    with (
        open_channel(server.address) as channel,
        LocalTable(stub_method(channel), request(), tmp_path, row=changed) as table,
    ):
        table.wait_current(WAIT_S)
        assert counts_of(table) == server.counts


def test_a_gateway_that_cannot_open_the_token_sends_all_rows(server: RatingsServer, tmp_path: Path) -> None:
    server.put(range(100))
    follow(server, tmp_path)
    # A token of another request is refused as one that another cluster has signed is.
    with (
        open_channel(server.address) as channel,
        LocalTable(_of_one_movie(stub_method(channel)), request(subscribe_options=OFTEN), tmp_path, row=ROW) as table,
    ):
        soon(lambda: set(counts_of(table)) == {7}, "a new snapshot")


def _of_one_movie(method: Any) -> Any:
    def ask(asked: Any) -> Any:
        asked.movie_id = 7
        return method(asked)

    return ask


def test_two_users_of_one_directory_are_refused_in_a_sentence(server: RatingsServer, tmp_path: Path) -> None:
    with (
        local_ratings(server.address, tmp_path),
        pytest.raises(LocalTableError) as caught,
        local_ratings(server.address, tmp_path),
    ):
        pass
    wanted = f'"{tmp_path}" is in use by process {os.getpid()}: give each local table a directory of its own'
    assert str(caught.value) == wanted
    copier = Copier(server.address, tmp_path)
    copier.start()
    try:
        with pytest.raises(LocalTableError, match="is in use by process"), local_ratings(NOWHERE, tmp_path):
            pass
    finally:
        copier.kill()
    with local_ratings(NOWHERE, tmp_path):
        pass


def test_a_directory_that_cannot_be_used_is_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    for directory in (file, file / "below", Path("/proc/1/x")):
        with pytest.raises(LocalTableError, match="give a directory of your own"), local_ratings(NOWHERE, directory):
            pass
    assert file.read_text() == "mine"


@pytest.mark.parametrize("damage", ["cut", "garbage", "empty", "zeros", "other"])
def test_a_damaged_directory_is_made_anew(server: RatingsServer, tmp_path: Path, damage: str) -> None:
    server.put(range(30_000))
    follow(server, tmp_path)
    file = tmp_path / "data.mdb"
    size = file.stat().st_size
    assert size > 2**20
    with file.open("r+b") as opened:
        if damage == "cut":
            opened.truncate(8_192)
        elif damage == "garbage":
            opened.write(random.Random(1).randbytes(8_192))
        elif damage == "empty":
            opened.truncate(0)
        elif damage == "zeros":
            opened.write(bytes(size))
    if damage == "other":
        file.unlink()
        file.mkdir()
        with pytest.raises(LocalTableError, match=r"remove it|give a directory of your own"):
            follow(server, tmp_path)
        return
    with local_ratings(server.address, tmp_path) as (table, stream):
        table.wait_current(WAIT_S)
        assert counts_of(table) == server.counts
        assert stream.resets == 1


def test_what_a_stopped_machine_leaves_is_not_trusted(server: RatingsServer, tmp_path: Path) -> None:
    server.put(range(100))
    copier = Copier(server.address, tmp_path)
    copier.start()
    time.sleep(0.5)
    copier.kill()
    with local_ratings(NOWHERE, tmp_path, boot_id=lambda: "the next run") as (table, _):
        assert table.as_of is None
    assert follow(server, tmp_path) == server.counts
    with local_ratings(NOWHERE, tmp_path, boot_id=lambda: "the one after it") as (table, _):
        assert counts_of(table) == server.counts, "it was closed, so all of it is on the disk"


def test_a_full_file_is_a_sentence_and_what_was_there_stays(server: RatingsServer, tmp_path: Path) -> None:
    server.put(range(1_000))
    small = LocalLimits(map_bytes=2**20, fill_changes=500, fill_s=0.01, full_pause_s=0.05)
    with local_ratings(server.address, tmp_path, limits=small) as (table, _):
        table.wait_current(WAIT_S)
        before = dict(server.counts)
        server.put(range(1_000, 40_000))
        soon(lambda: "need more than the 1048576 bytes of map_bytes: give it more" in table.trouble, "it says so")
        now = counts_of(table)
        assert before.items() <= now.items() <= server.counts.items()
        assert not table.is_current
        server.delete(range(900, 40_000))
    assert follow(server, tmp_path) == server.counts


def test_a_copy_goes_on_once_a_full_disk_has_room(server: RatingsServer, tmp_path: Path) -> None:
    server.put(range(1_000))
    with contextlib.ExitStack() as stack:
        try:
            disk = stack.enter_context(small_disk(tmp_path / "disk", 16))
        except NoSmallDisk as error:
            pytest.skip(f"no small disk can be mounted here: {error}")
        directory = disk.directory / "copy"
        with local_ratings(server.address, directory) as (table, stream):
            table.wait_current(WAIT_S)
            disk.fill()
            server.put(range(20_000))
            soon(lambda: f'the disk of "{directory}" is full: free some space' in table.trouble, "it says so")
            assert table.get(3) is not None
            disk.free()
            soon(lambda: table.is_current and counts_of(table) == server.counts, "it goes on", WAIT_S)
            assert stream.resets == 1


def test_a_copy_outlives_the_gateway(server: RatingsServer, tmp_path: Path) -> None:
    server.put(range(1_000))
    with local_ratings(server.address, tmp_path) as (table, stream):
        table.wait_current(WAIT_S)
        for _ in range(3):
            server.stop()
            soon(lambda: not table.is_current, "it says so")
            assert counts_of(table) == server.counts, "rows stay"
            server.put([1])
            server.delete([2])
            server.start()
            soon(lambda: table.is_current and counts_of(table) == server.counts, "it goes on", WAIT_S)
        assert stream.resets == 1


def test_a_read_that_asks_for_more_than_is_known_is_refused(server: RatingsServer, tmp_path: Path) -> None:
    server.put(range(10))
    with local_ratings(server.address, tmp_path) as (table, _):
        table.wait_current(WAIT_S)
        assert table.get(3, max_staleness_s=WAIT_S) is not None
        server.stop()
        soon(lambda: not table.is_current, "it is gone")
        time.sleep(0.05)
        for read in (
            lambda: table.get(3, max_staleness_s=0.01),
            lambda: table.batch_get([3], max_staleness_s=0.01),
            lambda: table.range(max_staleness_s=0.01),
            lambda: list(table.scan(max_staleness_s=0.01)),
            lambda: table.count(max_staleness_s=0.01),
        ):
            with pytest.raises(LocalReadError, match=r"the local table is \d+\.\d\d\d s old") as caught:
                read()
            failure = failure_of(caught.value)
            assert (failure.code, failure.reason, failure.passes) == ("UNAVAILABLE", "NOT_CAUGHT_UP", True)
            assert failure.retry_after_s > 0
        soon(lambda: (table.age_s or 0.0) > 1.0, "it is old")
        found: list[Any] = []
        reader = threading.Thread(
            target=lambda: found.append(table.get(3, max_staleness_s=1.0, max_wait_s=math.inf)), daemon=True
        )
        reader.start()
        server.start()
        while reader.is_alive():
            server.put(range(20))  # of each partition some: the oldest counts
            reader.join(0.1)
        assert found[0].movie_id == 3


def test_what_is_no_contract_of_a_table_is_refused(server: RatingsServer, tmp_path: Path) -> None:
    server.put([1])
    key = catalogue_of().queries["/examples.ratings.v1.RatingsService/GetRating"].request_class
    visits = bind_visits(tmp_path / "contract").tables["visits"].row_class
    with open_channel(server.address) as channel:
        method = stub_method(channel)
        with pytest.raises(ContractMismatch, match="is no row of a table"):
            LocalTable(method, request(), tmp_path / "a", row=key)
        with pytest.raises(ContractMismatch, match="no field of type"):
            LocalTable(method, key(movie_id=1), tmp_path / "b", row=ROW)
        with pytest.raises(ValueError, match="leave SUBSCRIBE_START_LIVE out"):
            LocalTable(method, request(subscribe_options={"start": 2}), tmp_path / "c", row=ROW)
        with (
            LocalTable(method, request(), tmp_path / "d", row=visits) as table,
            pytest.raises(ContractMismatch, match=r"and not shop\.visits\.v1\.Visit: give the message of a row here"),
        ):
            table.wait_current(WAIT_S)


class Ticket:
    """A local table of what a key of the tenants' world sees."""

    def __init__(self, world: World, key: str, directory: Path) -> None:
        self.world, self.key = world, key
        self._channel = open_channel(f"127.0.0.1:{world.cluster.whole.port}", credential=key)
        path = world.cluster.path("SubscribeTickets")
        query = world.cluster.catalogue.queries[path]
        method = self._channel.unary_stream(
            path, query.request_class.SerializeToString, query.response_class.FromString
        )
        asked = query.request_class(subscribe_options=OFTEN)
        self.table: LocalTable[Any] = LocalTable(method, asked, directory, row=world.row_class, limits=SMALL)

    def __enter__(self) -> "Ticket":
        return self

    def __exit__(self, *_: object) -> None:
        self.table.close()
        self._channel.close()

    def rows(self) -> dict[tuple[Any, ...], Any]:
        return {self.world.key_of(row): self.world.shown(row, "all") for row in self.table.scan()}


def test_a_copy_has_what_its_principal_sees_and_stops_when_refused(tmp_path: Path) -> None:
    access, directory = write_access(tmp_path), tmp_path / "copy"
    world = World("tickets", access, random.Random(3))
    with world.cluster:
        for _ in range(200):
            world.put()
        with Ticket(world, "ann", directory) as ann:
            ann.table.wait_current(WAIT_S)
            assert ann.rows() == world.seen("ann")
            for _ in range(100):
                world.put()
            soon(lambda: ann.rows() == world.seen("ann"), "the changes")
        with Ticket(world, "bob", directory) as bob:
            soon(lambda: bob.table.is_current and bob.rows() == world.seen("bob"), "bob's rows alone")
            write_access(tmp_path, POLICY.rpartition("[[rule]]")[0])  # without that of the tickets
            for _ in range(2):  # at the second look it is known that nobody writes the file any more
                world.cluster.whole.do(lambda: read_policy_again(world.cluster.whole))
            soon(lambda: "PERMISSION_DENIED" in bob.table.trouble, "it is refused")
            with pytest.raises(SubscribeError, match="PERMISSION_DENIED"):
                bob.table.wait_current(WAIT_S)
            check_refused(bob.table)
    with Ticket(world, "bob", directory) as bob:
        check_refused(bob.table)


def read_policy_again(gateway: ClusterGateway) -> None:
    """Let a gateway do what it does on a timer."""
    assert gateway.gate is not None
    gateway.gate.refresh()
    gateway.check_streams()


def check_refused(table: LocalTable[Any]) -> None:
    """Hold that nobody gets a row."""
    for read in (lambda: table.get(1), lambda: list(table.scan()), table.count, lambda: table.batch_get([1])):
        with pytest.raises(LocalReadError) as caught:
            read()
        assert (caught.value.code(), caught.value.reason) == (grpc.StatusCode.PERMISSION_DENIED, "NOT_ALLOWED")


@pytest.mark.jvm
def test_a_copy_of_a_gateway_that_is_killed_and_rebuilt(broker: Broker, tmp_path: Path) -> None:
    changelog = RatingsChangelog(broker.bootstrap)
    changelog.publish()
    changelog.put(dict.fromkeys(range(2_000), (5.0, 1)))

    def wanted() -> dict[int, int]:
        return {movie_id: count for movie_id, (_, count) in changelog.rows.items()}

    def is_there(table: LocalTable[Any]) -> bool:
        return table.is_current and counts_of(table) == wanted()

    address = f"{HOST}:{free_port()}"
    with GatewayProcess(
        tmp_path / "data", broker.bootstrap, tables_topic=changelog.tables_topic, listen=address
    ) as gateway:
        gateway.wait_until_serving()
        copier = Copier(address, tmp_path / "copy")
        copier.start()
        for turn in range(4):
            changelog.put(dict.fromkeys(range(turn, 2_000, 3), (5.0, turn + 2)))
            changelog.delete([turn])
            copier.kill()
            copier.start()
        copier.kill()
        with local_ratings(address, tmp_path / "copy") as (table, stream):
            soon(lambda: is_there(table), "all of it", WAIT_S)
            gateway.kill()
            soon(lambda: not table.is_current, "it says so", WAIT_S)
            assert counts_of(table) == wanted()
            gateway.start()
            changelog.put({1: (5.0, 77)})
            soon(lambda: is_there(table), "it goes on", WAIT_S)
            resets = stream.resets
            changelog.mark(5, final=True)
            changelog.generation += 1
            changelog.new_topic()
            changelog.put(dict.fromkeys(range(50), (4.0, 9)))
            changelog.mark(5)
            changelog.publish()
            soon(lambda: is_there(table), "the new generation", WAIT_S)
            assert (resets, stream.resets) == (0, 1)
