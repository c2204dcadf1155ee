"""A worker that dies at any of its writes, before it or once it was applied: another one brings every plan to its end.

The writes are counted, not listed: each kind of work is done again and again, and its worker dies one write later each
time, until it comes to the end of it.
"""

from __future__ import annotations

import threading

import pytest

import latchwork
from latchwork.plans import Plans, PlanState, PlanWorker, TaskState
from latchwork.plans.records import TaskRecord
from latchwork.testing.faults import Fault, FaultyStore
from levels import LONG
from plans.work import CALLS, FUNCTIONS, GATE, WAIT_S, nothing_left, wait_until

WRITES = {"create", "put", "delete", "commit", "delete_tree"}
KINDS = ("cut_before", "cut_after")
MOST = 150
TTL_S = 2.0


class Death:
    """Decides about calls: all is well until the n-th write, which is the last; nothing after that gets through."""

    def __init__(self, nth, kind):
        self.left, self.kind = nth, kind
        self.is_dead = threading.Event()

    def next_fault(self, op, keys):
        if self.is_dead.is_set():
            return Fault("fail")
        if op in WRITES and not any("/consumers/" in key for key in keys):
            self.left -= 1
            if self.left == 0:
                self.is_dead.set()
                return Fault(self.kind)
        return None


def finish(plans, _):
    with plans.new() as plan:
        first = plan.add("same", 1)
        answer = plan.add("add", plan.add("same", first), plan.add("same", first), name="answer")
        plan.add("same", answer, name="last")
    return plan.handle, PlanState.COMPLETED, {"answer": 2, "last": 2}


def wide(plans, _):
    with plans.new() as plan:
        first = plan.add("same", 1)
        plan.add("total", [plan.add("same", first) for _ in range(33)], name="answer")
    return plan.handle, PlanState.COMPLETED, {"answer": 33}


def failure(plans, _):
    with plans.new(on_failure="continue") as plan:
        bad = plan.add("fails", name="bad")
        plan.add("same", plan.add("same", bad), name="far")
        plan.add("same", 5, name="good")
    return plan.handle, PlanState.FAILED, {"good": 5}


def stop(plans, _):
    with plans.new() as plan:
        good = plan.add("same", 1, name="good")
        plan.add("same", plan.add("fails", good, name="bad"))
    return plan.handle, PlanState.FAILED, {"good": 1}


def cancel(plans, death):
    with plans.new() as plan:
        plan.add("same", plan.add("waits"))
        plan.add("same", 1)
    wait_until(lambda: ("waits",) in CALLS or death.is_dead.is_set())
    plan.handle.cancel()
    return plan.handle, PlanState.CANCELLED, {}


def recover(plans, _):
    with PlanWorker(plans._plan_store.store, plans._plan_store.keys.name, functions=FUNCTIONS):
        with plans.new(on_failure="continue") as plan:
            kept = plan.add("same", 5, name="kept")
            plan.add("add", plan.add("fails-until-gate", kept), kept, name="answer")
        assert plan.handle.wait(WAIT_S).state is PlanState.FAILED
    GATE.set()
    plan.handle.recover()
    return plan.handle, PlanState.COMPLETED, {"kept": 5, "answer": 10}


def child(plans, _):
    with plans.new() as plan:
        plan.add("same", plan.add("inner", 3), name="answer")
    return plan.handle, PlanState.COMPLETED, {"answer": 3}


def cancelled_child(plans, death):
    with plans.new() as plan:
        plan.add("same", plan.add("inner-waits"))
    wait_until(lambda: ("waits",) in CALLS or death.is_dead.is_set())
    plan.handle.cancel()
    return plan.handle, PlanState.CANCELLED, {}


def limited(plans, _):
    with plans.new(max_parallel=1) as plan:
        plan.add("total", plan.map("same", [1, 2, 3]), name="answer")
    return plan.handle, PlanState.COMPLETED, {"answer": 6}


