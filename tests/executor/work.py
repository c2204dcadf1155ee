"""Functions that tests submit, and processes that run and submit them."""

from __future__ import annotations

import os
import time
from concurrent.futures import CancelledError

import latchwork
from latchwork.executor import Executor, ExecutorWorker
from latchwork.tasks import Functions, Retry, TaskContext, TaskStopped

WORK = Functions()
task = WORK.task


@task(name="square")
def square(n: int) -> int:
    return n * n


@task(name="boom")
def boom(what: str) -> None:
    raise ValueError(what)


@task(name="returned-error")
def returned_error(what: str) -> ValueError:
    return ValueError(what)


@task(name="cancelled-inside")
def cancelled_inside() -> None:
    raise CancelledError("an inner call was cancelled")


@task(name="where")
def where(context: TaskContext) -> str:
    return context.node_id


@task(name="slow-where")
def slow_where(seconds: float, context: TaskContext) -> str:
    context.wait_for_stop(seconds)
    return context.node_id


@task(name="wait")
def wait(key: str, context: TaskContext) -> str:
    """Count a start under a key, and go on until told to stop, or until somebody writes ``<key>/go``."""
    store = context.store
    store.create(f"{key}/starts/s", context.node_id.encode(), sequential=True)
    while not context.wait_for_stop(0.02):
        if store.get(f"{key}/go") is not None:
            return context.node_id
    store.create(f"{key}/stops/s", context.node_id.encode(), sequential=True)
    raise TaskStopped("told to stop")


@task(name="mark")
def mark(key: str, context: TaskContext) -> str:
    context.store.create(f"{key}/starts/s", context.node_id.encode(), sequential=True)
    return context.node_id


@task(name="kill-node")
def kill_node(key: str, context: TaskContext) -> None:
    context.store.create(f"{key}/starts/s", context.node_id.encode(), sequential=True)
    os._exit(9)


@task(name="close-files")
def close_files(key: str, context: TaskContext) -> str:
    """Close what its process has open: the connections of its node among them."""
    context.store.create(f"{key}/starts/s", context.node_id.encode(), sequential=True)
    if len(context.store.children(f"{key}/starts")) == 1:
        os.closerange(3, 256)
    return context.node_id


@task(name="fail-twice", retry=Retry(attempts=3, initial_s=0.01))
def fail_twice(key: str, context: TaskContext) -> int:
    context.store.create(f"{key}/starts/s", context.node_id.encode(), sequential=True)
    if context.attempt < 3:
        raise ValueError(f"try {context.attempt}")
    return context.attempt


@task(name="fail-then-wait", retry=Retry(attempts=2, initial_s=0.01))
def fail_then_wait(key: str, context: TaskContext) -> int:
    """The first try fails, the next one waits until somebody writes ``<key>/go``."""
    context.store.create(f"{key}/starts/s", context.node_id.encode(), sequential=True)
    if context.attempt == 1:
        raise ValueError("the first try")
    while context.store.get(f"{key}/go") is None:
        if context.wait_for_stop(0.02):
            raise TaskStopped("told to stop")
    return context.attempt


@task(name="refuse-on")
def refuse_on(node: str, context: TaskContext) -> str:
    if context.node_id == node:
        context.refuse("not here")
    return context.node_id


@task(name="length")
def length(data: bytes) -> int:
    return len(data)


@task(name="blob")
def blob(size: int) -> bytes:
    return b"x" * size


@task(name="late-blob")
def late_blob(key: str, size: int, context: TaskContext) -> bytes:
    """A large value, once somebody writes ``<key>/go``, whether told to stop or not."""
    context.store.create(f"{key}/starts/s", context.node_id.encode(), sequential=True)
    while context.store.get(f"{key}/go") is None:
        time.sleep(0.02)
    context.store.create(f"{key}/ends/s", context.node_id.encode(), sequential=True)
    return b"x" * size


@task(name="unstorable")
def unstorable() -> object:
    return object()


def serve_worker(wire, url, node_id, options):
    """A worker in a process of its own, until it is killed or told to close."""
    store = latchwork.connect(url)
    worker = ExecutorWorker(store, node_id=node_id, functions=WORK, **options)
    worker.start()
    worker.wait_ready(60)

    class Served:
        def close(self):
            worker.close()
            store.close()

        def stats(self):
            return worker.stats()

    wire.report("ready")
    wire.serve(Served())


def serve_submitter(wire, url, options):
    """A submitter in a process of its own."""
    store = latchwork.connect(url)
    pool = Executor(store, functions=WORK, **options)
    futures = []

    class Served:
        def submit(self, name, *args):
            futures.append(pool.submit(name, *args))
            pool.flush(60)
            return futures[-1].id

        def outcomes(self):
            """How each ended, in order: its value, or the class of its error."""
            errors = [future.exception(60) for future in futures]
            pairs = zip(futures, errors, strict=True)
            return [str(future.result()) if error is None else type(error).__name__ for future, error in pairs]

        def detached(self, name, *args):
            return pool.detached(name, *args, id="one").id

        def shutdown(self):
            pool.shutdown()

    wire.report("ready")
    wire.serve(Served())
