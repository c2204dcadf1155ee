"""Groups that get more workers, or fewer."""

from __future__ import annotations

import pytest

from latchwork.errors import BarrierBroken, Conflict, LatchworkError, OutcomeUnknown, Unavailable
from latchwork.primitives import Barrier
from latchwork.store.steps import Pause, Signal, ask
from latchwork.testing.faults import Fault, FaultyStore
from latchwork.worker_group import GroupFull, WorkerRemoved, find
from primitives.conftest import list_arrived
from worker_group.conftest import Killed, KilledAt, die


def arrivals_of(store, one, group="train"):
    return list_arrived(store, f"default/groups/{group}/runs/{one.run_id}/barriers/0/default")


def test_a_group_that_is_scaled_up_has_the_next_ids(team, worker, store):
    a, b = team(2)
    find(store, "train").scale(4)
    assert [worker("c").rank, worker("d").rank] == [2, 3]
    assert [info.rank for info in a.wait_for_all(30.0)] == [0, 1, 2, 3]
    assert b.is_alive


def test_a_group_that_is_scaled_down_loses_its_highest_ids_and_nobody_fails(team, worker, store, eventually):
    a, b, c = team(3)
    find(store, "train").scale(1)
    assert eventually(c.lost.is_set)
    with pytest.raises(WorkerRemoved, match="scaled down"):
        b.complete()
    assert [info.rank for info in a.members()] == [0]
    with pytest.raises(GroupFull):
        worker("b", joins=False).join(5.0)
    a.complete()
    assert find(store, "train").status().state == "COMPLETED"


def test_an_open_barrier_is_broken_when_one_that_has_not_come_is_removed(
    team, store, all_at_once, in_thread, eventually
):
    members = team(3)
    all_at_once(lambda one: one.initialize(60.0), members)
    waiting = in_thread(lambda: members[0].barrier(timeout_s=60.0))
    eventually(lambda: arrivals_of(store, members[0]))
    find(store, "train").scale(2)
    with pytest.raises(BarrierBroken, match="scaled down to 2 workers"):
        waiting.outcome()
    assert all_at_once(lambda one: one.barrier(timeout_s=60.0), members[:2]) == [1, 1]


def test_an_open_barrier_is_broken_when_the_answer_to_the_scale_down_is_lost(
    connect, team, store, all_at_once, in_thread, eventually
):
    members = team(3)
    all_at_once(lambda one: one.initialize(60.0), members)
    waiting = [in_thread(lambda each=each: each.barrier(timeout_s=None)) for each in members[:2]]
    assert eventually(lambda: len(arrivals_of(store, members[0])) == 2)
    faulty = FaultyStore(connect(), [Fault("cut_after", op="commit", key="*record")])
    handle = find(faulty, "train")
    with pytest.raises(OutcomeUnknown):
        handle.scale(2)
    handle.scale(2)
    for each in waiting:
        with pytest.raises(BarrierBroken, match="scaled down to 2 workers"):
            each.outcome()
    faulty.close()


def test_an_open_barrier_is_broken_when_the_caller_dies_after_the_commit_of_its_scale_down(
    connect, team, store, all_at_once, in_thread, eventually
):
    members = team(3)
    all_at_once(lambda one: one.initialize(60.0), members)
    waiting = in_thread(lambda: members[0].barrier(timeout_s=None))
    assert eventually(lambda: arrivals_of(store, members[0]))
    plan = KilledAt(10_000)
    dying = FaultyStore(connect(), plan)
    handle = find(dying, "train")
    plan.left = 3  # the record, the members, the commit
    with pytest.raises(Killed):
        handle.scale(2)
    assert find(store, "train").status().workers == 2
    with pytest.raises(BarrierBroken, match="scaled down to 2 workers"):
        waiting.outcome()
    plan.left = 10_000
    dying.close()


