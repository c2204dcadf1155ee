"""What may be wrong: with a function, a value, a node, a submitter, the store. Each is one clear error, and no other
task is lost by it."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass

import pytest

from executor.conftest import PATIENCE_S
from executor.test_deaths import starts
from executor.work import WORK, blob, boom, length, mark, square, wait, where
from latchwork.errors import BadRecord, OutcomeUnknown, QuotaExceeded, SessionLost
from latchwork.executor import (
    ExecutorWorker,
    Member,
    TaskDied,
    dead_tasks,
    find_task,
    inspect,
    list_tasks,
    requeue_task,
)
from latchwork.executor.hooks import ExecutorHooks, WorkerProfile
from latchwork.executor.keys import Keys
from latchwork.primitives import WorkQueue
from latchwork.store import system_namespace
from latchwork.tasks import BadPayload, Functions, PayloadTooLarge, TaskProcessDied, UnknownFunction, task
from latchwork.testing.faults import FaultyStore

TTL_S = 4.0
ABOVE_THE_LIMIT = 64 * 1024 * 1024 + 1
SKEWED = Functions()


@SKEWED.task(name="square")
def square_of_text(n: str) -> str:
    return n


@task(name="trouble-dies", run_in="process")
def dies() -> None:
    import os
    import signal

    os.kill(os.getpid(), signal.SIGKILL)


@task(name="trouble-square", run_in="process")
def square_in_process(n: int) -> int:
    return n * n


def others_end(pool):
    """No other task is lost."""
    assert pool.submit(square, 6).result(PATIENCE_S) == 36


# Functions


def test_a_function_that_is_registered_nowhere_is_refused_at_submit_by_its_name(workers, pool):
    def local(n: int) -> int:
        return n

    workers()
    with pytest.raises(UnknownFunction, match="local"):
        pool.submit(local, 1)
    with pytest.raises(UnknownFunction, match="lambda"):
        pool.submit(lambda: 1)
    with pytest.raises(UnknownFunction, match="nowhere"):
        pool.submit("nowhere", 1)
    others_end(pool)


LONELY = Functions()
LONELY.task(name="lonely")(square_of_text)


def test_a_function_that_no_worker_has_for_a_time_fails_its_task_by_name(workers, pools, store):
    workers(unknown_after_s=0.5)
    with pytest.raises(UnknownFunction, match="'lonely'"):
        pools(functions=LONELY).submit("lonely", "x").result(PATIENCE_S)
    (letter,) = dead_tasks(store)
    assert letter.function == "lonely"
    assert "'lonely'" in letter.why
    others_end(pools())


def test_a_detached_task_whose_function_nobody_had_is_put_back_and_runs_once_somebody_has_it(workers, pools, store):
    workers(unknown_after_s=0.5)
    ref = pools(functions=LONELY).detached("lonely", "x", id="early")
    with pytest.raises(UnknownFunction, match="'lonely'"):
        ref.result(PATIENCE_S)
    workers("new", functions=LONELY)
    assert requeue_task(store, dead_tasks(store)[0].letter) == "d.early"
    assert ref.result(PATIENCE_S) == "x"


def test_all_copies_of_a_task_whose_function_nobody_has_end_with_one_letter(workers, pools, store, eventually):
    for name in ("n1", "n2"):
        workers(name, unknown_after_s=0.5)
    copies = pools(functions=LONELY).with_options(copies=2)
    with pytest.raises(UnknownFunction, match="'lonely'"):
        copies.submit("lonely", "x" * 5000).result(PATIENCE_S)
    eventually(lambda: list_tasks(store) == [])
    assert len(dead_tasks(store)) == 1
    eventually(lambda: store.list("@executor/default/data", recursive=True) == [])


@dataclass(frozen=True)
class Always:
    """Picks one member."""

    member: str

    def pick(self, task, view, load):
        return self.member


def test_a_task_in_the_lane_of_a_member_without_its_function_runs_where_it_is_known(workers, pools, eventually, store):
    workers("old", functions=Functions())
    workers("new")
    eventually(lambda: len(store.children("@executor/default/functions")) == 2)
    pool = pools(picker=Always("old"))
    assert pool.submit(where).result(PATIENCE_S) == "new"
    assert pool.with_options(target=Member("old", "any")).submit(where).result(PATIENCE_S) == "new"
    assert pool.with_options(copies=2).submit(where).result(PATIENCE_S) == "new"


def test_a_task_for_a_member_alone_that_has_not_its_function_fails_by_name(workers, pools):
    workers("old", functions=Functions())
    with pytest.raises(UnknownFunction, match="'where'"):
        pools().with_options(target=Member("old")).submit(where).result(PATIENCE_S)


def test_a_task_that_waits_for_its_member_waits_until_that_has_its_function(workers, pools, eventually):
    old = workers("n1", functions=Functions(), unknown_after_s=0.5)
    future = pools().with_options(target=Member("n1", "wait")).submit(where)
    time.sleep(4.0)
    assert future.state().phase == "queued"
    old.close()
    workers("n1")
    assert future.result(PATIENCE_S) == "n1"


def test_a_function_with_other_parameters_on_the_worker_fails_its_task_by_name(workers, pools, pool):
    workers("old", functions=SKEWED)
    with pytest.raises(BadPayload, match="'square'"):
        pool.submit(square, 3).result(PATIENCE_S)
    assert pools(functions=SKEWED).submit("square", "x").result(PATIENCE_S) == "x"


# Values


def test_an_argument_above_the_limit_is_refused_at_submit_by_name(workers, pool):
    workers()
    with pytest.raises(PayloadTooLarge, match="'length'"):
        pool.submit(length, b"x" * ABOVE_THE_LIMIT)
    others_end(pool)


def test_a_result_above_the_limit_fails_its_task_by_name(workers, pool, store, eventually):
    workers()
    with pytest.raises(PayloadTooLarge, match="'blob'"):
        pool.submit(blob, ABOVE_THE_LIMIT).result(PATIENCE_S)
    others_end(pool)
    eventually(lambda: store.children("@executor/default/data") == [])


# Nodes


@pytest.mark.slow
def test_a_task_that_kills_its_process_fails_alone_and_its_node_goes_on(workers, pools):
    from latchwork.tasks import DEFAULT

    pool = pools(functions=DEFAULT)
    worker = workers(functions=DEFAULT, slots=1)
    future = pool.submit(dies)
    with pytest.raises(TaskProcessDied, match="SIGKILL") as raised:
        future.result(PATIENCE_S)
    assert future.id in str(raised.value)
    assert pool.submit(square_in_process, 5).result(PATIENCE_S) == 25
    assert worker.health().ok


def test_a_worker_that_is_cut_off_loses_its_tasks_to_others_and_comes_back(workers, pool, store, connect, eventually):
    options = {"functions": WORK, "slots": 2, "session_ttl_s": TTL_S}
    with FaultyStore(connect()) as cut, ExecutorWorker(cut, node_id="n1", **options) as first:
        first.wait_ready(PATIENCE_S)
        future = pool.submit(wait, "cut")
        eventually(lambda: starts(store, "cut") == ["n1"])
        workers("n2", own_store=True)
        cut.cut_off()
        eventually(lambda: starts(store, "cut") == ["n1", "n2"])
        store.put("cut/go", b"")
        assert future.result(PATIENCE_S) == "n2"
        cut.reconnect()
        eventually(lambda: first.health().ok)
        assert first.stats().done == 0
        others_end(pool)


# Submitters


def test_a_submitter_that_is_cut_off_is_told_and_what_it_submits_then_runs(workers, pools, store, connect, eventually):
    workers(own_store=True)
    with FaultyStore(connect()) as cut:
        pool = pools(store=cut, session_ttl_s=TTL_S)
        future = pool.submit(wait, "cut")
        eventually(lambda: starts(store, "cut"))
        cut.cut_off()
        eventually(lambda: store.children("cut/stops"))  # nobody waits for it any more
        with pytest.raises(SessionLost, match="submit again"):
            future.result(PATIENCE_S)
        late = pool.submit(square, 5)
        cut.reconnect()
        assert late.result(PATIENCE_S) == 25
        pool.shutdown()


def test_a_submitter_that_was_frozen_is_told_and_goes_on(processes, workers, store, eventually):
    workers(own_store=True)
    submitter = processes("serve_submitter", {"session_ttl_s": TTL_S})
    submitter.submit("wait", "frozen")
    eventually(lambda: starts(store, "frozen"))
    submitter.pause()
    eventually(lambda: store.children("frozen/stops"))
    submitter.resume()
    assert submitter.outcomes() == ["SessionLost"]
    submitter.submit("square", 7)
    assert submitter.outcomes() == ["SessionLost", "49"]


def test_a_submitters_tasks_are_told_of_a_picker_that_raises_each_by_itself(workers, pool):
    class Broken:
        def pick(self, task, view, load):
            raise ValueError(f"cannot place {task.function}")

    broken = pool.with_options(picker=Broken())
    workers()
    fine, bad = [], []
    for number in range(6):
        fine.append(pool.submit(square, number))
        bad.append(broken.submit(mark, "never"))
    assert [future.result(PATIENCE_S) for future in fine] == [0, 1, 4, 9, 16, 25]
    for future in bad:
        with pytest.raises(ValueError, match="cannot place mark"):
            future.result(PATIENCE_S)


# The store


def test_a_store_that_is_away_for_longer_than_every_ttl_loses_no_task_that_is_to_be_submitted_again(
    store, connect, pools, eventually
):
    """All that were told are told the truth: detached tasks go on, others are submitted again, or fail."""
    stores = [FaultyStore(connect()) for _ in range(3)]
    mine, other, nodes = stores
    options = {"functions": WORK, "slots": 4, "session_ttl_s": TTL_S}
    with mine, other, nodes, ExecutorWorker(nodes, node_id="n1", **options) as worker:
        worker.wait_ready(PATIENCE_S)
        again = pools(store=mine, session_ttl_s=TTL_S, on_session_lost="resubmit")
        fails = pools(store=other, session_ttl_s=TTL_S)
        waiting, failing = again.submit(wait, "again"), fails.submit(wait, "fails")
        ref = again.detached(wait, "detached", id="away")
        eventually(lambda: all(starts(store, key) for key in ("again", "fails", "detached")))
        for each in stores:
            each.cut_off()
        eventually(
            lambda: store.children("@executor/default/group/members") == store.children("@executor/default/subs") == []
        )
        for each in stores:
            each.reconnect()
        with pytest.raises(SessionLost, match="submit again"):
            failing.result(PATIENCE_S)
        eventually(lambda: len(starts(store, "again")) >= 2 and len(starts(store, "detached")) >= 2)
        store.put("again/go", b"")
        store.put("detached/go", b"")
        assert waiting.result(PATIENCE_S) == "n1"
        assert ref.result(PATIENCE_S) == "n1"
        assert len(starts(store, "fails")) == 1
        others_end(fails)
        for pool in (again, fails):
            pool.shutdown()


def is_full(store, monkeypatch, key, unless="nothing"):
    """Refuse writes below a key, as a server without room does, but some; returns what gives room again."""
    store = system_namespace(store, "executor")
    commit, room = store.commit, []

    def refused(checks, ops):
        keys = " ".join(op.key for op in ops)
        if not room and key in keys and unless not in keys:
            raise QuotaExceeded("the server has no room left; free some")
        return commit(checks, ops)

    monkeypatch.setattr(store, "commit", refused)
    return lambda: room.append(True)


def test_a_full_store_fails_what_is_submitted_by_name_and_nothing_else(workers, pools, connect, store, monkeypatch):
    workers(own_store=True)
    mine = system_namespace(connect(), "executor")
    pool = pools(store=mine)
    others_end(pool)
    give_room = is_full(mine, monkeypatch, "/items/")
    future = pool.submit(mark, "never")
    with pytest.raises(QuotaExceeded, match=r"'mark'.*no room"):
        future.result(PATIENCE_S)
    give_room()
    others_end(pool)
    assert starts(store, "never") == []


def test_a_task_that_may_be_stored_is_not_failed_by_a_store_that_is_full_when_it_looks(
    workers, pools, connect, store, monkeypatch
):
    workers(own_store=True)
    mine = system_namespace(connect(), "executor")
    pool = pools(store=mine)
    others_end(pool)
    commit, left = mine.commit, [OutcomeUnknown("cut"), QuotaExceeded("no room")]

    def lossy(checks, ops):
        if len(left) == 2:
            commit(checks, ops)
        if left:
            raise left.pop(0)
        return commit(checks, ops)

    monkeypatch.setattr(mine, "commit", lossy)
    pool.submit(mark, "once").result(PATIENCE_S)
    assert (len(starts(store, "once")), left) == (1, [])


def test_a_result_that_a_full_store_refuses_comes_when_there_is_room(pool, connect, store, eventually, monkeypatch):
    mine = system_namespace(connect(), "executor")
    with ExecutorWorker(mine, node_id="n1", functions=WORK, max_attempts=50) as worker:
        worker.wait_ready(PATIENCE_S)
        give_room = is_full(mine, monkeypatch, "/results/")
        future = pool.submit(square, 9)
        time.sleep(1.0)
        assert not future.done()
        give_room()
        assert future.result(PATIENCE_S) == 81
        others_end(pool)


def test_a_task_whose_result_can_never_be_stored_is_a_dead_letter_and_says_why(pool, connect, store, monkeypatch):
    mine = system_namespace(connect(), "executor")
    with ExecutorWorker(mine, node_id="n1", functions=WORK, max_attempts=1) as worker:
        worker.wait_ready(PATIENCE_S)
        is_full(mine, monkeypatch, "/results/", unless="/dead/")
        with pytest.raises(TaskDied, match=r"'square'.*no room"):
            pool.submit(square, 9).result(PATIENCE_S)
    assert [letter.why for letter in dead_tasks(store)] == ["the server has no room left; free some"]


# What nobody of ours wrote

HOSTILE = [
    b"",
    b"\xff\xfe\n\n",
    b"[]\n",
    b"{}\n",
    b'{"n":1}\n',
    b'{"fn":"os:system","n":1,"sid":"x","lanes":["any"],"shelf":"s"}\nplain:echo owned > /tmp/owned',
    b'{"fn":"","n":1,"sid":"d","lanes":["any"],"shelf":"s"}\npickle:\x80\x04cos\nsystem\n(S"true"\ntR.',
    b'{"fn":"square","n":1,"sid":"d","lanes":["any"],"shelf":"s"}\nplain:\xc1\xc1',
    b'{"fn":"square","n":1,"sid":"d","lanes":["any"],"shelf":"s","retry":{"attempts":1e99}}\nplain:\x01',
    b"\n".join([b'{"fn":"square","n":1,"sid":"../..","lanes":["a/b"],"shelf":"s"}', b"plain:\x91\x01"]),
]


def test_hostile_items_run_nothing_and_keep_no_other_task_from_running(workers, pool, store, eventually):
    with closing(WorkQueue(system_namespace(store, "executor"), "default/backlog")) as backlog:
        for number, value in enumerate(HOSTILE):
            backlog.put("any", "0-000000000000-x", f"x.{number:09d}.0", value)
    system_namespace(store, "executor").put(
        "default/backlog/partitions/any/items/0-000000000000-x/raw", b"no item at all"
    )
    system_namespace(store, "executor").put("default/backlog/partitions/any/holders/raw2", b"no holder")
    worker = workers(slots=2)
    others_end(pool)
    assert worker.health().ok
    eventually(lambda: dead_tasks(store))
    assert isinstance(inspect(store).dead, int)
    list_tasks(store)


def damage(store, kind, partition="any"):
    """Damage the stored items of a partition."""
    system = system_namespace(store, "executor")
    entries = system.list(f"default/backlog/partitions/{partition}/items", recursive=True)
    assert entries
    for entry in entries:
        header, value = entry.value.split(b"\n", 1)
        damaged = {
            "task": header + b"\nno task",
            "count": header.replace(b"{", b'{"failures":"two",', 1) + b"\n" + value,
            "item": b"no item",
        }
        system.put(entry.key, damaged[kind])


@pytest.mark.parametrize(("kind", "named"), [("task", "no task"), ("count", "failures"), ("item", "malformed")])
def test_a_task_whose_stored_item_is_damaged_fails_and_no_other(workers, pool, store, kind, named):
    future = pool.submit(square, 3)
    pool.flush(PATIENCE_S)
    damage(store, kind)
    workers()
    with pytest.raises(BadRecord, match=rf"{future.id}.*{named}"):
        future.result(PATIENCE_S)
    others_end(pool)
    assert len(dead_tasks(store)) == 1


def test_a_detached_task_whose_stored_item_is_damaged_fails(workers, pool, store):
    ref = pool.detached(square, 3)
    damage(store, "task")
    workers()
    with pytest.raises(BadRecord, match=ref.id):
        ref.result(PATIENCE_S)


@pytest.fixture
def copied(workers, pool, store, eventually):
    """A task with a copy for each of two workers, which are busy until ``<worker>/go`` is written."""
    for name in ("n1", "n2"):
        workers(name, slots=1, steal_after_s=None)
        pool.submit(wait, name)
        eventually(lambda name=name: starts(store, name))
    future = pool.with_options(copies=2).submit(square, 3)
    pool.flush(PATIENCE_S)
    return future


def test_a_damaged_copy_leaves_the_result_to_the_others(copied, store, eventually):
    damage(store, "task", "m.n1")
    store.put("n1/go", b"")
    eventually(lambda: len(dead_tasks(store)) == 1)
    store.put("n2/go", b"")
    assert copied.result(PATIENCE_S) == 9


@pytest.mark.parametrize("kind", ["task", "item"])
def test_a_task_whose_copies_are_all_damaged_fails(copied, store, kind):
    for name in ("n1", "n2"):
        damage(store, kind, f"m.{name}")
    for name in ("n1", "n2"):
        store.put(f"{name}/go", b"")
    with pytest.raises(BadRecord, match=copied.id):
        copied.result(PATIENCE_S)
    assert len(dead_tasks(store)) == 2


@pytest.mark.parametrize("kind", ["task", "item"])
def test_copies_damaged_while_no_worker_runs_wait_for_one_or_are_cancelled(workers, pool, store, kind):
    copies = pool.with_options(copies=2)
    future, dropped, ref = copies.submit(square, 3), copies.submit(square, 4), copies.detached(square, 5)
    pool.flush(PATIENCE_S)
    damage(store, kind)
    with pytest.raises(TimeoutError, match="no worker is online"):
        future.result(2.0)
    assert future.state().phase == ref.state().phase == "queued"
    assert all("is not a task" in task.why for task in list_tasks(store))
    with pytest.raises(BadRecord):
        find_task(store, future.id)
    assert dropped.cancel()
    workers()
    with pytest.raises(BadRecord, match=future.id):
        future.result(PATIENCE_S)
    with pytest.raises(BadRecord, match=ref.id):
        ref.result(PATIENCE_S)


def test_workers_that_find_the_last_two_copies_damaged_together_fail_the_task(workers, pool, store):
    future = pool.with_options(copies=2).submit(square, 3)
    pool.flush(PATIENCE_S)
    damage(store, "task")
    system = system_namespace(store, "executor")
    with closing(WorkQueue(system, "default/backlog")) as backlog:
        profile = WorkerProfile("n1", WORK, allow_pickle=False, labels={}, accept=None)
        hooks = ExecutorHooks(system, Keys("default"), backlog, profile, lambda: ["n1"])
        found = [(item, hooks.build_dead_letter_ops(item)) for item in backlog.items()]
        assert [backlog.move_to_dead_letters(item, "damaged", *extras) for item, extras in found] == [True, False]
    workers()
    with pytest.raises(BadRecord, match=future.id):
        future.result(PATIENCE_S)


def test_hostile_results_fail_one_future_and_no_other(workers, pool, store):
    futures = [pool.submit(wait, "hostile") for _ in range(3)]
    pool.flush(PATIENCE_S)
    submitter_id = futures[0].id.partition(".")[0]
    for name in ("x", "0/x", "0/9999", "7/001", "0/001/2"):
        system_namespace(store, "executor").put(f"default/results/{submitter_id}/{name}", b"\xff")
    system_namespace(store, "executor").put(
        f"default/results/{submitter_id}/0/001", b"\x80\x04cos\nsystem\n(S'true'\ntR."
    )
    with pytest.raises(BadPayload):
        futures[1].result(PATIENCE_S)
    system_namespace(store, "executor").put(
        f"default/results/{submitter_id}/0/002", b'{"owner":"../..","id":"x","size":-1,"digest":""}'
    )
    with pytest.raises(BadPayload):
        futures[2].result(PATIENCE_S)
    workers()
    store.put("hostile/go", b"")
    assert futures[0].result(PATIENCE_S) == "n1"


def test_hostile_marks_loads_and_records_stop_nothing(workers, pool, store, eventually):
    for key in ("load/x", "load/n1", "functions/x", "subs/x", "detached/00/d.x", "outcomes/00/d.x", "cancels/n1/x"):
        system_namespace(store, "executor").put(f"default/{key}", b"\xff\x00{")
    worker = workers()
    system_namespace(store, "executor").put("default/cancels/n1/\u0078.9.9", b"")
    spread = [pool.submit(square, number) for number in range(4)]
    assert [future.result(PATIENCE_S) for future in spread] == [0, 1, 4, 9]
    with pytest.raises(ValueError, match="still"):
        pool.submit(boom, "still").result(PATIENCE_S)
    inspect(store)
    assert worker.health().ok
