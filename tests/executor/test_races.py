"""Lost answers and lost races of each step: submit, finish, cancel, copies, dead letters. Each task has one end."""

from __future__ import annotations

import concurrent.futures
import logging
import time
from contextlib import closing

import pytest

from executor.conftest import PATIENCE_S
from executor.test_deaths import starts
from executor.work import WORK, mark, square, wait
from latchwork.backends.base import Broken
from latchwork.errors import PermissionDenied, Unavailable
from latchwork.executor import (
    Executor,
    ExecutorWorker,
    Member,
    TaskDied,
    cancel_task,
    dead_tasks,
    find_task,
    requeue_task,
)
from latchwork.executor.hooks import ExecutorHooks, WorkerProfile
from latchwork.executor.worker import ExecutorWorkerSession
from latchwork.primitives import WorkQueue
from latchwork.store import system_namespace
from latchwork.tasks import Release, Run
from latchwork.testing.faults import Fault, FaultyStore

ITEMS = "@executor/default/backlog/partitions/*/items/*"
RESULTS = "@executor/default/results/*"
DEAD = "@executor/default/backlog/dead/*"
#: Not applied and known to be; not applied, applied, or applied later, and not known.
FAULTS = ("fail", "cut_before", "cut_after", "land_late")
EACH = pytest.mark.parametrize("fault", FAULTS)
LATE_S = 0.4


@pytest.fixture
def faulty(connect):
    """A client of the test's root whose trouble the test decides."""
    with FaultyStore(connect()) as store:
        yield store


def hit(store, fault, key, times=3):
    store.add(Fault(fault, op="commit", key=key, times=times, delay_s=LATE_S))


def was_hit(store):
    assert store.faults, "the fault never hit"


def settled(eventually, store):
    """Wait until nothing of any task is left, and what lands late has landed."""
    time.sleep(LATE_S + 0.2)
    for left in ("results", "data", "cancels", "backlog/data"):
        eventually(lambda left=left: store.children(f"@executor/default/{left}") == [])
    eventually(lambda: items(store) == [])


def items(store):
    with closing(WorkQueue(system_namespace(store, "executor"), "default/backlog")) as backlog:
        return backlog.items()


def meanwhile(store, monkeypatch, act):
    """Have something done right before the next commit of a store."""
    commit, done = store.commit, []

    def late(checks, ops):
        if not done:
            done.append(True)
            act()
        return commit(checks, ops)

    monkeypatch.setattr(store, "commit", late)


# Answers that are lost


@EACH
def test_a_submit_whose_answer_is_lost_runs_each_task_once(workers, pools, store, faulty, eventually, fault):
    workers(own_store=True)
    pool = pools(store=faulty)
    assert pool.submit(square, 0).result(PATIENCE_S) == 0
    hit(faulty, fault, ITEMS)  # what lands late, lands when the task may be over
    futures = [pool.submit(mark, f"once-{number}") for number in range(12)]
    assert {future.result(PATIENCE_S) for future in futures} == {"n1"}
    was_hit(faulty)
    settled(eventually, store)
    assert [len(starts(store, f"once-{number}")) for number in range(12)] == [1] * 12


@EACH
def test_a_submit_runs_each_task_once_if_the_answer_to_its_fence_is_lost_as_well(
    workers, pools, store, faulty, eventually, fault
):
    """What lands late: the first submit, the first fence, and a second submit that checks this fence."""
    workers(own_store=True)
    pool = pools(store=faulty)
    assert pool.submit(square, 0).result(PATIENCE_S) == 0
    hit(faulty, fault, ITEMS, times=2)
    hit(faulty, fault, "@executor/default/fences/*.1", times=1)
    assert pool.submit(mark, "once").result(PATIENCE_S) == "n1"
    was_hit(faulty)
    settled(eventually, store)
    assert len(starts(store, "once")) == 1


