"""Events: in spec, none left out, those before the first listener kept; who came back gets the last all_joined."""

from __future__ import annotations

from latchwork.worker_group import find
from worker_group.conftest import die


def told(one):
    events = []
    one.on_event(events.append)
    return events


def kinds(events):
    return [event.kind for event in events]


def test_events_since_a_worker_joined_are_kept_for_its_first_listener(team, eventually):
    a, b = team(2)
    first, second = told(a), told(b)
    assert eventually(lambda: kinds(first) == ["joined", "joined", "all_joined"])
    assert eventually(lambda: kinds(second) == ["joined", "all_joined"])
    numbers = [event.number for event in first]
    assert numbers == list(range(numbers[0], numbers[0] + 3))


def test_a_loss_and_a_restart_are_told_in_order(team, worker, eventually, all_at_once):
    a, b = team(2)
    events = told(a)
    all_at_once(lambda one: one.initialize(60.0), (a, b))
    die(b)
    assert eventually(lambda: "faulty" in kinds(events))
    again = worker("b")
    assert eventually(lambda: "restarted" in kinds(events))
    wanted = ["joined", "joined", "all_joined", "healthy", "lost", "faulty", "restarted"]
    assert kinds(events) == wanted
    assert [event.number for event in events] == list(range(1, len(wanted) + 1))
    replayed = told(again)
    assert eventually(lambda: kinds(replayed)[:2] == ["all_joined", "restarted"])


def test_a_listener_that_raises_or_exits_stops_no_other(team, eventually):
    a, b = team(2)

    def exits(_event):
        raise SystemExit

    def raises(_event):
        raise KeyError

    a.on_event(exits)
    a.on_event(raises)
    events = told(a)
    b.complete()
    assert eventually(lambda: "completed" in kinds(events))


def test_a_group_that_is_scaled_tells_it_and_is_complete_again_when_all_have_joined(team, worker, store, eventually):
    (a,) = team(1)
    events = told(a)
    find(store, "train").scale(2)
    worker("b")
    assert eventually(lambda: kinds(events) == ["joined", "all_joined", "scaled", "joined", "all_joined"])


def test_a_fault_is_told_after_the_start_also_when_the_one_that_was_to_tell_that_has_died(
    team, worker, eventually, all_at_once, monkeypatch
):
    a, b = team(2)
    events = told(b)

    async def dies(_attempt):
        die(a)

    monkeypatch.setattr(a._core, "_record_healthy", dies)  # it is the lowest, and dies once it has passed
    all_at_once(lambda one: one.initialize(60.0), (a, b))
    assert eventually(lambda: "faulty" in kinds(events))
    wanted = ["joined", "all_joined", "healthy", "lost", "faulty"]
    assert kinds(events) == wanted
    assert [event.epoch for event in events if event.kind in {"healthy", "faulty"}] == [0, 1]
    worker("a")


def test_a_restart_is_told_after_the_start_too(team, worker, eventually, all_at_once, monkeypatch):
    a, b = team(2)
    events = told(b)

    async def nothing(_attempt):
        pass

    monkeypatch.setattr(a._core, "_record_healthy", nothing)
    all_at_once(lambda one: one.initialize(60.0), (a, b))
    worker("a", replace=True)
    assert eventually(lambda: "faulty" in kinds(events))
    assert kinds(events) == ["joined", "all_joined", "healthy", "restarted", "faulty"]


def test_a_start_that_was_told_is_not_told_again_with_the_fault(team, worker, eventually, all_at_once):
    a, b = team(2)
    events = told(a)
    all_at_once(lambda one: one.initialize(60.0), (a, b))
    assert eventually(lambda: "healthy" in kinds(events))
    worker("b", replace=True)
    assert eventually(lambda: "faulty" in kinds(events))
    assert kinds(events).count("healthy") == 1
