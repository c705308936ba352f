"""Gateways and jobs of the last release and of this version, in the order of docs/how-to/upgrade.md and back."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest

from tablegate.examples.demo.kafka import Broker
from tests.kit.gateway_processes.gateway import GatewayProcess, MonotoneReader, soon
from tests.kit.job.process import JobProcess
from tests.kit.job.ratings_job import MOVIES, PARTITIONS, fold_source, some_ratings, write_job
from tests.kit.programs.kafka import new_topic, produce
from tests.kit.programs.release import last_release

pytestmark = pytest.mark.jvm

RATINGS = 2_000


@pytest.mark.parametrize(
    ("mode", "jobs"),
    [
        ("microbatch", 2),
        pytest.param("microbatch", 3, marks=pytest.mark.long),
        pytest.param("realtime", 3, marks=pytest.mark.long),
    ],
)
def test_a_table_outlasts_upgrades_of_its_job(broker: Broker, tmp_path: Path, mode: str, jobs: int) -> None:
    """The release's job makes the table, this version's goes on with it, and a third is the release's again.

    Gateways of both versions serve it all the time, and no row goes back.
    """
    release = last_release(tmp_path / "release")
    name = f"upgraded_{mode}_{jobs}"
    source = new_topic(broker.bootstrap, PARTITIONS, prefix="ratings")
    job = write_job(tmp_path, name, source)
    words = ["--table", job, "--bootstrap", broker.bootstrap, "--checkpoints", str(tmp_path / "checkpoint")]
    words += ["--mode", mode]
    new = GatewayProcess(tmp_path / "new", broker.bootstrap, contract=tmp_path / "contract.proto")
    old = GatewayProcess(tmp_path / "old", broker.bootstrap, contract=tmp_path / "contract.proto")
    old.environment = release
    movies = range(-MOVIES // 2, MOVIES // 2)
    with new, old, MonotoneReader(new, movies) as of_new, MonotoneReader(old, movies) as of_old:
        for number, environment in enumerate((release, {}, release)[:jobs]):
            with JobProcess(tmp_path / "logs", *words, environment=environment) as running:
                running.wait_for("running")
                produce(broker.bootstrap, source, some_ratings(RATINGS, seed=number))
                folded = fold_source(broker.bootstrap, source).items()
                rows = {movie: (row.average, row.count) for movie, row in folded}
                for gateway in (new, old):
                    soon(partial(has_rows, gateway, rows), "a gateway has the rows", 120)
                assert running.stop() == 0
    assert [*of_new.violations, *of_old.violations] == []
    assert min(of_new.answers, of_old.answers) > 0


def has_rows(gateway: GatewayProcess, rows: Mapping[int, tuple[float, int]]) -> bool:
    return gateway.rows() == rows
