"""`tablegate demo --gateways N`: a table shared by several gateways on this machine, one of which is killed."""

import json
import shlex
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
from rich.live import Live
from rich.progress import Progress, TaskID
from rich.table import Table

from tablegate.examples import CONTRACTS
from tablegate.examples.demo.console import command_line, print_line, progress_bars
from tablegate.examples.demo.failover import RATINGS_PER_S, READS_PER_S, UNNAMED, Failover
from tablegate.examples.demo.gateways import REPLICAS, ClusterMember, Gateways, PlacementView, names_of
from tablegate.examples.demo.launch import (
    ANSWERS_TIMEOUT_S,
    DemoError,
    KafkaWithSamples,
    NoAnswer,
    Steps,
    free_ports,
    job_events,
    job_process,
    lock_directory,
)
from tablegate.examples.demo.processes import ProcessEnded
from tablegate.examples.samples import Event, ratings
from tablegate.examples.samples.ratings import KNOWN_MOVIE
from tablegate.examples.samples.systems import RATINGS
from tablegate.examples.tables.ratings import TABLE
from tablegate.gateway.cli import show
from tablegate.gateway.cli.connecting import AskError
from tablegate.gateway.contract.binder.binder import bind
from tablegate.gateway.contract.catalogue import GetQuery
from tablegate.gateway.contract.descriptors import DescriptorError, load_descriptors
from tablegate.jobs.jars import SetupError

PARTITIONS = 6
MOVIE = 1  # it is read and rated; any but the known one would do
ASK_EVERY_S = 0.2
TRICKLE_S = 0.5
START_AGAIN_S = 15.0  # after the user killed a gateway: the others have taken its partitions by then
CALL_TIMEOUT_S = 10.0


def cluster_demo(data: Path, *, gateways: int, once: bool, port: int) -> None:
    """Start everything and show a failover; then stay until Ctrl-C, unless `once`.

    Raise `DemoError`; with `once` also where the failover was not good.
    """
    problems: list[str] = []
    try:
        with ExitStack() as stack:
            lock_directory(stack, data)
            ports = free_ports(port, [f"gateway g{number + 1}" for number in range(gateways)])
            running = _Cluster(stack, data, ports)
            problems = running.show()
            running.print_more()
            if not once:
                running.stay()
    except (NoAnswer, ProcessEnded, SetupError, DescriptorError, AskError) as error:
        raise DemoError(str(error)) from None
    except KeyboardInterrupt:
        problems = []  # who ends it has read them
    print_line(f"stopped; the next start finds its data in {data}")
    if problems:
        raise DemoError(f"the failover was not good: {problems[0]}; the logs in {data / 'logs'} say why")


