"""What the dead have left is removed; nothing of those that live is."""

from __future__ import annotations

import sys
import time
from contextlib import closing

import pytest

import patience
from executor.conftest import PATIENCE_S
from executor.test_deaths import starts
from executor.test_trouble import LONELY
from executor.work import WORK, blob, mark, square
from latchwork.executor import ExecutorWorker, Member, TaskDied
from latchwork.executor.hooks import LargeOutcomes
from latchwork.executor.keys import Keys
from latchwork.executor.sweeper import ExecutorSweeper
from latchwork.primitives import WorkQueue
from latchwork.store import system_namespace
from latchwork.store.steps import run
from latchwork.tasks import Blobs, Retry
from latchwork.testing.faults import Fault, FaultyStore
from latchwork.types import Create

KEYS = Keys("default")


@pytest.fixture
def system(store):
    return system_namespace(store, "executor")


@pytest.fixture
def sweep(system):
    with closing(WorkQueue(system, KEYS.backlog)) as backlog:
        yield lambda members=(): run(ExecutorSweeper(system, KEYS, backlog, unknown_after_s=60.0).sweep(members))


def below(store, prefix):
    return [entry.key for entry in system_namespace(store, "executor").list(prefix, recursive=True)]


def test_a_sweep_removes_what_a_submitter_that_is_gone_has_left_everywhere(store, sweep):
    system_namespace(store, "executor").put(KEYS.result_key("gone", 7), b"x")
    system_namespace(store, "executor").put(f"{KEYS.data}/gone/1/0", b"x")
    with closing(WorkQueue(system_namespace(store, "executor"), KEYS.backlog)) as backlog:
        for partition in ("any", "m.n1"):
            backlog.put(partition, "5-000000000000-gone", "gone.000000001.0", b"x")
    system_namespace(store, "executor").put(KEYS.cancel_key("gone-member", "x.0"), b"")
    swept = sweep()
    assert (swept.submitters, swept.sort_keys, swept.members) == (("gone",), 2, ("gone-member",))
    assert below(store, "default") == []


def test_a_sweep_removes_nothing_of_those_that_live(store, sweep, pools):
    pool = pools()
    futures = [pool.submit(square, 3), pool.submit("length", b"x" * 50_000)]
    ref = pool.detached(square, 4, id="kept")
    pool.flush(PATIENCE_S)
    submitter_id = futures[0].id.partition(".")[0]
    system_namespace(store, "executor").put(KEYS.result_key(submitter_id, 900), b"x")
    system_namespace(store, "executor").put(KEYS.cancel_key("n1", "x.0"), b"")
    before = below(store, "default")
    assert sweep(["n1"]).submitters == ()
    assert [key for key in before if key not in below(store, "default") and "/results/" not in key] == []
    assert ref.state().phase == futures[1].state().phase == "queued"


def test_a_submitter_that_comes_while_a_sweep_looks_loses_nothing(system, sweep, pools, monkeypatch):
    """It looks first at what is there, and then at who lives: who is new then is among those."""
    system.put(KEYS.result_key("gone", 7), b"x")
    pool, children, found = pools(), system.children, []

    def late(prefix):
        names = children(prefix)
        if prefix == KEYS.results and not found:
            found.append(pool.submit(square, 5))
            pool.flush(PATIENCE_S)
        return names

    monkeypatch.setattr(system, "children", late)
    assert sweep().submitters == ("gone",)
    assert found[0].state().phase == "queued"


def test_a_task_that_is_tried_again_leaves_a_lane_that_nobody_watches(workers, pool, store, eventually):
    """From the lane of a member that is gone a task goes to that of all, where each new worker looks."""
    gone = workers("gone", own_store=True, accept=lambda _: False)
    again = Retry(attempts=3, initial_s=0.01, jitter=0.0)
    future = pool.with_options(target=Member("gone", "any"), retry=again).submit("fail-twice", "moved")
    pool.flush(PATIENCE_S)
    gone.close()
    workers("n1", own_store=True, accept=lambda _: not starts(store, "moved"))  # it takes it once
    eventually(lambda: store.children("@executor/default/backlog/partitions/any/items") != [])
    workers("n2", own_store=True)
    assert future.result(PATIENCE_S) == 3
    assert starts(store, "moved") == ["n1", "n2", "n2"]


def test_a_dead_letter_of_a_task_with_a_large_argument_leaves_the_letter_alone(workers, pools, store, connect):
    pool = pools()
    future = pool.submit("length", b"x" * 50_000)
    pool.flush(PATIENCE_S)
    with connect() as dying:
        WorkQueue(system_namespace(dying, "executor"), KEYS.backlog).try_take(["any"])  # and dies
    workers("n1", own_store=True, max_attempts=1)
    with pytest.raises(TaskDied, match="'length'"):
        future.result(PATIENCE_S)
    assert below(store, KEYS.data) == []
    left = [key for key in below(store, KEYS.backlog) if "/consumers/" not in key and "/sort_keys/" not in key]
    assert [key.split("/")[2] for key in left] == ["dead"]


def test_a_large_result_that_nobody_fetched_goes_with_its_submitter(workers, pools, store, eventually):
    workers("n1", own_store=True)
    pool = pools()
    futures = [pool.submit(blob, 200_000), pool.submit(mark, "x")]
    for future in futures:
        future.result(PATIENCE_S)
    pool._submitter._session.session.close()
    eventually(lambda: below(store, KEYS.data) == below(store, KEYS.results) == [])