@EACH
def test_a_finish_whose_answer_is_lost_gives_one_result_and_no_second_run(pool, store, faulty, eventually, fault):
    hit(faulty, fault, RESULTS)
    with ExecutorWorker(faulty, node_id="n1", functions=WORK, slots=2) as worker:
        futures = [pool.submit(mark, f"once-{number}") for number in range(6)]
        assert {future.result(PATIENCE_S) for future in futures} == {"n1"}
        was_hit(faulty)
        eventually(lambda: worker.stats().done == 6)
        settled(eventually, store)
    assert [len(starts(store, f"once-{number}")) for number in range(6)] == [1] * 6


@EACH
def test_a_cancel_whose_answer_is_lost_is_true_and_the_task_never_runs(
    workers, pools, store, faulty, eventually, fault
):
    pool = pools(store=faulty)
    future = pool.submit(mark, "never")
    pool.flush(PATIENCE_S)
    hit(faulty, fault, ITEMS, times=1)
    if fault == "fail":  # nothing was sent: who asked is told, and asks again
        with pytest.raises(Unavailable, match="try again"):
            future.cancel()
    assert future.cancel()
    was_hit(faulty)
    workers(own_store=True)
    assert pool.submit(square, 2).result(PATIENCE_S) == 4
    settled(eventually, store)
    assert starts(store, "never") == []


@EACH
def test_an_interrupt_whose_answer_is_lost_stops_the_task_once(workers, pools, store, faulty, eventually, fault):
    workers(own_store=True)
    pool = pools(store=faulty)
    future = pool.submit(wait, "told")
    eventually(lambda: starts(store, "told"))
    hit(faulty, fault, ITEMS, times=1)
    if fault == "fail":
        with pytest.raises(Unavailable, match="try again"):
            future.cancel(interrupt=True)
    assert future.cancel(interrupt=True)
    was_hit(faulty)
    assert future.cancelled()
    eventually(lambda: store.children("told/stops"))
    settled(eventually, store)
    assert len(starts(store, "told")) == 1


@pytest.mark.parametrize("fault", FAULTS[1:])
@pytest.mark.parametrize("runs", [False, True])
def test_cancel_task_whose_answer_is_lost_says_that_it_was_this_one(
    workers, pool, store, faulty, eventually, fault, runs
):
    if runs:
        workers(own_store=True)
    future = pool.submit(wait, "asked")
    pool.flush(PATIENCE_S)
    if runs:
        eventually(lambda: starts(store, "asked"))
    hit(faulty, fault, ITEMS, times=1)
    assert cancel_task(faulty, future.id, interrupt=runs)
    was_hit(faulty)
    with pytest.raises(concurrent.futures.CancelledError):
        future.result(PATIENCE_S)
    settled(eventually, store)
    assert len(starts(store, "asked")) == (1 if runs else 0)


@pytest.mark.parametrize("fault", FAULTS[1:])
def test_a_detached_task_whose_answer_is_lost_is_put_once(workers, pools, store, faulty, fault):
    pool = pools(store=faulty)
    hit(faulty, fault, "@executor/default/detached/*", times=1)
    ref = pool.detached(mark, "detached", id="one")
    was_hit(faulty)
    workers(own_store=True)
    assert ref.result(PATIENCE_S) == "n1"
    time.sleep(LATE_S + 0.1)
    assert len(starts(store, "detached")) == 1
    assert ref.forget()


@EACH
def test_copies_whose_finish_is_lost_give_one_result(pool, store, connect, eventually, fault):
    stores = [FaultyStore(connect()) for _ in range(2)]
    for each in stores:
        hit(each, fault, RESULTS, times=2)
    with stores[0], stores[1]:
        options = {"functions": WORK, "slots": 2, "steal_after_s": None}
        with (
            ExecutorWorker(stores[0], node_id="n0", **options) as one,
            ExecutorWorker(stores[1], node_id="n1", **options) as two,
        ):
            one.wait_ready(PATIENCE_S)
            two.wait_ready(PATIENCE_S)
            future = pool.with_options(copies=2).submit(wait, "copied")
            eventually(lambda: len(starts(store, "copied")) == 2)
            store.put("copied/go", b"")
            assert future.result(PATIENCE_S) in {"n0", "n1"}
            eventually(lambda: one.stats().running == two.stats().running == 0)
            assert one.stats().taken == two.stats().taken == 1
            assert any(each.faults for each in stores)
            settled(eventually, store)