class _Cluster:
    """Kafka, Redis, a job and gateways, started as parts of `stack`."""

    def __init__(self, stack: ExitStack, data: Path, ports: list[int]) -> None:
        started_s = time.monotonic()
        self._logs = data / "logs"
        self._query = _get_query()
        with progress_bars(transient=False) as progress:
            self._kafka = kafka = KafkaWithSamples(stack, data, [RATINGS], Steps(progress))
            self._producer = kafka.producer
            self._gateways = Gateways(stack, data, kafka.bootstrap, TABLE, ports)
            words = [TABLE.name, "--partitions", str(PARTITIONS)]
            self._job = stack.enter_context(job_process(data, kafka.bootstrap, *words))
            self._gateways.start()
            stack.callback(self._job.terminate)
            stack.callback(print_line, "stopping: it takes some seconds")
            self._wait(progress)
        self._print_what_runs(time.monotonic() - started_s)
        print_line(f"Kafka listens on {kafka.bootstrap}; logs are in {self._logs}.\n")

    def _print_what_runs(self, seconds: float) -> None:
        members = self._gateways.members
        in_redis = [member for member in members if member.store == "Redis"]
        stores = "There is no Redis (no redis-server, or it does not start): rows are kept in LMDB."
        if in_redis:
            [own] = [member for member in members if member not in in_redis]
            stores = f"{own.label} keeps its rows in LMDB, {names_of(in_redis)} in Redis, in one copy."
        print_line(f"\nA PySpark job keeps the table ratings in {PARTITIONS} partitions.")
        print_line(f"{len(members)} gateways share them, each partition on {REPLICAS}.\n{stores}")
        print_line(f"All is ready {seconds:.0f} s after the start.")

    def _check(self, but: str = "") -> None:
        """Raise `ProcessEnded` unless all run, but perhaps the gateway of that name."""
        self._kafka.check()
        self._job.check()
        self._gateways.check(but)

    # The start.

    def _wait(self, progress: Progress) -> None:
        """Wait until all gateways have their partitions and a rating sent now is in the answer; raise `NoAnswer`."""
        names = ("job", *(member.name for member in self._gateways.members))
        tasks = {name: progress.add_task("", total=None) for name in names}
        end_s = time.monotonic() + ANSWERS_TIMEOUT_S
        # Ratings of one movie keep their order: with this one in the answer, none of an earlier start is on its way.
        probe = next(_ratings())._replace(timestamp_ms=time.time_ns() // 1_000_000)
        self._producer.send(probe)
        waiting = {*tasks}
        while waiting:
            self._check()
            for member in self._gateways.members:
                _advance(progress, tasks[member.name], waiting, member.name, self._state(member))
            if "job" in waiting:
                _advance(progress, tasks["job"], waiting, "job", self._job_state(probe.timestamp_ms or 0))
            if time.monotonic() > end_s:
                raise NoAnswer(
                    f"{', '.join(sorted(waiting))} did not get ready within {ANSWERS_TIMEOUT_S:.0f} s: the logs in "
                    f"{self._logs} say why; start the demo again when the machine is less busy, or with another --data"
                )
            time.sleep(ASK_EVERY_S)

    def _state(self, member: ClusterMember) -> tuple[str, bool]:
        """Return what a gateway does, and whether it is ready."""
        placement = self._gateways.placement(member)
        if placement is None:
            return "starts", False
        known, count = len(placement.alive), len(self._gateways.members)
        if known < count:
            return f"knows {known} of {count} gateways", False
        if not placement.replicas:
            return "waits for the table", False
        own = sum(member.name in names for names in placement.replicas)
        return f"has {own} of {PARTITIONS} partitions", self._gateways.are_settled(placement)

    def _job_state(self, probe_ms: int) -> tuple[str, bool]:
        """Return what the job does, and whether a rating sent at `probe_ms` is in the answer."""
        running, is_planned = job_events(self._logs / "job.log")
        if not running:
            return "waits for Spark" if is_planned else "makes its topics", False
        try:
            row, _ = self._ask(self._gateways.members[0], MOVIE)
        except grpc.RpcError:
            return "makes rows", False
        return "makes rows", row.update_time.ToMilliseconds() >= probe_ms

    def _ask(self, member: ClusterMember, movie_id: int) -> tuple[Any, Mapping[str, str]]:
        """Return a movie's row and the trailers of the answer; raise `grpc.RpcError`."""
        request: Any = self._query.request_class(movie_id=movie_id)
        with grpc.insecure_channel(member.address) as channel:
            call: Any = channel.unary_unary(self._query.path, None, None)
            answer, details = call.with_call(request.SerializeToString(), timeout=CALL_TIMEOUT_S)
        response: Any = self._query.response_class.FromString(answer)
        return response.rating, dict(details.trailing_metadata())

    # What is shown.

    def show(self) -> list[str]:
        """Show who has what, who answers, and what happens when one is killed; return what went wrong, in sentences."""
        first = self._gateways.members[0]
        placement = self._placement(first)
        print_line(
            "[bold]Who has which partition[/bold]: ● owner, asked first; ○ standby, asked when the owner is gone"
        )
        show.OUT.print(self._gateways.placement_table(placement, with_processes=True))
        print_line(f"\n[bold]Any gateway answers for any key.[/bold] Movie {KNOWN_MOVIE}, asked at each:")
        show.OUT.print(self._answers())
        row, trailer = self._ask(first, MOVIE)
        partition = int(trailer["tablegate-partition"])
        print_line(
            f"\n[bold]A gateway dies.[/bold] Movie {MOVIE}, in partition {partition}, is rated {RATINGS_PER_S} times a "
            f"second and\nread {READS_PER_S} times, at all gateways in turn. Each read asks for at least what was "
            "seen\nbefore it (read_options.at_least)."
        )
        failover = Failover(
            self._gateways,
            self._producer,
            self._query,
            movie_id=MOVIE,
            partition=partition,
            events=_ratings(),
            check=self._check,
            logs=self._logs,
        )
        return failover.show(placement, rating_count=row.rating_count)

    def _placement(self, member: ClusterMember) -> PlacementView:
        placement = self._gateways.placement(member)
        if placement is None:
            raise NoAnswer(f"gateway {member.name} does not answer: the logs in {self._logs} say why")
        return placement

    def _answers(self) -> Table:
        shown = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
        for title in ("asked", "answered by", "as", "partition"):
            shown.add_column(title)
        for title in ("average_rating", "rating_count"):
            shown.add_column(title, justify="right")
        for member in self._gateways.members:
            row, trailer = self._ask(member, KNOWN_MOVIE)
            who = trailer.get("tablegate-gateway", UNNAMED)
            role = trailer["tablegate-role"] + ("" if who == member.name else f", asked by {member.name}")
            values = (trailer["tablegate-partition"], str(row.average_rating), str(row.rating_count))
            shown.add_row(member.label, self._gateways.label(who), role, *values)
        return shown

    def print_more(self) -> None:
        """Print what else to try."""
        one, two, *_ = [member.address for member in self._gateways.members]
        request, path = json.dumps({"movie_id": MOVIE}), self._query.path.lstrip("/")
        print_line("\nTo try:")
        for words, address in (
            (["status"], one),
            (["explain", path, request], one),
            (["get", TABLE.name, f"movie_id={MOVIE}"], two),
            (["subscribe", TABLE.name, f"movie_id={MOVIE}"], two),
        ):
            print_line(f"  {command_line(words, address)}", markup=False)
        print_line("With grpcurl; -v shows who answered, in the trailers tablegate-gateway and tablegate-role:")
        print_line(f"  grpcurl -v -plaintext -d {shlex.quote(request)} {one} {path}", markup=False)
        data = shlex.quote(json.dumps({"table": TABLE.name}))
        print_line(f"  grpcurl -plaintext -d {data} {two} tablegate.v1.GatewayService/GetTable", markup=False)
        print_line(f"The console, which shows it all as it moves: http://{one}/console")

    # Afterwards.

    def stay(self) -> None:
        """Send ratings and show who has which partition, until Ctrl-C; raise `ProcessEnded`.

        A gateway that the user kills starts again after a while.
        """
        print_line(
            f"\nKill a gateway yourself with kill -9: it starts again after {START_AGAIN_S:.0f} s.\n"
            "A rating comes every half second.\nCtrl-C stops everything.\n"
        )
        events = RATINGS.events(None, time.time_ns())
        ended_s: dict[str, float] = {}
        with Live(console=show.OUT, auto_refresh=False, transient=True) as live:
            while True:
                self._kafka.check()
                self._job.check()
                self._producer.send(next(events))
                self._start_ended(ended_s)
                running = (member for member in self._gateways.members if member.child.is_running)
                placement = next(filter(None, map(self._gateways.placement, running)), None)
                if placement is not None:
                    live.update(self._gateways.placement_table(placement, with_processes=True), refresh=True)
                time.sleep(TRICKLE_S)

    def _start_ended(self, ended_s: dict[str, float]) -> None:
        """Start gateways again that ended a while ago; `ended_s` has when that was seen, by name."""
        now_s = time.monotonic()
        for member in self._gateways.members:
            if member.child.is_running:
                ended_s.pop(member.name, None)
            elif now_s >= ended_s.setdefault(member.name, now_s) + START_AGAIN_S:
                member.child.start()


def _ratings() -> Iterator[Event]:
    """Yield ratings of the one movie, for ever."""
    return ratings.events(None, seed=time.time_ns(), movies=MOVIE)


def _get_query() -> GetQuery:
    catalogue = bind(load_descriptors(CONTRACTS / TABLE.contract))
    return next(query for query in catalogue.queries.values() if isinstance(query, GetQuery))


def _advance(progress: Progress, task: TaskID, waiting: set[str], name: str, state: tuple[str, bool]) -> None:
    """Show what a part does; once it is ready it stays so."""
    if name in waiting:
        text, is_ready = state
        if is_ready:
            waiting.discard(name)
        progress.update(task, description=f"{name:<8} {text}", total=1 if is_ready else None, completed=is_ready)
