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
PLACES = "queued_tasks_say_how_many_are_before_them_and_no_more_than_some_hundred_are_counted"

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
    Defect(
        "FlowSlots",
        "a task that somebody has counts as before those that wait",
        "workflows/cluster.py",
        "if each not in taken]",
        "]",
        of(WHY, PLACES, on=MEMORY),
    ),
    Defect(
        "FlowSlots",
        "a place in a queue that was not read to its end is told as if it had been",
        CAUSES,
        "            yield task, Ahead(len(line.free) - 1, is_more=True)\n",
        "            yield task, Ahead(len(line.free) - 1)\n",
        of(WHY, PLACES, on=MEMORY),
    ),
    Defect(
        "FlowSlots",
        "a refused backfill names a project that one may not see",
        "workflows/desk/backfills.py",
        "    if who.may(Role.VIEWER, project):\n        need(",
        "    if project:\n        need(",
        of(PAGES, "a_backfill_form_offers_those_that_wait_and_no_cache_where_there_is_one"),
    ),
    Defect(
        "FlowSlots",
        "a ring names workflows that one may not see",
        "workflows/desk/definitions.py",
        ", may_see=partial(who.may, Role.VIEWER)",
        "",
        of(PAGES, "a_ring_of_workflows_names_none_that_its_writer_may_not_see"),
    ),
    Defect(
        "FlowSlots",
        "the forms of task types are made from schemas for each page",
        "workflows/ui/editing/editor.py",
        "@lru_cache(maxsize=1024)\n",
        "",
        of("workflows/web/live", "the_form_of_a_task_type_is_made_once_and_is_that_of_the_types_that_are_asked"),
    ),
    Defect(
        "FlowSlots",
        "PostgreSQL goes back by ids through all that is newer than the runs of a workflow",
        "workflows/database/views/instances.py",
        '    if connection.dialect.name == "sqlite":\n        return chosen.where(instance.c.code == code)',
        "    if connection is not None:\n        return chosen.where(instance.c.code == code)",
        of(
            "workflows/web/on_postgres",
            "the_newest_runs_of_a_workflow_are_found_by_its_own_index_behind_a_long_backfill_of_another",
            on="-postgres",
        ),
    ),
)
