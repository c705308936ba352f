"""One table while its job runs, from its first query to its last, through restarts and generations.

The way forward is `make_plan` (planning), `build` (dataflow), `start` (running); `_begin` is where the three meet.

running ──(a record of an unknown schema)──► running, with the registry's newest schemas
   └──(a manifest of a newer generation)──► ended ──(who built it has gone)──► running, the new generation
"""

import json
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import asdict, replace

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from tablegate.jobs import metrics
from tablegate.jobs.dataflow.frames import build
from tablegate.jobs.dataflow.history import histories, topics_of_streams
from tablegate.jobs.errors import (
    CheckpointConflict,
    JobError,
    PythonWorkerLate,
    QueryStalled,
    ShuffleBroken,
    SourceLoss,
    UnknownSchema,
)
from tablegate.jobs.frame_table import Declared
from tablegate.jobs.kafka.job_group import JobGroup, Tenure, is_keeping, is_rebuilding, job_group, rebuild_group
from tablegate.jobs.kafka.manifests import publish_manifest, read_manifest
from tablegate.jobs.kafka.markers import Markers, SourceOffsets
from tablegate.jobs.kafka.topic_watch import TopicWatch
from tablegate.jobs.kafka.topics import KafkaAdmin, source_admin
from tablegate.jobs.log import log
from tablegate.jobs.planning.declarations import job_argument
from tablegate.jobs.planning.logic import logic_of
from tablegate.jobs.planning.options import Options, Start
from tablegate.jobs.planning.plan import Plan, make_plan
from tablegate.jobs.planning.schemas import SchemaId
from tablegate.jobs.running.atomic_sink import AtomicSink
from tablegate.jobs.running.checkpoint import IDENTITY_FILE, Checkpoint, Identity, as_text
from tablegate.jobs.running.dead_letters import DeadLetters
from tablegate.jobs.running.expiry import RowExpiry, adopt_sweep, expires, finish_sweep, sweep
from tablegate.jobs.running.handover import (
    CHECK_EVERY_S,
    GenerationHandover,
    HandoverPhase,
    end_generation,
    has_read,
    source_ends,
)
from tablegate.jobs.running.history import is_unread, keep_histories, read_histories
from tablegate.jobs.running.new_topics import NewTopics, with_new_topics
from tablegate.jobs.running.outputs import output_queries
from tablegate.jobs.running.queries import (
    STALLED_S,
    TABLE_QUERY,
    QueryMonitor,
    RunningQueries,
    start,
    start_realtime,
    stuck_tasks,
    with_run,
)
from tablegate.jobs.running.resuming import (
    as_offsets,
    check_begins,
    check_logic,
    check_loss,
    check_resumes,
    check_source_tables,
    first_offsets,
    must_catch_up,
    source_rebuilt,
)
from tablegate.jobs.running.seeding import begins_from_state, seed
from tablegate.jobs.running.session import table_session
from tablegate.jobs.running.source_places import SourcePlaces
from tablegate.jobs.table import Mode, Table
from tablegate.jobs.traces import BatchTraces

RESTARTS_MAX = 5  # without a batch in between
STOP_TRIES = 6  # of as many seconds as Spark waits for a query to stop


