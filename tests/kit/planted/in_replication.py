"""The bugs that are planted in what comes from topics, and becomes of it."""

from tests.kit.planted.bug import GATEWAY, Bug

BUGS = [
    # What is applied.
    Bug(
        "records of other generations are applied",
        GATEWAY + "replication/records.py",
        "                    and version[:4] == generation_bytes\n",
        "",
        "tests/conformance/test_border.py::test_a_version_that_is_none_of_the_table_is_poison",
    ),
    Bug(
        "rows behind the last marker are applied",
        GATEWAY + "replication/records.py",
        ("                        batch.as_of_ms = known_time_ms(time_ms)\n                        break\n"),
        "                        batch.as_of_ms = known_time_ms(time_ms)\n",
        "tests/unit/replication/test_replica.py::test_nothing_is_applied_after_the_last_marker",
    ),
    Bug(
        "rows of a run that was replaced are applied",
        GATEWAY + "replication/records.py",
        "                        if its_run < run:\n",
        "                        if its_run == b'':\n",
        "tests/unit/replication/test_runs.py::test_rows_of_a_frozen_job_are_not_shown",
    ),
    Bug(
        "markers of a run that was replaced count",
        GATEWAY + "replication/records.py",
        "        if 0 < marker.run < run:\n",
        "        if marker.run < 0:\n",
        "tests/unit/replication/test_runs.py::test_markers_of_a_frozen_job_move_nothing",
    ),
    Bug(
        "source offsets of markers go back",
        GATEWAY + "replication/records.py",
        "max(next_offset, offsets.get(at, next_offset))",
        "next_offset",
        "tests/unit/replication/test_replica.py::test_a_marker_moves_time_and_source_offsets",
    ),
    Bug(
        "compacted changes are history",
        GATEWAY + "replication/records.py",
        "    young_ms = now_ms - HISTORY_RESTORED_MS\n",
        "    young_ms = 0\n",
        "tests/unit/query/test_subscribe_returns.py::test_a_delete_whose_row_was_compacted_away_is_not_missed",
    ),
    Bug(
        "a poison key is stored",
        GATEWAY + "replication/records.py",
        "                    elif is_key(key):\n",
        "                    elif key:\n",
        "tests/unit/replication/test_row_keys.py::test_a_key_that_is_not_the_rows_is_poison",
    ),
    Bug(
        "a key of another partition is stored",
        GATEWAY + "replication/records.py",
        "        self._keep_own(batch, partition)\n",
        "",
        "tests/unit/replication/test_row_keys.py::test_a_key_of_another_partition_is_poison",
    ),
    Bug(
        "a row with another key is stored",
        GATEWAY + "contract/rows.py",
        '        if key != (parts[0] if len(parts) == 1 else b"".join(parts)):\n',
        "        if parts is None:\n",
        "tests/unit/replication/test_row_keys.py::test_a_key_that_is_not_the_rows_is_poison",
    ),
    Bug(
        "expired rows are stored by the gateway's clock",
        GATEWAY + "replication/partitions.py",
        "        return round(self._clock.monotonic_s() * 1_000) + self._ahead_ms\n",
        "        return self._clock.now_ms()\n",
        "tests/unit/replication/test_retention.py::test_a_clock_that_is_wrong_for_a_while_loses_no_window",
    ),
    Bug(
        "one mistake in a record stops the table",
        GATEWAY + "replication/records.py",
        "            except Exception as error:  # noqa: BLE001\n",
        "            except MemoryError as error:\n",
        "tests/unit/replication/test_replica.py::test_a_mistake_of_ours_in_one_record_costs_that_record_alone",
    ),
    Bug(
        "markers may name negative partitions",
        GATEWAY + "kafka/border.py",
        "            if partition < 0:\n",
        "            if partition < -(2**63):\n",
        "tests/conformance/test_border.py::test_a_marker_beyond_its_bounds_is_poison",
    ),
    Bug(
        "markers may name any topic",
        GATEWAY + "kafka/border.py",
        '            raise Poison("progress marker names a source that can be no topic")\n',
        "            pass\n",
        "tests/conformance/test_border.py::test_a_marker_beyond_its_bounds_is_poison",
    ),
    Bug(
        "manifests may have negative schema ids",
        GATEWAY + "kafka/border.py",
        "        if schema_id < 0:\n",
        "        if schema_id is None:\n",
        "tests/conformance/test_border.py::test_a_manifest_beyond_its_bounds_is_set_aside",
    ),
    Bug(
        "manifests may have deep schemas",
        GATEWAY + "kafka/border.py",
        "            _check_schema(what, text)\n",
        "            pass\n",
        "tests/conformance/test_border.py::test_a_manifest_beyond_its_bounds_is_set_aside",
    ),
    Bug(
        "a gateway may announce what no table has",
        GATEWAY + "kafka/border.py",
        "        _check_partitions(generation)\n",
        "        pass\n",
        "tests/unit/replication/test_gateways_topic.py::test_what_no_gateway_can_have_is_set_aside",
    ),
    # Atomic batches.
    Bug(
        "atomic batches are applied in parts",
        GATEWAY + "replication/partitions.py",
        ("        if self._batch is None:\n            self._apply_whole(fetched)\n            return\n"),
        "        if fetched:\n            self._apply_whole(fetched)\n            return\n",
        "tests/unit/replication/test_atomic_batches.py::test_no_reader_sees_a_batch_in_part_wherever_fetches_end",
    ),
    Bug(
        "half a batch before a last marker is applied",
        GATEWAY + "replication/batches.py",
        "Split(whole._replace(records=[*records[:first], *markers, *records[final:]]), (), dropped)\n",
        "Split(whole, ())\n",
        "tests/unit/replication/test_atomic_batches.py::test_half_a_batch_before_the_last_marker_is_dropped",
    ),
    Bug(
        "what is held is forgotten",
        GATEWAY + "replication/batches.py",
        "        self.records = split.pending\n",
        "        self.records = ()\n",
        "tests/unit/replication/test_atomic_batches.py::test_rows_are_held_until_their_end_comes",
    ),
    Bug(
        "a row of no batch is held for ever",
        GATEWAY + "replication/batches.py",
        "        return bool(self.records) and self.records[0].offset < self.committed_end <= self.next_offset\n",
        "        return False\n",
        "tests/unit/replication/test_atomic_batches.py::test_a_row_of_somebody_else_holds_nothing_up",
    ),
    # When a partition is answered from.
    Bug(
        "no restore barrier",
        GATEWAY + "replication/partitions.py",
        "is_first and position.next_offset >= self.barrier",
        "is_first",
        "tests/unit/replication/test_replica.py::test_it_is_live_when_the_barrier_is_reached_and_not_before",
    ),
    Bug(
        "the barrier is one offset early",
        GATEWAY + "replication/partitions.py",
        "is_first and position.next_offset >= self.barrier",
        "is_first and position.next_offset >= self.barrier - 1",
        "tests/unit/replication/test_replica.py::test_it_is_live_when_the_barrier_is_reached_and_not_before",
    ),
    Bug(
        "restoring partitions are answered from",
        GATEWAY + "query/serving.py",
        ("        if position is None or position.phase is not _LIVE:\n            raise PartitionUnavailable"),
        "        if position is None:\n            raise PartitionUnavailable",
        "tests/unit/query/test_get.py::test_nothing_is_not_found_while_restoring",
    ),
    Bug(
        "old stores are gone on with",
        GATEWAY + "replication/stored.py",
        "    return now_ms - caught_up_ms > facts.delete_retention_ms * OLD_STORE_PART",
        "    return False",
        "tests/unit/replication/test_replicator.py::test_an_old_store_is_restored_from_the_start",
    ),
    Bug(
        "half a last step of a restore has the run of its end",
        GATEWAY + "replication/partitions.py",
        "            self._put(changes[:old], self.position)\n",
        "            self._put(changes[:old], replace(self.position, source_offsets=position.source_offsets))\n",
        "tests/unit/replication/test_runs.py::test_a_crash_at_the_end_of_a_restore_fences_no_earlier_row",
    ),
    Bug(
        "history goes on after hours without Kafka",
        GATEWAY + "replication/partitions.py",
        "        if is_restored or old:\n",
        "        if is_restored:\n",
        "tests/unit/query/test_subscribe_returns.py::test_a_gateway_that_was_cut_off_from_kafka_hides_no_delete",
    ),
    Bug(
        "partitions are revoked before others hear",
        GATEWAY + "replication/partitions.py",
        "            elif self._assignment.heard_beat >= self.revoking[partition]:",
        "            else:",
        "tests/unit/replication/test_late_words.py::test_two_that_rely_on_each_other_do_not_both_let_go",
    ),
    Bug(
        "partitions go before others are live",
        GATEWAY + "replication/partitions.py",
        "            elif not self._are_others_live(partition, is_served=is_served):",
        "            elif False:",
        "tests/unit/replication/test_cluster.py::test_two_that_rely_on_each_other_do_not_both_let_go",
    ),
    Bug(
        "Kafka skips to the end",
        GATEWAY + "kafka/client.py",
        '"auto.offset.reset": "error"',
        '"auto.offset.reset": "latest"',
        "tests/unit/replication/test_kafka.py::test_an_offset_that_is_not_there_is_lost_and_never_skipped",
    ),
    Bug(
        "a jump of Kafka's clock kills gateways",
        GATEWAY + "cluster/gateways_topic.py",
        "            self._now_ms += min(passed_ms, GAP_MAX_MS) if self.heard_beat else passed_ms\n",
        "            self._now_ms += passed_ms\n",
        "tests/unit/replication/test_gateways_topic.py::test_a_beat_that_comes_a_moment_after_a_jump_is_waited_for",
    ),
    Bug(
        "a clock that goes back keeps the dead alive",
        GATEWAY + "cluster/gateways_topic.py",
        "        before_ms, self._appended_ms = self._appended_ms, time_ms\n",
        "        before_ms, self._appended_ms = self._appended_ms, max(time_ms, self._appended_ms or 0)\n",
        "tests/unit/replication/test_gateways_topic.py::test_who_dies_is_dead_though_kafkas_clock_jumps",
    ),
    # A changelog that has lost records.
    Bug(
        "a lost tail is not noticed",
        GATEWAY + "replication/partitions.py",
        "        if fetched.lost or comes_late or not is_continued_by(self.position.lineage, fetched.runs):\n",
        "        if fetched.lost:\n",
        "tests/unit/replication/test_replica.py::test_what_cannot_follow_in_one_log_shows_that_it_is_another",
    ),
    Bug(
        "the last record is not read again",
        GATEWAY + "replication/partitions.py",
        "        return Place(place.next_offset) if is_removed and self._is_proved(partition, position) else place\n",
        "        return Place(place.next_offset)\n",
        "tests/unit/replication/test_lost_tails.py::test_a_tail_that_grew_to_the_same_offset_is_noticed",
    ),
    Bug(
        "what is not proved is answered from",
        GATEWAY + "replication/partitions.py",
        "        return not position.lineage or position.lineage[-1].leader_epoch == self._leader_epoch(partition)\n",
        "        return True\n",
        "tests/unit/replication/test_lost_tails.py::test_rows_of_a_lost_tail_are_answered_at_no_moment_of_a_start",
    ),
    Bug(
        "consistency tokens of lost records are accepted",
        GATEWAY + "query/consistency.py",
        "        if is_of_another_log(read, position.lineage):\n",
        "        if read is None:\n",
        "tests/unit/replication/test_lost_tails.py::test_a_consistency_token_of_lost_records_is_refused",
    ),
    Bug(
        "subscribers keep rows of lost records",
        GATEWAY + "query/subscribe/cursor.py",
        "    if start.incarnation_id != position.incarnation_id or is_of_another_log(start.place, position.lineage):\n",
        "    if start.incarnation_id != position.incarnation_id:\n",
        "tests/unit/replication/test_lost_tails.py::test_a_resume_token_of_lost_records_begins_anew",
    ),
    Bug(
        "tokens have no leader epochs",
        GATEWAY + "contract/lineage.py",
        "    if any(epochs):\n",
        "    if not epochs:\n",
        "tests/unit/contract/test_lineage.py::test_places_go_through_a_token",
    ),
    Bug(
        "offsets within an epoch may go back",
        GATEWAY + "contract/lineage.py",
        "    return runs[0].leader_epoch >= lineage[-1].leader_epoch and runs[0].start >= lineage[-1].end\n",
        "    return runs[0].leader_epoch >= lineage[-1].leader_epoch\n",
        "tests/unit/contract/test_lineage.py::test_a_lineage_goes_on_by_what_is_read",
    ),
    # Manifests and generations.
    Bug(
        "a topic made anew is served on",
        GATEWAY + "replication/manifests.py",
        "    if not same_topic_id(facts.topic_id, manifest.changelog_topic_id):\n        ids",
        "    if not facts.topic_id:\n        ids",
        "tests/unit/replication/test_replicator.py::test_a_topic_made_anew_is_not_served_on",
    ),
    Bug(
        "tombstones may be kept for seconds",
        GATEWAY + "replication/manifests.py",
        "\n    if facts.delete_retention_ms < DELETE_RETENTION_MIN_MS:\n",
        "\n    if facts.delete_retention_ms < 1:\n",
        "tests/unit/replication/test_replicator.py::test_a_topic_that_keeps_tombstones_for_seconds_is_refused",
    ),
    Bug(
        "manifests may change in a generation",
        GATEWAY + "replication/manifests.py",
        ("        change = _change(known, manifest)\n        if change is None:\n            return None\n"),
        ("        change = None\n        if change is None:\n            return None\n"),
        "tests/unit/replication/test_manifest_changes.py::test_a_changed_manifest_is_refused_and_alarmed",
    ),
    Bug(
        "a table goes back to an older generation",
        GATEWAY + "replication/manifests.py",
        "        return self._known is not None and manifest.generation < self._known.generation\n",
        "        return False\n",
        "tests/unit/replication/test_older_manifests.py::test_a_gateway_that_reads_both_at_once_follows_the_newest",
    ),
    Bug(
        "the newest generation is not stored",
        GATEWAY + "replication/table.py",
        ("            self._stored.keep_newest(manifest)\n            self._sequence.accept(manifest)\n"),
        "            self._sequence.accept(manifest)\n",
        "tests/unit/replication/test_older_manifests.py::test_a_gateway_that_starts_again_stays_with_the_newest",
    ),
    Bug(
        "what others follow is no floor",
        GATEWAY + "replication/table.py",
        "        self._hear_of_others(manifests)\n",
        "",
        "tests/unit/replication/test_older_manifests.py::test_a_gateway_that_joins_does_not_answer_from_what_others_left",
    ),
    Bug(
        "a switch waits for no last marker",
        GATEWAY + "replication/generations.py",
        "        if not replica.position.is_final:",
        "        if replica.position.next_offset < 0:",
        "tests/unit/replication/test_generations.py::test_old_generation_is_followed_to_the_final_marker_of_each_partition",
    ),
    Bug(
        "a switch may miss source records",
        GATEWAY + "replication/generations.py",
        "replica.position.source_offsets.get((topic, source_partition), 0) < next_offset",
        "replica.position.source_offsets.get((topic, source_partition), 0) < 0",
        "tests/unit/replication/test_generations.py::test_the_new_generation_has_to_have_what_the_old_one_had",
    ),
    # Faults of one part.
    Bug(
        "a switch is remembered before it is stored",
        GATEWAY + "replication/generations.py",
        (
            "        self._stored.keep(self._table, generation.manifest, generation.copy)\n"
            "        self._stored.forget(next_name(self._table))\n"
            "        self._late_joiner = None\n"
            "        generation.machine.move(GenerationEvent.SERVE)\n"
            '        self.serving, self.building, self.unmet = generation, None, ""\n'
        ),
        (
            "        self._late_joiner = None\n"
            "        generation.machine.move(GenerationEvent.SERVE)\n"
            '        self.serving, self.building, self.unmet = generation, None, ""\n'
            "        self._stored.keep(self._table, generation.manifest, generation.copy)\n"
            "        self._stored.forget(next_name(self._table))\n"
        ),
        "tests/unit/replication/test_refused_writes.py::test_once_there_is_room_a_gateway_answers_right_again",
    ),
    Bug(
        "a partition goes from memory first",
        GATEWAY + "replication/partitions.py",
        (
            "        is_clean = self._store.drop_partition(self.store_id, replica.partition, limit=CLEAN_ROWS_MAX)\n"
            "        if not self.is_frozen:\n"
            "            self.log.unfollow(replica.topic_partition)\n"
            "        self.replicas.remove(replica)\n"
        ),
        (
            "        self.replicas.remove(replica)\n"
            "        is_clean = self._store.drop_partition(self.store_id, replica.partition, limit=CLEAN_ROWS_MAX)\n"
            "        if not self.is_frozen:\n"
            "            self.log.unfollow(replica.topic_partition)\n"
        ),
        "tests/unit/replication/test_refused_writes.py::test_once_there_is_room_a_cluster_answers_right_again",
    ),
    Bug(
        "a full disk stops the beat",
        GATEWAY + "replication/replicator.py",
        "        self._announce()\n        self._log_reachable()\n",
        ("        if not self._refusal:\n            self._announce()\n        self._log_reachable()\n"),
        "tests/unit/replication/test_refused_writes.py::test_a_gateway_whose_disk_is_full_is_asked_on",
    ),
    Bug(
        "records are applied behind deletes that may be missing",
        GATEWAY + "replication/replicator.py",
        "                    elif followed.table.may_miss_deletes(followed.generation, followed.generation.facts):\n",
        "                    elif False:\n",
        "tests/unit/replication/test_replicator.py::test_nothing_is_applied_behind_deletes_that_may_be_missing",
    ),
    Bug(
        "what a full disk refuses is forgotten",
        GATEWAY + "replication/replicator.py",
        "            followed, fetched = self._fetched[0]\n",
        (
            "            followed, fetched = self._fetched.pop(0)\n"
            "            self._fetched.insert(0, (followed, fetched)) if not self._is_full else None\n"
        ),
        "tests/unit/replication/test_replicator.py::test_a_full_disk_pauses_and_goes_on",
    ),
    Bug(
        "one table's fault stops all",
        GATEWAY + "replication/replicator.py",
        "            self._set_aside(table, error)\n",
        "            raise error\n",
        "tests/unit/replication/test_faulty_tables.py::test_a_table_that_fails_is_set_aside_and_the_others_go_on",
    ),
    Bug(
        "a table that is set aside stays so",
        GATEWAY + "replication/replicator.py",
        "            if faulty.is_aside and now_s >= faulty.retry_at_s:\n",
        "            if faulty.is_aside and now_s < 0:\n",
        "tests/unit/replication/test_faulty_tables.py::test_a_table_that_was_set_aside_is_tried_again_with_longer_pauses",
    ),
    Bug(
        "manifests of other tables are kept",
        GATEWAY + "replication/manifests.py",
        "        if name not in self.poison_of:\n            return\n",
        "        self.poison_of.setdefault(name, Counter())\n",
        "tests/unit/replication/test_faulty_tables.py::test_manifests_of_tables_of_others_are_not_kept",
    ),
    Bug(
        "the watchdog never kills",
        GATEWAY + "server/supervisor.py",
        "        if written == self._written_bytes:\n            return True\n",
        "",
        "tests/integration/test_gateway_supervisor.py::test_a_process_whose_loop_does_not_turn_is_killed",
    ),
    Bug(
        "a replicator that hangs is healthy",
        GATEWAY + "server/health.py",
        "        return self._monotonic_s() >= self._changed_s + self.late_s\n",
        "        return False\n",
        "tests/unit/server/test_health.py::test_a_replicator_that_stores_no_other_status_is_late",
    ),
    Bug(
        "a topic of others that is read anew is fetched no more",
        GATEWAY + "replication/partitions.py",
        "        for replica in self.replicas if not self.is_frozen else ():",
        "        for replica in self.replicas:",
        "tests/unit/replication/test_foreign.py::test_another_description_is_another_generation_beside_the_first",
    ),
    Bug(
        "records of others are of the time that they tell",
        GATEWAY + "replication/partitions.py",
        "        as_of_ms = batch.as_of_ms if self._end_times is None else self._end_times.as_of_ms(next_offset)\n",
        "        as_of_ms = batch.as_of_ms\n",
        "tests/unit/replication/test_foreign.py::test_an_end_that_was_seen_says_how_fresh_it_is",
    ),
    Bug(
        "what others have compacted is history",
        GATEWAY + "replication/foreign.py",
        "                batch.last_repeat = offset  # what was",
        "                pass  # what was",
        "tests/unit/replication/test_foreign.py::test_what_compaction_may_have_removed_is_no_history",
    ),
    Bug(
        "a row that is elsewhere is missing",
        GATEWAY + "query/get.py",
        "            if served.is_anywhere:\n                return self._found_anywhere(snapshot, served)\n",
        "",
        "tests/unit/query/test_keys_anywhere.py::test_a_get_finds_its_row_wherever_it_is",
    ),
    Bug(
        "fields that a contract lacks are told to clients",
        GATEWAY + "contract/foreign/values.py",
        "            row.DiscardUnknownFields()\n",
        "",
        "tests/unit/contract/test_foreign.py::test_a_record_is_its_row",
    ),
    Bug(
        "rows of another gateway are followed on from where they ended",
        GATEWAY + "replication/transfers.py",
        "first = replace(transfer.first, ",
        "first = replace(transfer.last, ",
        "tests/unit/replication/test_transfers.py::test_what_changes_meanwhile_is_not_missed",
    ),
    Bug(
        "rows of another gateway are not checked",
        GATEWAY + "replication/transfers.py",
        "if (part.rows, part.digest) != (self.rows, self._digest.digest()):",
        "if False:",
        "tests/unit/replication/test_transfers.py::test_rows_that_are_cut_or_damaged_are_thrown_away",
    ),
    Bug(
        "rows of another generation are given",
        GATEWAY + "server/transfers.py",
        "if (request.generation, request.changelog_topic_id) != (served.generation, manifest.changelog_topic_id):",
        "if False:",
        "tests/unit/replication/test_transfers.py::test_nothing_is_given_of_anything_else",
    ),
    Bug(
        "rows of a tail that brokers lost come from another gateway",
        GATEWAY + "replication/partitions.py",
        "        return place is not None and is_of_another_log(",
        "        return False and is_of_another_log(",
        "tests/unit/replication/test_transfers.py::test_rows_of_a_tail_that_kafka_lost_are_not_kept",
    ),
    Bug(
        "repairs are left behind where rows are given",
        GATEWAY + "replication/partitions.py",
        "self._store.end_transfer(self.store_id, partition, transferred.repairs, first)",
        "self._store.end_transfer(self.store_id, partition, (), first)",
        "tests/unit/replication/test_transfers.py::test_pending_repairs_come_along",
    ),
    Bug(
        "clients get rows as gateways do",
        GATEWAY + "server/transfers.py",
        '        if call.forwarded is None:\n            raise ForeignForward("is missing")\n',
        "",
        "tests/unit/replication/test_transfers.py::test_a_client_gets_nothing",
    ),
    Bug(
        "a snapshot file of another generation is read",
        GATEWAY + "stores/snapshots/format.py",
        "    if header != request:",
        "    if False:",
        "tests/unit/replication/test_snapshot_restores.py::test_a_file_that_is_damaged_is_never_served",
    ),
    Bug(
        "rows of a snapshot file without its position are stored",
        GATEWAY + "replication/transfers.py",
        "        if (self.first is None) is not bool(part.first_position):",
        "        if False:",
        "tests/unit/replication/test_snapshot_restores.py::test_a_file_that_is_damaged_is_never_served",
    ),
    Bug(
        "the digest of a snapshot file is not checked",
        GATEWAY + "stores/snapshots/format.py",
        "    if source.read(len(digest)) != digest or ",
        "    if len(source.read(len(digest))) != len(digest) or ",
        "tests/unit/replication/test_snapshot_format.py::test_a_file_with_another_bit_has_no_last_part",
    ),
    Bug(
        "a snapshot file is used that is too old for its deletes",
        GATEWAY + "replication/partitions.py",
        "if first.next_offset < log_end and is_too_old(",
        "if False and is_too_old(",
        "tests/unit/replication/test_snapshot_restores.py::test_deletes_that_are_compacted_away_bring_no_rows_back",
    ),
    Bug(
        "a snapshot file is seen before it is whole",
        GATEWAY + "stores/snapshots/files.py",
        "            if path.suffix != _UNFINISHED:",
        "            if True:",
        "tests/conformance/test_snapshot_files.py::test_before_its_end_a_file_is_not_there",
    ),
    Bug(
        "all gateways of a partition write snapshot files",
        GATEWAY + "server/snapshots.py",
        "        return not own or (bool(replicas) and replicas[0].gateway_id == own)",
        "        return True",
        "tests/unit/server/test_snapshots.py::test_one_gateway_writes_a_partition",
    ),
    Bug(
        "a snapshot file goes on after its partition began anew",
        GATEWAY + "server/transfers.py",
        "        if is_restored or is_of_another_log(self._place, position.lineage):",
        "        if is_restored:",
        "tests/unit/server/test_snapshots.py::test_a_partition_that_begins_anew_meanwhile_is_not_written",
    ),
    Bug(
        "rows of a store id that is being removed are given on",
        GATEWAY + "server/transfers.py",
        "self._store_id not in (None, served.store_id) or ",
        "",
        "tests/unit/server/test_snapshots.py::test_a_table_that_is_restored_meanwhile_is_not_written",
    ),
]
