"""Ids: from 0, without gaps, one each, the same after a restart; whoever dies wherever."""

from __future__ import annotations

import pytest

from latchwork.errors import NodeIdInUse, WaitTimeout
from latchwork.primitives.waiting import Deadline
from latchwork.store.steps import Signal, run
from latchwork.testing.faults import FaultyStore
from latchwork.worker_group import GroupFull, GroupTerminated, GroupWorker, RestartsExceeded, WorkerInfo, find, submit
from latchwork.worker_group.keys import GroupKeys
from latchwork.worker_group.membership import JoinLock, get_join_lock
from worker_group.conftest import Killed, KilledAt, die


def ids(store, group="train"):
    run = find(store, group).run
    return sorted(int(entry.key[-6:]) for entry in store.list(f"default/groups/{group}/runs/{run}/live"))


def test_many_that_join_at_once_get_each_an_id_of_their_own(connect, all_at_once, worker, store):
    count = 8
    made = [worker(f"k{number}", workers=count, joins=False) for number in range(count)]
    infos = all_at_once(lambda one: one.join(60.0), made)
    assert sorted(info.rank for info in infos) == list(range(count))
    assert find(store, "train").status().joined == count


def test_threads_of_one_process_join_one_after_the_other():
    door, turns = JoinLock(), [Signal() for _ in range(3)]
    for turn in turns:
        door.enqueue(turn)
    assert [turn.is_set() for turn in turns] == [True, False, False]
    door.leave(turns[1])
    assert not turns[2].is_set()
    door.leave(turns[0])
    door.leave(turns[0])
    assert turns[2].is_set()


def test_who_keeps_its_turn_is_told_once_nobody_stands_behind_it():
    door, turns = JoinLock(), [Signal() for _ in range(3)]
    for turn in turns:
        door.enqueue(turn)
    assert [door.count_threads_behind(turn) for turn in turns] == [2, 1, 0]
    emptied = door.leave_and_admit_others(turns[0], 7.0)
    assert (door.count_threads_behind(turns[0]), door.shared_until, turns[1].is_set()) == (0, 7.0, True)
    door.leave(turns[2])
    assert not emptied.is_set()
    door.leave(turns[1])
    assert emptied.is_set()


def test_of_many_in_each_of_two_processes_only_some_draw_a_ticket_and_all_have_an_id(connect, all_at_once, store):
    """One of each keeps its turn for those behind it."""
    count, stores = 16, [FaultyStore(connect()) for _ in range(2)]
    members = [
        GroupWorker(each, "train", workers=2 * count, key=f"{name}{number}", session=each.open_session(30.0))
        for name, each in zip("ab", stores, strict=True)
        for number in range(count)
    ]
    infos = all_at_once(lambda one: one.join(60.0), members)
    assert sorted(info.rank for info in infos) == list(range(2 * count))
    tickets = [call for each in stores for call in each.calls if call.op == "create" and "joiner" in str(call.keys)]
    assert len(tickets) < count, tickets
    assert not store.list(f"default/groups/train/runs/{members[0].run_id}/joiner")
    for each in (*members, *stores):
        each.close()


def test_who_has_a_ticket_does_not_line_up_behind_one_that_may_wait_for_it(store):
    one = GroupWorker(store, "train", key="a")
    joiner, first = one._core._joiner, Signal()
    joiner._join_lock.enqueue(first)
    joiner._position = "a ticket"
    run(joiner._wait_for_earlier_threads(None, Deadline(store.clock, 60.0)))
    assert not joiner._join_lock.count_threads_behind(first)


def test_a_hint_that_is_wrong_costs_a_try_and_no_more(connect, worker, store):
    """Another process joins between two of one process: the record that the first one left is outdated."""
    shared = connect()
    members = [GroupWorker(shared, "train", workers=3, key=f"k{number}") for number in range(2)]
    door, turn = get_join_lock(shared, GroupKeys("default", "train")), Signal()
    door.enqueue(turn)
    door.leave(Signal())
    in_line = Signal()
    door.enqueue(in_line)
    door.leave(turn)
    assert door is get_join_lock(shared, GroupKeys("default", "train"))
    door.leave(in_line)
    assert members[0].join(30.0).rank == 0
    assert worker("other").rank == 1
    door = get_join_lock(shared, GroupKeys("default", "train"))
    door.record = store.get("default/groups/train/record")
    find(store, "train").scale(4)  # it changes once more
    assert members[1].join(30.0).rank == 2
    for each in members:
        each.close()


