"""Defects of masters of workflows: guards and fences left out, orders turned around, what a crash leaves forgotten."""

from __future__ import annotations

from mutants.defect import Defect, of

SHARD, SENDING, WRITING = (f"workflows/master/{each}.py" for each in ("shard", "sending", "writing"))
MEMORY = "memory"

DEFECTS = (
    Defect(
        "FlowMaster",
        "a former owner writes",
        "workflows/database/shard.py",
        "        mine = sa.update(shard).where(shard.c.id == self.id, shard.c.token == self.token)\n",
        "        mine = sa.update(shard).where(shard.c.id == self.id)\n",
        of("workflows/master", "a_master_of_before_writes_nothing_once_another_has_the_shard", on="memory"),
    ),
    Defect(
        "FlowMaster",
        "a database from before is served",
        SHARD,
        "int(high.value) > seq:",
        "int(high.value) < 0:",
        of("workflows/master", "a_database_from_before_is_refused_where_results_were_deleted_since", on="memory"),
    ),
    Defect(
        "FlowMaster",
        "what memory says counts after a doubt",
        SHARD,
        '        _log.warning("shard %d reads all again: %s", self._id, error)\n        self._is_known = False\n',
        '        _log.warning("shard %d reads all again: %s", self._id, error)\n',
        of("workflows/master", "an_instance_whose_start_had_no_answer_is_found", on="memory"),
    ),
    Defect(
        "FlowMaster",
        "nobody puts what was submitted before",
        SHARD,
        "        self._book = Book(known.values())\n",
        "        self._book = Book(known.values())\n        self._book.to_put.clear()\n",
        of("workflows/failover", "what_was_submitted_and_never_put_is_put_by_the_next_master", on="memory"),
    ),
    Defect(
        "FlowMaster",
        "a dead worker is not noticed",
        SHARD,
        "            if died is not None:\n",
        "            if False:\n",
        of("workflows/failover", "the_task_of_a_worker_that_died_is_taken_by_another_as_the_same_attempt", on="memory"),
    ),
    Defect(
        "FlowMaster",
        "a leave counts as a death",
        SENDING,
        "        return item is None or not item.why\n",
        "        return True\n",
        of(
            "workflows/sending",
            "a_worker_that_has_an_attempt_is_not_dead_one_that_is_gone_is_and_one_that_left_is_not",
            on=MEMORY,
        ),
    ),
    Defect(
        "FlowMaster",
        "an item is put where its result is there",
        SENDING,
        "            if x in done or x in ended:\n",
        "            if x in done:\n",
        of("workflows/sending", "an_item_whose_result_is_there_is_not_put", on="memory"),
    ),
    Defect(
        "FlowMaster",
        "one item that is there keeps its batch from being put",
        SENDING,
        "                done += self._put_each(batch)\n",
        "                done += [each.place.item.x for each in batch]\n",
        of("workflows/sending", "items_that_are_there_keep_no_others_from_being_put", on="memory"),
    ),
    Defect(
        "FlowMaster",
        "what a worker has is taken back",
        SENDING,
        "        checks, ops = self._backlog.removal(item)\n",
        "        checks, ops = self._backlog.removal(item, if_taken=True)\n",
        of("workflows/policies", "a_pause_lets_running_tasks_end_and_takes_queued_ones_back", on="memory")
        + of("workflows/sending", "an_item_that_somebody_has_is_not_taken_back", on="memory"),
    ),
    Defect(
        "FlowMaster",
        "results stay in the store",
        SENDING,
        "for key in (self._keys.result(self._shard, x), self._keys.cancel(x))]\n",
        "for key in (self._keys.cancel(x),)]\n",
        of("workflows/master", "an_instance_runs_to_its_end_in_the_order_of_its_tasks", on="memory"),
    ),
    Defect(
        "FlowMaster",
        "a defect of one instance ends its shard",
        WRITING,
        "            if isinstance(error, sa.exc.SQLAlchemyError) and not self._is_careful:\n                raise\n",
        "            raise\n",
        of("workflows/master", "an_instance_that_raises_fails_and_its_shard_goes_on", on="memory"),
    ),
    Defect(
        "FlowMaster",
        "a rerun has no place of its own",
        WRITING,
        "            was = stored.known.tasks.get(name) if is_same_run else None\n",
        "            was = stored.known.tasks.get(name)\n",
        of("workflows/policies", "a_rerun_is_another_run_of_the_same_instance_and_the_old_attempts_stay", on="memory"),
    ),
    Defect(
        "FlowMaster",
        "a fire time is started again",
        "workflows/database/schedules.py",
        "    if connection.execute(made).first() is None:\n        return None\n",
        "    connection.execute(made)\n",
        of("workflows/fires", "a_fire_that_somebody_has_written_is_not_started_again", on="memory"),
    ),
    Defect(
        "FlowMaster",
        "a pause forgets what was not put",
        "workflows/master/book.py",
        "        everything = before is None or _dispatches(before.known) != is_going\n",
        "        everything = before is None\n",
        of("workflows/book", "what_is_paused_and_resumed_before_it_was_put_is_put"),
    ),
    Defect(
        "FlowMaster",
        "two stores serve one database",
        "workflows/installation.py",
        "    if there is not None and there.value != found.id.encode():\n",
        "    if False:\n",
        of(
            "workflows/master", "a_store_that_knows_nothing_of_the_database_is_refused_until_it_is_adopted", on="memory"
        ),
    ),
    Defect(
        "FlowMaster",
        "a failed date suppresses the later ones",
        "workflows/state/backfilling.py",
        "    is_held = stop_on_failure and progress.failed > 0\n",
        "    is_held = progress.failed > 0\n",
        of("workflows/backfill", "a_date_that_fails_in_a_serial_backfill_suppresses_no_later_one", on=MEMORY),
    ),
    Defect(
        "FlowMaster",
        "a backfill starts all its dates at once",
        "workflows/state/backfilling.py",
        "min(progress.pending, max(0, parallel - progress.going))",
        "min(progress.pending, parallel)",
        of("workflows/backfill", "a_random_history_starts_each_date_once_and_ends_where_it_should[7]"),
    ),
    Defect(
        "FlowMaster",
        "nobody looks for the next date when one has ended",
        "workflows/master/backfilling.py",
        "sorted(self._asked | _touched(written, before))",
        "sorted(self._asked)",
        of("workflows/backfill", "a_serial_backfill_has_an_instance_for_each_date_at_once", on=MEMORY),
    ),
    Defect(
        "FlowMaster",
        "a long backfill is forgotten in its middle",
        "workflows/master/backfilling.py",
        "            chosen = chosen[: self._left]\n            ask(",
        "            chosen = chosen[: self._left]\n            return _Round(chosen, event)\n            ask(",
        of("workflows/backfill", "a_long_backfill_is_led_on_in_several_transactions", on=MEMORY),
    ),
)
