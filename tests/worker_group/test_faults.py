"""A worker that is lost sends all back to the start line, once the group is on; its function is run again."""

from __future__ import annotations

import threading

import pytest

from latchwork.errors import BarrierBroken, Conflict, LatchworkError, OutcomeUnknown, SessionLost, Unavailable
from latchwork.types import Put
from latchwork.worker_group import EpochEnded, GroupFailed, GroupWorker, RestartsExceeded, find, submit
from worker_group.conftest import die


def initialize_all(all_at_once, members):
    return all_at_once(lambda one: one.initialize(60.0), members)


def test_nobody_passes_a_barrier_before_all_are_there_and_it_can_be_used_again(team, all_at_once, in_thread, store):
    a, b, c = team(3)
    initialize_all(all_at_once, (a, b, c))
    for generation in range(3):
        waiting = [in_thread(lambda each=each: each.barrier(timeout_s=60.0)) for each in (a, b)]
        assert all(each.is_alive() for each in waiting)
        assert c.barrier(timeout_s=60.0) == generation
        assert [each.outcome() for each in waiting] == [generation] * 2


def test_a_barrier_that_does_not_fill_names_who_is_missing_and_the_next_one_is_usable(team, all_at_once):
    a, b = team(2)
    initialize_all(all_at_once, (a, b))
    with pytest.raises(BarrierBroken, match=r"barrier 'x': .*missing: 1 \(b, STARTED\)") as caught:
        a.barrier("x", timeout_s=0.3)
    assert caught.value.missing == ("1",)
    assert all_at_once(lambda one: one.barrier("x", timeout_s=60.0), (a, b)) == [1, 1]


def test_the_loss_of_a_worker_ends_the_barriers_of_the_others_and_all_begin_again(team, worker, all_at_once, in_thread):
    a, b, c = team(3)
    initialize_all(all_at_once, (a, b, c))
    waiting = [in_thread(lambda each=each: each.barrier(timeout_s=60.0)) for each in (a, b)]
    die(c)
    for each in waiting:
        with pytest.raises(EpochEnded, match="epoch 1 has begun"):
            each.outcome()
    again = worker("c")
    assert initialize_all(all_at_once, (a, b, again)) == [1, 1, 1]
    assert all_at_once(lambda one: one.barrier(timeout_s=60.0), (a, b, again)) == [0, 0, 0]


def test_a_worker_that_is_restarted_before_anybody_saw_it_die_is_a_fault_too(team, worker, all_at_once):
    a, b = team(2)
    initialize_all(all_at_once, (a, b))
    again = worker("b", replace=True)
    with pytest.raises(EpochEnded):
        a.barrier(timeout_s=60.0)
    assert initialize_all(all_at_once, (a, again)) == [1, 1]


def test_a_loss_before_all_have_begun_is_none_and_who_comes_back_counts_once(team, worker, in_thread, eventually):
    a, b = team(2)
    waiting = in_thread(lambda: a.initialize(60.0))
    die(b)
    assert eventually(lambda: [info.status for info in a.members()] == ["STARTED", "LOST"])
    again = worker("b")
    assert again.initialize(60.0) == 0
    assert waiting.outcome() == 0


def test_a_write_of_an_epoch_that_is_over_is_refused(team, worker, all_at_once, store):
    a, b = team(2)
    initialize_all(all_at_once, (a, b))
    fence = a.fence
    store.commit([fence], [Put("result", b"0")])
    worker("b", replace=True)
    with pytest.raises(Conflict):
        store.commit([fence], [Put("result", b"1")])


def test_the_token_of_a_fence_grows_with_restarts_and_epochs(team, worker, all_at_once):
    a, b = team(2)
    initialize_all(all_at_once, (a, b))
    before = [a.fence.token, b.fence.token]
    again = worker("b", replace=True)
    initialize_all(all_at_once, (a, again))
    assert a.fence.token > before[0]
    assert again.fence.token > before[1]


def test_work_is_told_to_stop_by_a_fault(team, worker, all_at_once):
    a, b = team(2)
    initialize_all(all_at_once, (a, b))
    with a.guard_work() as work:
        assert not work.is_stopped
        worker("b", replace=True)
        assert work.wait(60.0)
        with pytest.raises(EpochEnded):
            work.raise_if_stopped()


def test_a_function_is_run_again_by_all_after_a_fault_and_every_worker_completes(
    team, worker, all_at_once, in_thread, store
):
    members = team(3)
    died = threading.Event()

    def main(one):
        if one.rank == 2 and not died.is_set():
            died.set()
            die(one)
        one.barrier(timeout_s=60.0)
        return one.epoch

    def run(one):
        try:
            return one.run(main)
        except Exception:
            if one is not members[2]:
                raise
            return worker("c").run(main)

    assert all_at_once(run, members) == [1, 1, 1]
    status = find(store, "train").status()
    assert (status.state, status.completed, status.epoch, status.restarts) == ("COMPLETED", 3, 1, 1)