@EACH
def test_a_dead_letter_whose_answer_is_lost_is_one_letter_and_one_outcome(pool, store, connect, faulty, fault):
    future = pool.submit(mark, "never")
    pool.flush(PATIENCE_S)
    with connect() as dying:
        WorkQueue(system_namespace(dying, "executor"), "default/backlog").try_take(["any"])  # and dies
    hit(faulty, fault, DEAD, times=1)
    with (
        ExecutorWorker(faulty, node_id="n1", functions=WORK, max_attempts=1),
        pytest.raises(TaskDied, match="'mark' was taken 1 times"),
    ):
        future.result(PATIENCE_S)
    was_hit(faulty)
    time.sleep(LATE_S + 0.1)
    assert [dead.id for dead in dead_tasks(store)] == [future.id]
    assert starts(store, "never") == []


@EACH
def test_results_whose_deletion_is_lost_are_told_once_and_leave_nothing(
    workers, pools, store, faulty, eventually, fault
):
    workers(own_store=True)
    pool = pools(store=faulty)
    hit(faulty, fault, RESULTS, times=2)
    told = []
    futures = [pool.submit(square, number) for number in range(5)]
    for future in futures:
        future.add_done_callback(told.append)
    assert [future.result(PATIENCE_S) for future in futures] == [0, 1, 4, 9, 16]
    eventually(lambda: store.children("@executor/default/results") == [] and bool(faulty.faults))
    assert sorted(map(id, told)) == sorted(map(id, futures))


# Races that are lost


def test_a_task_that_is_taken_between_look_and_cancel_goes_on(workers, pools, connect, store, eventually, monkeypatch):
    mine = system_namespace(connect(), "executor")
    pool = pools(store=mine)
    future = pool.submit(wait, "taken")
    pool.flush(PATIENCE_S)

    def take():
        workers(own_store=True)
        eventually(lambda: starts(store, "taken"))

    meanwhile(mine, monkeypatch, take)
    assert future.cancel() is False
    store.put("taken/go", b"")
    assert future.result(PATIENCE_S) == "n1"


def test_a_task_that_ends_between_look_and_interrupt_has_its_result(
    workers, pools, connect, store, eventually, monkeypatch
):
    mine = system_namespace(connect(), "executor")
    workers(own_store=True)
    pool = pools(store=mine)
    future = pool.submit(wait, "ended")
    eventually(lambda: starts(store, "ended"))

    def end():
        store.put("ended/go", b"")
        eventually(lambda: items(store) == [])

    meanwhile(mine, monkeypatch, end)
    assert future.cancel(interrupt=True) is False
    assert future.result(PATIENCE_S) == "n1"


def test_a_task_that_is_cancelled_between_look_and_finish_has_no_result(workers, pool, store, connect, eventually):
    worker = workers(own_store=True)
    future = pool.submit(wait, "cut")
    eventually(lambda: starts(store, "cut"))
    other = connect()
    assert cancel_task(other, future.id, interrupt=True)
    with pytest.raises(concurrent.futures.CancelledError):
        future.result(PATIENCE_S)
    eventually(lambda: worker.stats().lost + worker.stats().released == 1)
    assert worker.stats().done == 0