def test_a_barrier_that_was_opened_before_a_scale_down_is_broken_by_who_comes_to_it_later(
    team, worker, store, in_thread, eventually, monkeypatch
):
    a, _, _ = team(3)
    opened = in_thread(lambda: a.initialize(None))
    init = f"default/groups/train/runs/{a.run_id}/barriers/0/init"
    assert eventually(lambda: list_arrived(store, init))
    die(a)  # nobody waits there any more
    with pytest.raises(LatchworkError):
        opened.outcome()
    find(store, "train").scale(2)
    again, b = worker("a"), worker("b", replace=True)
    assert eventually(lambda: b._core._watcher._shrinks)
    breaks = b._core._watcher._on_scale_down

    async def breaks_once_it_has_come(n):  # broken before, it would let b wait for the next one
        if sum("/arrived-" in entry.key for entry in await ask(store.list, init)) < 2:
            raise Unavailable("not yet")
        await breaks(n)

    monkeypatch.setattr(b._core._watcher, "_on_scale_down", breaks_once_it_has_come)
    with pytest.raises(BarrierBroken, match="scaled down to 2 workers"):
        b.initialize(None)
    waiting = in_thread(lambda: b.initialize(None))
    assert again.initialize(60.0) == 0
    assert waiting.outcome() == 0


def test_a_barrier_that_was_broken_by_a_scale_down_lets_who_comes_to_it_then_wait_for_the_next_one(
    team, worker, store, in_thread, eventually, monkeypatch
):
    a, _, _ = team(3)
    opened = in_thread(lambda: a.initialize(None))
    init = f"default/groups/train/runs/{a.run_id}/barriers/0/init"
    assert eventually(lambda: list_arrived(store, init))
    die(a)
    with pytest.raises(LatchworkError):
        opened.outcome()
    find(store, "train").scale(2)
    again, b = worker("a"), worker("b", replace=True)
    arrive = Barrier._arrive

    async def late(barrier, *args):
        while await ask(store.get, f"{init}/barrier") is None:  # the first phase has not ended
            await Pause(store.clock, Signal(), 0.02)
        return await arrive(barrier, *args)

    monkeypatch.setattr(Barrier, "_arrive", late)
    waiting = in_thread(lambda: b.initialize(None))
    assert again.initialize(60.0) == 0
    assert waiting.outcome() == 0


def test_a_barrier_that_was_opened_after_a_scale_down_is_not_broken_by_it(
    team, store, all_at_once, in_thread, eventually
):
    members = team(3)
    all_at_once(lambda one: one.initialize(60.0), members)
    find(store, "train").scale(2)
    assert all_at_once(lambda one: one.barrier(timeout_s=60.0), members[:2]) == [0, 0]


def test_an_open_barrier_keeps_the_number_it_was_opened_with(team, worker, store, all_at_once, in_thread, eventually):
    members = team(2)
    all_at_once(lambda one: one.initialize(60.0), members)
    waiting = in_thread(lambda: members[0].barrier(timeout_s=60.0))
    eventually(lambda: arrivals_of(store, members[0]))
    find(store, "train").scale(3)
    worker("c")
    assert members[1].barrier(timeout_s=60.0) == 0
    assert waiting.outcome() == 0


def test_who_joins_a_group_that_is_on_does_not_wait_at_the_start_line(team, worker, store, all_at_once):
    members = team(2)
    all_at_once(lambda one: one.initialize(60.0), members)
    find(store, "train").scale(3)
    members.append(worker("c"))
    assert members[2].initialize(30.0) == 0
    assert all_at_once(lambda one: one.barrier(timeout_s=60.0), members) == [0, 0, 0]


def test_many_are_removed_in_several_transactions(worker, store):
    handle = None
    a = worker("a", workers=100)
    handle = find(store, "train")
    handle.scale(3)
    assert handle.status().workers == 3
    assert a.is_alive


def test_a_group_that_has_ended_is_not_scaled(team, store):
    (a,) = team(1)
    handle = find(store, "train")
    a.complete()
    with pytest.raises(Conflict, match="has ended"):
        handle.scale(2)
