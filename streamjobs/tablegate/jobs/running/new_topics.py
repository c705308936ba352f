"""Topics that the pattern of a source matches after its generation was begun.

Which topics a generation is made of is in its checkpoint. One more is written there before it is read; so after any
crash the job knows that it belongs to it. One that is there no more is told: its records are in no log any longer.

Decision: docs/decisions/0154-topics-by-pattern.md
"""

from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from tablegate.jobs.errors import JobError
from tablegate.jobs.frame_table import Declared
from tablegate.jobs.kafka.polling import Polling
from tablegate.jobs.kafka.topics import KafkaAdmin
from tablegate.jobs.planning.declarations import rebuild_hint
from tablegate.jobs.planning.patterns import matching, topics_there
from tablegate.jobs.planning.plan import Plan
from tablegate.jobs.running.checkpoint import Identity

LIST_EVERY_S = 5.0  # a list of all topics is larger than what is asked of a few


def is_of_pattern(table: Declared, topic: str) -> bool:
    """Return whether a pattern of the table matches a topic, and no source names it."""
    sources = [table.source_of(side) for side in table.all_sides]
    named = any(not source.pattern and source.matches(topic) for source in sources)
    return not named and any(source.pattern and source.matches(topic) for source in sources)


def with_new_topics(plan: Plan, owner: Identity, now: Identity) -> Identity:
    """Return what a checkpoint belongs to with the topics that patterns match by now; raise `JobError` for one gone.

    `now`: what a generation that began now would be made of.
    """
    for topic in sorted({*owner.source_topic_ids} - {*now.source_topic_ids}):
        if is_of_pattern(plan.table, topic):
            raise JobError(
                f'source topic "{topic}" of table "{plan.table.name}" generation {owner.generation}, which a pattern '
                f"has matched, is not there any more; {rebuild_hint(plan.table)}"
            )
    new = [
        topic
        for topic in now.source_topic_ids
        if topic not in owner.source_topic_ids and is_of_pattern(plan.table, topic)
    ]
    if not new:
        return owner
    return replace(
        owner,
        source_topic_ids={**owner.source_topic_ids, **{topic: now.source_topic_ids[topic] for topic in new}},
        # All of it: what retention has dropped before is loss, and told as such.
        first_offsets={**owner.first_offsets, **{topic: dict.fromkeys(now.first_offsets[topic], 0) for topic in new}},
    )


class NewTopics:
    """Lists topics again and again while a job runs, without waiting for Kafka. One thread uses it."""

    def __init__(self, plan: Plan, admin: KafkaAdmin) -> None:
        self._sources = [plan.table.source_of(side) for side in plan.streamed_sides]
        self._sources = [source for source in self._sources if source.pattern]
        self._known = {side.topic.name for side in plan.streamed.values()}
        self._admin = admin
        self._bootstrap = plan.bootstrap
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="tablegate-topics") if self._sources else None
        self._polling = Polling(self._ask, every_s=LIST_EVERY_S)

    def _ask(self) -> "dict[str, Future[Sequence[str]]]":
        assert self._worker is not None, "`found` has asked"
        return {"topics": self._worker.submit(topics_there, self._admin)}

    def found(self) -> list[str]:
        """Return the topics that patterns match and that were not there before, each once."""
        if self._worker is None:
            return []
        names: Collection[str] = ()
        for answer in self._polling.answers().values():
            if answer.exception() is None:  # brokers may be away; if for long, the queries notice
                names = answer.result()
        new = {name for source in self._sources for name in matching(source, self._bootstrap, names)} - self._known
        self._known |= new
        return sorted(new)

    def close(self) -> None:
        """End."""
        if self._worker is not None:
            self._worker.shutdown(wait=False, cancel_futures=True)
