"""Defects of plans: the checks of the steps between the end of one task and the next, and what control promises."""

from __future__ import annotations

from mutants.defect import Defect, of

PROGRESS = "plans/progress.py"
FINISHING = "plans/finishing.py"
CONTROL = "plans/control.py"
STATES = "plans/states.py"

DEFECTS = (
    Defect(
        "Plans",
        "an end counts on another that may have come already",
        STATES,
        "        edit.checks.extend(Exists(self.keys.edge(plan_id, each, others[each])) for each in behind)\n",
        "",
        of("plans/propagation", "two_ends_that_name_each_other_as_the_one_to_come_cannot_both_land", on="memory"),
    ),
    Defect(
        "Plans",
        "the last two ends each leave the end of the plan to the other",
        STATES,
        "            edit.checks.append(Exists(self.keys.todo(plan_id, witness)))\n",
        "            pass\n",
        of("plans/propagation", "two_ends_that_name_each_other_as_the_one_to_come_cannot_both_land", on="memory"),
    ),
    Defect(
        "Plans",
        "a plan is complete while tasks of it are left",
        "plans/place.py",
        "        return bool(await ask(self.store.list, self.keys.todo(plan_id), recursive=True, limit=1))\n",
        "        return not self.keys.todo(plan_id)\n",
        of("plans/ready", "a_task_runs_once_and_gets_its_arguments_in_order", on="memory"),
    ),
    Defect(
        "Plans",
        "who takes the item of a task that is done does not look at what follows",
        FINISHING,
        "        if task.record.state is TaskState.DONE:\n"
        "            await self._progress.propagate(plan_id, plan, task)\n",
        "        if task.record.state is TaskState.DONE:\n",
        of("plans/propagation", "a_result_that_was_not_propagated_is_propagated_without_another_call", on="memory"),
    ),
    Defect(
        "Plans",
        "a task that raised is not tried again",
        FINISHING,
        "        if attempt < task.record.retry.attempts and not",
        "        if attempt < 0 and not",
        of("plans/workers", "a_task_that_raises_is_tried_again_and_its_worker_is_told", on="memory"),
    ),
    Defect(
        "Plans",
        "what comes after a skipped task is not skipped",
        PROGRESS,
        "                left.extend(await self._skip(claim, plan_id, name, turn))\n",
        "                await self._skip(claim, plan_id, name, turn)\n",
        of("plans/failing", "a_plan_that_continues_skips_only_what_depends_on_a_failure", on="memory"),
    ),
    Defect(
        "Plans",
        "a plan forgets that a task failed",
        STATES,
        "        told = plan.with_failure(task.name, why)\n",
        "        told = plan\n",
        of("plans/failing", "a_plan_that_continues_skips_only_what_depends_on_a_failure", on="memory"),
    ),
    Defect(
        "Plans",
        "a plan that was removed leaves its tasks and results",
        "plans/running/removing.py",
        "        await ask(place.store.delete_tree, prefix)\n",
        "",
        of("plans/keeping", "a_removed_plan_leaves_nothing_and_its_id_is_free", on="memory"),
    ),
    Defect(
        "Plans",
        "a recover leaves what was lost as it is",
        CONTROL,
        "                if task.record.state.is_lost:\n",
        "                if task.record.state is TaskState.DONE and task.record.state.is_lost:\n",
        of("plans/failing", "recover_runs_what_was_lost_and_keeps_results", on="memory"),
    ),
    Defect(
        "Plans",
        "results of a plan that may be recovered go when their time is over",
        "plans/retention.py",
        "    if plan.state is not PlanState.COMPLETED or plan.keep_results_s",
        "    if not plan.state.has_ended or plan.keep_results_s",
        of(
            "plans/keeping",
            "a_sweep_deletes_results_whose_time_is_over_and_keeps_those_of_a_plan_that_failed",
            on="memory",
        ),
    ),
    Defect(
        "Plans",
        "the end of a child does not check the task that may wait for it",
        "plans/running/waking.py",
        "    edit = Edit([At(task.entry)], [])\n",
        "    edit = Edit([], [])\n",
        of("plans/child_plans", "the_end_of_a_child_and_a_recover_of_its_task_do_not_miss_each_other", on="memory"),
    ),
    Defect(
        "Plans",
        "a limited plan has no limit",
        FINISHING,
        "() if most is None else self._limits.choose(plan_id, most, item.path)",
        "()",
        of("plans/limits", "no_more_tasks_than_that_run_at_a_time_on_all_workers_together", on="memory"),
    ),
    Defect(
        "Plans",
        "what has run is run again when the store was away at its end",
        FINISHING,
        "            except (Unavailable, OutcomeUnknown) as error:  # what ran",
        "            except ZeroDivisionError as error:  # what ran",
        of("plans/workers", "what_has_run_is_ended_when_the_store_is_back", on="memory"),
    ),
    Defect(
        "Plans",
        "a cancel waits for the pause before the next try",
        "tasks/running/feeder.py",
        "        task.end_pause()\n",
        "",
        of("plans/workers", "a_cancel_does_not_wait_for_the_pause_before_the_next_try", on="memory"),
    ),
    Defect(
        "Plans",
        "who adds a task does not know it again",
        "plans/handle.py",
        "any(each.record.nonce == nonce for",
        "any(not each.record.nonce for",
        of("plans/answers", "a_task_whose_adding_was_not_answered_is_added_once", on="memory-cut_after"),
    ),
)
