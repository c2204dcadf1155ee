"""Behaviours D8 to D11 and D17 of the design, each with the tests that show it; a test that goes is missed here.

What a test of one of these shows is its name; those that play an issue of DolphinScheduler name it.
"""

import ast
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SHOWN = {
    "D8: a range or dates, serial or parallel, ascending or descending; one run for each date": {
        "backfill": (
            "a_serial_backfill_has_an_instance_for_each_date_at_once",
            "the_newest_date_comes_first_if_asked_and_never_more_than_so_many_are_at_work",
            "dates_with_a_schedule_are_all_its_fire_times_in_its_time_zone",
            "masters_that_die_or_hear_nothing_at_every_step_run_each_date_once",
        )
    },
    "D8: a date that failed suppresses none after it, unless asked": {
        "backfill": (
            "a_date_that_fails_in_a_serial_backfill_suppresses_no_later_one",
            "a_date_that_is_killed_in_a_parallel_backfill_suppresses_no_later_one",
            "a_backfill_that_stops_on_failure_is_held_until_the_failed_date_is_recovered",
        )
    },
    "D8: dependents, if asked": {
        "backfill_dependents": (
            "who_waits_directly_gets_a_backfill_whose_dates_wait_for_those_of_the_first",
            "all_has_those_that_wait_for_these_and_none_has_nobody",
        )
    },
    "D9: pause, stop and recovery reach children; a failover adopts them": {
        "sub_process": (
            "a_pause_and_a_resume_of_the_parent_are_those_of_the_child",
            "a_stop_of_the_parent_ends_what_the_child_runs",
            "a_recovery_of_the_parent_runs_only_what_failed_in_the_child",
            "a_master_that_comes_after_a_crash_adopts_the_child_and_makes_no_other",
            "the_child_of_a_parent_that_has_nothing_else_to_do_is_taken_over_too",
        )
    },
    "D10: parents that wait hold no thread and no slot": {
        "no_threads_held": (
            "fifty_levels_of_runs_and_two_hundred_siblings_end_with_one_slot_and_one_thread",
            "parents_that_wait_take_no_place_among_the_tasks_that_workers_may_have",
        )
    },
    "D10: suspend, fail and precompute": {
        "limits": (
            "tasks_of_a_project_with_a_limit_need_a_slot_of_it_and_those_of_before_do_not",
            "a_start_is_refused_while_its_project_has_as_many_tasks_as_it_may",
            "a_run_waits_until_its_tasks_fit_into_its_project",
        )
    },
    "D11: nested conditions on runs, on one task or all, in windows of the schedule time": {
        "dependent": (
            "any_of_several_is_enough_where_that_is_said",
            "one_task_or_each_of_them_can_be_waited_for_while_their_run_goes_on",
            "every_window_has_spans_in_every_month",
            "a_window_is_spans_of_local_time",
        )
    },
    "D11: what is missing or tried again is waited for; a failure fails, or is waited for": {
        "dependent": (
            "a_run_that_is_missing_or_goes_on_is_waited_for_and_its_end_wakes_who_waits",
            "a_failure_fails_who_depends_on_it_or_is_mended_while_they_wait",
            "what_is_tried_again_or_paused_has_not_failed_and_what_never_started_in_a_run_that_is_over_has",
        )
    },
    "D17: conditions, switch, dynamic": {
        "branches_and_maps": (
            "a_failure_that_conditions_look_at_leads_to_its_branch_and_is_none_of_the_run",
            "a_switch_takes_the_first_case_that_is_true_of_parameters_and_outputs",
            "a_map_is_a_task_for_each_item_whose_outputs_are_lists_in_the_order_of_the_items",
        )
    },
    "D17: task groups: limit, priority, force-start, self-repair": {
        "worker": (
            "tasks_of_a_group_never_run_more_at_a_time_than_it_says_in_all_workers",
            "group_that_is_made_larger_is_used_at_once_and_plain_tasks_pass_a_full_one",
            "slot_of_a_worker_that_dies_is_free_with_its_session",
        ),
        "groups": ("the_store_is_told_of_sizes_by_the_master_also_of_those_that_go",),
        "policies": ("a_task_that_failed_can_be_forced_to_success_and_a_queued_one_to_start",),
    },
    "D17: serial wait, discard and priority": {
        "serial": (
            "starts_come_one_after_the_other_each_when_the_one_before_has_ended",
            "a_start_is_discarded_while_another_run_goes_on_or_is_paused",
            "a_start_with_priority_ends_the_others_and_begins_when_they_have_ended",
        ),
        "serial_children": ("a_child_waits_for_its_turn_and_its_parent_says_so",),
        "limits": ("so_many_runs_go_at_a_time_and_the_next_when_one_has_ended",),
    },
    "D17: result cache": {"cache": ("a_task_whose_outputs_are_known_has_them_without_a_worker_and_says_of_which_run",)},
    "D17: no worker in time": {
        "queued_too_long": ("what_no_worker_takes_in_time_has_failed_counts_as_a_try_and_says_so",)
    },
    "D17: worker groups, tenants": {
        "worker": (
            "task_of_another_group_is_left_to_its_workers",
            "task_of_a_tenant_runs_as_that_user_in_a_folder_of_its_own",
        )
    },
    "D17: audit": {"retention": ("audit_goes_after_a_year",)},
    "D17: dry run": {"serial": ("a_dry_run_takes_no_turn",)},
}


@pytest.mark.parametrize("behaviour", SHOWN)
def test_a_behaviour_of_the_design_has_the_tests_that_show_it(behaviour):
    for stem, names in SHOWN[behaviour].items():
        text = (HERE / f"test_{stem}.py").read_text(encoding="utf-8")
        there = {each.name for each in ast.walk(ast.parse(text)) if isinstance(each, ast.FunctionDef)}
        assert {f"test_{name}" for name in names} <= there
