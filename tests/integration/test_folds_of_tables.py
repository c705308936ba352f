"""Every example table on real Kafka and Spark comes to an independent fold of its sources, though its job is killed.

One application keeps all tables that a mode permits. It is killed in the middle of the second third of hard events; or
it keeps two, and is killed as often as `KILLS` says: at a start, at the first changes, or a moment later.
"""

import itertools
import json
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Self

import pytest
from pyspark.sql import SparkSession

from tablegate.examples.demo.kafka import Broker
from tablegate.examples.samples import create_topic, send
from tablegate.jobs.planning.declarations import load_contract
from tablegate.jobs.running.audit import audit_table
from tablegate.jobs.table import Mode
from tests.kit.job import fold_outputs
from tests.kit.job.example_tables import LATE_ACTIONS, TOPICS, examples_of, parts_of
from tests.kit.job.folds import Fold
from tests.kit.job.followed import Followed, TableChangelog, newest_values, version_of
from tests.kit.job.laid_records import Place, Record, records_of
from tests.kit.job.process import JobProcess, pause_after_check, wait_until
from tests.kit.programs.kafka import RawRecord, consume
from tests.kit.programs.processes import kill_tree

pytestmark = pytest.mark.jvm

KILLS = 20
SIZE = 6_000  # events of each source, of which two tables read a few
MOMENTS = ("at the start", "at the first changes", "a moment later")
WAIT_S = 600.0  # many times what it takes: these machines are shared
PARTITIONS = 2


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker of its own: the topics have the names that the declarations say."""
    with Broker(tmp_path / "kafka", log_file=tmp_path / "broker.log") as running:
        yield running


class Run:
    """The tables of one mode: their sources, what their jobs write, and what that must be."""

    def __init__(self, bootstrap: str, mode: Mode, directory: Path, names: Collection[str] | None = None) -> None:
        self.bootstrap = bootstrap
        self.mode = mode
        found = {example.table.name: example for example in examples_of(mode)}
        self.examples = {name: found[name] for name in names or found}
        self._directory = directory
        self._contracts = {name: load_contract(example.table) for name, example in self.examples.items()}
        self.folds: dict[str, Fold] = {}
        self.records: list[Record] = []
        for topic, partitions in TOPICS.items():
            create_topic(bootstrap, topic, partitions)
        self.followed = Followed(bootstrap)

    @property
    def checkpoints(self) -> str:
        """The directory of all checkpoints."""
        return str(self._directory / "checkpoints")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.followed.close()

    def start(self) -> JobProcess:
        """Start one application with the jobs of all tables."""
        arguments = [word for example in self.examples.values() for word in ("--table", example.job)]
        arguments += ["--bootstrap", self.bootstrap, "--checkpoints", self.checkpoints]
        arguments += ["--mode", self.mode.value, "--partitions", str(PARTITIONS)]
        arguments += ["--spark-log", str(self._directory / "spark.log")]
        return JobProcess(self._directory / "logs", *arguments)

    def wait_until_running(self, job: JobProcess) -> None:
        """Return when all tables are kept."""
        eventually(lambda: self._check_running(job), job)

    def _check_running(self, job: JobProcess) -> None:
        assert {event["table"] for event in job.events("running")} == self.examples.keys()

    def follow(self) -> None:
        """Begin to read what the jobs write."""
        outputs = {output.topic for example in self.examples.values() for output in example.table.outputs}
        changelogs = {name: f"{name}-g1-changelog" for name in self.examples}
        letters = [f"{name}-dead-letters" for name in self.examples]
        self.followed.follow([*outputs, *changelogs.values(), *letters])
        self.changelogs = {
            name: TableChangelog(self._contracts[name], self.followed.records[topic], PARTITIONS)
            for name, topic in changelogs.items()
        }

    def fold_sources(self) -> None:
        """Fold all that the sources have now."""
        self.records = [record for topic in TOPICS for record in records_of(topic, consume(self.bootstrap, topic))]
        self.folds = {name: example.fold(self.records) for name, example in self.examples.items()}

    def source_ends(self, topic: str) -> dict[int, int]:
        """Return where the partitions of a source ended when it was folded."""
        ends = dict.fromkeys(range(TOPICS[topic]), 0)
        for record in self.records:
            if record.topic == topic:
                ends[record.partition] = max(ends[record.partition], record.offset + 1)
        return ends

    def check_rows(self) -> None:
        """Fail unless each table has the rows of its fold."""
        self.followed.read()
        for name, changelog in self.changelogs.items():
            rows, expected = changelog.rows(), self.folds[name].rows
            different = [key for key in {*rows, *expected} if rows.get(key) != expected.get(key)]
            assert not different, (
                f"{name}: {len(different)} rows differ, the first {different[0]}: "
                f"{rows.get(different[0])} for {expected.get(different[0])}"
            )

    def written(self, topic: str) -> list[RawRecord]:
        """Return what has been read of a topic."""
        return self.followed.records[topic]

    def change_count(self) -> int:
        """Return how many changes all tables have."""
        self.followed.read()
        return sum(len(changelog.changes) for changelog in self.changelogs.values())


def eventually(check: Callable[[], None], job: JobProcess) -> None:
    """Return when `check` passes; fail as it does when that takes too long, or when the job ends meanwhile."""
    end_s = time.monotonic() + WAIT_S
    while True:
        assert job.process.poll() is None, f"the job has ended: {job.errors()}"
        begin_s = time.monotonic()
        try:
            check()
        except AssertionError:
            if time.monotonic() > end_s:
                raise
            pause_after_check(begin_s)
        else:
            return


def pairs() -> Iterator[tuple[Mode, tuple[str, ...]]]:
    """Yield two tables at a time of those that each mode permits."""
    for mode in Mode:
        names = [example.table.name for example in examples_of(mode)]
        yield from ((mode, tuple(names[at : at + 2])) for at in range(0, len(names), 2))


@pytest.mark.parametrize("mode", [Mode.MICROBATCH, Mode.REALTIME], ids=lambda mode: mode.value)
@pytest.mark.parametrize(
    "size",
    [
        pytest.param(2_000, marks=pytest.mark.timeout(1_200)),
        pytest.param(20_000, marks=[pytest.mark.long, pytest.mark.timeout(1_800)]),
    ],
)
def test_tables_equal_the_folds_of_their_sources(own_broker: Broker, tmp_path: Path, mode: Mode, size: int) -> None:
    first, second, third = parts_of(size)
    with Run(own_broker.bootstrap, mode, tmp_path) as run:
        send(run.bootstrap, first)
        with run.start() as job:
            run.wait_until_running(job)
            run.follow()
            run.fold_sources()
            eventually(run.check_rows, job)
            eventually(partial(check_first_part, run, job), job)
            changes = run.change_count()
            send(run.bootstrap, second[::2])
            wait_until("changes of the second part", lambda: run.change_count() > changes, job)
            send(run.bootstrap, second[1::2])
            kill_tree(job.process)
        run.fold_sources()
        run.followed.read_to_end()
        with pytest.raises(AssertionError, match="rows differ"):  # else the kill came too late to show anything
            run.check_rows()
        at_kill = {name: len(changelog.changes) for name, changelog in run.changelogs.items()}

        checks = (run.check_rows, partial(check_dead_letters, run), partial(check_outputs, run))
        with run.start() as job:
            run.wait_until_running(job)
            eventually(run.check_rows, job)
            send(run.bootstrap, third)
            run.fold_sources()
            for check in (*checks, partial(check_late, run, job)):
                eventually(check, job)
            assert job.stop() == 0
            assert "Traceback" not in job.errors()
        run.followed.read_to_end()
        assert all(fold.rows for fold in run.folds.values())
        for check in checks:  # nothing has come since
            check()
        for name, changelog in run.changelogs.items():
            check_versions(name, changelog, [at_kill[name]], mode)


@pytest.mark.long
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize(
    ("mode", "names"), list(pairs()), ids=lambda one: one.value if isinstance(one, Mode) else "-".join(one)
)
def test_tables_killed_again_and_again(
    spark: SparkSession, own_broker: Broker, tmp_path: Path, mode: Mode, names: tuple[str, ...]
) -> None:
    moment = random.Random(f"{mode} {names}")
    with Run(own_broker.bootstrap, mode, tmp_path, names) as run:
        tables = [example.table for example in run.examples.values()]
        read = {table.source_of(side).topic for table in tables for side in table.all_sides}
        events = [event for part in parts_of(SIZE) for event in part if event.topic in read]
        ends = [len(events) * number // (KILLS + 1) for number in range(KILLS + 2)]
        slices = [events[begin:end] for begin, end in itertools.pairwise(ends)]
        at_kills: dict[str, list[int]] = {name: [] for name in names}
        within_a_batch = 0
        for number in range(KILLS):
            with run.start() as job:
                how = MOMENTS[number % len(MOMENTS)] if number else "a moment later"
                send(run.bootstrap, slices[number][::2])
                run.wait_until_running(job)
                if number == 0:
                    run.follow()
                changes = run.change_count()
                send(run.bootstrap, slices[number][1::2])
                if how != "at the start":
                    wait_until("changes", lambda before=changes: run.change_count() > before, job)
                if how == "a moment later":
                    time.sleep(moment.random() * 2)
                kill_tree(job.process)
            run.followed.read_to_end()
            for name, changelog in run.changelogs.items():
                at_kills[name].append(len(changelog.changes))
            run.fold_sources()
            within_a_batch += any(
                changelog.source_offsets(topic) != run.source_ends(topic)
                for table, changelog in zip(tables, run.changelogs.values(), strict=True)
                for topic in {table.source_of(side).topic for side in table.all_sides}
            )
        assert within_a_batch > KILLS // 2, "the kills came too late to show anything"
        with run.start() as job:
            run.wait_until_running(job)
            send(run.bootstrap, slices[KILLS])
            run.fold_sources()
            eventually(run.check_rows, job)
            eventually(partial(check_dead_letters, run), job)
            check_audits(spark, run)
            assert job.stop() == 0
        run.followed.read_to_end()
        run.check_rows()
        for name, changelog in run.changelogs.items():
            check_versions(name, changelog, at_kills[name], mode)
        rows = {name: len(fold.rows) for name, fold in run.folds.items()}
        print(f"{KILLS} kills, {within_a_batch} within a batch, {len(run.records)} records, rows {rows}, 0 different")


def check_audits(spark: SparkSession, run: Run) -> None:
    """Fail unless each row of each table is what the state of its job says, and some are compared."""
    for name, example in run.examples.items():
        if example.table.processor is None:
            found = audit_table(spark, example.table, bootstrap=run.bootstrap, checkpoints=run.checkpoints)
            assert found.is_equal, f"{name}: {found}"
            assert found.is_settled, name
            # Windows of the samples' time may have expired by now, and an audit passes over these.
            has_windows = load_contract(example.table).expiry is not None
            assert found.compared > 0 or has_windows, name


def check_first_part(run: Run, job: JobProcess) -> None:
    """Fail unless what is passed over is counted exactly, and a batch has told how late its windows are."""
    ignored = sum(event["records"] for event in job.events("ignored"))
    assert ignored == run.folds["balances"].ignored > 0
    topic = "browser_actions"
    run.followed.read()
    for name in ("action_counts", "arrival_counts"):
        assert run.changelogs[name].source_offsets(topic) == run.source_ends(topic)


def check_late(run: Run, job: JobProcess) -> None:
    """Fail unless the table of windows has told of late events; each counts once a window."""
    told = sum(event.get("late", 0) for event in job.events("batch") if event["table"] == "action_counts")
    assert run.folds["action_counts"].late == LATE_ACTIONS
    assert told >= LATE_ACTIONS


def check_dead_letters(run: Run) -> None:
    """Fail unless each malformed record is a dead letter, as it was; after a kill some are there twice."""
    run.followed.read()
    places = {record.place: record for record in run.records}
    for name, fold in run.folds.items():
        found: dict[Place, RawRecord] = {}
        for letter in run.written(f"{name}-dead-letters"):
            headers = {key: value.decode() for key, value in letter.headers}
            place = Place(headers["topic"], int(headers["partition"]), int(headers["offset"]))
            assert (letter.key, letter.value) == (places[place].key, places[place].value)
            assert headers["reason"]
            found[place] = letter
        assert found.keys() == fold.malformed, (
            f"{name}: {[places[place] for place in [*(fold.malformed ^ found.keys())][:3]]}"
        )


def check_versions(name: str, changelog: TableChangelog, at_kills: Sequence[int], mode: Mode) -> None:
    """Fail where a key's versions go down, but for what Real-time Mode does again after a kill.

    A version names one value where batches are done again as they were. The last record of a key is its newest.
    """
    newest: dict[bytes, bytes] = {}
    values: defaultdict[tuple[bytes, bytes], set[bytes | None]] = defaultdict(set)
    cuts = [0, *at_kills, None] if mode is Mode.REALTIME else [0, None]
    runs = [changelog.changes[begin:end] for begin, end in itertools.pairwise(cuts)]
    for changes in runs:
        seen: dict[bytes, bytes] = {}
        for record in changes:
            assert record.key is not None
            version = version_of(record)
            assert seen.get(record.key, b"") <= version, f"{name}: versions of {record.key!r} go down"
            seen[record.key] = version
            newest[record.key] = max(newest.get(record.key, b""), version)
            values[record.key, version].add(record.value)
    last = {record.key: version_of(record) for record in changelog.changes}
    assert last == newest, f"{name}: an old row outlives the newest"
    if mode is Mode.MICROBATCH:
        assert {len(same) for same in values.values()} == {1}, f"{name}: a version has two values"


def check_outputs(run: Run) -> None:
    """Fail unless the outputs are those of the folds: newest values, each record at least once, or exactly once."""
    run.followed.read()
    assert newest_values(run.written("rating-averages")) == fold_outputs.rating_averages(run.folds["ratings"])
    found = newest_values(run.written("tp_clients"))
    clients = {key: json.loads(value) for key, value in found.items() if value is not None}
    assert clients == fold_outputs.clients(run.folds["customers"])
    shipped = Counter(record.value for record in run.written("shipment"))
    check_at_least_once(shipped, Counter(record.value for record in fold_outputs.shipments(run.records)))
    items = Counter(
        json.dumps(json.loads(record.value or b""), sort_keys=True) for record in run.written("hadoop-sink")
    )
    check_at_least_once(items, fold_outputs.counted(fold_outputs.hadoop_records(run.records)))
    notifications = [json.loads(record.value or b"") for record in run.written("notification")]
    fold_outputs.check_notifications(notifications, run.records)
    if "product_views" in run.folds:
        check_popular_products(run)


def check_at_least_once(
    found: Counter[str] | Counter[bytes | None], expected: Counter[str] | Counter[bytes | None]
) -> None:
    """Fail unless `found` has what is expected, and nothing else; a batch that a kill cut off is written again."""
    assert found.keys() == expected.keys()
    assert found >= expected


def check_popular_products(run: Run) -> None:
    """Fail unless each popular product is told, and told the same when a batch is done again."""
    told: defaultdict[str, set[int]] = defaultdict(set)
    for record in run.written("popular_products"):
        content = json.loads(record.value or b"")
        assert record.key == content["product"].encode()
        told[content["product"]].add(content["view_count"])
    popular = fold_outputs.popular_products(run.folds["product_views"])
    assert told.keys() == popular != set()
    for counts in told.values():
        (count,) = counts
        assert count >= fold_outputs.POPULAR_VIEWS
