"""The topic of manifests: the newest manifest of each table."""

import logging
from collections import defaultdict
from collections.abc import Sequence

from google.protobuf.message import DecodeError
from tablegate.gateway.kafka.compacted_topic import CompactedTopic
from tablegate.gateway.kafka.log import Clock, Log, Record
from tablegate.v1.changelog_pb2 import Manifest
from typing_extensions import override

_logger = logging.getLogger("tablegate.gateway.replication")


class ManifestTopic(CompactedTopic):
    """Follows the topic of manifests. `manifests`: the newest of each table that has one."""

    def __init__(self, topic: str, *, log: Log, clock: Clock) -> None:
        super().__init__(topic, log=log, clock=clock)
        self.manifests: dict[str, Manifest] = {}
        self._news: defaultdict[str, list[Manifest | None]] = defaultdict(list)

    @override
    def _start_over(self) -> None:
        self.manifests = {}
        self._news.clear()

    @override
    def _take_record(self, record: Record) -> None:
        name = (record.key or b"").decode("utf-8", errors="replace")
        if record.value is None:
            self.manifests.pop(name, None)
            self._news[name].append(None)
            return
        try:
            manifest = Manifest.FromString(record.value)
        except DecodeError:
            manifest = Manifest()
        if manifest.table != name:
            _logger.warning("skipped a record that is no manifest", extra={"topic": self.source.topic, "table": name})
            return
        self.manifests[name] = manifest
        self._news[name].append(manifest)

    def take_news(self, table_name: str) -> Sequence[Manifest | None]:
        """Return the manifests of a table since the last call, the newest last; None: it was removed."""
        return self._news.pop(table_name, ())

    def why_missing(self, table_name: str) -> str:
        """Return why there is no manifest of a table."""
        if not self.exists:
            return f'table "{table_name}": topic "{self.source.topic}" does not exist; start the table\'s job'
        return f'table "{table_name}" has no manifest in topic "{self.source.topic}"; start the table\'s job'
