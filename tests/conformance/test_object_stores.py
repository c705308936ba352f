"""Object stores with which something is wrong, and gateways that keep their snapshot files there all the same."""

import random
import re
from collections.abc import Callable

import pytest

from tablegate.gateway.contract.types import Partition, StoreId
from tablegate.gateway.server.snapshots import SnapshotWriter
from tablegate.gateway.stores.snapshots.files import FilesUnavailable, SnapshotFile, SnapshotFiles
from tablegate.gateway.stores.snapshots.format import snapshots_of
from tests.kit.programs.object_store import OpenObjects, Overload
from tests.kit.replication.replicator import Gateway
from tests.kit.replication.replicators import World
from tests.kit.store.snapshot_files import MemorySnapshots
from tests.kit.table.filled import SIGNER

pytestmark = [pytest.mark.tools, pytest.mark.parametrize("kind", ["s3", "google", "azure"])]

CONTENT = bytes(range(256)) * 5
NAME = "ratings/1-a/0/x"
PARTITIONS = 3
EVERY_S = 600
PREFIXES = {"s3": "AWS", "google": "GOOGLE", "azure": "AZURE"}  # of variables


def put(files: SnapshotFiles, content: bytes = CONTENT, name: str = NAME) -> SnapshotFile:
    new = files.create(name)
    try:
        new.write(content)
        new.commit()
    finally:
        new.discard()
    return SnapshotFile(name, len(content))


def attempts(files: SnapshotFiles) -> dict[str, Callable[[], object]]:
    """Return all that a gateway does there."""
    return {
        "list": lambda: list(files.list("ratings")),
        "write": lambda: put(files),
        "read": lambda: list(files.read(SnapshotFile(NAME, 10))),
        "remove": lambda: files.remove(NAME),
    }


def troubles(files: SnapshotFiles, url: str, *, but: str = "") -> list[str]:
    """Return what it says of each attempt, none of which works: a sentence each."""
    sentences = []
    for name, attempt in attempts(files).items():
        if name != but:
            with pytest.raises(FilesUnavailable) as trouble:
                attempt()
            sentences.append(str(trouble.value))
            assert re.fullmatch(rf'"{url}[^"]*" cannot be used: [^\n<]+[^\n<: ]', sentences[-1])
            assert "max_retries" not in sentences[-1]
            assert len(sentences[-1]) < 400
    return sentences


def test_a_long_object_is_there_when_its_upload_is_complete(kind: str, open_objects: OpenObjects) -> None:
    objects = open_objects(kind, read_bytes=8 << 20)
    data = random.Random(1).randbytes(5_000_000)
    for is_whole in (False, True):
        new = objects.create(NAME)
        for _ in range(10):
            new.write(data)
        assert list(objects.list("ratings")) == []
        if is_whole:
            new.commit()
        new.discard()
    [found] = objects.list("ratings")
    assert found.size_bytes == 50_000_000
    assert b"".join(objects.read(found)) == 10 * data


def test_many_objects_are_listed_in_several_answers(kind: str, open_objects: OpenObjects) -> None:
    objects = open_objects(kind)
    names = {f"ratings/1-a/0/{number}" for number in range(7)}
    for name in names:
        put(objects, b"some", name)
    assert {each.name for each in objects.list("ratings")} == names


def test_a_bucket_that_is_not_there_is_a_sentence(kind: str, open_objects: OpenObjects) -> None:
    scheme = open_objects.store(kind).url.partition(":")[0]
    url = f"{scheme}://no-such-bucket/tablegate"
    sentences = troubles(open_objects(kind, url=url), url, but="remove")  # what is not there is removed
    assert all(each.endswith("404 Not Found") for each in sentences)


def test_who_is_not_known_there_gets_a_sentence(kind: str, open_objects: OpenObjects) -> None:
    store = open_objects.store(kind)
    if kind == "google":
        with Overload(store) as refusing:
            refusing.begin(status=401)
            sentences = troubles(open_objects(kind, also=refusing.environment), store.url)
        assert all(each.endswith("401 Unauthorized") for each in sentences)
        return
    with store.asks_who_comes():
        sentences = troubles(open_objects(kind, also=store.stranger), store.url)
    assert all(each.endswith("403 Forbidden") for each in sentences)


def test_a_store_that_is_away_is_a_sentence(kind: str, open_objects: OpenObjects) -> None:
    store = open_objects.store(kind)
    sentences = troubles(open_objects(kind, also=store.at("127.0.0.1:1")), store.url)
    assert {each.rpartition(": ")[2] for each in sentences} == {"Connection refused", "error sending request"}


def test_a_store_without_tls_has_to_be_allowed(kind: str, open_objects: OpenObjects) -> None:
    store = open_objects.store(kind)
    sentences = troubles(open_objects(kind, also={f"{PREFIXES[kind]}_ALLOW_HTTP": "false"}), store.url)
    assert {each.rpartition(": ")[2] for each in sentences} == {
        "builder error",
        "it has http://, which has to be allowed",
    }


