"""Defects of what operators see and ask for: fire times, how runs went, asked runs, session states, refusals."""

from __future__ import annotations

from mutants.defect import Defect, at, of

DEFECTS = (
    Defect(
        "Cron",
        "what comes again after the clock is set back is not looked for",
        "schedules/cron_times.py",
        "    return min(found, _first_after(fields, zone, reading - again, wall_s))\n",
        "    return found\n",
        of(
            "jobs/cron_times",
            "an_expression_with_a_star_fires_at_each_moment_whose_reading_matches",
            on="*/20 0-3 * * *-Australia-Lord_Howe-2024-04-06",
        ),
    ),
    Defect(
        "Cron",
        "a fire time that the clock was set forward over is left out",
        "schedules/cron_times.py",
        "    return (_set_forward(later.timestamp(), earlier.timestamp(), zone),) if keeps_date else ()\n",
        "    return ()\n",
        of("jobs/schedule", "cron_runs_a_job_of_the_skipped_hour_once_in_spring"),
    ),
    Defect(
        "Job",
        "a run whose body never runs is accepted",
        "jobs/job/job.py",
        "        late = late_kind(run)\n",
        "        late = None\n",
        of("jobs/job_refused", "a_run_whose_body_would_never_run_is_refused_at_construction", on="generator"),
    ),
    Defect(
        "Outcomes",
        "a run that ends well ends the failures of all items",
        "jobs/worker/outcomes.py",
        "        over = [self._failing.pop(item).in_a_row for item in _among(ended.items, self._failing)]\n",
        "        over = [self._failing.pop(item).in_a_row for item in list(self._failing)]\n",
        of("jobs/outcomes", "an_item_that_always_fails_is_seen_among_many_that_do_not"),
    ),
    Defect(
        "Outcomes",
        "a run that was told to stop counts",
        "jobs/worker/outcomes.py",
        "            if not ended.was_told:\n                self._note(ended)\n",
        "            self._note(ended)\n",
        of("jobs/outcomes", "a_run_that_was_told_to_stop_says_nothing_of_the_job"),
    ),
    Defect(
        "Outcomes",
        "a turn that comes while the last one is written down is lost",
        "jobs/node/outcome_pace.py",
        "        self._wanted = {what: at for what, at in self._wanted.items() if what not in self._taken}\n",
        "        self._wanted = {}\n",
        of("jobs/outcomes", "what_turns_while_the_last_look_is_written_down_is_not_lost"),
    ),
    Defect(
        "Outcomes",
        "failures go on in a row over no restart",
        "jobs/worker/outcomes.py",
        "                    self._before[error.item] = error.in_a_row\n",
        "                    pass\n",
        of("jobs/outcomes", "what_was_written_before_a_restart_goes_on"),
    ),
    Defect(
        "Outcomes",
        "a cluster in which nothing changes writes how its runs went again and again",
        "jobs/node/run_reporter.py",
        "        return None if value == self._written or (",
        "        return None if (",
        of("jobs/outcomes", "a_cluster_in_which_nothing_changes_writes_nothing"),
    ),
    Defect(
        "Asked runs",
        "what was called off begins",
        "jobs/worker/asked.py",
        ", [Exists(request.key)])",
        ", [])",
        of("jobs/asked_runs", "a_run_that_was_called_off_never_begins", on="False"),
    ),
    Defect(
        "Asked runs",
        "an item that had its run is run again where it goes",
        "jobs/worker/asked.py",
        "if each.running is not None or each.through < request.at_s)",
        "if True)",
        of("jobs/asked_runs", "an_item_that_moved_after_its_run_is_not_run_twice"),
    ),
    Defect(
        "Session",
        "state listeners are told of an end only",
        "store/session.py",
        "            self._states.note(self.state)\n",
        "",
        of(
            "store/session_states",
            "a_listener_is_told_that_it_is_suspect_active_again_and_lost_in_this_order",
            on="down",
        ),
    ),
    Defect(
        "Once",
        "a result of another type counts as a start",
        "primitives/once.py",
        "            await self._forget_start(place)\n",
        "",
        at("once", "a_result_of_another_type_is_refused_and_not_recorded_however_often", on="memory-7"),
    ),
)
