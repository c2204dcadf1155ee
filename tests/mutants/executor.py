"""Defects of the executor and its tasks: blobs, group commit, worker loop, submitters and workers."""

from __future__ import annotations

from mutants.defect import Defect, id_of

DEFECTS = (
    Defect(
        "Blobs",
        "a sweep reads the live owners before it lists the blobs",
        "tasks/blobs.py",
        "        seen = await ask(self._store.children, self.name)\n"
        "        alive = set(list_owners()) if seen else set()\n",
        "        alive = set(list_owners())\n        seen = await ask(self._store.children, self.name)\n",
        id_of("tasks/blobs", "a_sweep_asks_who_lives_after_it_has_seen_who_has_left_something", on="memory"),
    ),
    Defect(
        "Group commit",
        "a check joins a transaction that writes its key",
        "tasks/group_commit.py",
        "        if not self.written.keys().isdisjoint(unit.checked):\n            return True\n",
        "",
        id_of("tasks/group_commit", "a_unit_that_asks_about_a_key_does_not_overtake_the_one_that_writes_it"),
    ),
    Defect(
        "Group commit",
        "an unknown outcome counts as success",
        "tasks/group_commit.py",
        "            has_committed = call_user(unit.was_committed, error)\n",
        "            has_committed = isinstance(error, OutcomeUnknown) or unit.was_committed(error)\n",
        id_of("trials/schedules/group_commit", "group_commit_keeps_its_rules_under_random_schedules"),
    ),
    Defect(
        "Group commit",
        "a refusal after a lost answer counts as final",
        "tasks/group_commit.py",
        "        return all([await self._check_committed(unit, error) for unit in guilty])\n",
        "        for unit in guilty:\n            _fail_unit(unit, error)\n        return True\n",
        id_of("tasks/group_commit", "a_refusal_of_what_had_landed_is_success", on="memory"),
    ),
    Defect(
        "Worker loop",
        "the outcome of a lost claim is written",
        "tasks/running/completion.py",
        "        if task.is_lost or task.outcome is None:\n",
        "        if task.outcome is None:\n",
        id_of(
            "tasks/worker_loop", "a_task_whose_session_is_lost_is_told_to_stop_and_its_outcome_is_dropped", on="memory"
        ),
    ),
    Defect(
        "Worker loop",
        "a task begins after its claim has expired",
        "tasks/running/prefetch_queue.py",
        "    if task.claim.remaining_s() <= task.margin_s:\n",
        "    if False:\n",
        id_of("tasks/worker_loop", "nothing_begins_whose_claim_is_over_though_nobody_has_said_so_yet", on="memory"),
    ),
    Defect(
        "Worker loop",
        "a waiting node is not woken when others queue ahead of it",
        "tasks/running/item_notifications.py",
        "                self._notifier.notify_all()  # it looks sooner\n",
        "                pass\n",
        id_of(
            "tasks/item_notifications",
            "an_item_that_a_dead_first_was_told_of_is_taken_by_the_next_long_before_its_session_ends",
            on="memory",
        ),
    ),
    Defect(
        "Executor",
        "a submit with a lost answer may land after it was repeated",
        "executor/submitter.py",
        "        await replace_fence(self._store, self._keys, submitter_session)\n        locations",
        "        locations",
        id_of("executor/races", "a_submit_whose_answer_is_lost_runs_each_task_once", on="memory-land_late"),
    ),
    Defect(
        "Executor",
        "a cancel whose answer was lost counts as done",
        "executor/stored.py",
        "                if clock.now() >= until:\n                    raise\n",
        "                return\n",
        id_of(
            "executor/races", "a_cancel_whose_answer_is_lost_is_true_and_the_task_never_runs", on="memory-cut_before"
        ),
    ),
    Defect(
        "Executor",
        "a task is claimed without checking its submitter",
        "executor/hooks.py",
        "        return [] if item.submitter_id == DETACHED"
        " else [Exists(self._keys.submitter_key(item.submitter_id))]\n",
        "        return []\n",
        id_of("executor/races", "a_submitter_that_dies_between_look_and_claim_has_nothing_begun", on="memory"),
    ),
    Defect(
        "Executor",
        "a cancel that arrives before its task is forgotten",
        "executor/hooks.py",
        "            if self._cancelled_ids.pop(claim.item.id, None) is not None:\n",
        "            if False:\n",
        id_of(
            "executor/races", "a_task_that_is_not_wanted_any_more_does_not_begin_though_it_was_taken", on="memory-mark"
        ),
    ),
    Defect(
        "Executor",
        "a damaged copy leaves the result to a copy that may be gone",
        "executor/hooks.py",
        "            return [Exists(other)], ()\n",
        "            return (), ()\n",
        id_of("executor/trouble", "workers_that_find_the_last_two_copies_damaged_together_fail_the_task", on="memory"),
    ),
    Defect(
        "Executor",
        "a sweep does not check which submitters are alive",
        "executor/sweeper.py",
        "        return seen - set(await ask(self._store.children, self._keys.submitters)) if seen else set()\n",
        "        return seen\n",
        id_of("executor/sweeping", "a_sweep_removes_nothing_of_those_that_live", on="memory"),
    ),
    Defect(
        "Executor",
        "a sweep of expired results does not check which task has the ID",
        "executor/finished.py",
        "                    checks, ops = [*checks, *more], [*ops, *deletes]\n",
        "                    checks, ops = [], [*ops, *deletes]\n",
        id_of("executor/finished", "a_task_that_was_put_again_under_the_id_of_an_expired_one_stays", on="memory"),
    ),
    Defect(
        "Executor",
        "a task goes on after its caller was cancelled",
        "aio/executor.py",
        '            spawn(self._cancel_in_background, "canceling a task")\n',
        "            pass\n",
        id_of("aio/executor", "a_task_that_nobody_waits_for_any_more_is_told_to_stop", on="memory-cancel"),
    ),
)