def test_two_who_cancel_one_task_agree_and_leave_one_outcome(pool, store, connect, eventually):
    future = pool.submit(mark, "both")
    pool.flush(PATIENCE_S)
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        others = [threads.submit(cancel_task, connect(), future.id) for _ in range(3)]
        mine = threads.submit(future.cancel)
        said = [mine.result(PATIENCE_S)]
        said += [each.result(PATIENCE_S) for each in others if each.exception(PATIENCE_S) is None]
    assert any(said)
    eventually(future.cancelled)  # another's cancellation is told
    assert items(store) == []


def test_a_finish_for_a_submitter_that_is_gone_writes_nothing(workers, pool, store, eventually):
    worker = workers(own_store=True)
    future = pool.submit(wait, "orphan")
    eventually(lambda: starts(store, "orphan"))
    submitter_id = future.id.partition(".")[0]
    pool._submitter._session.session.close()
    eventually(lambda: store.children("orphan/stops"))
    eventually(lambda: worker.stats().running == 0)
    assert worker.stats().done == 0
    eventually(lambda: store.children(f"@executor/default/results/{submitter_id}") == [] and items(store) == [])


def test_a_finish_for_a_submitter_that_is_gone_is_no_error_while_no_member_sweeps(
    workers, pool, store, eventually, caplog, monkeypatch
):
    async def no_sweep(_session):
        """Stand for the oldest member, which sweeps, while it is frozen."""

    monkeypatch.setattr(ExecutorWorkerSession, "_sweep", no_sweep)
    monkeypatch.setattr(ExecutorWorkerSession, "_remove_tasks_of_departed", no_sweep)
    worker = workers(own_store=True)
    pool.submit(wait, "orphan")
    eventually(lambda: starts(store, "orphan"))
    pool._submitter._session.session.close()
    eventually(lambda: worker.stats().released == 1)
    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR] == []


def test_a_member_that_joins_while_its_tasks_are_found_keeps_them(workers, pool, store, eventually, monkeypatch):
    """The finder must not take it for one that has left, although its partition was listed before it joined."""
    tasks = pool.with_options(target=Member("back", otherwise="any"))
    options = {"slots": 1, "steal_after_s": None}
    before = workers("back", **options)
    for name in ("first", "second", "third"):
        tasks.submit(wait, name)
    eventually(lambda: starts(store, "first"))
    before.close()
    add = ExecutorHooks.add_orphaned_partition
    joined = []

    def joins_first(hooks, partition):
        monkeypatch.undo()
        workers("back", own_store=True, **options)
        eventually(lambda: "back" in hooks._members())
        add(hooks, partition)
        joined.append(hooks)

    monkeypatch.setattr(ExecutorHooks, "add_orphaned_partition", joins_first)
    workers("finder", own_store=True, **options)
    eventually(lambda: joined)
    assert joined[0].orphaned_partitions == []
    assert joined[0].select_partitions() == ["m.finder", "any"]


def test_a_task_whose_submitter_went_without_news_of_it_is_stopped(workers, pool, store, eventually, monkeypatch):
    monkeypatch.setattr(ExecutorWorkerSession, "_on_submitters_changed", lambda _session, _batch: None)
    worker = workers(own_store=True)
    pool.submit(wait, "early")
    eventually(lambda: starts(store, "early"))
    pool._submitter._session.session.close()
    eventually(lambda: store.children("early/stops"))
    eventually(lambda: worker.stats().running == 0)


@pytest.mark.parametrize("what", ["_submitters", "_marks"])
def test_a_worker_whose_watch_ends_begins_a_new_session(workers, pool, eventually, what):
    worker = workers(own_store=True)
    before = worker._work
    getattr(before, what)(Broken(PermissionDenied("it may not read there any more")))
    eventually(lambda: worker._work not in {None, before} and worker.health().ok)
    assert pool.submit(square, 3).result(PATIENCE_S) == 9


def hooks_of(store, member="n1"):
    from latchwork.executor.keys import Keys

    node = WorkerProfile(member, WORK, allow_pickle=False, labels={}, accept=None)
    keys = Keys("default")
    backlog = WorkQueue(system_namespace(store, "executor"), keys.backlog, label=member)
    return ExecutorHooks(store, keys, backlog, node, lambda: {member}), backlog


