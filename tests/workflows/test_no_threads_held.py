"""Parents that wait hold no thread, no slot and no place among the tasks that workers may have."""

import shutil
import threading

import pytest

from latchwork_workflows.state.records import MAX_IN_HANDS
from patience import eventually
from workflows.hands import a_workflow


@pytest.fixture
def stage_url(tmp_path, empty_database):
    """On a file with each store: all runs are made in one transaction, of two thousand round trips on PostgreSQL."""
    shutil.copy(empty_database, tmp_path / "flows.db")
    return f"sqlite:///{tmp_path}/flows.db"


def sub(of, **params):
    return {"type": "sub_process", "params": {"workflow": of, **params}}


def started(stage, version):
    """One transaction makes 250 runs, or has 500 tasks look: that takes longer than other starts do."""
    number = stage.send("start", code=version.code, version=version.number)
    return eventually(lambda: stage.command(number).run_id, 60.0, "the start")


def test_fifty_levels_of_runs_and_two_hundred_siblings_end_with_one_slot_and_one_thread(stage):
    """Parents that waited in threads took all of a pool, and their children had none: DolphinScheduler #4300, #5543.

    There the third of its options against it (start anyway) stood still too, once parents were nested.
    """
    stage.apply(a_workflow("level-0", tasks={"leaf": {"type": "noop", "params": {}}}))
    for level in range(1, 50):
        stage.apply(a_workflow(f"level-{level}", tasks={"sub": sub(f"level-{level - 1}")}))
    siblings = {"type": "sub_process", "map": list(range(200)), "params": {"workflow": "level-0"}}
    version = stage.apply(a_workflow("top", tasks={"deep": sub("level-49"), "wide": siblings}))
    hand = stage.hand()
    with stage.master():
        made = started(stage, version)
        done = 0

        def work():
            nonlocal done
            while found := hand.backlog.try_take(["default"], limit=1, extra=hand._extra):  # one slot
                hand.end(found[0])
                done += 1
            return done >= 201 and stage.state(made) == "success"

        eventually(work, 120.0)
        assert threading.active_count() < 30
        assert done == 201
    assert stage.runs() == 1 + 50 + 200


def test_parents_that_wait_take_no_place_among_the_tasks_that_workers_may_have(stage):
    """As many as a run may have with workers wait, and the tasks behind them are queued all the same."""
    tasks = {f"dep{index}": {"type": "dependent", "params": {"on": "nobody"}} for index in range(MAX_IN_HANDS)}
    version = stage.apply(a_workflow("top", tasks={**tasks, "a": []}))
    hand = stage.hand()
    with stage.master():
        started(stage, version)
        hand.end(hand.wait("a"))
