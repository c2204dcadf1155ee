"""Defects of tasks that masters hold: children that are lost, branches that leak, waits without an end."""

from __future__ import annotations

from mutants.defect import Defect, of

HOLDING, FAMILIES, LOGICAL = (
    "workflows/master/holding.py",
    "workflows/database/families.py",
    "workflows/state/logical.py",
)
SUB, DEPENDENT, BRANCHES = "workflows/sub_process", "workflows/dependent", "workflows/branches_and_maps"
CHILDREN, BOOK, SETTLE = "workflows/state/children.py", "workflows/master/book.py", "workflows/state/settle.py"
MEMORY = "memory"

DEFECTS = (
    Defect(
        "FlowFamilies",
        "a dry run is as good as a real one for those that wait",
        FAMILIES,
        "sorted(without)), instance.c.dry.is_(False))",
        "sorted(without)))",
        of(DEPENDENT, "a_dry_run_is_waited_for_by_nobody", on=MEMORY),
    ),
    Defect(
        "FlowFamilies",
        "a recovery runs all of a child again",
        CHILDREN,
        "        return Recover()\n",
        "        return Rerun()\n",
        of(SUB, "a_recovery_of_the_parent_runs_only_what_failed_in_the_child", on=MEMORY),
    ),
    Defect(
        "FlowFamilies",
        "what ends while a round goes on is told to nobody who has looked",
        "workflows/master/policies/waking.py",
        "            self._go_on(code, 0)  # behind the rest of that round\n",
        "",
        of(DEPENDENT, "what_ends_while_a_round_goes_on_is_seen_by_those_that_have_looked", on=MEMORY),
    ),
    Defect(
        "FlowFamilies",
        "of those that wait for one workflow only the first look",
        "workflows/master/policies/waking.py",
        "            self._go_on(code, found[-1])\n",
        "            pass\n",
        of(DEPENDENT, "more_than_look_in_one_transaction_look_in_rounds_of_several", on=MEMORY),
    ),
    Defect(
        "FlowFamilies",
        "a child's end is not told",
        HOLDING,
        "            if made.parent is not None:\n",
        "            if False:\n",
        of(SUB, "the_outputs_of_a_child_are_those_of_its_task_and_values_of_the_parent_its_parameters", on=MEMORY),
    ),
    Defect(
        "FlowFamilies",
        "a held task is looked for among the workers",
        BOOK,
        "        if task.held:  # the master has it itself\n",
        "        if False:\n",
        of(SUB, "a_pause_and_a_resume_of_the_parent_are_those_of_the_child", on=MEMORY),
    ),
    Defect(
        "FlowFamilies",
        "a stop is not for children",
        LOGICAL,
        '            work.call("stop" if is_ending else "pause", name)\n',
        '            work.call("pause", name)\n',
        of(SUB, "a_stop_of_the_parent_ends_what_the_child_runs", on=MEMORY),
    ),
    Defect(
        "FlowFamilies",
        "a child is recovered behind its parent's back",
        CHILDREN,
        '    return command not in {"resume", "recover", "rerun"} or',
        "    return True or",
        of(SUB, "a_child_goes_on_by_itself_only_while_its_parent_waits_for_it", on=MEMORY),
    ),
    Defect(
        "FlowFamilies",
        "runs are inside of each other without an end",
        HOLDING,
        "        if stored.depth >= MOST_DEPTH:\n",
        "        if stored.depth >= 30:\n",
        of(SUB, "a_workflow_that_comes_to_start_itself_fails_at_the_deepest_run", on=MEMORY),
    ),
    Defect(
        "FlowFamilies",
        "who waits hears of nothing",
        HOLDING,
        "            self._over.add(made.code)\n",
        "            pass\n",
        of(DEPENDENT, "a_failure_fails_who_depends_on_it_or_is_mended_while_they_wait", on=MEMORY),
    ),
    Defect(
        "FlowFamilies",
        "other shards are not poked",
        "workflows/master/shard.py",
        "        self._sending.poke(pokes)\n",
        "",
        of(DEPENDENT, "who_depends_in_another_shard_hears_of_an_end_within_a_moment", on="file"),
    ),
    Defect(
        "FlowFamilies",
        "a dependent looks once",
        LOGICAL,
        'task.until, LOOK_RARELY_S))\n    work.call("look", name)\n',
        "task.until, LOOK_RARELY_S))\n",
        of(DEPENDENT, "a_message_that_was_lost_costs_half_a_minute_and_no_more", on=MEMORY),
    ),
    Defect(
        "FlowFamilies",
        "a run waits for itself",
        HOLDING,
        "        return [stored.id, *families.above(self._connection, stored.parent)]\n",
        "        return [0]\n",
        of(DEPENDENT, "a_run_never_counts_as_one_that_it_waits_for", on=MEMORY),
    ),
    Defect(
        "FlowFamilies",
        "a failure that conditions look at ends the run",
        LOGICAL,
        "        return name not in work.plan.handled\n",
        "        return True\n",
        of(BRANCHES, "a_failure_that_conditions_look_at_leads_to_its_branch_and_is_none_of_the_run", on=MEMORY),
    ),
    Defect(
        "FlowFamilies",
        "what only a branch leads to runs though the branch was not chosen",
        SETTLE,
        "    return bool(rule.after) and all(work.tasks[before].cut for before in rule.after)\n",
        "    return False\n",
        of("workflows/state", "story_goes_as_written", on="branches"),
    ),
    Defect(
        "FlowFamilies",
        "items that ended well run again",
        LOGICAL,
        "        if known.state in {TaskState.WAITING, TaskState.SKIPPED}:\n",
        "        if True:\n",
        of(
            BRANCHES, "a_map_goes_on_where_a_master_that_died_left_it_and_recovers_only_the_item_that_failed", on=MEMORY
        ),
    ),
    Defect(
        "FlowFamilies",
        "a map has no limit",
        SETTLE,
        "            of_maps[base] -= 1\n",
        "            pass\n",
        of(BRANCHES, "no_more_items_run_at_a_time_than_the_map_says_and_none_is_a_map_that_is_done", on=MEMORY),
    ),
    Defect(
        "FlowFamilies",
        "each item is sent with the list of all",
        "workflows/definitions/values.py",
        "if name in named or value is not items}",
        "if name is not named}",
        of(
            BRANCHES,
            "a_map_is_a_task_for_each_item_whose_outputs_are_lists_in_the_order_of_the_items",
            on=MEMORY,
        ),
    ),
    Defect(
        "FlowFamilies",
        "a ring is closed by two at once",
        "workflows/database/families.py",
        '    if connection.dialect.name != "sqlite":\n',
        "    if False:\n",
        of("workflows/rings", "of_two_that_are_written_at_once_and_start_each_other_one_is_refused", on="postgres"),
    ),
    Defect(
        "FlowFamilies",
        "a dot in a name hides a ring",
        "workflows/database/definitions.py",
        '    return [(project, name), ("default", key)] if dot else [("default", key)]\n',
        '    return [(project, name)] if dot else [("default", key)]\n',
        of("workflows/rings", "a_ring_is_found_through_others_through_dots_in_names_and_in_other_projects", on="file"),
    ),
    Defect(
        "FlowFamilies",
        "a ring is imported",
        "workflows/care/carrying.py",
        "        _check_rings(connection, found)\n",
        "",
        of("workflows/rings", "a_document_with_a_ring_is_refused_whole", on="file"),
    ),
)