def test_one_more_than_the_group_has_is_refused(team, worker):
    team(2)
    with pytest.raises(GroupFull, match="all 2 ranks of group 'train' are taken, none by 'z'"):
        worker("z", joins=False).join(5.0)


@pytest.mark.parametrize("first", [range(0, 40, 3), range(1, 40, 3), range(2, 40, 3)], ids=str)
def test_wherever_a_worker_dies_while_it_joins_there_is_no_gap_and_no_second_one(connect, worker, store, first):
    """Its process is killed before any of its calls; it comes back with its key."""
    for number in first:
        group, plan = f"group{number}", KilledAt(10_000)
        dying = FaultyStore(connect(), plan)
        session = dying.open_session(5.0)
        plan.left = number
        one, killed = GroupWorker(dying, group, workers=2, key="a", session=session), False
        try:
            one.join(30.0)
        except Killed:
            killed = True
        plan.left = 10_000
        session.close()
        dying.close()
        one.close()
        others = [worker("a", group, workers=2), worker("b", group, workers=2)]
        assert sorted(other.rank for other in others) == [0, 1]
        with pytest.raises(GroupFull):
            worker("c", group, workers=2, joins=False).join(5.0)
        for other in others:
            other.close()
        if not killed:
            return


def test_a_worker_that_comes_back_has_its_id_and_is_counted_as_restarted(team, worker):
    a, b = team(2)
    die(a)
    again = worker("a")
    assert (again.rank, again.restarts, again.info.status) == (0, 1, "RESTARTED")
    assert [info.status for info in b.members()] == ["RESTARTED", "STARTED"]


def test_of_two_live_processes_with_one_key_the_later_one_is_the_worker_if_it_replaces(team, worker, eventually):
    a, b = team(2)
    again = worker("a", replace=True)
    assert again.rank == 0
    assert eventually(a.lost.is_set)
    with pytest.raises(Exception, match="replaced by another process"):
        a.barrier()
    assert again.is_alive
    assert b.is_alive


def test_a_live_namesake_is_waited_for(team, worker, in_thread):
    a, _ = team(2)
    with pytest.raises(NodeIdInUse, match="is running elsewhere"):
        worker("a", joins=False).join(0.0)
    waiting = in_thread(lambda: worker("a", joins=False).join(30.0))
    a.close()
    assert waiting.outcome().rank == 0


def test_a_process_that_is_cut_off_has_stopped_before_another_one_is_its_worker(connect, worker):
    cut_off = FaultyStore(connect(session_ttl_s=2.0))
    a = worker("a", workers=1, store=cut_off)
    a.initialize(60.0)
    with a.guard_work() as work:
        cut_off.cut_off()
        worker("a")
        assert (a.is_alive, work.is_stopped) == (False, True)
    a.close()
    cut_off.close()


def test_a_worker_that_comes_back_too_often_fails_the_group(worker, store):
    submit(store, "train", 1, max_restarts=2)
    for _ in range(3):
        die(worker("a"))
    with pytest.raises(RestartsExceeded, match="restarted more than 2 times"):
        worker("a", joins=False).join(5.0)
    status = find(store, "train").status()
    assert (status.state, status.restarts) == ("FAILED", 2)
    with pytest.raises(GroupTerminated):
        worker("a", joins=False).join(5.0)


def test_a_worker_waits_for_its_group_to_be_submitted(worker, in_thread, store):
    waiting = in_thread(lambda: worker("a", joins=False).join(30.0))
    submit(store, "train", 1)
    assert waiting.outcome().rank == 0
    with pytest.raises(WaitTimeout, match="it was not submitted"):
        worker("a", "other", joins=False).join(0.2)


def test_a_key_is_ip_and_port_unless_it_is_given(store):
    info = WorkerInfo(ip="fe80::7", ports={"data": 9000})
    with GroupWorker(store, "train", workers=1, info=info) as one:
        assert one.info.key == "fe80::7:9000"
    with pytest.raises(ValueError, match="pass a key"):
        GroupWorker(store, "train")
