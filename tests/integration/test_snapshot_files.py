"""A gateway that loses its store, and begins with snapshot files: in a directory, and in object stores."""

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.request import urlopen

import pytest

from tablegate.examples.demo.kafka import Broker
from tablegate.gateway.cli.gateway import Gateway
from tablegate.gateway.replication.transfers import OFFSETS_MIN
from tests.kit.gateway_processes.changelog import RatingsChangelog, many
from tests.kit.gateway_processes.gateway import GatewayProcess, soon
from tests.kit.programs.object_store import OBJECT_STORES, Overload

pytestmark = pytest.mark.jvm

PARTITIONS = 2


class Place(NamedTuple):
    """Where snapshot files are."""

    url: str
    environment: Mapping[str, str]


@pytest.fixture(params=["directory", *OBJECT_STORES])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "directory":
        yield Place(str(tmp_path / "snapshots"), {})
        return
    with OBJECT_STORES[request.param]() as store:
        yield Place(store.url, store.environment)


@pytest.fixture
def changelog(broker: Broker) -> RatingsChangelog:
    """Return a changelog so long that each partition is worth a file."""
    changelog = RatingsChangelog(broker.bootstrap, partition_count=PARTITIONS)
    changelog.put(dict(many(PARTITIONS * OFFSETS_MIN * 11 // 10)))
    changelog.mark(source_next_offset=300)
    changelog.publish()
    return changelog


def messages(gateway: GatewayProcess, text: str) -> list[str]:
    return [line["message"] for line in gateway.log() if text in line["message"]]


def metrics(gateway: GatewayProcess) -> str:
    with urlopen(f"http://{gateway.address()}/metrics") as answer:
        return str(answer.read(), "utf-8")


def started(tmp_path: Path, changelog: RatingsChangelog, place: Place) -> GatewayProcess:
    """Return a gateway that writes files every two seconds."""
    gateway = GatewayProcess(
        tmp_path / "gateway",
        changelog.bootstrap,
        tables_topic=changelog.tables_topic,
        workers=1,
        options=["--snapshots", place.url, "--snapshots-every", "2", "--snapshots-keep", "2"],
    )
    gateway.environment = place.environment
    return gateway


def test_a_lost_store_is_restored_from_snapshot_files(
    changelog: RatingsChangelog, tmp_path: Path, place: Place
) -> None:
    with started(tmp_path, changelog, place) as gateway:
        gateway.wait_until_serving()
        soon(lambda: len(messages(gateway, "a snapshot file of partition")) >= 3 * PARTITIONS, "files are written")
        gateway.kill()
        shutil.rmtree(tmp_path / "gateway")
        changelog.put({1: (9.0, 7), 10**6: (1.0, 1)})
        changelog.delete(range(10, 200))
        gateway.log_file.unlink()
        gateway.start()
        gateway.wait_until_serving()
        came = [line for line in gateway.log() if "has come from a snapshot file" in line["message"]]
        assert len(came) == PARTITIONS, gateway.log()
        assert sum(line["rows"] for line in came) >= PARTITIONS * OFFSETS_MIN
        assert gateway.rows() == changelog.rows
        soon(lambda: "tablegate_snapshot_time_seconds{" in metrics(gateway), "metrics say how old the newest is")
        with Gateway(gateway.address()) as asked:
            files = asked.status(with_snapshots=True).snapshots.files
        assert [(each.partition, each.HasField("write_time")) for each in files] == [(0, True), (1, True)]
        assert all(each.next_offset >= OFFSETS_MIN for each in files)
        assert 'tablegate_snapshots_total{direction="read",result="done",table="ratings"} 2.0' in metrics(gateway)


@pytest.mark.parametrize("trouble", ["hangs", "is overloaded"])
def test_an_object_store_in_trouble_stops_no_gateway(changelog: RatingsChangelog, tmp_path: Path, trouble: str) -> None:
    with (
        OBJECT_STORES["s3"]() as store,
        Overload(store) as overload,
        started(tmp_path, changelog, Place(store.url, overload.environment)) as gateway,
    ):
        gateway.wait_until_serving()
        soon(lambda: len(messages(gateway, "a snapshot file of partition")) >= PARTITIONS, "files are written")
        gateway.kill()
        shutil.rmtree(tmp_path / "gateway")
        gateway.log_file.unlink()
        if trouble == "hangs":
            overload.link.stall(there=False)
        else:
            overload.begin()
        gateway.start()
        gateway.wait_until_serving()
        assert messages(gateway, "no snapshot file is used"), "rows come from the changelog"
        assert gateway.rows() == changelog.rows
        assert gateway.stop() == 0
        assert not messages(gateway, "is killed")
