"""What belongs to a run: its parent, the runs that its tasks started, what they wait for, the elements of its maps."""

import time
from types import SimpleNamespace

import pytest
import sqlalchemy as sa

from latchwork_workflows.db import related_runs, runs
from latchwork_workflows.db.tables import definition, task, workflow_run
from workflows.web.seeds import apply, shell

WINDOW = {"all": [{"workflow": "billing.close", "task": "send"}, {"workflow": "nightly", "window": "yesterday"}]}
PARENT = {
    "name": "parent",
    "tasks": [
        {"name": "load", "type": "sub_process", "params": {"workflow": "billing.close"}},
        {"name": "books", "type": "dependent", "params": {"on": WINDOW}},
        shell("part", ["load"], map=[1, 2, 3]),
        shell("end", ["part"]),
    ],
}


@pytest.fixture(scope="module")
def family(seeds):
    """A run of `parent` whose task `load` has started a run of `billing.close`; `part` has 250 elements, 10 failed."""
    apply(seeds.database, PARENT)
    now = time.time()
    with seeds.database.write() as connection:
        codes = {row.name: row.code for row in connection.execute(sa.select(definition.c.name, definition.c.code))}
        same = {"params": {}, "schedule_time": now, "created_at": now, "by": ""}
        made = runs.create_run(connection, 0, codes["parent"], 1, **same)
        child = runs.create_run(connection, 0, codes["close"], 1, **same)
        states = {"load": "running", "books": "running", "part": "running", "end": "waiting"}
        rows = [{"name": name, "state": state, "map_index": -1} for name, state in states.items()]
        rows += [{"name": "part", "state": "failure" if at < 10 else "success", "map_index": at} for at in range(250)]
        each = {"run_id": made, "round": 1, "n": 1, "changed_at": now}
        connection.execute(sa.insert(task), [{**each, **row} for row in rows])
        found = connection.execute(sa.select(task.c.id, task.c.name, task.c.map_index).where(task.c.run_id == made))
        ids = {(row.name, row.map_index): row.id for row in found}
        connection.execute(sa.update(workflow_run).where(workflow_run.c.id == made).values(state="running"))
        of_load = {"parent_task": ids["load", -1], "parent_round": 1, "state": "running"}
        connection.execute(sa.update(workflow_run).where(workflow_run.c.id == child).values(**of_load))
    return SimpleNamespace(id=made, child=child, tasks=ids, task=lambda name, at=-1: ids[name, at])


def test_a_run_shows_the_run_that_its_task_started_and_that_one_leads_back(browser, family):
    client = browser()
    shown = client.get(f"/runs/{family.id}").text
    assert f'<a href="/runs/{family.child}">billing.close' in shown
    back = client.get(f"/runs/{family.child}").text
    assert "Part of" in back
    assert f'href="/runs/{family.id}"' in back
    assert f'href="/tasks/{family.task("load")}"' in back
    assert f'href="/runs/{family.child}"' in client.get(f"/tasks/{family.task('load')}").text


def test_who_may_not_see_the_other_project_sees_nothing_of_the_child_or_the_parent(browser, family, ask):
    shown = browser("viewer-of-default").get(f"/runs/{family.id}").text
    assert f"/runs/{family.child}" not in shown
    assert "Part of" not in browser("stranger").get(f"/runs/{family.child}").text
    found = ask("viewer-of-default").get(f"/api/v1/tasks/{family.task('load')}").json()
    assert found["child"] is None
    assert ask("viewer-of-default").get(f"/api/v1/runs/{family.id}/children").json() == []


def test_children_are_listed_with_their_tasks(ask, family):
    (found,) = ask("admin").get(f"/api/v1/runs/{family.id}/children").json()
    assert (found["id"], found["task"], found["map_index"], found["name"]) == (family.child, "load", -1, "close")
    assert ask("admin").get(f"/api/v1/runs/{family.id}/children?before={family.child}").json() == []
    assert ask("admin").get(f"/api/v1/tasks/{family.task('load')}").json()["child"] == family.child
    assert ask("admin").get(f"/api/v1/runs/{family.child}").json()["parent_task"] == family.task("load")


