"""Defects of the rules by which tasks and runs wait: for workers, for places, for what is known already."""

from __future__ import annotations

from mutants.defect import Defect, of

BOOK, ADVANCE, SETTLE = "workflows/master/book.py", "workflows/state/advance.py", "workflows/state/settle.py"
RECORDS = "workflows/state/records.py"
QUEUED = "workflows/queued_too_long"
MEMORY = "memory"
CACHE, GROUPS = "workflows/cache", "workflows/groups"
RECALLING, CACHING = "workflows/master/policies/recalling.py", "workflows/definitions/caching.py"

DEFECTS = (
    Defect(
        "FlowRules",
        "who waits for too long fails without being taken back",
        SETTLE,
        "        work.tasks[name] = replace(task, wake_at=None)\n",
        "        work.put(name, TaskState.FAILURE)\n",
        of(QUEUED, "a_worker_that_takes_it_before_it_is_taken_back_runs_it", on=MEMORY),
    ),
    Defect(
        "FlowRules",
        "what is overdue is put again by the next master",
        BOOK,
        " and not task.is_overdue:",
        ":",
        of("workflows/book", "what_is_overdue_is_to_be_taken_back_and_not_to_be_put"),
    ),
    Defect(
        "FlowRules",
        "an attempt that nobody took is no failure",
        ADVANCE,
        "    elif task.is_overdue and task.forced_after != task.n:\n",
        "    elif False:\n",
        of(QUEUED, "what_no_worker_takes_in_time_has_failed_counts_as_a_try_and_says_so", on=MEMORY),
    ),
    Defect(
        "FlowRules",
        "a worker's death leaves its task the time that it had",
        ADVANCE,
        "    work.queue(event.task, task.n)\n",
        "    work.put(event.task, TaskState.SUBMITTED)\n",
        of(QUEUED, "its_time_counts_anew_when_its_worker_dies", on=MEMORY),
    ),
    Defect(
        "FlowRules",
        "what is due in a pause wakes the master again and again",
        RECORDS,
        "            if each.wake_at is not None and (goes_on or each.state is TaskState.RUNNING)\n",
        "            if each.wake_at is not None\n",
        of(QUEUED, "a_master_does_not_turn_and_turn_while_a_pause_waits_for_what_runs", on=MEMORY),
    ),
    Defect(
        "FlowRules",
        "what was put out long ago stands",
        RECALLING,
        "            if each.made_at > now - (version.tasks[base_of(name)].cache_s or 0.0)\n",
        "            if True\n",
        of(CACHE, "other_values_and_a_success_that_is_too_old_are_no_reason_not_to_run", on=MEMORY),
    ),
    Defect(
        "FlowRules",
        "what a failure put out is kept",
        RECALLING,
        "        if result.cache_key is None or result.outcome is not Outcome.SUCCESS:\n",
        "        if result.cache_key is None:\n",
        of(CACHE, "a_failure_is_kept_for_nobody", on=MEMORY),
    ),
    Defect(
        "FlowRules",
        "a run that was started without the cache has it",
        RECALLING,
        "        if after.fresh or not version.may_recall:\n",
        "        if not version.may_recall:\n",
        of(CACHE, "a_run_without_the_cache_runs_everything_and_renews_what_is_known", on=MEMORY),
    ),
    Defect(
        "FlowRules",
        "what a project has put out is another's",
        CACHING,
        '        "project": run.definition.project,\n',
        "",
        of(CACHE, "what_a_task_puts_out_may_differ_where_this_differs", on="project"),
    ),
    Defect(
        "FlowRules",
        "an old master tells the store how large groups are",
        "workflows/master/sending.py",
        "            self._commit([], ops[start : start + _MOST_OPS])\n\n    # Putting\n",
        "            self._store.commit([], ops[start : start + _MOST_OPS])\n\n    # Putting\n",
        of(GROUPS, "a_master_that_has_lost_the_shard_tells_the_store_nothing", on=MEMORY),
    ),
    Defect(
        "FlowRules",
        "a group goes that workflows name",
        "workflows/desk/groups.py",
        "        if users:\n",
        "        if False:\n",
        of(GROUPS, "a_group_that_is_named_is_not_removed_and_one_that_is_not_there_neither", on=MEMORY),
    ),
)
