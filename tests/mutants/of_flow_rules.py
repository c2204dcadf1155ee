"""Defects of the rules by which tasks and runs wait: for workers, for places, for what is known already."""

from __future__ import annotations

from mutants.defect import Defect, of

BOOK, ADVANCE, SETTLE = "workflows/master/book.py", "workflows/state/advance.py", "workflows/state/settle.py"
RECORDS = "workflows/state/records.py"
QUEUED = "workflows/queued_too_long"
MEMORY = "memory"
CACHE, GROUPS = "workflows/cache", "workflows/groups"
CHILDREN, LIMITS, FOLLOWS = "workflows/serial_children", "workflows/limits", "workflows/backfill_dependents"
TURNS, SERIAL, SERIALS = (
    "workflows/master/taking_turns.py",
    "workflows/state/serial.py",
    "workflows/database/policies/serials.py",
)
HOLDING = "workflows/master/holding.py"
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
        "workflows/desk/limiting/groups.py",
        "        if users:\n",
        "        if False:\n",
        of(GROUPS, "a_group_that_is_named_is_not_removed_and_one_that_is_not_there_neither", on=MEMORY),
    ),
    Defect(
        "FlowRules",
        "a child takes no turn",
        HOLDING,
        "        waits = self._writer.turn(code, number, above=self._with_above(stored))\n",
        "        waits = False\n",
        of(CHILDREN, "a_child_waits_for_its_turn_and_its_parent_says_so", on=MEMORY),
    ),
    Defect(
        "FlowRules",
        "a child waits for the run that it is in",
        SERIAL,
        "    if len(mine) >= most:\n",
        "    if False:\n",
        of(CHILDREN, "a_child_that_would_wait_for_the_run_that_it_is_in_is_refused", on=MEMORY),
    ),
    Defect(
        "FlowRules",
        "a child begins while its parent is paused",
        SERIALS,
        "    goes_on = sa.or_(instance.c.parent_task.is_(None), parent.c.state == InstanceState.RUNNING.value)\n",
        "    goes_on = sa.true()\n",
        of(CHILDREN, "a_child_does_not_begin_while_its_parent_is_paused", on=MEMORY),
    ),
    Defect(
        "FlowRules",
        "a child that is recovered takes no turn",
        HOLDING,
        "            self._writer.step(child.id, [replace(event, waits=waits)], {})\n",
        "            self._writer.step(child.id, [event], {})\n",
        of(CHILDREN, "a_child_that_is_recovered_waits_for_its_turn_and_keeps_what_succeeded", on=MEMORY),
    ),
    Defect(
        "FlowRules",
        "a task of a group in a limited project takes the slot of the group alone",
        "workflows/worker/task_groups.py",
        "        names = slots_of(lane)\n",
        "        names = slots_of(lane)[:1]\n",
        of(LIMITS, "a_task_of_a_group_and_a_limited_project_takes_a_slot_of_each_or_none", on=MEMORY),
    ),
    Defect(
        "FlowRules",
        "a run begins in a project that has no room for it",
        TURNS,
        "            return count == 0 or count + version.width <= limit.max_running_tasks\n",
        "            return True\n",
        of(LIMITS, "a_run_waits_until_its_tasks_fit_into_its_project", on=MEMORY),
    ),
    Defect(
        "FlowRules",
        "what was queued for a limit that is gone waits for ever",
        "workflows/master/sending.py",
        '        ops += [Put(key, free) for key in gone if f"/{PROJECT}" in key and there[key] != free]\n',
        '        ops += [Delete(key) for key in gone if f"/{PROJECT}" in key]\n',
        of(LIMITS, "tasks_of_a_project_with_a_limit_need_a_slot_of_it_and_those_of_before_do_not", on=MEMORY),
    ),
    Defect(
        "FlowRules",
        "a workflow that waits is backfilled behind offline ones too",
        "workflows/database/policies/dependents.py",
        ".where(definition.c.online)\n",
        "\n",
        of(FOLLOWS, "all_has_those_that_wait_for_these_and_none_has_nobody", on=MEMORY),
    ),
    Defect(
        "FlowRules",
        "who waits by a clock that was set back waits for all that it went back",
        "workflows/state/settle.py",
        "            _nearer(work, name, task)\n",
        "            pass\n",
        of("workflows/clock_steps", "clocks_of_two_masters_that_differ_by_seconds_change_nothing"),
    ),
    Defect(
        "FlowRules",
        "a clock that is set back is not noticed",
        "workflows/master/book.py",
        "if now < self._now - _BACK_S:",
        "if self._now == float('inf'):",
        of(
            "workflows/clock_steps",
            "a_clock_that_goes_back_an_hour_makes_nobody_wait_longer_than_it_was_told",
            on="memory-while it runs-retry_wait",
        ),
    ),
)