class RunningTable:
    """Keeps one table. One thread at a time calls it.

    `is_rebuild`: this job builds the plan's generation until that is in place, and another job may keep the table.
    `declared` returns the declaration as it is now: a generation that another job has built continues with that one.
    `stalled_s`: how long beyond its time a batch in Real-time Mode may take before the queries are started again.
    `traces`: makes spans of batches; None where there are none.
    """

    def __init__(
        self,
        spark: SparkSession,
        plan: Plan,
        options: Options,
        *,
        is_rebuild: bool,
        start: Start | None = None,
        declared: Callable[[], Declared] | None = None,
        stalled_s: float = STALLED_S,
        traces: BatchTraces | None = None,
    ) -> None:
        self._spark = spark
        self._options = options
        self._is_rebuild = is_rebuild
        self._start = start
        self._plan = plan
        self._declared = declared or (lambda: plan.table)
        self._stalled_s = stalled_s
        self._traces = traces
        self._admin = KafkaAdmin(options.bootstrap)
        self._restarts = 0  # after what passes, since the newest batch
        self._seen_schemas: dict[str, set[SchemaId]] = {}
        self._queries: RunningQueries | None = None
        self._expiry: RowExpiry | None = None
        self._handover: GenerationHandover | None = None
        self._next_check_s = 0.0
        self.is_done = False
        """Whether all is worked off, where it was to run once."""
        name = plan.table.name
        group = (rebuild_group if is_rebuild else job_group)(name)
        # Joined before anything else is done, as others decide by the members of the group what they may do: see
        # `_check_others`.
        self._membership = JobGroup.join(options.bootstrap, name, group, generation=plan.generation)
        try:
            self._check_others()
            if is_rebuild:
                self._begin(plan)
            elif self._newest_generation() > plan.generation:  # it was published while Spark was starting
                self._adopt(self._newest_generation())
            elif is_rebuilding(self._admin, name, plan.generation):
                log("waiting", table=name, generation=plan.generation, reason="another job is building it")
            else:
                self._begin(plan)
        except BaseException:
            self.close()
            raise

    def _check_others(self) -> None:
        name, generation = self._plan.table.name, self._plan.generation
        if self._is_rebuild and is_keeping(self._admin, name, generation):
            raise JobError(
                f'table "{name}": the job that keeps it is building generation {generation} already; wait until its '
                "log says that it is in place"
            )

    def _newest_generation(self) -> int:
        manifest = read_manifest(self._options.bootstrap, self._plan.table.name)
        return manifest.generation if manifest is not None else 0

    def _begin(self, plan: Plan) -> None:
        """Start the queries of a plan; raise `JobError`."""
        self._plan = plan
        if self._handover is not None:
            self._handover.close()
        self._handover = GenerationHandover(plan, self._admin, is_rebuild=self._is_rebuild)
        if self._is_rebuild:
            self._handover.drop_abandoned()
        self._run_queries(self._handover)

    def _run_queries(self, handover: GenerationHandover) -> None:
        plan, phase = self._plan, handover.phase
        checkpoint = Checkpoint(self._spark, plan.checkpoint)
        last_sweep = adopt_sweep(checkpoint) if expires(plan.table) else None
        if last_sweep is not None:
            self._plan = plan = replace(plan, sequence_base=last_sweep.sequence_base)
        owner, identity = checkpoint.owner(), identity_of(plan, self._start)
        if owner is None:
            check_begins(plan, self._admin)
            if not self._options.accept_loss and not self._options.from_state and self._start is None:
                check_loss(plan, identity, checkpoint)
        elif self._is_rebuild and owner.begins != _begins(self._start) and not begins_from_state(owner.begins):
            raise JobError(
                f'table "{plan.table.name}" generation {plan.generation} was begun by a seek that was broken off; '
                f"seek again, or build from the first record: tablegate job seek {job_argument(plan.table)} "
                "--time 1970-01-01T00:00:00Z"
            )
        else:
            check_logic(plan, owner.logic, identity.logic)
            check_source_tables(plan, owner)
            known, owner = owner, with_new_topics(plan, owner, identity)
            if owner != known:
                checkpoint.decide(IDENTITY_FILE, as_text(owner))
                log(
                    "topics_matched",
                    table=plan.table.name,
                    topics=sorted({*owner.source_topic_ids} - {*known.source_topic_ids}),
                )
        # Each table has its own number of shuffle partitions, and Spark keeps that setting for a session.
        session = table_session(self._spark, shuffle_partitions=plan.changelog.partition_count)
        # Their checkpoint is not the generation's. The job that keeps the table writes them.
        outputs_checkpoint = Checkpoint(self._spark, plan.outputs_checkpoint)
        outputs = [] if self._is_rebuild else output_queries(plan, outputs_checkpoint)
        frames = build(
            session,
            plan,
            # These topics have had the changes of the old generation: a rebuild would send them all once more.
            row_outputs=phase is not HandoverPhase.BUILDING,
            other_outputs=[query.outputs for query in outputs],
        )
        if owner is None and self._options.from_state:
            identity = seed(
                session,
                plan,
                checkpoint,
                identity,
                changelog=frames.table,
                options=self._options,
                admin=self._admin,
            )
        elif owner is None and histories(plan):
            # A topic that no longer has what the history leaves to it.
            check_resumes(plan, as_offsets(identity.first_offsets), self._admin)
            keep_histories(session, plan, checkpoint, topics_of_streams(frames.table))
        # After `build`, so that a wrong expression leaves no claimed checkpoint.
        checkpoint.claim(identity)
        if is_unread(plan, checkpoint):
            read_histories(
                session,
                plan,
                checkpoint,
                checkpoint.owner() or identity,
                frames.table,
                row_outputs=phase is not HandoverPhase.BUILDING,
                poll=self._membership.poll,
            )
        committed = checkpoint.committed_offsets(TABLE_QUERY)
        check_resumes(plan, committed, self._admin)
        self._places = SourcePlaces(plan, checkpoint, source_admin(plan.bootstrap), committed or {})
        # While it is being built, no gateway may know of it; and a newer one that has been published stays the newest.
        if not handover.is_building and self._newest_generation() <= plan.generation:
            publish_manifest(plan.bootstrap, plan.manifest)
        self._markers = Markers(plan.bootstrap, plan.changelog, plan.generation)
        catch_up = must_catch_up(plan, self._admin)
        if catch_up:
            log("catching_up", table=plan.table.name, generation=plan.generation)
        atomic = AtomicSink(plan) if isinstance(plan.table, Table) and plan.table.atomic else None
        if atomic is not None:
            atomic.open()
        # After all that may refuse a start, and before anything is read: whatever an earlier run wrote before this, the
        # first batch has the records of.
        self._frames = with_run(frames, plan, self._markers.begin_run(self._tenure))
        if last_sweep is not None:
            self._finish_sweep(session, checkpoint, phase, is_done=last_sweep.is_done)
            self._expiry = RowExpiry(session, plan, checkpoint, self._markers)
        self._dead_letters = DeadLetters(session, plan, checkpoint, source_admin(plan.bootstrap), committed or {})
        self._queries = start(
            self._frames, plan, outputs=outputs, catch_up=catch_up, once=self._options.once, atomic=atomic
        )
        self._monitor = self._new_monitor(self._queries)
        self._sources = TopicWatch(source_admin(plan.bootstrap), [side.topic for side in plan.streamed.values()])
        self._changelog = TopicWatch(self._admin, [plan.changelog])
        self._new_topics = NewTopics(plan, source_admin(plan.bootstrap))
        if not catch_up:
            self._log_running(phase)

    def _tenure(self) -> Tenure:
        # Who builds a generation has a group of its own. Left out of it, it may find that empty, as the job that keeps
        # the table has adopted the generation.
        is_published = self._is_rebuild and self._newest_generation() >= self._plan.generation
        return self._membership.tenure(since_joining=is_published)

    def _new_monitor(self, queries: RunningQueries) -> QueryMonitor:
        return QueryMonitor(
            self._plan,
            queries,
            self._markers,
            self._dead_letters,
            once=self._options.once,
            stalled_s=self._stalled_s,
            traces=self._traces,
        )

    def _finish_sweep(
        self, session: SparkSession, checkpoint: Checkpoint, phase: HandoverPhase, *, is_done: bool
    ) -> None:
        if not is_done:
            row_outputs = phase is not HandoverPhase.BUILDING
            finish_sweep(session, self._plan, checkpoint, run=self._frames.run, row_outputs=row_outputs)

    def _sweep(self, handover: GenerationHandover, before_us: int) -> None:
        """Stop the queries, remove the rows that have expired, and go on."""
        self._end_queries()
        # Another job may have taken over while this one was frozen; the state would be that one's.
        if not self._membership.check_kept():
            self._run_queries(handover)  # the next sweep does it
            return
        session = table_session(self._spark, shuffle_partitions=self._plan.changelog.partition_count)
        checkpoint = Checkpoint(session, self._plan.checkpoint)
        with ThreadPoolExecutor(1, thread_name_prefix="tablegate-sweep") as worker:
            swept = worker.submit(sweep, session, self._plan, checkpoint, before_us=before_us)
            while not wait([swept], CHECK_EVERY_S).done:  # who is silent for too long is no member any more
                self._membership.poll()
        swept.result()
        self._run_queries(handover)

    def _log_running(self, phase: HandoverPhase) -> None:
        metrics.RUNNING.labels(self._plan.table.name).set(1)
        metrics.GENERATION.labels(self._plan.table.name).set(self._plan.generation)
        log("running", table=self._plan.table.name, generation=self._plan.generation, phase=phase.value)

    @property
    def plan(self) -> Plan:
        """The plan that it is kept by now."""
        return self._plan

    @property
    def phase(self) -> HandoverPhase:
        """The phase of the generation's handover."""
        return self._handover.phase if self._handover is not None else HandoverPhase.BUILDING

    @property
    def next_offsets(self) -> SourceOffsets:
        """How far the sources were read when the newest batch was done; nothing before the first one."""
        return self._monitor.next_offsets if self._queries is not None else {}

    def poll(self) -> None:
        """Check membership, queries and handover once; raise `JobError` when the table cannot be kept."""
        newest = self._membership.poll()
        # Its own generation has ended, and nothing runs here until that of the other job may be kept.
        if self._handover is None or self._queries is None:
            self._adopt(max(newest, self._plan.generation))
        elif newest > self._plan.generation and not self._is_rebuild:
            self._hand_over(newest)
        else:
            if self._membership.member_id != self._markers.tenure.member_id:
                # Left out of the group, as it was frozen or brokers were away. Another may have come and gone, behind
                # whose run nothing counts that this one writes.
                metrics.RESTARTS.labels(self._plan.table.name, "left_out").inc()
                log("left_out", table=self._plan.table.name, generation=self._plan.generation)
                self._end_queries()
                self._begin(self._plan)
                return
            if self._has_other_generation() or self._has_grown_source() or self._has_new_topics():
                self._end_queries()
                self._begin(self._make_plan_again())
                return
            self._changelog.check_same()
            self._places.poll(self._monitor.next_offsets)
            try:
                self._monitor.poll()
            except SourceLoss:
                committed = Checkpoint(self._spark, self._plan.checkpoint).committed_offsets(TABLE_QUERY)
                check_resumes(self._plan, committed, self._admin)
                raise  # an output may be behind the table, and the offsets may be there again
            except UnknownSchema as unknown:
                self._restart_with_new_schemas(unknown)
                return
            except PythonWorkerLate as late:
                # As often as it takes: a busy machine is free again at some time. A scheduler waits for a run to end.
                if not self._options.once:
                    self._restarts = 0
                self._restart(
                    "python_worker_late",
                    f"{late}; Spark waits ten seconds for a Python worker, so give the machine more cores or less work",
                )
                return
            except ShuffleBroken as broken:
                self._restart("shuffle_broken", f"{broken}; the log of Spark may say why a task has ended")
                return
            except QueryStalled as stalled:
                log("stuck_tasks", table=self._plan.table.name, tasks=stuck_tasks(self._spark))
                # As often as it takes: slots come back with a worker, and each start works off what there is.
                self._restarts = 0
                self._restart("stalled", str(stalled))
                return
            except CheckpointConflict as conflict:
                self._restart(
                    "checkpoint_conflict",
                    f'{conflict}; end the other job, or give it another directory than "{self._plan.checkpoint}"',
                )
                return
            if self._monitor.has_caught_up:
                self._queries = start_realtime(self._frames, self._plan, self._queries)
                self._monitor = self._new_monitor(self._queries)
                self._log_running(self._handover.phase)
            self._advance(self._handover)
            if self._monitor.is_done:
                self._end_or_run_again(self._handover)
            elif self._expiry is not None and not self._options.once and (before_us := self._expiry.poll()) is not None:
                self._sweep(self._handover, before_us)

    def _has_other_generation(self) -> bool:
        """Return whether a global side's table is at a newer generation; raise `JobError` where another side's is.

        The old changelog has ended. Of a global side there is no state.
        """
        found = False
        for name, side in self._plan.sides.items():
            generation = self._membership.generation_of(side.source.topic) if side.generation else 0
            if generation > side.generation and name in self._plan.streamed:
                raise source_rebuilt(self._plan, side, generation)
            found = found or generation > side.generation
        return found

    def _has_grown_source(self) -> bool:
        """Return whether a source has more partitions, of which the manifest is to tell; raise `JobError`."""
        changed = self._sources.changed()
        for before, now in changed:
            what = f'source topic "{now.name}" of table "{self._plan.table.name}"'
            if now.topic_id != before.topic_id:
                raise JobError(
                    f"{what} was deleted and created again while the job read it; build the table anew from what is "
                    f"there: tablegate job rebuild {job_argument(self._plan.table)}"
                )
            if self._plan.mode is Mode.REALTIME:
                raise JobError(
                    f"{what} has grown from {before.partition_count} to {now.partition_count} partitions, and "
                    "Real-time Mode needs a slot for each; start the job again: it goes on with all of them"
                )
            log("source_grew", table=self._plan.table.name, topic=now.name, partitions=now.partition_count)
        return bool(changed)

    def _has_new_topics(self) -> bool:
        """Return whether patterns match topics more, which the queries have to be started with."""
        found = self._new_topics.found()
        if found and self._plan.mode is Mode.REALTIME:
            reason = "Real-time Mode needs a slot for each of their partitions; start the job again to read them"
            log("topics_waiting", table=self._plan.table.name, topics=found, reason=reason)
            return False
        return bool(found)

    def _advance(self, handover: GenerationHandover) -> None:
        before = handover.phase
        handover.poll(self._worked_off(), is_idle=self._monitor.is_idle)
        after = handover.phase
        # The frames of a running query are fixed, so it starts again to write its output topics, too, from here on.
        if before is not after and after is HandoverPhase.CAUGHT_UP and self._plan.table.has_row_outputs:
            self._end_queries()
            self._run_queries(handover)

    def _end_or_run_again(self, handover: GenerationHandover) -> None:
        """Note that all is worked off; run once more where a new generation is not in place, and there is more."""
        before_us = self._expiry.poll_last() if self._expiry is not None else None
        if before_us is not None:
            self._sweep(handover, before_us)
        elif handover.phase is HandoverPhase.IN_PLACE:
            self.is_done = True
        elif not has_read(self._worked_off(), source_ends(self._plan), self._plan):
            self._end_queries()
            self._run_queries(handover)

    def _worked_off(self) -> SourceOffsets:
        """Return how far the sources were read; a run that found nothing new has no batch that tells it."""
        if self._monitor.next_offsets or not self._monitor.is_done:
            return self._monitor.next_offsets
        return Checkpoint(self._spark, self._plan.checkpoint).committed_offsets(TABLE_QUERY) or {}

    def _restart_with_new_schemas(self, unknown: UnknownSchema) -> None:
        """Restart with the registry's newest schemas; records with an id that it lacks are malformed from now on."""
        log("unknown_schema", table=self._plan.table.name, topic=unknown.topic, schema_id=unknown.schema_id)
        self._seen_schemas.setdefault(unknown.topic, set()).add(unknown.schema_id)
        self._end_queries()
        self._begin(self._make_plan_again())

    def _restart(self, event: str, reason: str) -> None:
        """Restart from the checkpoint; raise `JobError` after `RESTARTS_MAX` restarts without a batch."""
        # A batch since the last restart means that the cause comes now and then, and has passed.
        self._restarts = self._restarts + 1 if self._monitor.batch_id < 0 else 1
        if self._restarts > RESTARTS_MAX:
            raise JobError(f'table "{self._plan.table.name}" has stopped: {reason}')
        metrics.RESTARTS.labels(self._plan.table.name, event).inc()
        log(event, table=self._plan.table.name, reason=reason)
        self._end_queries()
        self._begin(self._plan)

    def _make_plan_again(self) -> Plan:
        """Return the plan of the same generation, by the schemas and sources of now."""
        # In Real-time Mode there are slots for the topics that it began with.
        is_fixed = self._plan.mode is Mode.REALTIME
        topics = [side.topic.name for side in self._plan.sides.values()] if is_fixed else None
        return self._make_plan(self._plan.table, self._plan.generation, topics=topics)

    def _make_plan(self, table: Declared, generation: int | None, *, topics: Collection[str] | None = None) -> Plan:
        return make_plan(
            table,
            self._options,
            generation=generation,
            start=self._start,
            seen_schemas=self._seen_schemas,
            topics=topics,
        )

    def _hand_over(self, newest: int) -> None:
        """End this generation, as a newer one has caught up: stop the queries, then write the final marker."""
        log("handing_over", table=self._plan.table.name, generation=self._plan.generation, newest=newest)
        self._end_queries()
        self._next_check_s = 0.0
        # Read after the queries have ended: so nothing that they wrote was made from a record behind these offsets.
        ends = source_ends(self._plan)
        end_generation(self._plan.bootstrap, self._plan.changelog, self._plan.generation, ends)

    def _adopt(self, generation: int) -> None:
        """Continue with a newer generation, by the declaration as it is now, once the job that built it has gone."""
        now_s = time.monotonic()
        if now_s < self._next_check_s:
            return
        self._next_check_s = now_s + CHECK_EVERY_S
        if not is_rebuilding(self._admin, self._plan.table.name, generation):
            # `--partitions` was meant for the changelog that this job made, not for one that another job has made.
            self._options = replace(self._options, partition_count=None)
            # The declaration is loaded anew: the other job may have been started with one that has changed since.
            self._begin(self._make_plan(self._declared(), None))

    def _end_queries(self) -> None:
        """Stop the queries and wait until they have ended: others will write to the same topics."""
        for query in self._queries.all if self._queries is not None else ():
            for _ in range(STOP_TRIES):
                with suppress(Py4JJavaError):  # the query needs more time than Spark waits; ask again
                    query.stop()
                if not query.isActive:
                    break
        self._stop_queries()

    def _stop_queries(self) -> None:
        queries, self._queries = self._queries, None
        if queries is None:
            return
        self._dead_letters.close()
        self._new_topics.close()
        if self._expiry is not None:
            self._expiry.close()
            self._expiry = None
        for query in queries.all:
            query.stop()
        if queries.sink is not None:
            # Before others write a last marker: behind an open transaction no gateway would be given it.
            queries.sink.close()
        self._markers.close()

    def close(self) -> None:
        """Stop the queries, and leave the table to others."""
        metrics.RUNNING.labels(self._plan.table.name).set(0)
        try:
            self._stop_queries()
            if self._handover is not None:
                self._handover.close()
        finally:
            self._membership.leave()


def identity_of(plan: Plan, start: Start | None) -> Identity:
    """Return what a generation that begins now is made from."""
    return Identity(
        table=plan.table.name,
        generation=plan.generation,
        changelog_topic_id=plan.changelog.topic_id,
        source_topic_ids={side.topic.name: side.topic.topic_id for side in plan.streamed.values()},
        begins=_begins(start),
        logic=logic_of(plan.table),
        first_offsets=first_offsets(plan),
    )


def _begins(start: Start | None) -> str:
    return "" if start is None else json.dumps(asdict(start), sort_keys=True)
