"""Defects of what keeps a database of workflows small and whole: retention, and what finds or carries it."""

from __future__ import annotations

from mutants.defect import Defect, of

MENDING, DOCTOR, CARRYING = "workflows/master/mending.py", "workflows/care/doctor.py", "workflows/care/carrying.py"
RETENTION, CHORES = "workflows/database/retention.py", "workflows/master/chores.py"

DEFECTS = (
    Defect(
        "FlowCare",
        "a run that is run again meanwhile is deleted",
        RETENTION,
        "    chosen = chosen.where(instance.c.active.is_(False), instance.c.ended_at < before)\n",
        "",
        of("workflows/retention", "a_run_that_somebody_runs_again_meanwhile_stays_whole", on="file"),
    ),
    Defect(
        "FlowCare",
        "a run goes while its master has the shard",
        RETENTION,
        "    connection.execute(sa.update(shard).where(shard.c.id == shard_id).values(seq=shard.c.seq))\n",
        "",
        of("workflows/retention", "a_run_that_somebody_runs_again_meanwhile_stays_whole", on="postgres"),
    ),
    Defect(
        "FlowCare",
        "the newest runs go too",
        RETENTION,
        "offset(max(0, keep - 1)).limit(1)",
        "limit(1)",
        of("workflows/retention", "the_newest_runs_of_each_workflow_stay_however_old_they_are", on="file"),
    ),
    Defect(
        "FlowCare",
        "the newest task's number is given again",
        RETENTION,
        " and row.id != of_newest_task:",
        ":",
        of(
            "workflows/retention",
            "the_run_with_the_newest_task_stays_so_that_its_number_is_not_given_again",
            on="file",
        ),
    ),
    Defect(
        "FlowCare",
        "logs of runs that are gone are forgotten",
        RETENTION,
        "    connection.execute(sa.insert(about), debts)\n",
        "",
        of("workflows/retention", "logs_that_could_not_be_deleted_are_deleted_by_the_next_pass", on="file"),
    ),
    Defect(
        "FlowCare",
        "audit goes with the run",
        RETENTION,
        'told = sa.select(event.c.id).where(event.c.instance.in_(old), event.c.by == "").limit(ROWS)',
        "told = sa.select(event.c.id).where(event.c.instance.in_(old)).limit(ROWS)",
        of(
            "workflows/retention",
            "old_runs_go_with_tasks_attempts_timeline_and_logs_and_what_people_did_stays",
            on="file",
        ),
    ),
    Defect(
        "FlowCare",
        "open commands go",
        RETENTION,
        "if row.done_at is not None and row.done_at < before]",
        "if row.created_at < before]",
        of("workflows/retention", "commands_that_are_done_go_after_a_week_and_open_ones_stay", on="file"),
    ),
    Defect(
        "FlowCare",
        "a fire time goes that is still owed",
        RETENTION,
        "min(before, row.cursor - row.max_lateness_s)",
        "before",
        of("workflows/retention", "fire_times_go_that_nobody_can_start_again", on="file"),
    ),
    Defect(
        "FlowCare",
        "runs go whose logs are elsewhere",
        CHORES,
        "            self._logs.check(installation_of(self._database).id)\n",
        "            self._logs.probe()\n",
        of("workflows/retention", "without_the_logs_of_the_workers_runs_stay", on="file"),
    ),
    Defect(
        "FlowCare",
        "mending drops what is queued",
        MENDING,
        "if place.item.shard == shard and x not in wanted}",
        "if place.item.shard == shard}",
        of("workflows/doctor", "mending_leaves_alone_what_is_queued_and_what_runs", on="memory"),
    ),
    Defect(
        "FlowCare",
        "what a worker has is not ended",
        MENDING,
        "    ended = sending.cancel({x: place for x, place in orphans.items() if x not in back})\n",
        "    ended = back\n",
        of("workflows/doctor", "an_item_that_a_worker_has_is_ended_by_it", on="memory"),
    ),
    Defect(
        "FlowCare",
        "a mending master trusts its memory",
        "workflows/master/shard.py",
        "            self._mends, self._is_known = True, False\n",
        "            self._mends = True\n",
        of("workflows/doctor", "a_queued_task_that_no_worker_can_find_is_queued_again", on="memory"),
    ),
    Defect(
        "FlowCare",
        "what passes is told",
        DOCTOR,
        "        both = [each for each in second if (each.kind, each.subject) in before]\n",
        "        both = first\n",
        of("workflows/doctor", "what_is_gone_at_the_second_look_was_only_passing", on="memory"),
    ),
    Defect(
        "FlowCare",
        "what has a result is missed by its worker",
        DOCTOR,
        "        is_somewhere = x in facts.running or x in facts.results\n",
        "        is_somewhere = x in facts.running\n",
        of("workflows/doctor", "a_result_and_a_command_that_no_master_takes_are_found", on="memory"),
    ),
    Defect(
        "FlowCare",
        "a dry run writes",
        CARRYING,
        "        if not dry_run and any(",
        "        if any(",
        of("workflows/carrying", "what_differs_is_named_and_a_dry_run_changes_nothing", on="file"),
    ),
    Defect(
        "FlowCare",
        "an imported schedule fires that was off",
        CARRYING,
        "timed.values(enabled=each.scheduled)",
        "timed.values(enabled=True)",
        of("workflows/carrying", "what_is_exported_is_imported_and_then_the_same", on="file"),
    ),
)
