"""Jobs that get more workers, or fewer."""

from __future__ import annotations

import pytest

from latchwork.errors import BarrierBroken, Conflict
from latchwork.workers import JobFull, Removed, find


def arrived_of(one):
    return f"workers/jobs/train/runs/{one.run_id}/barriers/0/default/arrived"


def test_a_job_that_is_scaled_up_has_the_next_ids(team, worker, store):
    a, b = team(2)
    find(store, "train").scale(4)
    assert [worker("c").id, worker("d").id] == [2, 3]
    assert [info.id for info in a.all(30.0)] == [0, 1, 2, 3]
    assert b.is_alive


def test_a_job_that_is_scaled_down_loses_its_highest_ids_and_nobody_fails(team, worker, store, eventually):
    a, b, c = team(3)
    find(store, "train").scale(1)
    assert eventually(c.lost.is_set)
    with pytest.raises(Removed, match="scaled down"):
        b.complete()
    assert [info.id for info in a.joined()] == [0]
    with pytest.raises(JobFull):
        worker("b", joins=False).join(5.0)
    a.complete()
    assert find(store, "train").status().state == "COMPLETED"


def test_an_open_barrier_is_broken_when_one_that_has_not_come_is_removed(
    team, store, all_at_once, in_thread, eventually
):
    members = team(3)
    all_at_once(lambda one: one.initialize(60.0), members)
    waiting = in_thread(lambda: members[0].barrier(timeout_s=60.0))
    eventually(lambda: store.list(arrived_of(members[0])))
    find(store, "train").scale(2)
    with pytest.raises(BarrierBroken, match="scaled down to 2 workers"):
        waiting.outcome()
    assert all_at_once(lambda one: one.barrier(timeout_s=60.0), members[:2]) == [1, 1]


def test_an_open_barrier_keeps_the_number_it_was_opened_with(team, worker, store, all_at_once, in_thread, eventually):
    members = team(2)
    all_at_once(lambda one: one.initialize(60.0), members)
    waiting = in_thread(lambda: members[0].barrier(timeout_s=60.0))
    eventually(lambda: store.list(arrived_of(members[0])))
    find(store, "train").scale(3)
    worker("c")
    assert members[1].barrier(timeout_s=60.0) == 0
    assert waiting.outcome() == 0


def test_who_joins_a_job_that_is_on_does_not_wait_at_the_start_line(team, worker, store, all_at_once):
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
    assert handle.status().n == 3
    assert a.is_alive


def test_a_job_that_has_ended_is_not_scaled(team, store):
    (a,) = team(1)
    handle = find(store, "train")
    a.complete()
    with pytest.raises(Conflict, match="has ended"):
        handle.scale(2)
