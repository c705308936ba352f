"""The bugs that are planted in stores, and in what a store has to repair."""

from tests.kit.planted.bug import GATEWAY, Bug

BUGS = [
    # Versions, and what is one write.
    Bug(
        "older versions overwrite",
        GATEWAY + "stores/lmdb/store.py",
        (
            "            if change.version > found[:VERSION_BYTES]:\n"
            "                put(full_key, value)\n"
            "            else:\n"
        ),
        ("            put(full_key, value)\n            if change.version <= found[:VERSION_BYTES]:\n"),
        "tests/conformance/test_store.py::test_a_tombstone_is_no_row_but_keeps_its_version",
    ),
    Bug(
        "equal versions overwrite",
        GATEWAY + "stores/lmdb/store.py",
        (
            "            if change.version > found[:VERSION_BYTES]:\n"
            "                put(full_key, value)\n"
            "            else:\n"
        ),
        (
            "            if change.version >= found[:VERSION_BYTES]:\n"
            "                put(full_key, value)\n"
            "            if change.version <= found[:VERSION_BYTES]:\n"
        ),
        "tests/conformance/test_store.py::test_an_older_or_equal_version_is_stale",
    ),
    Bug(
        "of one batch the last record wins",
        GATEWAY + "stores/lmdb/store.py",
        "                if change.version > newest[change.key].version:\n",
        "                if change.version:\n",
        "tests/conformance/test_store.py::test_of_equal_versions_in_a_batch_the_first_stays",
    ),
    Bug(
        "Redis compares a part of the version",
        GATEWAY + "stores/redis/apply.lua",
        "  if b ~= e then return b - e end\n  return c - f",
        "  return b - e",
        "tests/conformance/test_redis_beside.py::test_versions_are_ordered_to_the_last_bit",
    ),
    Bug(
        "Redis is not asked what a script may call",
        GATEWAY + "stores/redis/scripts.py",
        '("permitted", *names) if writes else names',
        "names",
        "tests/conformance/test_redis_indexes.py::test_a_command_that_is_refused_for_a_while_leaves_half_of_nothing",
    ),
    Bug(
        "the position is a write of its own",
        GATEWAY + "stores/lmdb/store.py",
        ("            self._put_position(transaction, prefix, applied, count, position)\n        return Applied"),
        (
            "        with self._write() as transaction:\n"
            "            self._put_position(transaction, prefix, applied, count, position)\n"
            "        return Applied"
        ),
        "tests/conformance/test_lmdb.py::test_a_store_killed_at_any_moment_is_a_prefix",
    ),
    Bug(
        "the history keeps one change less",
        GATEWAY + "stores/lmdb/store.py",
        "_drop_oldest(cursor, prefix, excess) + 1)",
        "_drop_oldest(cursor, prefix, excess))",
        "tests/conformance/test_store.py::test_history_is_bounded_and_says_where_it_starts",
    ),
    Bug(
        "young tombstones are dropped",
        GATEWAY + "stores/lmdb/store.py",
        "                if time_ms >= before_ms:\n                    break",
        "                if time_ms >= before_ms + 1_000_000:\n                    break",
        "tests/conformance/test_store.py::test_old_tombstones_are_dropped",
    ),
    Bug(
        "a restore writes history",
        GATEWAY + "stores/lmdb/store.py",
        "            if position.phase is Phase.RESTORING:\n                _drop",
        "            if position.phase is Phase.CATCHING_UP:\n                _drop",
        "tests/conformance/test_store.py::test_history_goes_on_while_catching_up",
    ),
    Bug(
        "a notification names no partition",
        GATEWAY + "stores/changes.py",
        '            parts.append(struct.pack(f">{len(partitions)}I", *partitions))',
        '            parts.append(struct.pack(f">{len(partitions)}I", *(0 for _ in partitions)))',
        "tests/conformance/test_notifying.py::test_what_is_encoded_is_decoded",
    ),
    # Indexes.
    Bug(
        "an update leaves its index entry behind",
        GATEWAY + "stores/lmdb/indexes.py",
        "                    removed.append((prefix + index_key, key))\n",
        "                    pass\n",
        "tests/conformance/test_indexes.py::test_entries_follow_their_rows",
    ),
    Bug(
        "a deleted row leaves its index entry behind",
        GATEWAY + "stores/lmdb/indexes.py",
        "            before = layout.live_row(value)\n        now",
        "            before = None if row is None else layout.live_row(value)\n        now",
        "tests/conformance/test_indexes.py::test_entries_follow_their_rows",
    ),
    Bug(
        "Redis leaves the index entry of a deleted row behind",
        GATEWAY + "stores/redis/entries.lua",
        "  call_many('ZREM', index_entries, removed)\n",
        "",
        "tests/conformance/test_indexes.py::test_entries_follow_their_rows",
    ),
    Bug(
        "an expired row leaves its index entry behind",
        GATEWAY + "stores/lmdb/store.py",
        "                lmdb_indexes.remove_entries(transaction, self._environment, prefix, indexes, gone)\n",
        "                pass\n",
        "tests/conformance/test_indexes.py::test_an_expired_row_leaves_no_entry",
    ),
    Bug(
        "an index is answered from before it is whole",
        GATEWAY + "stores/lmdb/indexes.py",
        "    return bool(transaction.get(prefix + index.id, db=environment.indexes) == _WHOLE)",
        "    return bool(transaction.get(prefix + index.id, db=environment.indexes) != _GONE)",
        "tests/conformance/test_indexes.py::test_an_index_that_is_added_is_built_beside_writes",
    ),
    Bug(
        "what an index that comes back had before is not removed",
        GATEWAY + "stores/lmdb/indexes.py",
        "        if _removed(transaction, environment, prefix + index_id, limit):\n",
        "        if True:\n",
        "tests/conformance/test_indexes.py::test_an_index_that_comes_back_has_no_old_entries",
    ),
    Bug(
        "the build of an index passes over a row between two steps",
        GATEWAY + "stores/lmdb/indexes.py",
        "                until = _BUILDING + cursor.key()[layout.PREFIX_BYTES :]\n",
        "                until = _BUILDING + cursor.key()[layout.PREFIX_BYTES :] + bytes(1)\n",
        "tests/conformance/test_indexes.py::test_an_index_that_comes_back_has_no_old_entries",
    ),
    Bug(
        "the build of an index in Redis removes what another contract keeps",
        GATEWAY + "stores/redis/build.lua",
        "packed_without(stored[i], ARGV[1]) .. ",
        "",
        "tests/conformance/test_redis_indexes.py::test_a_build_leaves_what_another_contract_keeps",
    ),
    Bug(
        "two beginnings of a build in Redis are the same",
        GATEWAY + "stores/redis/apply.lua",
        "'$INDEX_ANEW' .. string.format('%.0f', new_next)",
        "'$INDEX_ANEW'",
        "tests/conformance/test_redis_indexes.py::test_a_build_misses_no_row_that_another_contract_writes_beside_it",
    ),
    # What is to be repaired.
    Bug(
        "of two contents the last stays",
        GATEWAY + "stores/settling.py",
        "        if known is None or change.version > known.version:\n",
        "        if known is None or change.version >= known.version:\n",
        "tests/conformance/test_store.py::test_other_content_of_a_version_is_a_conflict",
    ),
    Bug(
        "other content of a version is no conflict",
        GATEWAY + "stores/settling.py",
        "        elif change.row != known.row:\n",
        "        elif False:\n",
        "tests/conformance/test_store.py::test_other_content_of_a_version_is_a_conflict",
    ),
    Bug(
        "a pending repair is not stored",
        GATEWAY + "stores/settling.py",
        "            settled.repairs[change.key] = Repair(change.key, known.offset, known.version)\n",
        "            pass\n",
        "tests/conformance/test_store.py::test_what_lies_behind_its_newest_record_is_to_be_repaired",
    ),
    Bug(
        "a repeat ends no repair",
        GATEWAY + "stores/settling.py",
        (
            "                stored[change.key] = settled.repeated[change.key] = change\n"
            "                settled.repairs[change.key] = None\n"
        ),
        "                stored[change.key] = settled.repeated[change.key] = change\n",
        "tests/conformance/test_store.py::test_the_same_record_again_is_the_newest_from_then_on",
    ),
    Bug(
        "a newer row ends no repair",
        GATEWAY + "stores/lmdb/store.py",
        "                self._put_repairs(transaction, prefix, dict.fromkeys(newest))\n",
        "                pass\n",
        "tests/conformance/test_store.py::test_a_newer_row_needs_no_repair",
    ),
    Bug(
        "Redis remembers no repair",
        GATEWAY + "stores/redis/apply.lua",
        "call_many('HSET', repairs, unmended)\n",
        "",
        "tests/conformance/test_store.py::test_what_lies_behind_its_newest_record_is_to_be_repaired",
    ),
    Bug(
        "everybody is owner",
        GATEWAY + "replication/repair.py",
        "        if due and not self._is_owner(place):\n",
        "        if due and self._request is not None:\n",
        "tests/unit/replication/test_repair.py::test_of_several_gateways_the_owner_repairs",
    ),
    Bug(
        "repairs have no grace",
        GATEWAY + "replication/repair.py",
        "known.get(repair, now_s + self._grace_s)",
        "known.get(repair, now_s)",
        "tests/unit/replication/test_repair.py::test_nothing_is_appended_within_the_grace",
    ),
    Bug(
        "generations that ended are repaired",
        GATEWAY + "replication/repair.py",
        "        return self.replica.state is PartitionState.LIVE and goes_on\n",
        "        return True\n",
        "tests/unit/replication/test_repair.py::test_a_final_generation_is_not_repaired",
    ),
    Bug(
        "a node that hangs is waited for nearly all of the time",
        GATEWAY + "stores/redis/connection.py",
        "now_s + max(REST_S, waited_s)",
        "now_s + REST_S",
        "tests/conformance/test_redis_nodes.py::test_a_node_that_hangs_is_not_waited_for_again_at_once",
    ),
]
