"""A store that does not answer: what ends an executor's calls ends on time, and the store is told later."""

from __future__ import annotations

import threading
import time

import pytest

from executor.conftest import PATIENCE_S
from executor.work import mark, square, wait
from latchwork.errors import Unavailable
from latchwork.executor import Call
from latchwork.store import system_namespace

#: Seconds that an answer takes; twelve of them are much more than a test waits for.
ANSWER_S = 5.0


@pytest.fixture
def freeze(connect, monkeypatch):
    """A client whose calls do not answer after ``set``, and do after ``clear``; and how many of them there were."""
    store = system_namespace(connect(), "executor")
    is_frozen, thawed, calls = threading.Event(), threading.Event(), []

    def slow(name):
        call = getattr(store, name)

        def made(*args, **options):
            if is_frozen.is_set():
                calls.append(name)
                if not thawed.wait(ANSWER_S):
                    raise Unavailable("no answer")
            return call(*args, **options)

        made.__name__, made.__self__ = name, store
        return made

    for name in ("get", "get_many", "list", "commit", "put"):
        monkeypatch.setattr(store, name, slow(name), raising=False)
    yield store, is_frozen, thawed, calls
    thawed.set()


def test_a_shutdown_that_does_not_wait_returns_at_once_and_cancels_later(freeze, pools, eventually, store):
    slow, is_frozen, thawed, calls = freeze
    pool = pools(store=slow)
    futures = [pool.submit(mark, "never") for _ in range(12)]
    pool.flush(PATIENCE_S)
    is_frozen.set()
    began = time.monotonic()
    pool.shutdown(wait=False, cancel_futures=True)
    assert time.monotonic() - began < ANSWER_S / 2
    thawed.set()
    assert eventually(lambda: all(future.cancelled() for future in futures), PATIENCE_S)
    assert calls.count("commit") <= 2, "one transaction for all of them"
    assert not store.list("never", recursive=True)


def test_call_and_first_and_map_end_on_time(freeze, pools):
    slow, is_frozen, thawed, _ = freeze
    pool = pools(store=slow)
    pool.submit(square, 1)
    pool.flush(PATIENCE_S)
    is_frozen.set()
    for use in (
        lambda: pool.call(square, 2, timeout_s=0.2),
        lambda: pool.first([Call(square, n) for n in range(12)], timeout_s=0.2),
        lambda: list(pool.map(square, range(12), timeout=0.2)),
    ):
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            use()
        assert time.monotonic() - began < ANSWER_S / 2
    thawed.set()


def test_a_task_that_runs_is_not_cancelled_with_those_that_are_queued(workers, pool, store, eventually):
    workers(slots=1)
    running = pool.submit(wait, "k")
    assert eventually(lambda: running.state().phase == "running", PATIENCE_S)
    queued = [pool.submit(square, n) for n in range(5)]
    pool.flush(PATIENCE_S)
    pool.shutdown(wait=False, cancel_futures=True)
    assert eventually(lambda: all(future.cancelled() for future in queued), PATIENCE_S)
    store.put("k/go", b"")
    assert running.result(PATIENCE_S) == "n1"