def test_a_store_that_is_overloaded_for_a_moment_is_asked_again(kind: str, open_objects: OpenObjects) -> None:
    with Overload(open_objects.store(kind)) as overload:
        objects = open_objects(kind, also=overload.environment)
        file = put(objects)
        for attempt in attempts(objects).values():
            overload.begin(requests=1)
            attempt()
            assert overload.refused
            overload.end()
        put(objects)
        assert [each.name for each in objects.list("ratings")] == [file.name]


def test_a_store_that_is_overloaded_for_long_is_a_sentence(kind: str, open_objects: OpenObjects) -> None:
    with Overload(open_objects.store(kind)) as overload:
        objects = open_objects(kind, also=overload.environment)
        file = put(objects)
        overload.begin()
        sentences = troubles(objects, open_objects.store(kind).url)
        assert all(each.endswith("503 Service Unavailable") for each in sentences)
        assert overload.refused > len(sentences), "it was asked again, too"
        overload.end()
        assert list(objects.list("ratings")) == [file]


def test_a_store_that_does_not_answer_is_a_sentence(kind: str, open_objects: OpenObjects) -> None:
    with Overload(open_objects.store(kind)) as overload:
        objects = open_objects(kind, also={**overload.environment, f"{PREFIXES[kind]}_TIMEOUT": "500ms"})
        put(objects)
        overload.link.stall()
        sentences = troubles(objects, open_objects.store(kind).url)
        assert {each.rpartition(": ")[2] for each in sentences} == {"no answer in time", "error sending request"}
        overload.link.mend()


# A gateway's files.


class Kept:
    """A gateway in a world, whose snapshot files are in an object store."""

    def __init__(self, files: SnapshotFiles) -> None:
        self.files = files
        self.world = World(1, partitions=PARTITIONS, replicas=1, lag=False)
        self.gateway = self.world.join()
        self.world.settle()
        self.world.snapshots = self.snapshots = MemorySnapshots(files)

    def write(self, *, keep: int = 2) -> set[str]:
        """Write what is due, some time later; return the names of new files."""
        before = self.names()
        self.world.clock.passed_s += EVERY_S
        writer = SnapshotWriter(
            self.gateway.catalogue,
            self.files,
            every_s=EVERY_S,
            keep=keep,
            clock=self.world.clock,
            signer=SIGNER,
            offsets_min=1,
            part_bytes=100,
        )
        for _ in writer.round(self.gateway.store):
            pass
        assert not writer.problem
        return self.names() - before

    def names(self) -> set[str]:
        return {each.file.name for each in snapshots_of(self.files.list("ratings"))}

    def content(self, name: str) -> bytes:
        [file] = [each for each in self.files.list("ratings") if each.name == name]
        return b"".join(self.files.read(file))

    def restored(self) -> int:
        """Let the gateway lose its store and begin again; return how many files were of use to it."""
        done = self.world.measures.snapshots["ratings", "read", "done"]
        self.world.kill(self.gateway, wipe=True)
        self.world.start(self.gateway)
        self.world.settle()
        reading = Gateway(self.world.broker, self.world.clock)
        reading.steps(200)
        with reading.store.snapshot() as snapshot:
            store_id = StoreId(reading.state().store_id)
            partitions = map(Partition, range(PARTITIONS))
            rows = [dict(snapshot.range(store_id, each, start=b"", end=None, limit=10_000)) for each in partitions]
        assert [self.gateway.rows(partition) for partition in range(PARTITIONS)] == rows
        return self.world.measures.snapshots["ratings", "read", "done"] - done


def test_a_gateway_restores_from_what_it_has_put_there(kind: str, open_objects: OpenObjects) -> None:
    kept = Kept(open_objects(kind, read_bytes=8 << 20))
    assert len(kept.write()) == PARTITIONS
    kept.world.job.put([1, 2, 77])
    kept.world.settle()
    assert kept.restored() == PARTITIONS


def test_the_newest_are_kept_there(kind: str, open_objects: OpenObjects) -> None:
    kept = Kept(open_objects(kind))
    newest = [kept.write() for _ in range(4)]
    assert kept.names() == newest[-1] | newest[-2]


def test_what_is_damaged_there_is_not_used(kind: str, open_objects: OpenObjects) -> None:
    kept = Kept(open_objects(kind))
    for name in kept.write():
        put(kept.files, kept.content(name)[:-40], name)
    assert kept.restored() == 0, "the changelog has the rows"
    for name in kept.write():
        put(kept.files, b"", name)
    old, new = kept.write(), kept.write()
    for name in new:
        put(kept.files, kept.content(name).replace(b"snapshot", b"snapshut"), name)
    assert old
    assert kept.restored() == PARTITIONS, "those before are"


def test_what_is_removed_there_meanwhile_is_not_used(kind: str, open_objects: OpenObjects) -> None:
    kept = Kept(open_objects(kind))
    kept.write()
    [listed, *_] = found = list(snapshots_of(kept.files.list("ratings")))
    for each in found:
        kept.files.remove(each.file.name)
    with pytest.raises(FilesUnavailable, match=r"404 Not Found$"):
        list(kept.files.read(listed.file))
    assert kept.restored() == 0
