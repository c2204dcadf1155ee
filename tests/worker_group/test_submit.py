"""Groups: submitted once, found, looked at, waited for, terminated, and never joined by workers of an earlier run."""

from __future__ import annotations

import pytest

import latchwork
from latchwork.errors import InvalidKey, WaitTimeout
from latchwork.testing.faults import FaultyStore
from latchwork.worker_group import GroupAlreadyRunning, GroupTerminated, GroupWorker, WrongRun, find, submit, sweep
from worker_group.conftest import Killed, KilledAt, die


def test_a_group_with_live_workers_is_not_submitted_again(team, store):
    team(2)
    with pytest.raises(GroupAlreadyRunning, match="has running workers 0, 1") as caught:
        submit(store, "train", 3)
    assert caught.value.running_ranks == (0, 1)


def test_what_is_left_of_a_dead_group_is_replaced(team, store, eventually):
    members = team(2)
    run = members[0].run_id
    for each in members:
        die(each)
    handle = eventually(lambda: _try_submit(store))
    assert handle.run != run
    assert not store.list(f"default/groups/train/runs/{run}", recursive=True)
    assert handle.status().joined == 0


def _try_submit(store):
    try:
        return submit(store, "train", 3)
    except GroupAlreadyRunning:  # the leases of the dead run yet
        return None


def test_of_two_that_submit_at_once_one_wins(connect, all_at_once, store):
    def attempt(client):
        try:
            return submit(client, "train", 2).run
        except GroupAlreadyRunning:
            return None

    runs = [run for run in all_at_once(attempt, [connect() for _ in range(4)]) if run is not None]
    assert find(store, "train").run in runs


def test_a_group_that_nobody_has_joined_yet_is_not_replaced_unless_asked(store, worker):
    first = submit(store, "train", 2)
    with pytest.raises(GroupAlreadyRunning, match="no worker has joined yet") as caught:
        submit(store, "train", 2)
    assert (caught.value.run, caught.value.running_ranks) == (first.run, ())
    second = submit(store, "train", 1, replace=True)
    assert find(store, "train").run == second.run != first.run
    assert worker("a", run=second.run).rank == 0
    with pytest.raises(GroupAlreadyRunning, match="has running workers 0"):
        submit(store, "train", 1, replace=True)


def test_a_group_that_somebody_has_joined_and_that_nobody_is_in_is_replaced(store, worker, eventually):
    first = submit(store, "train", 2)
    die(worker("a", run=first.run))
    assert eventually(lambda: _try_submit(store)).run != first.run


def test_a_terminated_group_tells_every_worker_and_leaves_nothing(team, store, eventually, in_thread):
    a, b = team(2)
    waiting = in_thread(lambda: a.barrier(timeout_s=60.0))
    handle = find(store, "train")
    handle.terminate("enough")
    with pytest.raises(GroupTerminated, match="enough"):
        waiting.outcome()
    assert eventually(b.lost.is_set)
    with pytest.raises(GroupTerminated):
        b.complete()
    handle.terminate()
    assert find(store, "train") is None
    assert (handle.status().state, handle.status().why) == ("TERMINATED", "enough")


def test_a_worker_of_an_old_run_never_joins_a_new_one(team, worker, store):
    (a,) = team(1)
    old = a.run_id
    find(store, "train").terminate()
    submit(store, "train", 1)
    with pytest.raises(WrongRun, match=f"not in {old}"):
        worker("a", run=old, joins=False).join(5.0)
    find(store, "train").terminate()
    with pytest.raises(WrongRun, match="no longer exist"):
        worker("a", run=old, workers=1, joins=False).join(5.0)


def test_who_waits_for_a_group_is_told_how_it_ended(team, store, in_thread):
    a, b = team(2)
    handle = find(store, "train")
    with pytest.raises(WaitTimeout, match="is still running"):
        handle.wait(0.1)
    waiting = in_thread(lambda: handle.wait(60.0))
    a.complete()
    b.complete()
    status = waiting.outcome()
    assert (status.state, status.completed, status.missing) == ("COMPLETED", 2, ())
    assert status.ended >= status.created


def test_one_worker_that_fails_for_good_fails_the_group(team, store):
    a, b = team(2)
    b.complete()
    a.fail("no data")
    status = find(store, "train").status()
    assert (status.state, status.why) == ("FAILED", "no data")


def test_status_names_who_is_missing(worker, store):
    handle = submit(store, "train", 3, labels={"who": "me"})
    assert handle.status().missing == (0, 1, 2)
    worker("a")
    status = handle.status()
    assert (status.joined, status.running, status.missing, dict(status.labels)) == (1, 1, (1, 2), {"who": "me"})


@pytest.mark.parametrize(
    "call",
    [
        lambda store: submit(store, "a/b", 1),
        lambda store: submit(store, "", 1),
        lambda store: submit(store, "a", 0),
        lambda store: submit(store, "a", 100_001),
        lambda store: submit(store, "a", 1, max_restarts=-1),
        lambda store: submit(store, "a", 1, keep_ended_s=-1.0),
        lambda store: GroupWorker(store, "a", key="b/c"),
        lambda store: GroupWorker(store, "a", key="b", workers=0),
    ],
)
def test_bad_input_is_refused_before_any_io(call):
    with latchwork.connect("memory://closed") as store:
        pass
    with pytest.raises((ValueError, InvalidKey)):
        call(store)


def killed_anywhere(connect, do, count=30):
    """Have a process do something, killed before any of its calls: gives the number, until it does it to its end."""
    for number in range(count):
        plan = KilledAt(10_000)
        dying = FaultyStore(connect(), plan)
        dying.session.ensure_usable()
        plan.left = number
        try:
            do(dying, number)
            is_done = True
        except Killed:
            is_done = False
        plan.left = 10_000
        dying.close()
        yield number
        if is_done:
            return
    raise AssertionError("it was never done")


def test_wherever_a_submitter_dies_the_group_is_there_whole_or_not_at_all(connect, worker, store):
    """The residue of a run that it replaces is gone, or a sweep removes it."""
    for number in range(30):
        run = submit(store, f"group{number}", 2).run
        die(worker("a", f"group{number}", run=run))
    for number in killed_anywhere(connect, lambda dying, number: _submit_again(dying, f"group{number}")):
        group = f"group{number}"
        handle = find(store, group)
        assert handle.status().workers in {2, 3}
        if handle.status().workers == 2:
            handle = _submit_again(store, group)
        assert (handle.status().joined, handle.status().state) == (0, "RUNNING")
        sweep(store)
        assert store.children(f"default/groups/{group}/runs") == [handle.run]
        assert worker("z", group, run=handle.run).rank == 0


def _submit_again(store, group):
    while (handle := _try_submit_of(store, group)) is None:
        pass
    return handle


def _try_submit_of(store, group):
    try:
        return submit(store, group, 3)
    except GroupAlreadyRunning:  # the lease of the dead run yet
        return None


def test_wherever_one_dies_that_terminates_a_group_the_next_one_removes_it(connect, worker, store):
    for number in range(10):
        worker("a", f"group{number}", workers=2)
    for number in killed_anywhere(connect, lambda dying, number: find(dying, f"group{number}").terminate(), 10):
        handle = find(store, f"group{number}")
        if handle is not None:
            handle.terminate()
        sweep(store)
        left = [
            entry.key for entry in store.list("default", recursive=True) if f"group{number}" in entry.key.split("/")
        ]
        assert left == [f"default/ended/group{number}"]
