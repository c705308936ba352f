"""Which topics the pattern of a source matches, and how they are read as one.

A job matches a pattern itself, with Python, and gives Spark names: so each topic has its id, its schemas and its place
in markers like any other. Spark's own `subscribePattern` would take up a topic without them.

Decision: docs/decisions/0154-topics-by-pattern.md
"""

import re
from collections.abc import Collection, Iterable, Mapping

from tablegate.gateway.contract.kafka_refusals import Right
from tablegate.gateway.contract.kafka_settings import own_topic
from tablegate.jobs.errors import JobError
from tablegate.jobs.frame_table import Declared
from tablegate.jobs.kafka.topics import MANIFESTS_TOPIC, KafkaAdmin, Topic, source_admin
from tablegate.jobs.table import Source

PATTERN_TOPICS_MAX = 500  # of one pattern: at each start Kafka is asked for each, and the schema registry twice
_OWN = (MANIFESTS_TOPIC, "gateways")
_NEVER = re.compile(r"__.*|.*-g[1-9][0-9]*-changelog|.*-dead-letters", re.DOTALL)
"""Topics that Kafka keeps for itself, and those that jobs of this or another installation write of their tables."""


def is_never_matched(name: str) -> bool:
    """Return whether no pattern matches a topic: a table must not read what it, or another one, writes of itself."""
    return _NEVER.fullmatch(name) is not None


def matching(source: Source, bootstrap: str, names: Iterable[str]) -> list[str]:
    """Return which of these topics a pattern matches, in order; `bootstrap`: of the cluster that has the table."""
    ours = {own_topic(bootstrap, name) for name in _OWN}
    return sorted(name for name in names if source.matches(name) and name not in ours and not is_never_matched(name))


def matched_topics(
    table: Declared, bootstrap: str, *, only: Collection[str] | None = None
) -> Mapping[str, list[Topic]]:
    """Return the topics by side, of those that have patterns; raise `JobError` where one matches none or too many.

    `bootstrap`: of the cluster that has the table; its sources may be in another one. `only`: those that may be
    matched; None lets all.
    """
    patterns = {name: table.source_of(name) for name in table.all_sides if table.source_of(name).pattern}
    if not patterns:
        return {}
    admin = source_admin(bootstrap)
    names = topics_there(admin)
    found = {}
    for side, source in patterns.items():
        where = f'{source.declared_at}: table "{table.name}" reads the topics that "{source.topic}" matches'
        matched = [name for name in matching(source, bootstrap, names) if only is None or name in only]
        if len(matched) > PATTERN_TOPICS_MAX:
            raise JobError(
                f"{where}, and these are {len(matched)}, more than {PATTERN_TOPICS_MAX}; write into fewer topics, or "
                "give a table to each part of them"
            )
        # One may have been deleted since.
        found[side] = [topic for name in matched if (topic := admin.find(name)) is not None]
        if not found[side]:
            raise JobError(f"{where}, and there is none; create one, or correct the pattern")
    return found


def topics_there(admin: KafkaAdmin) -> list[str]:
    """Return the names of all topics of the sources' cluster; raise `JobError`."""
    return admin.topic_names(Right("Describe", "topic", "*"))