def test_what_a_dependent_waits_for_is_told_one_by_one(browser, family, ask):
    shown = browser().get(f"/tasks/{family.task('books')}").text
    assert "Waits for" in shown
    assert 'href="/workflows/billing/close/runs"' in shown
    assert "task send" in shown
    found = ask("admin").get(f"/api/v1/tasks/{family.task('books')}").json()["awaited"]
    assert [(each["workflow"], each["task"], each["window"], each["there"]) for each in found] == [
        ("billing.close", "send", "today", None),
        ("default.nightly", "", "yesterday", None),
    ]
    seen = ask("viewer-of-default").get(f"/api/v1/tasks/{family.task('books')}").json()["awaited"]
    assert [each["workflow"] for each in seen] == ["default.nightly"]


def test_a_map_is_one_row_of_its_run_and_its_elements_have_pages_of_their_own(browser, family):
    client = browser("viewer-of-default")
    shown = client.get(f"/runs/{family.id}").text
    assert "part[1]" not in shown
    assert "240 of 250 are done" in shown
    assert "10 failed" in shown
    first = client.get(f"/tasks/{family.task('part')}").text
    assert ("part[0]" in first, "part[99]" in first, "part[100]" in first) == (True, True, False)
    assert f"/tasks/{family.task('part')}?after=99#elements-title" in first
    later = client.get(f"/tasks/{family.task('part')}?after=199").text
    assert ("part[199]" in later, "part[249]" in later, "Later elements" in later) == (False, True, False)
    assert client.get(f"/tasks/{family.task('part')}?state=failure").text.count('data-label="Element"') == 10
    assert (
        f'An element of the map task <a href="/tasks/{family.task("part")}"'
        in client.get(f"/tasks/{family.task('part', 7)}").text
    )


def test_elements_are_listed_by_index_and_only_of_maps(ask, family):
    client = ask("viewer-of-default")
    found = client.get(f"/api/v1/tasks/{family.task('part')}/elements?after=4&limit=2").json()
    assert [each["name"] for each in found] == ["part[5]", "part[6]"]
    assert client.get(f"/api/v1/tasks/{family.task('part')}/elements?state=failure&after=8").json()[0]["n"] == 1
    assert client.get(f"/api/v1/tasks/{family.task('part')}").json()["elements"] == {"failure": 10, "success": 240}
    assert client.get(f"/api/v1/tasks/{family.task('end')}/elements").json() == []
    refused = client.get(f"/api/v1/tasks/{family.task('part', 3)}/elements")
    assert (refused.status_code, "elements of part" in refused.json()["detail"]) == (404, True)


def test_who_looks_for_children_reads_no_other_runs_whatever_the_statistics_say(family, seeds):
    with seeds.database.write() as connection:
        code = connection.execute(sa.select(definition.c.code).where(definition.c.name == "close")).scalar_one()
        row = {"code": code, "version": 1, "shard": 0, "state": "success", "active": False, "priority": 2}
        row |= {"params": {}, "schedule_time": 1.0, "created_at": 1.0}
        connection.execute(sa.insert(workflow_run), [row] * 3000)
        connection.execute(sa.text("ANALYZE"))
    plans = []

    def explained(asking, cursor, statement, values, *_):
        if statement.startswith("SELECT"):
            cursor.execute(f"EXPLAIN QUERY PLAN {statement}", values)
            plans.extend((step, statement) for *_, step in cursor.fetchall())

    with seeds.database.read() as connection:
        sa.event.listen(connection, "before_cursor_execute", explained)
        assert (
            related_runs.load_child_runs(connection, list(family.tasks.values()))[family.task("load")].id
            == family.child
        )
        assert [each.id for each in related_runs.list_child_runs(connection, family.id)] == [family.child]
    assert len(plans) > 3
    assert not [each for each in plans if each[0].startswith("SCAN workflow_run")]
