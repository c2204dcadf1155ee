"""Defects of the rules by which tasks and runs wait: for workers, for places, for what is known already."""

from __future__ import annotations

from mutants.defect import Defect, of

BOOK, ADVANCE, SETTLE = "workflows/master/book.py", "workflows/state/advance.py", "workflows/state/settle.py"
RECORDS = "workflows/state/records.py"
QUEUED = "workflows/queued_too_long"
MEMORY = "memory"

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
)
