"""What database and store must never show together is found, and mended by the master that has the shard."""

import time

import pytest
import sqlalchemy as sa

from latchwork_workflows.db.schedules import ScheduleRow
from latchwork_workflows.db.tables import command, shard, task
from latchwork_workflows.installation import join_store
from latchwork_workflows.keys import ItemName
from latchwork_workflows.maintenance import Doctor
from latchwork_workflows.master import Master
from patience import eventually
from workflows.hands import a_workflow

LATER = 600.0


@pytest.fixture
def joined(stage):
    join_store(stage.database, stage.store, stage.keys)
    return stage


def findings(stage, later=0.0, between=lambda: None):
    """What is wrong, but that no master lives, as someone finds it who looks later."""
    looks = Doctor(stage.database, stage.store, now=lambda: time.time() + later, wait=lambda _: between())
    return [each for each in looks.check() if each.kind != "no master"]


def kinds(stage, later=0.0):
    return sorted(each.kind for each in findings(stage, later))


def mend(stage):
    found = Doctor(stage.database, stage.store, wait=lambda _: None).check()
    numbers = Doctor(stage.database, stage.store).request_repair(found, by="eve")
    return [eventually(lambda each=each: stage.command(each).done_at and stage.command(each)) for each in numbers]


def plant_item(stage, name, shelf="s1"):
    made = ItemName(999, 1, 0).id if name is None else name
    stage.store.put(f"{stage.keys.backlog}/partitions/default/sort_keys/{shelf}", b"")
    value = b'{"attempts": 0, "why": "", "size": 2, "data": ""}\n{}'
    stage.store.create(f"{stage.keys.backlog}/partitions/default/items/{shelf}/{made}", value)


def test_nothing_is_wrong_with_what_works(joined):
    version = joined.apply(a_workflow(tasks={"a": [], "b": ["a"]}))
    hand = joined.hand()
    with joined.master():
        run = joined.start(version)
        claim = hand.wait("a")
        joined.until_task(run, a="running")
        assert findings(joined, LATER) == []
        hand.end(claim)
        joined.until_task(run, b="submitted")
        eventually(joined.items)
        assert findings(joined, LATER) == []


def test_who_looks_is_told_that_no_master_lives(joined):
    (found,) = Doctor(joined.database, joined.store).check()
    assert (found.kind, found.can_repair) == ("no master", False)
    with Master(joined.database, joined.store):
        eventually(lambda: Doctor(joined.database, joined.store).check() == [])


def test_an_item_that_nobody_waits_for_is_found_and_dropped(joined):
    plant_item(joined, None)
    joined.store.put(joined.keys.cancel_key("998.1"), b"")
    joined.store.put(joined.keys.data_key("997.1"), b"x")
    assert kinds(joined) == ["cancel without item", "data without item", "item without task"]
    with joined.master():
        mend(joined)
        eventually(lambda: findings(joined) == [])


def test_an_item_that_a_worker_has_is_ended_by_it(joined):
    plant_item(joined, None)
    hand = joined.hand()
    (claim,) = hand.take_all().values()
    with joined.master():
        mend(joined)
        eventually(lambda: joined.is_cancelled(claim))


def test_mending_leaves_alone_what_is_queued_and_what_runs(joined):
    version = joined.apply(a_workflow(tasks={"a": [], "b": []}))
    hand = joined.hand()
    with joined.master():
        run = joined.start(version)
        eventually(lambda: len(joined.items()) == 2)
        claim = next(iter(hand.take(limit=1).values()))
        plant_item(joined, None)
        eventually(lambda: "running" in joined.states(run).values())
        mend(joined)
        eventually(lambda: findings(joined) == [])
        assert len(joined.items()) == 2
        assert not joined.is_cancelled(claim)