@pytest.mark.parametrize("news", ["mark", "death"])
def test_a_task_that_is_not_wanted_any_more_does_not_begin_though_it_was_taken(pool, store, news):
    future = pool.submit(mark, "never")
    pool.flush(PATIENCE_S)
    hooks, backlog = hooks_of(store)
    with closing(backlog):
        (claim,) = backlog.try_take(["any"])
        if news == "mark":
            assert hooks.on_cancelled(claim.item.id) is None
        else:
            assert hooks.on_submitter_left(future.id.partition(".")[0]) == []
        assert isinstance(hooks.prepare_run(claim), Release)
        claim.release(count=False)


def test_a_mark_for_another_task_and_the_death_of_another_submitter_stop_nothing(pool, store):
    pool.submit(mark, "begins")
    pool.flush(PATIENCE_S)
    hooks, backlog = hooks_of(store)
    with closing(backlog):
        (claim,) = backlog.try_take(["any"])
        assert hooks.on_cancelled("other.000000001.0") is None
        assert hooks.on_submitter_left("other") == []
        assert isinstance(hooks.prepare_run(claim), Run)
        assert hooks.on_cancelled(claim.item.id) == claim.item.path
        claim.release(count=False)


def test_a_submitter_that_dies_between_look_and_claim_has_nothing_begun(pool, store, connect, monkeypatch, eventually):
    taking = system_namespace(connect(), "executor")
    pool.submit(mark, "never")
    pool.flush(PATIENCE_S)
    meanwhile(taking, monkeypatch, pool._submitter._session.session.close)
    hooks, backlog = hooks_of(taking)
    with closing(backlog):
        assert backlog.try_take(["any"], extra=hooks.build_claim_ops, on_refused=hooks.on_claim_refused) == []
    assert len(hooks.pop_departed()) == 1


def test_a_task_whose_item_is_deleted_while_it_runs_has_no_result(workers, pool, store, eventually):
    worker = workers(own_store=True)
    future = pool.submit(wait, "deleted")
    eventually(lambda: starts(store, "deleted"))
    (item,) = items(store)
    system_namespace(store, "executor").delete(item.key)
    store.put("deleted/go", b"")
    eventually(lambda: worker.stats().lost == 1)
    assert worker.stats().done == 0
    assert find_or_none(store, future.id) is None


def find_or_none(store, task_id):
    from latchwork.executor import NoSuchTask

    try:
        return find_task(store, task_id)
    except NoSuchTask:
        return None


@pytest.mark.parametrize("fault", FAULTS[1:])
def test_a_revived_letter_whose_answer_is_lost_runs_once(workers, pool, store, faulty, fault):
    ref = pool.detached(mark, "again", id="again")
    with closing(WorkQueue(system_namespace(store, "executor"), "default/backlog")) as backlog:
        (claim,) = backlog.try_take(["any"])
        claim.move_to_dead_letters("its nodes died")
    (dead,) = dead_tasks(store)
    hit(faulty, fault, DEAD, times=1)
    try:
        requeue_task(faulty, dead.letter)
    except Exception:
        time.sleep(LATE_S + 0.2)
        if dead_tasks(store):
            requeue_task(faulty, dead.letter)
    was_hit(faulty)
    workers(own_store=True)
    assert ref.result(PATIENCE_S) == "n1"
    assert len(starts(store, "again")) == 1
    assert dead_tasks(store) == []


def test_an_executor_of_a_store_with_late_answers_ends_in_time(workers, faulty, eventually):
    workers(own_store=True)
    faulty.add(Fault("slow_answer", op="commit", times=None, delay_s=0.05))
    with Executor(faulty, functions=WORK) as pool:
        assert list(pool.map(square, range(8))) == [number * number for number in range(8)]
