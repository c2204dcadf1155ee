"""Defects of what is said of slots and causes: what one may not see, a wrong order, a reason that holds no more."""

from __future__ import annotations

from mutants.defect import Defect, of

WHY, PAGES, CACHE = "workflows/why", "workflows/web/limit_pages", "workflows/cache"
HOLDING, CAUSES, KNOWN = (
    "workflows/desk/limiting/holding.py",
    "workflows/desk/causes.py",
    "workflows/why/known.py",
)
MEMORY = "memory"

DEFECTS = (
    Defect(
        "FlowSlots",
        "who holds a slot is told to whom may not see it",
        HOLDING,
        "    if row is None or not who.may(Role.VIEWER, row.project):\n",
        "    if row is None:\n",
        of(PAGES, "a_group_shows_who_has_its_slots_and_who_waits_and_hides_what_one_may_not_see"),
    ),
    Defect(
        "FlowSlots",
        "a limit is shown to whom may not see its project",
        "workflows/desk/limiting/limits.py",
        "        limit = limits.find(connection, project) if who.may(Role.VIEWER, project) else None\n",
        "        limit = limits.find(connection, project)\n",
        of(PAGES, "a_limit_shows_who_has_its_slots_and_is_not_there_for_others"),
    ),
    Defect(
        "FlowSlots",
        "those that wait are in the order in which they were made",
        "workflows/database/views/slots.py",
        "    mine = [(shelf, number) for",
        "    mine = [('', number) for",
        of(WHY, "who_has_the_slots_of_a_group_and_who_is_next_is_seen", on=MEMORY),
    ),
    Defect(
        "FlowSlots",
        "a name that is none is written by a form",
        "workflows/desk/limiting/groups.py",
        '    check_name("name", name)\n',
        "",
        of(
            PAGES,
            "what_is_refused_is_said_on_the_page_with_what_was_written",
            on="/groups-sent2-422-is no name; use up to 100",
        ),
    ),
    Defect(
        "FlowSlots",
        "a task far behind a failure does not name it",
        KNOWN,
        "                    left.append(name)\n",
        "                    continue\n",
        of(WHY, "a_task_far_behind_a_failure_names_it"),
    ),
    Defect(
        "FlowSlots",
        "a run that is over waits for a master",
        KNOWN,
        "    if not known.owner and known.instance not in OVER:\n",
        "    if not known.owner:\n",
        of(WHY, "a_failed_run_says_by_which_task_and_with_which_error_it_failed", on=MEMORY),
    ),
    Defect(
        "FlowSlots",
        "a backfill forgets that it leaves the cache out",
        "workflows/master/backfilling.py",
        "fresh=known.fresh, ",
        "",
        of(CACHE, "a_backfill_takes_what_is_known_or_runs_it_all_also_for_those_that_follow", on="memory-True"),
    ),
    Defect(
        "FlowSlots",
        "the backfills that follow take what is known",
        "workflows/desk/backfills.py",
        '        "cause": first.id,\n        **_fresh(given),\n',
        '        "cause": first.id,\n',
        of(PAGES, "a_backfill_form_offers_those_that_wait_and_no_cache_where_there_is_one"),
    ),
)