def test_a_sweep_that_failed_is_made_again_two_seconds_later(store, connect):
    """And not half a minute later, or once another submitter has gone."""
    with FaultyStore(connect()) as faulty:
        faulty.add(Fault("fail", op="delete_tree", key="@executor/default/results/gone", times=2))
        with ExecutorWorker(faulty, node_id="n1", functions=WORK, unknown_after_s=1.0) as worker:
            worker.wait_ready(PATIENCE_S)
            shift = worker._work
            shift._sweep_s = 3600.0
            system_namespace(store, "executor").put(KEYS.result_key("gone", 7), b"x")
            shift._sweep_at = store.clock.now()
            patience.eventually(lambda: below(store, KEYS.results) == [], 30.0)
            assert len(faulty.faults) == 2


def test_tasks_that_were_refused_are_removed_though_the_first_try_failed(store, connect):
    with closing(WorkQueue(system_namespace(store, "executor"), KEYS.backlog)) as backlog:
        backlog.put("elsewhere", "5-000000000000-gone", "gone.000000001.0", b"x")
        with FaultyStore(connect()) as faulty:
            faulty.add(Fault("fail", op="delete_tree", times=2))
            with ExecutorWorker(faulty, node_id="n1", functions=WORK) as worker:
                worker.wait_ready(PATIENCE_S)
                worker._work._sweep_at = store.clock.now() + 3600.0
                worker._work.hooks.add_departed(["gone"])  # as a task in another lane of that submitter tells
                patience.eventually(lambda: backlog.items() == [], 30.0)
                assert len(faulty.faults) == 2


@pytest.mark.parametrize("how", ["interrupted", "copies"])
def test_a_large_outcome_that_no_result_names_is_deleted_while_its_submitter_lives(
    workers, pool, store, eventually, how
):
    for number in range(3):
        workers(f"n{number}", own_store=True, slots=2)
    eventually(lambda: len(store.children("@executor/default/functions")) == 3)
    if how == "copies":
        futures = [pool.with_options(copies=3).submit("late-blob", f"k{n}", 200_000) for n in range(3)]
        for n in range(3):
            eventually(lambda n=n: len(starts(store, f"k{n}")) == 2 or len(starts(store, f"k{n}")) == 3)
            store.put(f"k{n}/go", b"")
        assert {len(future.result(PATIENCE_S)) for future in futures} == {200_000}
    else:
        future = pool.submit("late-blob", "k", 200_000)
        eventually(lambda: starts(store, "k"))
        assert future.cancel(interrupt=True)  # it stops for nobody, and returns all the same
        store.put("k/go", b"")
        eventually(lambda: store.children("k/ends"))
    eventually(lambda: below(store, KEYS.data) == below(store, KEYS.results) == [])


@pytest.fixture
def taken(store):
    """A claim, and large outcomes."""
    blobs = Blobs(system_namespace(store, "executor"), KEYS.data)
    with closing(WorkQueue(system_namespace(store, "executor"), KEYS.backlog)) as backlog:
        backlog.put("any", "s", "x", b"x")
        (claim,) = backlog.try_take(["any"])
        yield claim, LargeOutcomes(system_namespace(store, "executor"), blobs), blobs


def test_a_large_outcome_stays_as_long_as_its_result_may_come(taken, store, eventually):
    claim, large, blobs = taken
    ref = large.write(claim, "sid", KEYS.result_key("sid", 1), b"x")
    assert large.write(claim, "sid", KEYS.result_key("sid", 1), b"x") == ref  # its end is tried again
    large.delete_unreferenced(claim)  # by our own clock, and what was sent may land yet
    time.sleep(0.3)
    assert blobs.read(ref) == b"x"
    claim.release()
    eventually(lambda: below(store, KEYS.data) == [])


def test_a_large_outcome_stays_when_its_result_turns_out_to_be_there(taken, store):
    claim, large, blobs = taken
    key = KEYS.result_key("sid", 1)
    ref = large.write(claim, "sid", key, b"x")
    claim.ack(ops=[Create(key, ref.to_bytes())])
    large.delete_unreferenced(claim)
    time.sleep(0.3)
    assert blobs.read(ref) == b"x"


def test_a_sweep_removes_what_would_have_told_a_dead_worker_that_its_task_was_cancelled(store, sweep, system):
    session, prefix = store.open_session(5.0), f"{KEYS.backlog}/partitions/any/removed"
    with closing(WorkQueue(system, KEYS.backlog, session=session)) as dying:
        dying.put("any", "5-000000000000-d", "d.x.0", b"x")
        dying.take("any", PATIENCE_S)
        with closing(WorkQueue(system, KEYS.backlog)) as other:
            assert other.remove(other.items("any")[0], even_if_claimed=True)
        sweep()
        assert len(system.children(prefix)) == 1  # its worker is online, and will see it
        session.close()
        sweep()
        assert system.children(prefix) == []


@pytest.mark.parametrize("ahead_s", [3600.0, -3600.0])
def test_a_task_waits_for_its_function_by_the_sweepers_own_clock(system, pools, monkeypatch, ahead_s):
    """The wall clock of the sweeper differs from that of the submitter."""
    pools(functions=LONELY).detached("lonely", "x", id="early")
    waits = 0.3
    with closing(WorkQueue(system, KEYS.backlog)) as backlog:
        sweeper = ExecutorSweeper(system, KEYS, backlog, unknown_after_s=waits)
        real = time.time

        def shifted():  # not for gRPC, which computes deadlines from it
            return real() + (0.0 if sys._getframe(1).f_globals["__name__"].startswith("grpc") else ahead_s)

        monkeypatch.setattr(time, "time", shifted)
        assert run(sweeper.sweep(())).unknown == ()
        time.sleep(waits)
        assert run(sweeper.sweep(())).unknown == ("d.early",)