def test_a_function_that_is_run_again_too_often_fails_the_group(worker, all_at_once, in_thread, store):
    submit(store, "train", 2, max_restarts=50, max_executions=1)
    a, b = worker("a"), [worker("b")]

    def main(one):
        one.barrier("never", timeout_s=60.0)

    def keep_dying():  # often enough that the other one has begun its function in between
        for _ in range(40):
            try:
                b[-1].initialize(60.0)
                die(b[-1])
                b.append(worker("b"))
            except Exception:
                return

    dying = in_thread(keep_dying)
    with pytest.raises(RestartsExceeded, match="run again more than 1 times"):
        a.run(main)
    assert find(store, "train").status().state == "FAILED"
    dying.outcome()


def test_what_a_function_raises_fails_the_group_and_is_raised(worker, store):
    one = worker("a", workers=1)
    with pytest.raises(ZeroDivisionError):
        one.run(lambda _one: 1 / 0)
    status = find(store, "train").status()
    assert (status.state, status.why) == ("FAILED", "ZeroDivisionError: division by zero")


def test_a_worker_that_comes_back_when_all_is_over_runs_nothing_and_completes(team, worker, all_at_once, in_thread):
    a, b = team(2)
    died = threading.Event()

    def main(one):
        return one.rank

    def completes_not(one):
        one._core.complete = _never
        return one.run(main)

    async def _never():
        died.set()
        die(b)
        raise EpochEnded("it died")

    waiting = in_thread(lambda: a.run(main))
    with pytest.raises(Exception):  # noqa: B017 - it is dead
        completes_not(b)
    assert waiting.outcome() == 0
    assert worker("b").run(main) is None


def test_a_group_completes_with_a_worker_that_completed_before_another_was_lost(team, worker, all_at_once, store):
    a, b, c = team(3)
    initialize_all(all_at_once, (a, b, c))
    c.complete()
    again = worker("b", replace=True)
    assert initialize_all(all_at_once, (a, again)) == [1, 1]
    assert all_at_once(lambda one: one.barrier(timeout_s=60.0), (a, again)) == [0, 0]
    a.complete()
    again.complete()
    assert find(store, "train").status().state == "COMPLETED"


def test_with_a_with_a_worker_completes_or_fails(connect, store):
    with GroupWorker(connect(), "train", workers=1, key="a"):
        pass
    assert store.list("default/ended")
    with pytest.raises(KeyError), GroupWorker(connect(), "other", workers=1, key="a"):
        raise KeyError("x")
    assert b"FAILED" in store.get("default/ended/other").value


def test_a_group_that_fails_calls_off_the_work_and_the_waits_of_all(team, in_thread, eventually):
    a, b, c = team(3)
    waiting = in_thread(lambda: a.barrier(timeout_s=None))
    with b.guard_work() as work:
        c.fail("no data")
        assert eventually(lambda: work.is_stopped)
    with pytest.raises(GroupFailed, match="no data"):
        waiting.outcome()
    with pytest.raises(GroupFailed, match="no data"):
        _ = b.fence
    for each in (a, b, c):
        each.close()
    assert find(b._core.store, "train") is None


def test_what_a_function_raises_after_another_worker_was_lost_is_no_failure_of_the_group(
    team, worker, in_thread, store, eventually
):
    """The loss of one breaks the others' connections to it before they are told of it."""
    a, b = team(2)
    ran = []

    def main(one):
        ran.append(one.epoch)
        one.barrier("begun", timeout_s=60.0)
        if one.epoch == 0:
            again.append(worker("b", replace=True))  # the other one is replaced: that is a fault
            raise ConnectionResetError("by peer")
        return one.epoch

    again = []
    waiting = in_thread(lambda: a.run(main))
    with pytest.raises(LatchworkError):
        b.run(lambda one: one.barrier("begun", timeout_s=60.0) or one.barrier("never"))
    assert eventually(lambda: again)
    assert again[0].run(main) == 1
    assert waiting.outcome() == 1
    assert find(store, "train").status().state == "COMPLETED"


@pytest.mark.parametrize(
    "error",
    [Unavailable("away"), OutcomeUnknown("perhaps"), SessionLost("ended")],
    ids=lambda each: type(each).__name__,
)
def test_a_function_that_the_store_did_not_answer_fails_nothing_and_its_worker_comes_back(worker, store, error):
    def main(one):
        if not one.restarts:
            raise error
        return one.rank

    one = worker("a", workers=1)
    with pytest.raises(type(error)), one:
        one.run(main)
    assert find(store, "train").status().state == "RUNNING"
    assert worker("a").run(main) == 0
    assert find(store, "train").status().state == "COMPLETED"
