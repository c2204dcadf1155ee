"""Who joined, who runs, who is missing; leaving, and the last one out."""

from __future__ import annotations

import time

import pytest

from latchwork.errors import LatchworkError, WaitTimeout
from latchwork.testing.faults import FaultyStore
from latchwork.worker_group import GroupWorker, WorkerInfo, find, sweep
from worker_group.conftest import Killed, KilledAt, die


def keys_of(store, group=""):
    return [entry.key for entry in store.list("default", recursive=True) if group in entry.key.split("/") or not group]


def test_who_has_joined_stays_known_and_who_runs_lives(team):
    a, b, c = team(3)
    c.close()
    assert [info.rank for info in a.members()] == [0, 1, 2]
    assert [info.rank for info in b.running()] == [0, 1]


def test_the_lease_of_a_dead_worker_is_gone_within_its_ttl_and_its_record_stays(team, eventually):
    a, b = team(2)
    die(b)
    assert eventually(lambda: [info.rank for info in a.running()] == [0])
    assert [info.key for info in a.members()] == ["a", "b"]


def test_all_waits_for_the_last_one_and_names_who_is_missing(worker, in_thread):
    a = worker("a", workers=3)
    with pytest.raises(WaitTimeout, match=r"no worker has these ranks after 0\.2 s: 1, 2"):
        a.wait_for_all(0.2)
    waiting = in_thread(lambda: a.wait_for_all(60.0))
    worker("b")
    worker("c")
    assert [info.key for info in waiting.outcome()] == ["a", "b", "c"]


def test_others_see_what_a_worker_says_of_itself(worker):
    info = WorkerInfo(
        ip="10.0.0.7",
        ports={"data": 9000, "control": 9001},
        node="n7",
        rack="r2",
        datacenter="d1",
        resources={"gpu": 2, "memory_gb": 31.5},
    )
    worker("a", workers=2, info=info)
    found = worker("b").wait_for_all(30.0)[0]
    assert (found.ip, dict(found.ports), found.node, found.rack, found.datacenter, dict(found.resources)) == (
        *("10.0.0.7", {"data": 9000, "control": 9001}, "n7", "r2", "d1"),
        {"gpu": 2, "memory_gb": 31.5},
    )


@pytest.mark.parametrize(
    "wrong", [{"ports": {"data": 0}}, {"ports": {"data": 70_000}}, {"ip": 7}, {"resources": {"gpu": -1}}]
)
def test_what_cannot_be_said_of_a_worker_is_refused(wrong):
    with pytest.raises((ValueError, TypeError), match="of a worker must be"):
        WorkerInfo(**wrong)


def test_the_last_one_to_leave_a_group_that_has_ended_removes_it(team, store):
    team_of_two = team(2)
    for each in team_of_two:
        each.complete()
    team_of_two[0].close()
    assert find(store, "train") is not None
    team_of_two[1].close()
    assert keys_of(store) == ["default/ended/train"]


@pytest.mark.parametrize("number", range(4))
def test_two_that_leave_at_the_same_moment_remove_the_group_once(team, all_at_once, store, number):
    members = team(2)
    for each in members:
        each.complete()
    all_at_once(lambda one: one.leave(), members)
    assert keys_of(store) == ["default/ended/train"]


def test_a_worker_that_leaves_while_the_group_is_on_comes_back_with_its_id(team, worker):
    a, b = team(2)
    a.close()
    assert worker("a").rank == 0
    assert b.is_alive


@pytest.mark.parametrize("first", [range(0, 30, 2), range(1, 30, 2)], ids=str)
def test_wherever_one_dies_while_it_leaves_the_group_is_removed_once(connect, worker, store, first, eventually):
    """It is killed before any of its calls: the other one, or a sweep once its lease has gone, removes the group."""
    for number in first:
        group, plan = f"group{number}", KilledAt(10_000)
        dying = FaultyStore(connect(), plan)
        session = dying.open_session(5.0)
        one = GroupWorker(dying, group, workers=2, key="a", session=session)
        one.join(60.0)
        other = worker("b", group)
        one.complete()
        other.complete()
        killed = False
        plan.left = number
        try:
            one.leave()
        except Killed:
            killed = True
        plan.left = 10_000
        other.close()
        session.close()
        dying.close()
        eventually(lambda group=group: find(store, group) is None or sweep(store).groups == [group])
        assert keys_of(store, group) == [f"default/ended/{group}"]
        if not killed:
            return


def test_two_of_one_process_that_leave_at_once_remove_the_group_once(connect, all_at_once, store):
    shared = connect()
    members = [GroupWorker(shared, "train", workers=4, key=f"k{number}") for number in range(4)]
    assert sorted(info.rank for info in all_at_once(lambda one: one.join(60.0), members)) == [0, 1, 2, 3]
    for each in members:
        each.complete()
    all_at_once(lambda one: one.close(), members)
    assert keys_of(store) == ["default/ended/train"]


def test_workers_of_one_store_are_told_each_for_itself(connect, all_at_once, worker, eventually):
    shared = connect()
    sessions = [shared.open_session(5.0) for _ in range(3)]
    members = [
        GroupWorker(shared, "train", workers=3, key=f"k{number}", session=session)
        for number, session in enumerate(sessions)
    ]
    all_at_once(lambda one: one.join(60.0), members)
    all_at_once(lambda one: one.initialize(60.0), members)
    sessions[1].close()
    assert eventually(members[1].lost.is_set)
    with pytest.raises(LatchworkError, match="epoch 1 has begun"):
        members[0].barrier(timeout_s=60.0)
    assert not members[0].lost.is_set()
    again = worker("k1")
    rest = [members[0], members[2], again]
    assert all_at_once(lambda one: one.initialize(60.0), rest) == [1, 1, 1]
    members[0].close()  # a fault, too: the others of its store go on looking
    with pytest.raises(LatchworkError, match="epoch 2 has begun"):
        members[2].barrier(timeout_s=60.0)
    assert members[2].is_alive


def test_workers_that_wait_write_nothing_but_the_renewals_of_their_sessions(connect, all_at_once, store, in_thread):
    stores = [FaultyStore(connect()) for _ in range(2)]
    members = [GroupWorker(each, "train", workers=2, key=f"k{number}") for number, each in enumerate(stores)]
    all_at_once(lambda one: one.join(60.0), members)
    all_at_once(lambda one: one.initialize(60.0), members)
    waiting = in_thread(lambda: members[0].barrier("never"))
    time.sleep(0.5)
    before = [(entry.key, entry.version) for entry in store.list("default", recursive=True)]
    begun = [len(each.calls) for each in stores]
    time.sleep(1.5)
    assert [(entry.key, entry.version) for entry in store.list("default", recursive=True)] == before
    made = {call.op for each, count in zip(stores, begun, strict=True) for call in each.calls[count:]}
    assert made <= {"renew", "keepalive", "event"}
    for each in members:
        each.close()
    with pytest.raises(LatchworkError):
        waiting.outcome()
    for each in stores:
        each.close()
