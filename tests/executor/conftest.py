"""Workers and executors for tests: in this process, and in processes of their own that can be killed."""

from __future__ import annotations

import queue

import pytest

import latchwork
import patience
from executor.work import WORK
from latchwork.executor import Executor, ExecutorWorker
from latchwork.primitives import WorkQueue
from latchwork.store import system_namespace
from trials.remote import Remote

PATIENCE_S = 100.0


def partitions(store):
    """The lanes that have tasks, or had some and were not looked at since then."""
    with WorkQueue(system_namespace(store, "executor"), "default/backlog") as backlog:
        return backlog.partitions()


@pytest.fixture
def connect(backend_url):
    """Open another client of the test's root; closed after the test."""
    opened = []

    def open_store(**options):
        opened.append(latchwork.connect(backend_url, **options))
        return opened[-1]

    yield open_store
    for store in opened:
        store.close()


@pytest.fixture
def workers(store, connect):
    """Start workers that take tasks; closed after the test."""
    made = []

    def start(node_id="n1", *, own_store=False, **options):
        options = {"slots": 4, "functions": WORK, "session_ttl_s": 5.0, **options}
        worker = ExecutorWorker(connect() if own_store else store, node_id=node_id, **options)
        made.append(worker)
        worker.start()
        worker.wait_ready(PATIENCE_S)
        return worker

    yield start
    for worker in made:
        worker.close(5.0)


@pytest.fixture
def pool(store):
    """An executor; what is left of its tasks is cancelled after the test."""
    with_futures = Executor(store, functions=WORK)
    yield with_futures
    end(with_futures)


@pytest.fixture
def pools(store):
    """Make executors with options; what is left of their tasks is cancelled after the test."""
    made = []

    def make(**options):
        made.append(Executor(options.pop("store", store), **{"functions": WORK, **options}))
        return made[-1]

    yield make
    for each in made:
        end(each)


def end(pool):
    for ticket in pool._submitter.begin_close():
        ticket.future.cancel(interrupt=True)
    pool.shutdown()


@pytest.fixture
def processes(backend_url, store):
    """Start workers and submitters in processes of their own; killed after the test."""
    if not store.capabilities.multi_process:
        pytest.skip("one process only")
    started = []

    def start(work, *arguments):
        said = queue.Queue()
        process = Remote(f"executor.work:{work}", backend_url, *arguments, report=said.put)
        started.append(process)
        assert said.get(timeout=PATIENCE_S) == "ready"
        return process

    yield start
    for process in started:
        process.kill()


@pytest.fixture
def eventually():
    def wait(condition, timeout_s=PATIENCE_S):
        return patience.eventually(condition, timeout_s, every_s=0.02)

    return wait
