"""What a task asks of the server: three transactions one after the other, five keys, and few requests in a flood."""

from __future__ import annotations

import time

import pytest

from executor.conftest import PATIENCE_S
from executor.work import WORK, square
from latchwork.executor import ExecutorWorker
from latchwork.tasks.running.worker_loop import TIDY_S
from latchwork.testing._faulty.backend import FaultyBackend
from latchwork.testing.faults import Fault, FaultyStore

TASKS = 20
#: Of a flood, and what each of its tasks costs: submit 1 key, claim 1, end 2, collect 1.
FLOOD, KEYS, REQUESTS = 600, 5, 0.25
RESULTS = "@executor/default/results"


@pytest.fixture
def never_idle(monkeypatch):
    """No result is deleted because none has come for a while."""
    monkeypatch.setattr("latchwork.executor.submitter_session._IDLE_S", 600.0)


@pytest.fixture
def written(monkeypatch):
    """The keys that transactions have written, in order."""
    keys, commit = [], FaultyBackend.commit

    def counted(backend, checks, ops):
        future = commit(backend, checks, ops)
        future.add_done_callback(lambda done: done.exception() or keys.extend(op.key for op in ops))
        return future

    monkeypatch.setattr(FaultyBackend, "commit", counted)
    return keys


def results(store):
    return [entry.key for entry in store.list(RESULTS, recursive=True)]


def test_results_that_were_read_are_deleted_with_the_next_task_but_for_the_last_one(
    workers, pool, store, never_idle, eventually
):
    workers("n1")
    assert [pool.submit(square, n).result(PATIENCE_S) for n in range(3)] == [0, 1, 4]
    assert [key[-4:] for key in results(store)] == ["/001", "/002"]


def test_results_whose_deletion_did_not_land_are_deleted_with_a_later_task(
    workers, pools, store, connect, never_idle, eventually
):
    workers("n1")
    with FaultyStore(connect(), [Fault("cut_before", op="commit", key=f"{RESULTS}/*")]) as faulty:
        pool = pools(store=faulty)
        assert [pool.submit(square, n).result(PATIENCE_S) for n in range(4)] == [0, 1, 4, 9]
        assert faulty.faults
        assert [key[-4:] for key in results(store)] == ["/002", "/003"]


def test_tasks_that_follow_each_other_are_three_transactions_each(pools, connect, never_idle):
    with (
        FaultyStore(connect()) as submits,
        FaultyStore(connect()) as runs,
        ExecutorWorker(runs, node_id="n1", functions=WORK) as worker,
    ):
        worker.wait_ready(PATIENCE_S)
        pool = pools(store=submits)
        assert pool.submit(square, 0).result(PATIENCE_S) == 0
        before = {each: len(each.calls) for each in (submits, runs)}
        for n in range(TASKS):
            assert pool.submit(square, n).result(PATIENCE_S) == n * n
        asked = [call for each, start in before.items() for call in each.calls[start:] if call.op != "renew"]
        ours = [call for call in asked if any("/backlog/" in key or "/results/" in key for key in call.keys)]
        commits = [call for call in ours if call.op == "commit"]
        assert len(commits) <= 3 * TASKS + 1, "one may end after its result was read"
        others = [call for call in ours if call.op not in ("commit", "event")]
        assert len(others) <= TASKS / 2, f"looks of a worker that has found nothing: {others}"


def test_an_idle_worker_keeps_its_place_in_line_after_a_look_that_found_nothing(pools, connect, never_idle):
    with (
        FaultyStore(connect()) as runs,
        ExecutorWorker(runs, node_id="n1", slots=4, functions=WORK) as worker,
    ):
        worker.wait_ready(PATIENCE_S)
        pool = pools()
        assert pool.submit(square, 1).result(PATIENCE_S) == 1
        time.sleep(TIDY_S + 0.5)
        before = len(runs.calls)
        assert pool.submit(square, 2).result(PATIENCE_S) == 4
        time.sleep(0.3)  # the ticket would be deleted in the background
        left = [
            call
            for call in runs.calls[before:]
            if call.op != "event" and any("/consumers/" in key for key in call.keys)
        ]
        assert left == []


@pytest.mark.serial  # a busy machine shares fewer requests
def test_a_task_of_a_flood_writes_five_keys_and_shares_its_requests(pools, connect, written):
    with (
        FaultyStore(connect()) as submits,
        FaultyStore(connect()) as runs,
        ExecutorWorker(runs, node_id="n1", functions=WORK, slots=8) as worker,
    ):
        worker.wait_ready(PATIENCE_S)
        pool = pools(store=submits)
        assert pool.submit(square, 0).result(PATIENCE_S) == 0
        written.clear()
        before = {each: len(each.calls) for each in (submits, runs)}
        futures = [pool.submit(square, n) for n in range(FLOOD)]
        assert [future.result(PATIENCE_S) for future in futures] == [n * n for n in range(FLOOD)]
        made = [call for each, start in before.items() for call in each.calls[start:]]
        requests = [call for call in made if call.op not in ("event", "renew")]
    assert len(written) <= KEYS * FLOOD * 1.02, "a few belong to the flood as a whole"
    assert len(requests) <= REQUESTS * FLOOD
