"""Definitions and runs in the database: what `advance` knows is what was stored."""

import pytest
import sqlalchemy as sa

from latchwork_workflows.db import Database, definitions, overview, runs
from latchwork_workflows.db.migrations import upgrade_schema
from latchwork_workflows.db.tables import definition_version, event, schedule
from latchwork_workflows.errors import NotFound
from latchwork_workflows.model.definition import Definition, build_plan
from latchwork_workflows.model.validate import ValidDefinition
from latchwork_workflows.state import (
    Claimed,
    Ended,
    Outcome,
    Pause,
    Removed,
    Rerun,
    Resume,
    RunState,
    Start,
    TaskState,
    advance,
)
from workflows.flows import nightly

CHECKED = ValidDefinition(nightly.definition, nightly.order)
PLAN = build_plan(nightly.definition, nightly.order)


def applied(database, checked=CHECKED):
    with database.write() as connection:
        return definitions.save_definition(connection, checked, shards=4)


def changed(**fields):
    return ValidDefinition(Definition.model_validate({**nightly.definition.model_dump(), **fields}), nightly.order)


def test_a_version_is_written_when_it_differs_and_never_changed(database):
    first, again = applied(database), applied(database)
    assert (first.number, first.is_new, again.number, again.is_new) == (1, True, 1, False)
    second = applied(database, changed(description="another"))
    assert (second.code, second.number, second.is_new) == (first.code, 2, True)
    with database.read() as connection:
        assert definitions.find_workflow(connection, "nightly") == (first.code, 2, True, "default")
        assert definitions.find_workflow(connection, "default.nightly") == (first.code, 2, True, "default")
        assert definitions.load_definition(connection, first.code, 1) == nightly.definition
        assert definitions.load_definition(connection, first.code, 2).description == "another"
        assert connection.execute(sa.select(sa.func.count()).select_from(definition_version)).scalar() == 2
        with pytest.raises(NotFound, match="'hourly'"):
            definitions.find_workflow(connection, "hourly")
        with pytest.raises(NotFound, match="no version 3"):
            definitions.load_definition(connection, first.code, 3)


def test_a_schedule_owes_nothing_from_before_it_was_applied_and_goes_with_its_version(database):
    code = applied(database).code
    with database.read() as connection:
        row = connection.execute(sa.select(schedule)).one()
        assert (row.code, row.cron, row.tz, row.shard) == (code, "0 3 * * *", "Europe/Berlin", code % 4)
        first_cursor = row.cursor
    applied(database)  # nothing changed: what is owed is owed still
    with database.read() as connection:
        assert connection.execute(sa.select(schedule.c.cursor)).scalar() == first_cursor
    applied(database, changed(schedule=None))
    with database.read() as connection:
        assert connection.execute(sa.select(schedule)).all() == []


def test_a_run_is_read_as_it_was_written_after_each_event(database):
    version = applied(database)
    with database.write() as connection:
        made = runs.create_run(
            connection, 2, version.code, 1, params={"day": "x"}, schedule_time=5.0, created_at=1.0, priority="high"
        )
    story = [
        [Start()],
        [Claimed("extract", 1), Ended("extract", 1, Outcome.FAILURE)],
        [],
        [Claimed("extract", 2), Ended("extract", 2, Outcome.SUCCESS)],
        [Pause()],
        [Removed("load", 1), Ended("report", 1, Outcome.FAILURE)],
        [Rerun()],
        [Ended("extract", 1, Outcome.SUCCESS, round=2)],
    ]
    for turn, events in enumerate(story):
        now = 100.0 * (turn + 1)
        with database.write() as connection:
            before = runs.load_runs(connection, [made])[made]
            after = advance(PLAN, before.known, events, now)
            outputs = {each.task: {"rows": turn} for each in events if isinstance(each, Ended)}
            runs.save_run(connection, before, after, now, outputs=outputs, queue_keys={"extract": "default/1"})
        with database.read() as connection:
            found = runs.load_runs(connection, [made])[made]
        assert found.known == type(after)(
            **{**{name: getattr(after, name) for name in after.__slots__}, "timeline_events": ()}
        )
        assert found.priority == 1
        assert found.params == {"day": "x"}
        assert found.outputs.get("extract") == (None if turn in {0, 6} else found.outputs["extract"])
    assert found.known.round == 2
    assert set(found.ids) == {"extract", "load", "report"}
    assert found.outputs["extract"] == {"rows": 7}
    assert found.queue_keys == {"extract": "default/1"}
    with database.read() as connection:
        told = connection.execute(sa.select(event.c.kind, event.c.task).order_by(event.c.id)).all()
        assert ("retry", "extract") in told
        assert ("failure", "report") in told


def test_active_runs_and_those_that_are_due_are_found(database):
    version = applied(database)
    ids = []
    for shard in (0, 0, 1):
        with database.write() as connection:
            ids.append(
                runs.create_run(connection, shard, version.code, 1, params={}, schedule_time=0.0, created_at=0.0)
            )
            before = runs.load_runs(connection, [ids[-1]])[ids[-1]]
            started = advance(PLAN, before.known, [Start()], 100.0)
            failed = advance(PLAN, started, [Claimed("extract", 1), Ended("extract", 1, Outcome.FAILURE)], 100.0)
            runs.save_run(connection, before, failed, 100.0)
    with database.read() as connection:
        assert runs.list_active_runs(connection, 0) == ids[:2]
        assert runs.list_due_runs(connection, 0, 129.0) == []
        assert runs.list_due_runs(connection, 0, 130.0) == ids[:2]
        assert runs.load_runs(connection, [999]) == {}
    with database.write() as connection:
        before = runs.load_runs(connection, [ids[0]])[ids[0]]
        over = advance(PLAN, before.known, [Pause()], 131.0)
        assert over.state is RunState.PAUSED
        assert over.tasks["extract"].state is TaskState.RETRY_WAIT
        runs.save_run(connection, before, over, 131.0)
    with database.read() as connection:
        assert runs.list_active_runs(connection, 0) == ids[1:2]
        assert runs.list_due_runs(connection, 0, 200.0) == ids[1:2]
    resumed = advance(PLAN, over, [Resume()], 200.0)
    assert resumed.tasks["extract"].state is TaskState.SUBMITTED


def test_who_looks_for_active_runs_reads_no_others(tmp_path):
    """SQLite takes a partial index only for the very words of the index: a scan would grow with the history."""
    database = Database(f"sqlite:///{tmp_path}/flows.db")
    upgrade_schema(database)
    asked = []
    sa.event.listen(database.engine, "before_cursor_execute", lambda *args: asked.append(args[2:4]))
    with database.read() as connection:
        for look in (
            lambda: runs.list_active_runs(connection, 0),
            lambda: overview.list_active_runs(connection),
            lambda: overview.list_active_runs(connection, [1, 2]),
            lambda: overview.count_active_runs(connection),
            lambda: overview.count_active_runs(connection, [1, 2]),
        ):
            asked.clear()
            look()
            statement, values = asked[0]
            plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values).all()
            assert "ix_workflow_run_active" in str(plan), (statement, plan)
    database.close()
