"""What nobody is in any more is removed, and nothing else; and what is seen from outside."""

from __future__ import annotations

import json
import time

from latchwork.schedules import WallClock
from latchwork.worker_group import GroupSweeper, find, inspect, inspect_group, submit, sweep
from latchwork.worker_group import list_events as group_events
from worker_group.conftest import die


def test_a_group_that_ended_while_the_lease_of_a_dead_worker_lived_is_removed_by_a_sweep(team, store, eventually):
    a, b = team(2)
    a.complete()
    b.complete()
    die(a)
    assert eventually(lambda: len(b.running()) == 1)
    die(b)
    assert eventually(lambda: sweep(store).groups == ["train"])
    assert [entry.key for entry in store.list("default", recursive=True)] == ["default/ended/train"]


def test_a_group_that_is_on_is_left_alone_until_nobody_was_seen_in_it_for_long(store):
    submit(store, "train", 2)
    assert sweep(store).groups == []
    patient, quick = GroupSweeper(store), GroupSweeper(store, abandon_s=0.0)
    assert patient.sweep().groups == []
    assert patient.sweep().groups == []
    assert quick.sweep().groups == ["train"]
    assert find(store, "train") is None


def test_a_live_group_is_never_swept(team, store):
    team(1)
    assert GroupSweeper(store, abandon_s=0.0).sweep().groups == []
    assert find(store, "train") is not None


def test_what_is_left_of_a_run_that_no_head_names_is_removed(team, store):
    team(1)
    store.put("default/groups/train/runs/dead/members/x", b"{}")
    assert sweep(store).runs == ["train/dead"]
    assert len(find(store, "train").status().missing) == 0


def test_how_a_group_ended_is_forgotten_after_its_time(store):
    submit(store, "train", 1, keep_ended_s=0.0).terminate()
    submit(store, "other", 1).terminate()
    assert sweep(store).ended == ["train"]


def test_a_wall_clock_that_is_ahead_for_a_moment_removes_no_end_of_a_group(store, monkeypatch):
    submit(store, "train", 1).terminate()
    ahead_s = [0.0]
    sweeper = GroupSweeper(store)
    sweeper._wall_clock = WallClock(store.clock, lambda: time.time() + ahead_s[0])
    ahead_s[0] = 700_000.0
    assert sweeper.sweep().ended == []
    monkeypatch.setattr("latchwork.schedules.wall_clock.CONFIRM_S", 0.0)
    assert sweeper.sweep().ended == ["train"]  # the clock is right then, as far as anybody can know


def test_the_first_worker_of_a_group_sweeps_by_itself_and_leaves_groups_that_may_start(
    team, store, eventually, monkeypatch
):
    monkeypatch.setattr("latchwork.worker_group.observation._SWEEP_S", 0.3)
    submit(store, "ended", 1, keep_ended_s=0.0).terminate()
    submit(store, "waits", 1)
    store.put("default/groups/waits/runs/dead/members/x", b"{}")
    team(2)
    assert eventually(
        lambda: store.list("default/ended") == [] and store.children("default/groups/waits/runs/dead") == []
    )
    assert find(store, "waits") is not None


def test_a_record_that_is_no_group_is_left_alone_and_not_shown(store):
    store.put("default/groups/alien/record", b"hello")
    store.put("default/groups/broken/record", json.dumps({"run": "x"}).encode())
    assert sweep(store).groups == []
    assert inspect(store).groups == ()
    assert inspect_group(store, "alien") is None


def test_a_member_that_nobody_wrote_is_left_out(team, store):
    a, b = team(2)
    store.put(f"default/groups/train/runs/{a.run_id}/members/z", b"hello")
    assert [info.key for info in b.members()] == ["a", "b"]
    assert a.is_alive


def test_a_group_is_seen_from_outside(team, all_at_once, in_thread, store, eventually):
    members = team(2)
    all_at_once(lambda one: one.initialize(60.0), members)
    waiting = in_thread(lambda: members[0].barrier("step", timeout_s=60.0))
    assert eventually(lambda: dict(inspect_group(store, "train").barriers).get("step"))
    state = inspect_group(store, "train")
    step = dict(state.barriers)["step"]
    assert (step.parties, step.arrived, state.running_ranks, state.master) == (2, ("000000",), (0, 1), None)
    assert [status.name for status in inspect(store).groups] == ["train"]
    assert [event.kind for event in group_events(store, "train")] == ["joined", "joined", "all_joined", "healthy"]
    assert [event.number for event in group_events(store, "train", 2)] == [3, 4]
    members[1].barrier("step", timeout_s=60.0)
    waiting.outcome()
