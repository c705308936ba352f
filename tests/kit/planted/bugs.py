"""The bugs that are planted, each with the tests of `make test` that have to notice it."""

from typing import NamedTuple

_GATEWAY = "gateway/tablegate/gateway/"
_CLIENT = "clients/python/tablegate/client/"
_STORES = "tests/conformance/test_store.py tests/conformance/test_lmdb.py"
_REPLICATION = "tests/unit/replication"
_CLUSTER = "tests/unit/replication/test_cluster.py"
_SUBSCRIBE = "tests/unit/query/subscribe"


class Bug(NamedTuple):
    """A change of the product's text: `find`, which is in `file` once, becomes `replace`. `tests` are pytest's."""

    name: str
    file: str
    find: str
    replace: str
    tests: str


BUGS = [
    # Versions, and what is one write.
    Bug(
        "older versions overwrite",
        _GATEWAY + "stores/lmdb/store.py",
        "            if change.version > found.version:\n                put(full_key, value)",
        "            put(full_key, value)",
        _STORES,
    ),
    Bug(
        "equal versions overwrite",
        _GATEWAY + "stores/lmdb/store.py",
        "            if change.version > found.version:\n                put(full_key, value)",
        "            if change.version >= found.version:\n                put(full_key, value)",
        _STORES,
    ),
    Bug(
        "of one batch the last record wins",
        _GATEWAY + "stores/lmdb/store.py",
        "                if change.version > newest[change.key].version:\n",
        "                if change.version:\n",
        _STORES,
    ),
    Bug(
        "Redis compares a part of the version",
        _GATEWAY + "stores/redis/apply.lua",
        "  return c > f",
        "  return c >= f",
        "tests/conformance",
    ),
    Bug(
        "the position is a write of its own",
        _GATEWAY + "stores/lmdb/store.py",
        "            self._put_position(transaction, prefix, applied, count, position)\n        return Applied",
        "        with self._write() as transaction:\n"
        "            self._put_position(transaction, prefix, applied, count, position)\n        return Applied",
        "tests/conformance/test_lmdb.py",
    ),
    Bug(
        "the history keeps one change less",
        _GATEWAY + "stores/lmdb/store.py",
        "_drop_oldest(cursor, prefix, excess) + 1)",
        "_drop_oldest(cursor, prefix, excess))",
        _STORES,
    ),
    Bug(
        "young tombstones are dropped",
        _GATEWAY + "stores/lmdb/store.py",
        "                if time_ms >= before_ms:\n                    break",
        "                if time_ms >= before_ms + 1_000_000:\n                    break",
        _STORES,
    ),
    Bug(
        "a restore writes history",
        _GATEWAY + "stores/lmdb/store.py",
        "            if position.phase is Phase.RESTORING:",
        "            if position.phase is Phase.CATCHING_UP:",
        _STORES,
    ),
    # What is applied, and when it is served.
    Bug(
        "records of other generations are applied",
        _GATEWAY + "replication/records.py",
        "                    and version[:4] == generation_bytes\n",
        "",
        _REPLICATION,
    ),
    Bug(
        "rows behind the last marker are applied",
        _GATEWAY + "replication/records.py",
        "                        batch.as_of_ms = time_ms\n                        break\n",
        "                        batch.as_of_ms = time_ms\n",
        _REPLICATION,
    ),
    Bug(
        "source offsets of markers go back",
        _GATEWAY + "replication/records.py",
        "max(next_offset, offsets.get(at, next_offset))",
        "next_offset",
        _REPLICATION,
    ),
    Bug(
        "compacted changes are history",
        _GATEWAY + "replication/records.py",
        "    young_ms = now_ms - HISTORY_RESTORED_MS\n",
        "    young_ms = 0\n",
        _REPLICATION,
    ),
    Bug(
        "no restore barrier",
        _GATEWAY + "replication/partitions.py",
        "is_first and position.next_offset >= self.barrier",
        "is_first",
        _REPLICATION,
    ),
    Bug(
        "the barrier is one offset early",
        _GATEWAY + "replication/partitions.py",
        "is_first and position.next_offset >= self.barrier",
        "is_first and position.next_offset >= self.barrier - 1",
        _REPLICATION,
    ),
    Bug(
        "restoring partitions are answered from",
        _GATEWAY + "query/serving.py",
        "        if position is None or position.phase is not _LIVE:\n            raise PartitionUnavailable",
        "        if position is None:\n            raise PartitionUnavailable",
        "tests/unit/query",
    ),
    Bug(
        "old stores are gone on with",
        _GATEWAY + "replication/stored.py",
        "    return now_ms - caught_up_ms > facts.delete_retention_ms * OLD_STORE_PART",
        "    return False",
        _REPLICATION,
    ),
    Bug(
        "a topic made anew is served on",
        _GATEWAY + "replication/manifests.py",
        "    if not same_topic_id(facts.topic_id, manifest.changelog_topic_id):",
        "    if not facts.topic_id:",
        _REPLICATION,
    ),
    Bug(
        "manifests may change in a generation",
        _GATEWAY + "replication/manifests.py",
        "        if known is None or manifest.generation != known.generation:\n            return None",
        "        return None",
        _REPLICATION,
    ),
    Bug(
        "a switch waits for no last marker",
        _GATEWAY + "replication/generations.py",
        "        if not replica.position.is_final:",
        "        if replica.position.next_offset < 0:",
        _REPLICATION,
    ),
    Bug(
        "a switch may miss source records",
        _GATEWAY + "replication/generations.py",
        "replica.position.source_offsets.get((topic, source_partition), 0) < next_offset",
        "replica.position.source_offsets.get((topic, source_partition), 0) < 0",
        _REPLICATION,
    ),
    Bug(
        "partitions are revoked before others hear",
        _GATEWAY + "replication/partitions.py",
        "            elif self._assignment.heard_beat >= self.revoking[partition]:",
        "            else:",
        _CLUSTER,
    ),
    Bug(
        "partitions go before others are live",
        _GATEWAY + "replication/partitions.py",
        "            elif not self._are_others_live(partition, is_served=is_served):",
        "            elif False:",
        _CLUSTER,
    ),
    Bug(
        "Kafka skips to the end",
        _GATEWAY + "kafka/client.py",
        '"auto.offset.reset": "error"',
        '"auto.offset.reset": "latest"',
        "tests/integration/test_kafka_log.py",
    ),
    # Keys and partitions.
    Bug(
        "negative numbers come last",
        _GATEWAY + "contract/keys.py",
        "KeyType.TIMESTAMP:\n            if len(key) - at < 8",
        "KeyType.TIMESTAMP:\n            if len(key) - at < 9",
        "tests/unit/contract",
    ),
    Bug(
        "zero bytes in keys are not escaped",
        _GATEWAY + "contract/keys.py",
        'return value.replace(b"\\x00", b"\\x00\\xff") + b"\\x00\\x00"',
        'return value + b"\\x00\\x00"',
        "tests/unit/contract",
    ),
    Bug(
        "murmur2 keeps its sign",
        _GATEWAY + "contract/keys.py",
        "(murmur2(key) & 0x7FFFFFFF) % partition_count",
        "murmur2(key) % partition_count",
        "tests/unit/contract",
    ),
    Bug(
        "the whole key chooses the partition",
        _GATEWAY + "contract/catalogue.py",
        "crc32_partition(self.partition_prefix(key), partition_count)",
        "crc32_partition(key, partition_count)",
        "tests/unit/contract tests/unit/query",
    ),
    # Tokens.
    Bug(
        "forged tokens are accepted",
        _GATEWAY + "contract/tokens.py",
        "        if not any(matches):",
        "        if not matches:",
        "tests/unit/contract/test_tokens.py",
    ),
    Bug(
        "tokens of other tables are accepted",
        _GATEWAY + "contract/tokens.py",
        "        if token.table != table:",
        "        if not token.table:",
        "tests/unit/contract/test_tokens.py",
    ),
    Bug(
        "tokens of other requests are accepted",
        _GATEWAY + "contract/tokens.py",
        "        if token.request_hash != request_hash:",
        "        if request_hash < 0:",
        "tests/unit/contract/test_tokens.py",
    ),
    Bug(
        "tokens of other generations are accepted",
        _GATEWAY + "contract/tokens.py",
        "        if generation is not None and token.generation != generation:",
        "        if generation == 0:",
        "tests/unit/contract/test_tokens.py",
    ),
    # Reads.
    Bug(
        "at_least accepts one record less",
        _GATEWAY + "query/consistency.py",
        "None if position.next_offset >= wanted else",
        "None if position.next_offset >= wanted - 1 else",
        "tests/unit/query/test_freshness.py",
    ),
    Bug(
        "latest accepts one record less",
        _GATEWAY + "query/consistency.py",
        "None if position.next_offset >= self._end_offsets.get(partition, 0) else",
        "None if position.next_offset >= self._end_offsets.get(partition, 0) - 1 else",
        "tests/unit/query/test_freshness.py",
    ),
    Bug(
        "at_least_source accepts the record before",
        _GATEWAY + "query/consistency.py",
        "if next_offset is None or next_offset <= offset:",
        "if next_offset is None or next_offset < offset:",
        "tests/unit/query/test_freshness.py",
    ),
    Bug(
        "pages repeat their last row",
        _GATEWAY + "query/range.py",
        'token.after_key + b"\\x00"',
        "token.after_key",
        "tests/unit/query/test_range.py",
    ),
    Bug(
        "pages end one row early",
        _GATEWAY + "query/range.py",
        "    limit = page.size + 1\n",
        "    limit = page.size\n",
        "tests/unit/query/test_range.py",
    ),
    Bug(
        "merged pages go beyond a source's end",
        _GATEWAY + "query/range.py",
        "end = max(ends) if page.descending else min(ends)",
        "end = min(ends) if page.descending else max(ends)",
        "tests/unit/query",
    ),
    Bug(
        "a batch may mix generations",
        _GATEWAY + "query/batch_get.py",
        "return 0 if query.read_info is not None or len(partitions) == 1 else served.generation",
        "return 0",
        "tests/unit/query",
    ),
    # Other gateways.
    Bug(
        "a forward forgets the deadline",
        _GATEWAY + "cluster/peers.py",
        "        call = method(data, timeout=time_left_s, metadata",
        "        call = method(data, timeout=None, metadata",
        "tests/unit/cluster tests/unit/query",
    ),
    Bug(
        "any error is answered by another",
        _GATEWAY + "cluster/scatter.py",
        "self.reason in _ANOTHER_MAY_ANSWER and status.code",
        "status.code",
        "tests/unit/cluster tests/unit/query",
    ),
    Bug(
        "a forward token is for any table",
        _GATEWAY + "cluster/forward_token.py",
        "kind=TOKEN_KIND_FORWARD, table=table, generation=None)",
        "kind=TOKEN_KIND_FORWARD, table=self._signer._verified(text).table, generation=None)",
        "tests/unit/cluster",
    ),
    # Subscriptions.
    Bug(
        "resume skips a change",
        _GATEWAY + "query/subscribe/cursor.py",
        "start=start.offset, limit=budget.rows + 1, skip=start.skip)",
        "start=Offset(start.offset + 1), limit=budget.rows + 1, skip=start.skip)",
        _SUBSCRIBE,
    ),
    Bug(
        "a gap behind the history is not told",
        _GATEWAY + "query/subscribe/cursor.py",
        "    if start.offset < position.history_start:\n        raise HistoryLost\n",
        "",
        "tests/unit/query",
    ),
    Bug(
        "snapshot and changes overlap",
        _GATEWAY + "query/subscribe/cursor.py",
        "        return [change for change in known if change.key <= cursor.after_key]\n",
        "        return known\n",
        _SUBSCRIBE,
    ),
    Bug(
        "changes of the last key are missed",
        _GATEWAY + "query/subscribe/cursor.py",
        "if change.key <= cursor.after_key]",
        "if change.key < cursor.after_key]",
        _SUBSCRIBE,
    ),
    Bug(
        "joined changes forget the row before",
        _GATEWAY + "query/subscribe/cursor.py",
        "change if earlier is None else change._replace(before=earlier.before)",
        "change",
        "tests/unit/query",
    ),
    Bug(
        "expired rows count for nothing",
        _GATEWAY + "query/subscribe/cursor.py",
        "        skip += len(found)\n    return ChangePosition(at, skip,",
        "        skip += len(found)\n    return ChangePosition(at, 0,",
        "tests/unit/query",
    ),
    Bug(
        "progress comes before its changes",
        _GATEWAY + "query/subscribe/cursor.py",
        "is_whole=bool(budget.rows) and cursor.filling == len(selection.partitions))",
        "is_whole=True)",
        _SUBSCRIBE,
    ),
    Bug(
        "whoever joins misses a change",
        _GATEWAY + "query/subscribe/broadcaster.py",
        "            self.change_positions.get(partition, change_position) != change_position\n",
        "            False\n",
        "tests/unit/query",
    ),
    Bug(
        "who is slow stays without end",
        _GATEWAY + "query/subscribe/broadcaster.py",
        "        if self._bytes > SUBSCRIBER_BYTES_MAX and self._messages:",
        "        if self._bytes < 0:",
        "tests/unit/query",
    ),
    Bug(
        "a notification names no partition",
        _GATEWAY + "stores/changes.py",
        '            parts.append(struct.pack(f">{len(partitions)}I", *partitions))',
        '            parts.append(struct.pack(f">{len(partitions)}I", *(0 for _ in partitions)))',
        "tests/unit/query tests/unit/replication tests/unit/server",
    ),
    # The client.
    Bug(
        "the client forgets the newest token",
        _CLIENT + "subscriber.py",
        "self.token = token = progress.resume_token or self.token",
        "self.token = token = self.token or progress.resume_token",
        "tests/unit/client",
    ),
    Bug(
        "the client does not clear a copy",
        _CLIENT + "subscriber.py",
        "[Reset(token)] if progress.phase == RESET else []",
        "[]",
        "tests/unit/client",
    ),
    # HTTP/2.
    Bug(
        "the connection's window is not used up",
        _GATEWAY + "http/h2/connection.py",
        "        self.send_window -= size\n",
        "",
        "tests/unit/http",
    ),
]
