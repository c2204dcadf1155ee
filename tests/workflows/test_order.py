"""The order in which tasks are taken: priority of the run, run, priority of the task, task; 9 before 10."""

import pytest
import sqlalchemy as sa

from latchwork_workflows.db.tables import workflow_run
from patience import eventually
from workflows.hands import a_workflow


def taken(stage, hand, count):
    """Names of tasks, with their runs, in the order in which one worker gets them."""
    found = []
    while len(found) < count:
        claims = hand.take_all()
        found += [hand.spec(each).head for each in claims.values()]
    return [(each.run_id, each.name) for each in found]


def queued(stage, count):
    lane = hand_lane(stage)
    eventually(lambda: lane.size("default") == count)


def hand_lane(stage):
    return stage.hand("looks").backlog


@pytest.mark.parametrize("order", ["run", "submitted"])
def test_runs_by_priority_then_by_number_with_nine_before_ten(stage, order):
    version = stage.apply(a_workflow(tasks={"a": []}))
    with stage.database.write() as connection:  # ids begin at 8
        connection.execute(
            sa.insert(workflow_run).values(
                id=7,
                code=version.code,
                version=1,
                shard=0,
                state="success",
                active=False,
                priority=2,
                params={},
                schedule_time=0.0,
                created_at=0.0,
            )
        )
        if not stage.database.is_sqlite:
            connection.exec_driver_sql("SELECT setval(pg_get_serial_sequence('workflow_run', 'id'), 7)")
    with stage.master(order=order, now=lambda: 1_000_000.0):
        plain = [stage.start(version) for _ in range(4)]
        first = stage.start(version, priority="highest")
        last = stage.start(version, priority="lowest")
        high = stage.start(version, priority="high")
        queued(stage, 7)
    assert plain == [8, 9, 10, 11]
    assert [each for each, _ in taken(stage, stage.hand(), 7)] == [first, high, *plain, last]


def test_a_run_comes_whole_before_the_next_whatever_the_priorities_of_its_tasks(stage):
    tasks = {
        "late": {"priority": "lowest"},
        "a": [],
        "soon": {"priority": "highest"},
        "b": [],
    }
    version = stage.apply(a_workflow(tasks=tasks))
    with stage.master():
        one, two = stage.start(version), stage.start(version)
        queued(stage, 8)
    order = ["soon", "a", "b", "late"]
    assert taken(stage, stage.hand(), 8) == [(one, each) for each in order] + [(two, each) for each in order]


def test_by_submission_the_priority_of_a_task_counts_before_its_run(stage):
    version = stage.apply(a_workflow(tasks={"a": [], "soon": {"priority": "highest"}}))
    with stage.master(order="submitted", now=lambda: 1_000_000.0):
        one, two = stage.start(version), stage.start(version)
        queued(stage, 4)
    assert taken(stage, stage.hand(), 4) == [(one, "soon"), (two, "soon"), (one, "a"), (two, "a")]
