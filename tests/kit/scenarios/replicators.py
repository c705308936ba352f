"""The world of scenarios about replicators: jobs that write changelogs, gateways that follow them, and time.

All is in memory and steps in one order, so a scenario prints the same each time. Commands:

    job 1 create [partitions=2] [contract=other] make the changelog topic of generation 1
    job 1 manifest [name=value ...]      publish its manifest, some fields changed; contract=other: of another one
    job 1 put 0..19 [count=7]            write rows; a row's count is the job's sequence, or the one given
    job 1 delete 3,4                     write tombstones
    job 1 mark 0:10 1:10 [final] [partition=0]   write progress markers: next offsets of source partitions
    job 1 lose topic | anew | last | next        break its changelog
    job 1 compact                        remove what was overwritten, and tombstones
    job reset                            what `tablegate job reset` does: remove the manifest and the changelog
    gateway a start [alone] [zone=z] [replicas=2] [contract=other] [slow]    begin, with the store of before
    gateway a stop | kill | drain | wipe         leave; die; leave once others have all; die and lose the store
    gateway a disk full | room
    gateway a said 1 [beats=30]          one of an older release says that it serves generation 1, this often
    kafka down | up
    tick 500ms                           let time pass; print what readers would see, as it changes, and warnings
    quiet 20s                            let time pass, and print only what readers see at its end
    sleep 90000s                         let time pass in which nobody does anything
    moves on | off                       print the moves of all state machines too, as time passes
    status [a]                           print what gateways say of themselves
    rows a                               print the rows of partitions that are LIVE
    get a 7 [keep=t] [at_least=t]        ask for a row; keep or pass a consistency token
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tablegate.gateway.cluster.membership import Membership
from tablegate.gateway.contract.types import Offset
from tablegate.gateway.query.errors import QueryError
from tablegate.gateway.replication.replicator import Replicator
from tablegate.gateway.replication.states import Move
from tablegate.v1.changelog_pb2 import Manifest
from tablegate.v1.cluster_pb2 import GatewayRecord
from tablegate.v1.errors_pb2 import ErrorReason
from tablegate.v1.status_pb2 import TableStatus
from tests.kit.call.asker import Asker
from tests.kit.replication.memory_log import MemoryBroker, MemoryLog, source
from tests.kit.replication.replicator import FakeClock, Job
from tests.kit.replication.replicators import Member, SlowLog, another_contract, manifest_of
from tests.kit.replication.state_observer import StateObserver
from tests.kit.scenarios.script import Command, numbers_of, text_of
from tests.kit.store.memory import MemoryStore
from tests.kit.table.filled import LocalCall, catalogue_of

STEP_S = 0.1
_REASON = "ERROR_REASON_"


@dataclass
class ScenarioGateway:
    """A gateway, and what was seen of it last."""

    member: Member
    seen: str = "nothing"
    has_room: bool = True


@dataclass
class _Lines(logging.Handler):
    """Warnings and errors since they were taken last."""

    found: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(logging.WARNING)

    def __hash__(self) -> int:
        return id(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(f"{record.levelname} {record.getMessage()}")

    def take(self) -> list[str]:
        found, self.found = self.found, []
        return found


class ReplicatorScenario:
    """What the commands are done with."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.broker = MemoryBroker(self.clock.now_ms)
        self.broker.create("tables", 1)
        self.jobs: dict[int, Job] = {}
        self.gateways: dict[str, ScenarioGateway] = {}
        self.tokens: dict[str, str] = {}
        self.records: list[tuple[GatewayRecord, int]] = []
        self.lines = _Lines()
        self.shows_moves = False
        self._starts = 0

    def __enter__(self) -> "ReplicatorScenario":
        logging.getLogger("tablegate").addHandler(self.lines)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("tablegate").removeHandler(self.lines)

    def run(self, command: Command) -> Iterator[str]:
        """Do a command; yield what it prints."""
        match command.words:
            case ["job", "reset"]:
                self._reset()
            case ["job", generation, *words]:
                self._job(command, int(generation), words)
            case ["gateway", name, *words]:
                self._gateway(command, name, words)
            case ["kafka", "down" | "up" as state]:
                self.broker.is_up = state == "up"
            case ["tick", duration]:
                yield from self._tick(_seconds(duration))
            case ["quiet", duration]:
                list(self._tick(_seconds(duration)))
                for name, gateway in sorted(self.gateways.items()):
                    yield f"{name}: {gateway.seen}"
            case ["moves", "on" | "off" as state]:
                self.shows_moves = state == "on"
            case ["sleep", duration]:
                self.clock.sleep(_seconds(duration))
            case ["status"]:
                for name in sorted(self.gateways):
                    yield from self._status(name)
            case ["status", name]:
                yield from self._status(name)
            case ["rows", name]:
                yield from self._rows(name)
            case ["get", name, movie_id]:
                yield from self._get(command, name, int(movie_id))
            case _:
                command.fail("there is no such command")

    # Jobs.

    def _job(self, command: Command, generation: int, words: list[str]) -> None:
        options = dict(command.options)
        if words == ["create"]:
            partitions = int(options.get("partitions", 2))
            sequence = max((job.sequence for job in self.jobs.values()), default=0)
            self.jobs[generation] = Job(
                self.broker, generation=generation, partitions=partitions, sequence=sequence
            ).create()
            if options.get("contract") == "other":
                self.jobs[generation].table = another_contract().tables["ratings"]
            return
        job = self.jobs[generation]
        match words:
            case ["manifest"]:
                is_other = options.pop("contract", "") == "other"
                manifest = manifest_of(job, another_contract().tables["ratings"]) if is_other else job.manifest()
                for name, value in options.items():
                    setattr(manifest, name, type(getattr(manifest, name))(_value(value)))
                job.publish(manifest)
            case ["put", numbers]:
                job.put(numbers_of(numbers), count=int(options["count"]) if "count" in options else None)
            case ["delete", numbers]:
                job.put(numbers_of(numbers), delete=True)
            case ["mark", *offsets]:
                final = "final" in offsets
                pairs = [each.split(":") for each in offsets if each != "final"]
                next_offsets = {int(partition): int(offset) for partition, offset in pairs}
                if "partition" in options:
                    job.mark(int(options["partition"]), next_offsets, final=final)
                else:
                    job.mark_all(next_offsets, final=final)
            case ["lose", what]:
                self._lose(command, job, what)
            case ["compact"]:
                for partition in range(job.partitions):
                    self.broker.compact(job.source(partition), tombstones=True)
            case _:
                command.fail("there is no such command of a job")

    def _lose(self, command: Command, job: Job, what: str) -> None:
        facts = self.broker.facts(job.topic)
        assert facts is not None
        if what == "topic":
            self.broker.delete(job.topic)
        elif what == "anew":
            job.topic_id = self.broker.create(job.topic, job.partitions)
        elif what in ("last", "next"):
            for partition, end in enumerate(facts.end_offsets):
                if what == "last":
                    self.broker.truncate_from(job.source(partition), Offset(2))
                else:
                    self.broker.truncate_before(job.source(partition), end)
        else:
            command.fail("topic, anew, last or next can be lost")

    def _reset(self) -> None:
        job = self.jobs[max(self.jobs)]
        past = Manifest(table="ratings/past", generation=job.generation)
        self.broker.append(source("tables", 0), b"ratings/past", past.SerializeToString())
        self.broker.append(source("tables", 0), b"ratings", None)
        self.broker.delete(job.topic)

    # Gateways.

    def _gateway(self, command: Command, name: str, words: list[str]) -> None:
        match words:
            case ["start", *how]:
                self._start(command, name, how)
                return
            case ["said", generation]:
                record = GatewayRecord(gateway_id=name, endpoint=f"{name}:1", beat=1)
                record.tables.add(table="ratings", replicas=2).serving.generation = int(generation)
                self.records.append((record, int(command.options.get("beats", 30))))
                return
        gateway = self.gateways[name]
        match words:
            case ["stop" | "kill" | "wipe" as how]:
                assert gateway.member.replicator is not None
                if how == "stop":
                    gateway.member.replicator.close()
                gateway.member.replicator = None
                if how == "wipe":
                    del self.gateways[name]
            case ["drain"]:
                assert gateway.member.replicator is not None
                gateway.member.replicator.drain()
            case ["disk", "full" | "room" as state]:
                gateway.has_room = state == "room"
            case _:
                command.fail("there is no such command of a gateway")

    def _start(self, command: Command, name: str, how: list[str]) -> None:
        options = command.options
        if name not in self.gateways:
            gateway = self.gateways[name] = ScenarioGateway(Member(name, ""))
            gateway.member.store = MemoryStore(free_bytes=lambda: int(gateway.has_room))
        gateway = self.gateways[name]
        member = gateway.member
        member.zone = options.get("zone", "")
        member.catalogue = another_contract() if options.get("contract") == "other" else catalogue_of()
        membership = Membership(
            gateway_id=name, endpoint=f"{name}:1", zone=member.zone, replicas=int(options.get("replicas", 2))
        )
        self._starts += 1
        member.observer = StateObserver()

        def on_move(move: Move) -> None:
            member.observer(move)
            if self.shows_moves and move.before is not move.after:
                change = f"{move.before.name} -> {move.after.name}"
                self.lines.found.append(f"{move.subject}: {change} by {move.event.name}")

        member.replicator = Replicator(
            member.catalogue,
            log=(SlowLog if "slow" in how else MemoryLog)(self.broker),
            store=member.store,
            clock=self.clock,
            membership=None if "alone" in how else membership,
            start_id=self._starts,
            on_move=on_move,
        )

    # Time, and what is seen.

    def _tick(self, seconds: float) -> Iterator[str]:
        begin_s = self.clock.passed_s
        for _ in range(round(seconds / STEP_S)):
            self.clock.passed_s = round(self.clock.passed_s + STEP_S, 3)
            at = f"+{self.clock.passed_s - begin_s:.1f}s"
            self._say_records()
            for name, gateway in sorted(self.gateways.items()):
                if gateway.member.replicator is not None:
                    gateway.member.replicator.step(poll_s=0)
                    gateway.member.observer.check(gateway.member.replicator, gateway.member.store)
                for line in self.lines.take():
                    yield f"{at} {name}: {line}"
                seen = self._seen(gateway)
                if seen != gateway.seen:
                    gateway.seen = seen
                    yield f"{at} {name}: {seen}"

    def _say_records(self) -> None:
        """Let gateways that are not here beat."""
        if self.broker.facts("gateways") is None:
            return
        for record, _ in self.records:
            record.beat += 1
            self.broker.append(source("gateways", 0), record.gateway_id.encode(), record.SerializeToString())
        self.records = [(record, beats - 1) for record, beats in self.records if beats > 1]

    @staticmethod
    def _seen(gateway: ScenarioGateway) -> str:
        """Return what readers see of the table in a gateway's store."""
        member = gateway.member
        if member.replicator is None:
            return "is down"
        state = member.state()
        if state.problem:
            return f"problem: {state.problem}"
        if not state.HasField("manifest"):
            return "nothing"
        phases: dict[str, list[int]] = {}
        for number, position in sorted(member.positions().items()):
            phases.setdefault(position.phase.name + " and final" * position.is_final, []).append(number)
        parts = "; ".join(f"{text_of(numbers)} {phase}" for phase, numbers in phases.items())
        return f"generation {state.manifest.generation}: {parts or 'no partition'}"

    def _status(self, name: str) -> Iterator[str]:
        member = self.gateways[name].member
        if member.replicator is None:
            yield f"{name}: is down"
            return
        status = member.status()
        for table in status.tables:
            yield f"{name}: {_table_text(table)}"
        for other in status.gateways:
            held = "; ".join(
                f"generation {table.serving.generation}: {text_of(table.serving.partitions)}"
                for table in other.record.tables
            )
            draining = ", draining" * other.record.draining
            yield f"  {other.record.gateway_id}: {'alive' if other.alive else 'dead'}{draining}; {held or 'no table'}"

    def _rows(self, name: str) -> Iterator[str]:
        member = self.gateways[name].member
        row_class: Any = catalogue_of().tables["ratings"].row_class
        found = [row_class.FromString(row) for number in member.live() for row in member.rows(number).values()]
        movies = text_of([row.movie_id for row in found])
        yield f"{len(found)} rows in partitions {text_of(sorted(member.live()))}: {movies}"

    def _get(self, command: Command, name: str, movie_id: int) -> Iterator[str]:
        member = self.gateways[name].member
        asker = Asker(member.catalogue, member.store, "/examples.ratings.v1.RatingsService", self.clock.now_ms)
        fields: dict[str, Any] = {}
        if "at_least" in command.options:
            fields["read_options"] = {"at_least": self.tokens[command.options["at_least"]], "max_wait": {"nanos": 1}}
        try:
            answer = asker.ask("GetRating", call=LocalCall(0.02), movie_id=movie_id, **fields)
        except QueryError as error:
            yield f"{ErrorReason.Name(error.reason).removeprefix(_REASON)}: {error.text}"  # type: ignore[arg-type]
            return
        if "keep" in command.options:
            self.tokens[command.options["keep"]] = answer.read_info.consistency_token
        yield f"movie {movie_id} has count {answer.rating.rating_count}"


def _table_text(table: TableStatus) -> str:
    manifest = f"generation {table.manifest.generation}" if table.HasField("manifest") else "no manifest"
    lags = [f"{each.partition} lacks {each.end_offset - each.next_offset}" for each in table.partitions]
    is_lagging = any(each.end_offset > each.next_offset for each in table.partitions)
    lag = f"; {', '.join(lags)}" if is_lagging else ""
    problem = f"; {table.problem}" if table.problem else ""
    serving = "serving" if table.serving else "not serving"
    return f"{serving} {manifest}, partitions here: {len(table.partitions)}{lag}{problem}"


def _value(text: str) -> Any:
    return int(text) if text.lstrip("-").isdigit() else text.encode() if text.startswith("0x") else text


def _seconds(text: str) -> float:
    return float(text[:-2]) / 1_000 if text.endswith("ms") else float(text.removesuffix("s"))
