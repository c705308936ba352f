"""The commands that look after jobs, as people run them: real Kafka, Spark and gateways."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka.admin import AdminClient

from tablegate.examples.demo.kafka import Broker
from tablegate.examples.samples import create_topic
from tablegate.gateway.contract.rows import row_schema
from tablegate.jobs.kafka.manifests import past_generation, read_manifest, read_manifests
from tablegate.jobs.planning.declarations import load_contract, load_table
from tablegate.v1.changelog_pb2 import Manifest, ProgressMarker
from tests.kit.command_line import COMMAND
from tests.kit.gateway_processes.gateway import GatewayProcess, MonotoneReader, soon
from tests.kit.job.process import WAIT_S, Changelog, JobProcess, Row, wait_until
from tests.kit.job.ratings_job import MOVIES, PARTITIONS, fold_source, some_ratings, write_job
from tests.kit.programs.kafka import NewRecord, RawRecord, consume, new_topic, produce

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(900)]  # a test starts Spark up to five times

JOB = (sys.executable, "-m", "tablegate.gateway.cli", "job")
LAG_MAX = 1_000  # records that a generation may lack when it is published


def run(*words: str, answer: str | None = None) -> Result:
    """Run a command that needs no Spark, in this process."""
    return CliRunner().invoke(COMMAND, ["job", *words], input=answer, env={"COLUMNS": "200"})


def topics(broker: Broker) -> set[str]:
    return set(AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=10).topics)


def listed(broker: Broker, name: str) -> dict[str, Any] | None:
    """Return what `job list` says of a table."""
    result = run("list", "--bootstrap", broker.bootstrap, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = {entry["table"]: entry for entry in map(json.loads, result.stdout.splitlines())}
    return found.get(name)


def generation_of(broker: Broker, name: str) -> int:
    manifest = read_manifest(broker.bootstrap, name)
    return manifest.generation if manifest is not None else 0


def averages(rows: dict[int, Row]) -> dict[int, tuple[float, int]]:
    return {movie: (row.average, row.count) for movie, row in rows.items()}


def markers_in(records: list[RawRecord]) -> list[tuple[RawRecord, ProgressMarker]]:
    return [(record, ProgressMarker.FromString(record.value or b"")) for record in records if record.key == b""]


@contextmanager
def writing(broker: Broker, source: str) -> Iterator[None]:
    """Write to the source while the block runs."""
    stop = threading.Event()

    def write() -> None:
        seed = 1_000
        while not stop.wait(0.1):
            seed += 1
            produce(broker.bootstrap, source, some_ratings(10, seed))

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_rebuild_while_the_job_runs_and_readers_ask(broker: Broker, tmp_path: Path) -> None:
    name, ready = "rebuilt", 5_000
    source = new_topic(broker.bootstrap, PARTITIONS, prefix="ratings")
    job = write_job(tmp_path, name, source)
    arguments = [job, "--bootstrap", broker.bootstrap, "--checkpoints", str(tmp_path / "checkpoints")]
    produce(broker.bootstrap, source, some_ratings(ready, seed=1))
    with (
        JobProcess(tmp_path / "run", "run", *arguments, "--mode", "microbatch", command=JOB) as running,
        GatewayProcess(tmp_path / "gateway", broker.bootstrap, contract=tmp_path / "contract.proto") as gateway,
    ):
        running.wait_for("running")
        soon(lambda: len(gateway.rows()) == MOVIES, "every row is served", WAIT_S)
        state = listed(broker, name)
        assert state is not None
        assert (state["running"], state["generation"], state["rebuilding"]) == (True, 1, None)
        with MonotoneReader(gateway, range(-MOVIES // 2, MOVIES // 2)) as reader, writing(broker, source):
            rebuild = JobProcess(tmp_path / "rebuild", "rebuild", *arguments, command=JOB)
            with rebuild, JobProcess(tmp_path / "second", "run", *arguments, command=JOB) as second:
                old: list[RawRecord] = []

                def is_in_place() -> bool:
                    is_so = bool(rebuild.events("in_place"))  # asked first: the old changelog has come to its end then
                    if f"{name}-g1-changelog" in topics(broker):
                        old[:] = consume(broker.bootstrap, f"{name}-g1-changelog")
                    return is_so

                rebuild.wait_for("running")
                wait_until("new generation in place", is_in_place, rebuild)
                assert rebuild.process.wait(WAIT_S) == 0, rebuild.errors()
                assert second.process.wait(WAIT_S) == 1
            refused = f'error: table "{name}" is kept by another job, on 127.0.0.1; stop that one first\n'
            assert second.errors() == refused
            wait_until("the job goes on with it", lambda: running.events("running")[-1]["generation"] == 2, running)
            soon(lambda: gateway.status().tables[0].manifest.generation == 2, "generation 2 is served")
        wanted = averages(fold_source(broker.bootstrap, source))
        soon(lambda: gateway.rows() == wanted, "generation 2 has every row", WAIT_S)
        result = run("reset", name, "--bootstrap", broker.bootstrap, "--yes")
        assert (result.exit_code, generation_of(broker, name)) == (1, 2)
        assert result.stderr == f'error: table "{name}" is kept by a job that runs on 127.0.0.1; stop that one first\n'
        assert running.stop() == 0
    assert not reader.violations
    assert reader.unavailable == 0
    assert reader.answers > MOVIES
    assert f"{name}-g1-changelog" in topics(broker)
    where = ["--bootstrap", broker.bootstrap, "--checkpoints", str(tmp_path / "checkpoints")]
    dropped = run("drop-old", name, *where, answer="y\n")
    assert dropped.exit_code == 0, dropped.output
    for what in (f"{name}-g1-changelog", str(tmp_path / "checkpoints" / name / "g1")):
        assert what in dropped.stdout
    assert "g2" not in dropped.stdout
    wait_until("the old changelog gone", lambda: f"{name}-g1-changelog" not in topics(broker))
    assert sorted(at.name for at in (tmp_path / "checkpoints" / name).glob("g*")) == ["g2"]
    for partition in range(PARTITIONS):
        last = [record for record in old if record.partition == partition][-1]
        [(_, marker)] = markers_in([last])
        assert marker.final
    _check_published_when_caught_up(broker, name, source, ready)


def _check_published_when_caught_up(broker: Broker, name: str, source: str, ready: int) -> None:
    manifests = [
        (record.timestamp_ms, Manifest.FromString(record.value or b""))
        for record in consume(broker.bootstrap, "tables")
        if record.key == name.encode()
    ]
    assert [manifest.generation for _, manifest in manifests] == sorted(
        manifest.generation for _, manifest in manifests
    )
    published_ms = next(time_ms for time_ms, manifest in manifests if manifest.generation == 2)
    before = [
        sum(offset for read in marker.sources if read.topic == source for offset in read.next_offsets.values())
        for record, marker in markers_in(consume(broker.bootstrap, f"{name}-g2-changelog"))
        if record.timestamp_ms <= published_ms
    ]
    assert max(before, default=0) >= ready - LAG_MAX


def test_life_of_a_table_without_a_running_job(broker: Broker, tmp_path: Path) -> None:
    name = "lived"
    source = new_topic(broker.bootstrap, PARTITIONS, prefix="ratings")
    job = write_job(tmp_path, name, source)
    contract = load_contract(load_table(job))
    schemas = {1: json.dumps(row_schema(contract))}
    where = ["--bootstrap", broker.bootstrap, "--checkpoints", str(tmp_path / "checkpoints")]
    arguments = [job, *where, "--mode", "microbatch"]

    def wait_for_rows(generation: int, wanted: dict[int, Row], job: JobProcess | None = None) -> None:
        changelog = Changelog(broker.bootstrap, f"{name}-g{generation}-changelog", contract, PARTITIONS)
        try:
            wait_until(f"rows of generation {generation}", lambda: changelog.rows(schemas) == wanted, job)
        finally:
            changelog.close()

    def build(*words: str) -> None:
        with JobProcess(tmp_path / "build", *words, command=JOB) as building:
            assert building.process.wait(WAIT_S) == 0, building.errors()

    produce(broker.bootstrap, source, some_ratings(2_000, seed=1))
    with JobProcess(tmp_path / "run", "run", *arguments, command=JOB) as running:
        running.wait_for("running")
        wait_for_rows(1, fold_source(broker.bootstrap, source), running)
        wait_until("a marker behind them", lambda: (listed(broker, name) or {})["records_behind"] == 0, running)
        assert running.stop() == 0
    moment_ms = time.time_ns() // 1_000_000
    produce(broker.bootstrap, source, some_ratings(500, seed=2))
    state = listed(broker, name)
    assert state is not None
    assert (state["running"], state["records_behind"], state["generation"]) == (False, 500, 1)
    assert state["marker_age_s"] is not None

    with JobProcess(tmp_path / "killed", "rebuild", *arguments, command=JOB) as rebuild:
        rebuild.wait_for("running")
        rebuild.kill()
    assert generation_of(broker, name) == 1
    build("rebuild", *arguments)
    assert generation_of(broker, name) == 2
    wait_for_rows(2, fold_source(broker.bootstrap, source))

    build("seek", *arguments, "--offset", f"{source}:0:900")
    assert generation_of(broker, name) == 3
    wanted = fold_source(broker.bootstrap, source, lambda record: record.partition != 0 or record.offset >= 900)
    wait_for_rows(3, wanted)

    moment = datetime.fromtimestamp(moment_ms / 1000, UTC).isoformat()
    build("seek", *arguments, "--time", moment)
    assert generation_of(broker, name) == 4
    wanted = fold_source(broker.bootstrap, source, lambda record: record.timestamp_ms >= moment_ms)
    assert sum(row.count for row in wanted.values()) == 500
    wait_for_rows(4, wanted)
    assert {f"{name}-g{number}-changelog" for number in (1, 2, 3)} <= topics(broker)
    assert run("drop-old", name, *where, "--yes").exit_code == 0
    wait_until("the old changelogs gone", lambda: f"{name}-g3-changelog" not in topics(broker))
    assert sorted(at.name for at in (tmp_path / "checkpoints" / name).glob("g*")) == ["g4"]
    assert "one generation" in run("drop-old", name, *where, "--yes").stdout

    unknown = run("seek", *arguments, "--offset", "elsewhere:0:1")
    assert f'topic "elsewhere" is not a source of table "{name}"; it reads "{source}"' in unknown.stderr
    beyond = run("seek", *arguments, "--offset", f"{source}:1:1000000")
    assert f'topic "{source}" partition 1 has no offset 1000000' in beyond.stderr
    _check_reset(broker, name, where, tmp_path / "checkpoints")

    # Clients may have tokens of the generations before: what is built now is none of these.
    with JobProcess(tmp_path / "anew", "run", *arguments, command=JOB) as running:
        running.wait_for("running")
        wait_for_rows(5, fold_source(broker.bootstrap, source), running)
        assert generation_of(broker, name) == 5
        assert running.stop() == 0
    assert run("reset", name, *where, "--yes").exit_code == 0
    assert past_generation(broker.bootstrap, name) == 5


def _check_reset(broker: Broker, name: str, where: list[str], checkpoints: Path) -> None:
    changelog = f"{name}-g4-changelog"
    refused = run("reset", name, *where, answer="n\n")
    assert (refused.exit_code, generation_of(broker, name)) == (1, 4)
    for remains in ("its manifest", changelog, str(checkpoints / name / "g4"), f"Delete all this of table {name}?"):
        assert remains in refused.stdout
    assert changelog in topics(broker)
    assert (checkpoints / name / "g4").is_dir()
    done = run("reset", name, *where, answer="y\n")
    assert done.exit_code == 0, done.output
    assert generation_of(broker, name) == 0
    wait_until("the changelog gone", lambda: changelog not in topics(broker))
    assert not (checkpoints / name).exists()
    assert not any(table.startswith(name) for table in read_manifests(broker.bootstrap))
    assert listed(broker, name) is None
    again = run("reset", name, *where, "--yes")
    assert again.exit_code == 1
    assert again.stderr.startswith(f'error: nothing is stored of table "{name}" at ')


def test_a_project_of_ones_own(broker: Broker, tmp_path: Path) -> None:
    project = tmp_path / "shop"
    made = CliRunner().invoke(COMMAND, ["new", str(project)])
    assert made.exit_code == 0, made.output
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    readme = (project / "README.md").read_text()
    commands = [line.strip() for line in readme.splitlines() if line.startswith("    ")]
    install, check, test, run_kafka, keep, serve, get = commands
    done = subprocess.run(
        check, check=False, shell=True, cwd=project, env={**os.environ, "PATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert test == "mypy . && pytest"  # of wheels: `test_a_new_project_is_typed` and `…_passes_its_own_test`
    assert install == "pip install -r requirements.txt"
    assert run_kafka == "tablegate broker --topic orders:2"  # the tutorial's test runs it
    assert serve == "tablegate serve --contract orders.proto --bootstrap 127.0.0.1:9092 --reflection"
    create_topic(broker.bootstrap, "orders", 2, {})
    produce(broker.bootstrap, "orders", [NewRecord(None, b'{"customer": "ann", "amount": 12.5}')] * 2)
    shell = ("/bin/sh", "-c", f"cd {project} && PATH={path} exec {keep.replace('127.0.0.1:9092', broker.bootstrap)}")
    with (
        JobProcess(tmp_path / "run", command=shell) as running,
        GatewayProcess(
            tmp_path / "gateway", broker.bootstrap, contract=project / "orders.proto", reflection=True
        ) as gateway,
    ):
        running.wait_for("running")
        words = [*get.split()[1:], "--address", str(gateway.address()), "--json"]
        wait_until("the row", lambda: CliRunner().invoke(COMMAND, words).exit_code == 0, running)
        assert json.loads(CliRunner().invoke(COMMAND, words).stdout) == {
            "customer": "ann",
            "order_count": "2",
            "amount": 25.0,
        }
        shown = CliRunner().invoke(COMMAND, ["scan", "order_totals", "--address", str(gateway.address())])
        assert shown.stdout.split()[-3:] == ["ann", "2", "25.0"]
        assert running.stop() == 0
    again = CliRunner().invoke(COMMAND, ["new", str(project)])
    assert again.exit_code == 1
    assert again.stderr == f'error: directory "{project}" is not empty; give another one, or a new name\n'


WRONG = {
    "unknown": ("sum(amount)", "sum(amonut)", "with name `amonut` cannot be resolved"),
    "bare": ("sum(amount)", "amount", 'column "amount" does not compute: [MISSING_AGGREGATION]'),
    "other_type": ("count(*)", "max(customer)", 'column "order_count" is string, the contract wants bigint'),
    "lacks": ('"order_count": "count(*)", ', "", 'lacks column "order_count" of the contract'),
    "extra": ('"order_count"', '"most": "max(amount)", "order_count"', 'a column "most" that the contract lacks'),
    "distinct": ("count(*)", "count(distinct amount)", "Distinct aggregations are not supported"),
    "unread": ('source=Source("orders"', 'source=Source("or ders"', 'source topic "or ders"'),
    "realtime": (
        "    mode=Mode.MICROBATCH",
        "    mode=Mode.REALTIME, emit_interval_s=1",
        "Real-time Mode emits each change; remove emit_interval_s",
    ),
}


def test_check_says_what_is_wrong_and_where(tmp_path: Path) -> None:
    project = tmp_path / "shop"
    assert CliRunner().invoke(COMMAND, ["new", str(project)]).exit_code == 0
    right = (project / "orders.py").read_text()
    for name, (before, after, _) in WRONG.items():
        assert before in right
        (project / f"{name}.py").write_text(right.replace(before, after))
    contract = (project / "orders.proto").read_text()
    (project / "float_key.proto").write_text(contract.replace("  string customer = 1;", "  double customer = 1;"))
    (project / "float_key.py").write_text(right.replace('"orders.proto"', '"float_key.proto"'))
    files = [str(project / f"{name}.py") for name in (*WRONG, "float_key", "orders")]
    done = subprocess.run(
        [*JOB, "check", *files], check=False, capture_output=True, text=True, env={**os.environ, "COLUMNS": "80"}
    )
    assert done.returncode == 1, done.stdout
    assert done.stdout == "ok order_totals: key customer, 2 columns, micro-batches\n"
    said = done.stderr.splitlines()
    assert len(said) == len(files) - 1, done.stderr
    for name, (_, _, sentence) in WRONG.items():
        [line] = [line for line in said if sentence in line]
        assert line.startswith(f"error: {project / name}.py:")
        assert line.removeprefix(f"error: {project / name}.py:").partition(":")[0].isdigit()
    [line] = [line for line in said if 'message OrderTotal, field "customer": a double cannot be in the key' in line]
    assert line.startswith("error: float_key.proto")
