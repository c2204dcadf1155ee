"""Defects of workflows: masters, workers, slots, limits, families, alerts."""

from __future__ import annotations

from mutants.defect import Defect, id_of

DEFECTS = (
    Defect(
        "Workflow master",
        "a former owner writes to its shard",
        "latchwork_workflows/db/shard.py",
        'shard.c.id == sa.bindparam("_id"), shard.c.token == sa.bindparam("_token"))\n',
        'shard.c.id == sa.bindparam("_id"))\n',
        id_of("workflows/master", "a_master_of_before_writes_nothing_once_another_has_the_shard", on="memory"),
    ),
    Defect(
        "Workflow master",
        "a database restored from a backup is served",
        "latchwork_workflows/shard_ownership.py",
        "        if store_transaction > seq:\n",
        "        if store_transaction < 0:\n",
        id_of("workflows/master", "a_database_from_before_is_refused_where_results_were_deleted_since", on="memory"),
    ),
    Defect(
        "Workflow master",
        "memory is trusted after a commit of unknown outcome",
        "latchwork_workflows/master/shard.py",
        '"shard %d reloads its state", self._id, item=self._id)\n        self._is_known = False\n',
        '"shard %d reloads its state", self._id, item=self._id)\n',
        id_of("workflows/master", "a_run_whose_start_had_no_answer_is_found", on="memory"),
    ),
    Defect(
        "Workflow master",
        "a task that has a result is queued again",
        "latchwork_workflows/master/dispatcher.py",
        "            if x in done or x in ended:\n",
        "            if x in done:\n",
        id_of("workflows/sending", "an_item_whose_result_is_there_is_not_put", on="memory"),
    ),
    Defect(
        "Workflow master",
        "a task that a worker has claimed is taken back",
        "latchwork_workflows/master/dispatcher.py",
        "        checks, ops = self._backlog.removal_ops(item)\n",
        "        checks, ops = self._backlog.removal_ops(item, even_if_claimed=True)\n",
        id_of("workflows/sending", "an_item_that_somebody_has_is_not_taken_back", on="memory"),
    ),
    Defect(
        "Workflow master",
        "a fire time is started twice",
        "latchwork_workflows/db/schedules.py",
        "    if connection.execute(made).first() is None:\n        return None\n",
        "    connection.execute(made)\n",
        id_of("workflows/fires", "a_fire_that_somebody_has_written_is_not_started_again", on="memory"),
    ),
    Defect(
        "Workflow master",
        "the turn of a run is not checked again under the lock",
        "latchwork_workflows/db/concurrency.py",
        "where(mine, workflow_run.c.state.in_(_GOES))",
        "where(mine, sa.false())",
        id_of("workflows/serial", "starts_come_one_after_the_other_each_when_the_one_before_has_ended", on="memory"),
    ),
    Defect(
        "Workflow master",
        "a repair trusts memory",
        "latchwork_workflows/master/shard.py",
        "            self._needs_repair, self._is_known = True, False\n",
        "            self._needs_repair = True\n",
        id_of("workflows/doctor", "a_queued_task_that_no_worker_can_find_is_queued_again", on="memory"),
    ),
    Defect(
        "Workflow master",
        "retention deletes a run that its master is rerunning",
        "latchwork_workflows/db/retention.py",
        "    connection.execute(sa.update(shard).where(shard.c.id == shard_id).values(seq=shard.c.seq))\n",
        "",
        id_of("workflows/retention", "a_run_that_somebody_runs_again_meanwhile_stays_whole", on="postgres"),
    ),
    Defect(
        "Workflow master",
        "an end during a round wakes none of the runs that have looked",
        "latchwork_workflows/master/master_tasks.py",
        "            self._wake_next(code, 0)  # after the rest of that round\n",
        "",
        id_of("workflows/dependent", "what_ends_while_a_round_goes_on_is_seen_by_those_that_have_looked", on="memory"),
    ),
    Defect(
        "Workflow master",
        "two concurrent edits close a cycle",
        "latchwork_workflows/db/related_runs.py",
        '    if connection.dialect.name != "sqlite":\n',
        "    if False:\n",
        id_of("workflows/rings", "of_two_that_are_written_at_once_and_start_each_other_one_is_refused", on="postgres"),
    ),
    Defect(
        "Workflow slots",
        "a former owner writes the sizes of pools",
        "latchwork_workflows/master/dispatcher.py",
        "            self._commit([], ops[start : start + _MAX_OPS])\n\n    # Putting\n",
        "            self._store.commit([], ops[start : start + _MAX_OPS])\n\n    # Putting\n",
        id_of("workflows/pools", "a_master_that_has_lost_the_shard_writes_no_sizes", on="memory"),
    ),
    Defect(
        "Workflow slots",
        "the slot of a pool is not released",
        "latchwork_workflows/worker/pools.py",
        "return [] if found is None else [Delete(self._keys.slot_key(*each)) for each in found[0]]",
        "return []",
        id_of("workflows/worker", "tasks_of_a_group_never_run_more_at_a_time_than_it_says_in_all_workers"),
    ),
    Defect(
        "Workflow worker",
        "a task outlives the session of its claim",
        "latchwork_workflows/worker/runner.py",
        "        self._deadlines.add(child, hard)\n",
        "        child.set_deadline(hard)\n",
        id_of("workflows/jitter", "worker_without_a_store_ends_its_tasks_before_its_session_can_end"),
    ),
    Defect(
        "Workflow worker",
        "a task is claimed without checking its cancel",
        "latchwork_workflows/worker/session.py",
        "[Absent(self._keys.cancel_key(named.attempt_key)), *slot[0]]",
        "list(slot[0])",
        id_of("workflows/worker", "task_that_is_cancelled_before_it_is_taken_is_never_taken"),
    ),
    Defect(
        "Workflow alerts",
        "an alert is recorded as sent before it is sent",
        "latchwork_workflows/alerts/sender.py",
        "            answer, error = self._send(taken)\n"
        "            answered_at = self._now()\n"
        "            self._record_result(taken, answer, error, answered_at)\n",
        "            answer, error, answered_at = SendResult.SENT, '', self._now()\n"
        "            self._record_result(taken, answer, error, answered_at)\n"
        "            self._send(taken)\n",
        id_of(
            "workflows/alert_sending", "a_mail_comes_though_its_sender_dies_at_any_step", on="before it is out-1-file"
        ),
    ),
    Defect(
        "Workflow alerts",
        "a former sender claims a delivery",
        "latchwork_workflows/db/alerts.py",
        "        self.check_owner(connection)\n        mine = sa.update(delivery).where(delivery.c.id == delivery_id",
        "        mine = sa.update(delivery).where(delivery.c.id == delivery_id",
        id_of("workflows/alert_sending", "a_former_sender_that_wakes_takes_nothing_more", on="file"),
    ),
    Defect(
        "Workflow alerts",
        "an alert is sent after the lease has expired",
        "latchwork_workflows/alerts/sender.py",
        "if self._stopping.is_set() or self._remaining_s() <= 0.0 or not self._deliver(each):",
        "if self._stopping.is_set() or not self._deliver(each):",
        id_of("workflows/alert_sending", "nothing_is_begun_once_the_hold_is_not_certain"),
    ),
    Defect(
        "Workflow master",
        "settings are not checked again before the write",
        "latchwork_workflows/services/workflows.py",
        "        wrong += usage.find_missing_settings("
        "wanted, settings.load_setting_names(connection, wanted.project))\n",
        "",
        id_of("workflows/settings", "what_was_removed_between_the_check_and_the_write_is_refused_too", on="file"),
    ),
)