def removal(plans, _):
    with PlanWorker(plans._plan_store.store, plans._plan_store.keys.name, functions=FUNCTIONS):
        with plans.new() as plan:
            plan.add("same", plan.add("inner", 2))
        assert plan.handle.wait(WAIT_S).state is PlanState.COMPLETED
    plan.handle.remove()
    return plan.handle, None, {}


WORK = [finish, wide, failure, stop, cancel, recover, child, cancelled_child, limited, removal]


@pytest.mark.timeout(3600 if LONG else 180)
@pytest.mark.parametrize("work", WORK, ids=lambda each: each.__name__)
def test_a_worker_may_die_at_every_write(work, backend_url, store):
    """In the short form at every twelfth one, in memory; in the long form at each, both ways, on every backend."""
    if not LONG and not backend_url.startswith("memory"):
        pytest.skip("a part of it in memory, and all of it in the long form")
    step = 1 if LONG else 12
    for nth in range(1 + WORK.index(work) % step, MOST, step):
        for kind in KINDS if LONG else KINDS[nth // step % 2 :][:1]:
            CALLS.clear()
            GATE.clear()
            if not one_death(work, Death(nth, kind), backend_url, store, f"plans-{kind}-{nth}"):
                assert nth > 3, "the worker had to write"
                return
    pytest.fail(f"{MOST} writes were not enough to come to the end")


def one_death(work, death, url, store, name):
    """Do some work with a worker that dies, then with one that lives; whether the first has died."""
    plans = Plans(store, name, functions=FUNCTIONS)
    with FaultyStore(latchwork.connect(url), death) as dying:
        worker = PlanWorker(dying, name, slots=2, functions=FUNCTIONS, session_ttl_s=TTL_S)
        if work is not recover and work is not removal:
            worker.start()
        handle, state, results = work(plans, death)
        worker.start()
        wait_until(lambda: death.is_dead.is_set() or ends(handle, state))
        died = death.is_dead.is_set()
        kept = {each.key for each in store.list(f"{name}/results", recursive=True)} if died else set()
        done = done_tasks(store, name) if died else set()
        before = list(CALLS)
        dying.expire_sessions()
        with PlanWorker(store, name, slots=2, functions=FUNCTIONS, session_ttl_s=TTL_S):
            wait_until(lambda: ends(handle, state))
            judge(handle, state, results, kept, before)
            if died and state is not None:
                most = 2 * len(all_tasks(store, name) - done)  # by who died, which had begun it, and by the other one
                assert len(CALLS) - len(before) <= most, (before, CALLS, done)
            handle.remove()
            nothing_left(store, name=name)
        worker.close(0.0)
    return died


def all_tasks(store, name):
    return {each.key for each in store.list(f"{name}/tasks", recursive=True)}


def done_tasks(store, name):
    """What has a result that stands: it is not called again, whoever takes its item."""
    tasks = store.list(f"{name}/tasks", recursive=True)
    return {each.key for each in tasks if TaskRecord.from_bytes(each.value).state is TaskState.DONE}


def ends(handle, state):
    if state is None:
        return not handle._plan_store.store.list(handle._plan_store.keys.plans)
    return handle.state() is state


def judge(handle, state, results, kept, before):
    for task, value in results.items():
        assert handle.result(task, 0) == value
    if state is None:
        return
    status = handle.status()
    assert not any(status.tasks.get(each) for each in (TaskState.WAITING, TaskState.READY, TaskState.CHILD)), status
    for key in kept:  # what was done when the worker died is not called again, and its result is the same
        entry = handle._plan_store.store.get(key)
        assert entry is not None
        assert entry.token == entry.created or state is PlanState.COMPLETED, key
    again = [each for each in CALLS[len(before) :] if each == ("same", 5)]
    was_done = any(key.endswith(("/good", "/kept")) for key in kept)
    assert len(again) <= (0 if was_done else 2)  # else whoever died may have begun it yet, and the other one runs it
