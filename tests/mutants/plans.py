"""Defects of plans: the steps between the end of one task and the start of the next, lost answers, torn reads."""

from __future__ import annotations

from mutants.defect import Defect, id_of

DEFECTS = (
    Defect(
        "Plans",
        "an end readies a task that waits for an unwritten end",
        "plans/completion.py",
        "                    ended_deps |= dict.fromkeys((*unconfirmed, *finished_deps.get(each, ())))\n",
        "",
        id_of("plans/ends", "an_end_does_not_make_ready_what_waits_for_one_that_was_to_come_before_it", on="memory"),
    ),
    Defect(
        "Plans",
        "an end relies on a peer that may have ended already",
        "plans/transitions.py",
        "        part.checks.extend(Exists(self.keys.unfinished_key(plan_id, each)) for each in others)\n",
        "",
        id_of("plans/propagation", "two_ends_that_name_each_other_as_the_one_to_come_cannot_both_land", on="memory"),
    ),
    Defect(
        "Plans",
        "a task becomes ready without checking the plan",
        "plans/transitions.py",
        "        return TxnPart([At(stored_plan[0]), At(task.entry)], [Put(task.entry.key, ready.to_bytes()), *put])\n",
        "        return TxnPart([At(task.entry)], [Put(task.entry.key, ready.to_bytes()), *put])\n",
        id_of("plans/readiness", "what_failed_since_the_plan_was_read_makes_nothing_ready", on="memory"),
    ),
    Defect(
        "Plans",
        "a result that was not propagated is forgotten",
        "plans/hooks.py",
        "        if task.record.state is TaskState.DONE:\n"
        "            await self._propagation.update_successors(plan_id, stored_plan, task)\n",
        "        if task.record.state is TaskState.DONE:\n",
        id_of("plans/propagation", "a_result_that_was_not_propagated_is_propagated_without_another_call", on="memory"),
    ),
    Defect(
        "Plans",
        "nobody ends a plan whose last tasks ended together",
        "plans/completion.py",
        "            await self._propagation.complete_plan(plan_id)\n",
        "            pass\n",
        id_of(
            "plans/ends",
            "ends_that_nobody_waits_for_rely_on_a_task_outside_and_the_last_ones_end_the_plan",
            on="memory",
        ),
    ),
    Defect(
        "Plans",
        "the end of a child plan does not check the waiting task",
        "plans/wakeups.py",
        "    part = TxnPart([At(task.entry)], [])\n",
        "    part = TxnPart([], [])\n",
        id_of("plans/child_plans", "the_end_of_a_child_and_a_recover_of_its_task_do_not_miss_each_other", on="memory"),
    ),
    Defect(
        "Plans",
        "a task whose answer was lost is added twice",
        "plans/handle.py",
        "any(each.record.nonce == nonce for",
        "any(not each.record.nonce for",
        id_of("plans/answers", "a_task_whose_adding_was_not_answered_is_added_once", on="memory-cut_after"),
    ),
    Defect(
        "Plans",
        "a start that lands during its retry counts as refused",
        "plans/drafts.py",
        "            if now is None or now.version == entry.version:  # the key that is bound to the session is gone\n",
        "            if now is None or now.version:  # the key that is bound to the session is gone\n",
        id_of("plans/answers", "a_start_that_lands_while_it_is_sent_again_is_one_start", on="memory"),
    ),
    Defect(
        "Plans",
        "a claim that lands while it is kept from landing is orphaned",
        "primitives/queue/unconfirmed_claims.py",
        "                return found if _has_claim(found, claim.claim) else None\n",
        "                return None\n",
        id_of("plans/torn_reads", "a_claim_that_lands_while_it_is_kept_from_landing_is_found", on="memory"),
    ),
    Defect(
        "Plans",
        "the removal of an item that is claimed does not tell its holder",
        "primitives/queue/work_queue.py",
        "        if even_if_claimed and item.claim:\n",
        "        if even_if_claimed and not item.claim:\n",
        id_of("plans/torn_reads", "an_end_of_unknown_outcome_is_no_end_if_the_item_was_removed", on="memory"),
    ),
)