def test_a_queued_task_that_no_worker_can_find_is_queued_again(joined):
    version = joined.apply(a_workflow(tasks={"a": []}))
    with joined.master():
        joined.start(version)
        (key,) = eventually(joined.items)
        joined.store.delete(key)
        (found,) = findings(joined, LATER)
        assert (found.kind, found.shard) == ("task without item", 0)
        assert "a of run 1" in found.subject
        with joined.database.write() as connection:
            connection.execute(sa.update(task).values(changed_at=time.time() - LATER))
        mend(joined)
        eventually(lambda: joined.items() == {key})


def test_a_task_that_only_the_database_has_running_is_found(joined):
    version = joined.apply(a_workflow(tasks={"a": []}))
    hand = joined.hand()
    with joined.master():
        run = joined.start(version)
        hand.wait("a")
        joined.until_task(run, a="running")
    joined.lose(hand)
    assert kinds(joined) == []
    assert kinds(joined, LATER) == ["run without worker"]


def test_a_result_and_a_command_that_no_master_takes_are_found(joined):
    version = joined.apply(a_workflow(tasks={"a": []}))
    hand = joined.hand()
    with joined.master():
        run = joined.start(version)
        claim = hand.wait("a")
        joined.until_task(run, a="running")
    hand.end(claim)
    joined.send("pause", run)
    assert kinds(joined) == []
    assert kinds(joined, LATER) == ["old result", "open command"]


def test_a_schedule_that_nobody_starts_is_found(joined):
    joined.apply(a_workflow(schedule={"cron": "* * * * *"}))
    assert kinds(joined) == []
    assert kinds(joined, LATER) == ["late schedule"]


def test_a_command_that_no_master_does_is_named_with_its_run_and_not_said_to_be_mended(joined, monkeypatch):
    yearly = {"cron": "0 0 1 1 *"}  # it must not fire in this test: a fire time is a command, too, and takes a number
    version = joined.apply(a_workflow(tasks={"a": []}, schedule=yearly))
    with joined.master():
        run = joined.start(version)
    joined.send("start", code=version.code, version=1)
    joined.send("pause", run)

    def never(_row, _now):
        raise OverflowError("too large")

    monkeypatch.setattr(ScheduleRow, "get_next_fire", never)
    found = {each.subject: each for each in findings(joined, LATER)}
    assert {"2 (start of default.flow)", f"3 (pause of run {run})", "default.flow"} <= found.keys()
    assert not any(each.can_repair for each in found.values() if each.kind in {"open command", "broken schedule"})
    assert "no master owns shard 0" in found["2 (start of default.flow)"].why
    with joined.database.write() as connection:
        connection.execute(sa.update(shard).values(owner="node-1"))
    (found,) = (each for each in findings(joined, LATER) if each.subject == f"3 (pause of run {run})")
    assert "node-1 has not executed it: check its log for shard 0" in found.why


def test_a_key_that_nobody_of_ours_wrote_is_told_and_left(joined):
    plant_item(joined, "nonsense")
    joined.store.put(f"{joined.keys.cancels}/what", b"")
    found = findings(joined)
    assert [(each.kind, each.can_repair) for each in found] == [("unknown key", False)] * 2


def test_what_is_gone_at_the_second_look_was_only_passing(joined):
    plant_item(joined, None)

    def passes():
        for key in joined.items():
            joined.store.delete(key)

    assert findings(joined, between=passes) == []


def test_a_store_of_another_database_is_told_before_anything_else(joined):
    plant_item(joined, None)
    joined.store.put(joined.keys.id, b"another")
    (found,) = Doctor(joined.database, joined.store).check()
    assert (found.kind, found.can_repair) == ("wrong store", False)


def test_nobody_may_ask_for_a_mending_by_the_api(client, stage):
    from latchwork_workflows.errors import NotAllowed

    version = stage.apply(a_workflow(tasks={"a": []}))
    with stage.master():
        run = stage.start(version)
        with pytest.raises(NotAllowed):
            client.runs.send_action(run, "repair")
    with stage.database.read() as connection:
        assert connection.execute(sa.select(command.c.id).where(command.c.type == "repair")).first() is None
