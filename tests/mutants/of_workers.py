"""Defects of workers: their transactions, what they are told, and the crews that hold them for processes."""

from __future__ import annotations

from mutants.defect import Defect, of

DEFECTS = (
    Defect(
        "workers",
        "a job that nobody has joined yet is replaced by the next submit",
        "workers/submitting.py",
        "    if not (replace_unjoined or head.next or head.is_final):\n",
        "    if not (replace_unjoined or True):\n",
        of(
            "workers/submit",
            "a_job_that_nobody_has_joined_yet_is_not_replaced_unless_asked",
            on="memory",
        ),
    ),
    Defect(
        "workers",
        "a loss before all have begun is a fault",
        "workers/plans.py",
        "    if not standing.is_healthy:\n        return []\n",
        "",
        of("workers/faults", "a_loss_before_all_have_begun_is_none_and_who_comes_back_counts_once", on="memory"),
    ),
    Defect(
        "workers",
        "a restart too many is allowed",
        "workers/membership/joining.py",
        "old.restarts >= head.max_restarts and",
        "old.restarts > head.max_restarts and",
        of("workers/ids", "a_worker_that_comes_back_too_often_fails_the_job", on="memory"),
    ),
    Defect(
        "workers",
        "the fence of a worker outlives its epoch",
        "workers/membership/seat.py",
        "        more = () if epoch is None else (At(epoch),)\n",
        "        more = ()\n",
        of("workers/faults", "a_write_of_an_epoch_that_is_over_is_refused", on="memory"),
    ),
    Defect(
        "workers",
        "a fault is told before the start whose teller has died",
        "workers/plans.py",
        "    if standing.is_told or not standing.is_healthy:\n",
        "    if standing or not standing.is_healthy:\n",
        of(
            "workers/events",
            "a_fault_is_told_after_the_start_also_when_the_one_that_was_to_tell_that_has_died",
            on="memory",
        ),
    ),
    Defect(
        "workers",
        "two threads of a process are in the doorway at once",
        "workers/membership/doorway.py",
        "            first = self._line[0]\n",
        "            first = self._line[-1]\n",
        of("workers/ids", "threads_of_one_process_join_one_after_the_other"),
    ),
    Defect(
        "workers",
        "who has a ticket lines up behind one that waits for it",
        "workers/membership/joining.py",
        "        if self._turn.is_set() or self._place is not None or patience.is_over:\n",
        "        if self._turn.is_set() or patience.is_over:\n",
        of("workers/ids", "who_has_a_ticket_does_not_line_up_behind_one_that_may_wait_for_it", on="memory"),
    ),
    Defect(
        "workers",
        "a worker whose lease has not been seen yet is taken for lost",
        "workers/observing/losses.py",
        "delay_s(rank) + (0.0 if found[name].had_one else _NEVER_SEEN_S)",
        "delay_s(rank)",
        of("workers/observing", "a_worker_whose_lease_was_never_seen_is_told_lost_only_when_that_lasts"),
    ),
    Defect(
        "workers",
        "a store that did not answer fails the job",
        "workers/running.py",
        "(JobFaulty, JobTerminated, Removed, ComesBack, *PASSING))\n",
        "(JobFaulty, JobTerminated, Removed, ComesBack))\n",
        of(
            "workers/faults",
            "a_function_that_the_store_did_not_answer_fails_nothing_and_its_worker_comes_back",
            on="memory-Unavailable",
        ),
    ),
    Defect(
        "workers",
        "what fails in an epoch that is over fails the job",
        "workers/core.py",
        "            attempt = self.now()\n            await self._own.fail(attempt.fence, attempt.epoch, why)\n",
        "            await self.fail(why)\n",
        of(
            "workers/faults",
            "what_a_function_raises_after_another_worker_was_lost_is_no_failure_of_the_job",
            on="memory",
        ),
    ),
    Defect(
        "meetings",
        "two arrivals that write one key go together",
        "primitives/meeting/company.py",
        "        if taken and (keys & mine or checks",
        "        if taken and (checks",
        of("primitives/barrier_company", "two_that_write_one_key_do_not_go_together_and_reads_go_first"),
    ),
    Defect(
        "crews",
        "a process that was told to stop and ends well has done its part",
        "workers/crews/decisions.py",
        '    if was_stopped or end.why in {"deadline", "told"}:\n',
        '    if end.why in {"deadline"}:\n',
        of("workers/crews", "a_process_that_was_told_to_stop_has_not_done_its_part_whatever_its_exit_code"),
    ),
)
