"""The processes of an executor under faults: workers, and submitters of tasks of all kinds.

Every event is reported with the time of the clock that all processes of the machine share. Some tasks write with their
fence as they end, so that the referee can tell whether a frozen one got anything through after another had its task.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import random
import threading
import time
from concurrent.futures import CancelledError

import latchwork
from latchwork import Conflict, LatchworkError, Put
from latchwork.executor import Executor, ExecutorWorker, RoundRobin
from latchwork.tasks import Functions, TaskContext
from trials.storms.jobs_node import Log, heartbeat

SESSION_TTL_S = 2.0
SLOTS = 6
#: So many tasks of a submitter at a time.
OUTSTANDING = 30
LARGE = 20_000
#: A poisoned session is no poisoned task: faults alone must not make dead letters.
MAX_ATTEMPTS = 1000

WORK = Functions()
LOG: list[Log] = []  # of this process


def answer(task: str) -> str:
    """What a task returns: so that a result that came to the wrong future is seen."""
    return f"done {task}"


def _begun(task: str, context: TaskContext) -> None:
    LOG[0]("start", task=task, token=context.fence.token, sid=context.task_id.partition(".")[0])


def _writes(task: str, context: TaskContext) -> None:
    try:
        done = context.store.commit([context.fence], [Put(f"effects/{task}", str(os.getpid()).encode())])
        LOG[0]("wrote", task=task, token=context.fence.token, commit=done.token)
    except Conflict:
        LOG[0]("refused", task=task, token=context.fence.token)
    except LatchworkError:
        pass  # the store is out of reach: what matters is what got through


@WORK.task(name="plain")
def plain(task: str, lasts_s: float, writes: bool, load: bytes, context: TaskContext) -> str:
    _begun(task, context)
    try:
        context.wait_for_stop(lasts_s)
        if writes:
            _writes(task, context)
        return answer(task)
    finally:
        LOG[0]("end", task=task, token=context.fence.token)


@WORK.task(name="awaits")
async def awaits(task: str, lasts_s: float, writes: bool, load: bytes, context: TaskContext) -> str:
    _begun(task, context)
    try:
        await asyncio.sleep(lasts_s)
        if writes:
            await asyncio.to_thread(_writes, task, context)
        return answer(task)
    finally:
        LOG[0]("end", task=task, token=context.fence.token)


def _begin(wire, node_id):
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    LOG[:] = [Log(wire, node_id)]
    threading.Thread(target=heartbeat, args=(LOG[0],), daemon=True).start()
    return LOG[0]


def serve_worker(wire, url, node_id):
    """Be a worker until SIGTERM."""
    log = _begin(wire, node_id)
    with latchwork.connect(url) as store:
        worker = ExecutorWorker(
            store,
            node_id=node_id,
            slots=SLOTS,
            functions=WORK,
            session_ttl_s=SESSION_TTL_S,
            max_attempts=MAX_ATTEMPTS,
            steal_after_s=0.3,
            stop_grace_s=1.0,
        )
        worker.start()
        threading.Thread(target=_told_when_ready, args=(worker, log), daemon=True).start()
        worker.run_forever(drain_s=5.0)


def _told_when_ready(worker, log):
    with contextlib.suppress(LatchworkError):
        worker.wait_ready(300)
        log("ready")


class Submitter:
    """Submits tasks of all kinds until it is told to stop; then waits for all that are not over."""

    def __init__(self, store, log):
        self._store, self._log = store, log
        self._pool = Executor(store, functions=WORK, session_ttl_s=SESSION_TTL_S)
        self._random = random.Random(os.getpid())
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._left = set()
        self._stop = threading.Event()
        self._detaching = threading.Thread(target=self._detach, daemon=True)
        self._threads = [threading.Thread(target=self._submit, daemon=True), self._detaching]

    def start(self):
        for thread in self._threads:
            thread.start()

    def stop(self):
        """Submit nothing more."""
        self._stop.set()

    def left(self):
        """The tasks that are not over."""
        with self._lock:
            return sorted(self._left)

    def shutdown(self):
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._pool.shutdown()

    def _task(self):
        return f"{os.getpid()}-{next(self._numbers)}"

    def _arguments(self, task):
        rng = self._random
        lasts_s = rng.choice([0.0, 0.0, 0.01, 0.2, 1.0])
        load = b"x" * (LARGE if rng.random() < 0.05 else 1)
        return task, lasts_s, rng.random() < 0.3, load

    def _submit(self):
        rng = self._random
        while not self._stop.wait(rng.uniform(0.0, 0.03)):
            if len(self._left) >= OUTSTANDING:
                continue
            task, chance = self._task(), rng.random()
            copies = 2 if chance < 0.05 else 1
            options = {"copies": copies, "picker": RoundRobin() if chance < 0.3 else None}
            with self._lock:
                self._left.add(task)
            self._log("submitted", task=task, copies=copies)
            function = rng.choice(["plain", "awaits"])
            future = self._pool.with_options(**options).submit(function, *self._arguments(task))
            future.add_done_callback(lambda future, task=task: self._over(task, future))
            if rng.random() < 0.15:
                wait_s, interrupt = rng.choice([0.0, 0.02, 0.3]), rng.random() < 0.4
                threading.Timer(wait_s, self._cancel, [future, task, interrupt]).start()

    def _cancel(self, future, task, interrupt):
        with contextlib.suppress(LatchworkError):
            if future.cancel(interrupt=interrupt):
                self._log("cancelled", task=task, interrupt=interrupt)

    def _over(self, task, future):
        with self._lock:
            self._left.discard(task)
        try:
            value = future.result()
        except CancelledError:
            how, what = "cancelled", ""
        except Exception as error:
            how, what = type(error).__name__, str(error)
        else:
            how, what = ("value", "") if value == answer(task) else ("WrongValue", repr(value)[:200])
        self._log("over", task=task, how=how, what=what)

    def _detach(self):
        """One detached task after the other: put until it is surely there, waited for, forgotten."""
        while not self._stop.wait(0.1):
            task = self._task()
            self._log("submitted", task=task, copies=1)
            with self._lock:
                self._left.add(task)
            arguments = self._arguments(task)
            ref = self._again(lambda: self._pool.detached("plain", *arguments, id=task))  # noqa: B023 - called at once
            value = self._again(lambda: ref.result(60.0))  # noqa: B023
            self._again(ref.forget)
            how = "value" if value == answer(task) else "WrongValue"
            with self._lock:
                self._left.discard(task)
            self._log("over", task=task, how=how, what=repr(value)[:200])

    @staticmethod
    def _again(call):
        while True:
            try:
                return call()
            except (latchwork.Unavailable, latchwork.OutcomeUnknown, Conflict, TimeoutError):
                time.sleep(0.2)


def serve_submitter(wire, url, node_id):
    """Submit until it is told to stop."""
    log = _begin(wire, node_id)
    with latchwork.connect(url) as store:
        submitter = Submitter(store, log)
        submitter.start()
        wire.serve(submitter)
        submitter.shutdown()
