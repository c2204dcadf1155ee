"""A node of the chaos cluster, in a process of its own.

Every event is reported with the time of the clock that all processes of the machine share. A run writes fenced results
all the time, so that the referee can tell whether a frozen process got anything through after somebody else had taken
over.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import random
import threading
import time

import latchwork
from latchwork import Conflict, LatchworkError, Put
from latchwork.jobs import Cron, FixedDelay, FixedRate, Job, JobManager, Threads
from latchwork.jobs.worker.runs import JobRun

SESSION_TTL_S = 2.0
LOCK_TTL_S = 2.0
ITEMS = 6
#: A heartbeat that comes so much too late says that this process did not get to run.
STALL_S = 0.1

THREADS = [Threads.per_item(), Threads.at_most(2), Threads.whole()]
OTHERS = [FixedDelay(0.05), FixedRate(0.5), FixedDelay(0.3)]
#: Of the second one no fire time may be left out, however long it takes to make up for them.
CRON_PERIOD_S = 1.0
SCHEDULES = [*OTHERS, Cron("* * * * * *", misfire="skip"), *OTHERS, Cron("* * * * * *", misfire="all"), *OTHERS[:2]]
JOBS = [f"job-{number}" for number in range(10)]
ON_CRON = {job: each for job, each in zip(JOBS, SCHEDULES, strict=True) if isinstance(each, Cron)}


class Log:
    """Reports events."""

    def __init__(self, wire, node_id):
        self._wire = wire
        self._node = node_id

    def __call__(self, event, **figures):
        self._wire.report({"event": event, "time": time.monotonic(), "node": self._node, "pid": os.getpid(), **figures})


def jobs(log, store):
    """Ten jobs of all shapes."""
    made = []
    writers = Writers(log, store)
    for number, job_id in enumerate(JOBS):
        made.append(
            Job(
                job_id,
                work_pool=[f"{job_id}/item-{i}" for i in range(ITEMS)],
                run=lambda context: run(context, log, writers),
                schedule=SCHEDULES[number],
                initial_delay_s=0.0,
                threads=THREADS[number % len(THREADS)],
            )
        )
    return made


class Writers:
    """Threads that write results with the fences of runs.

    A run does not wait for them: a call to a store that is out of reach takes as long as its timeout, and what is still
    on its way then must be refused.
    """

    def __init__(self, log, store):
        self._log = log
        self._store = store  # not that of a run, which refuses what is late by itself: the fences shall do it
        self._wanted = queue.Queue(maxsize=8)
        for _ in range(4):
            threading.Thread(target=self._work, daemon=True).start()

    def ask(self, fence, item):
        with contextlib.suppress(queue.Full):
            self._wanted.put_nowait((fence, item))

    def _work(self):
        while True:
            fence, item = self._wanted.get()
            try:
                done = self._store.commit([fence], [Put(f"results/{item}", str(os.getpid()).encode())])
                self._log("wrote", item=item, token=fence.token, commit=done.token)
            except Conflict:
                self._log("refused", item=item, token=fence.token)
            except LatchworkError:
                pass  # the store is out of reach: what matters is what got through


def run(context, log, writers):
    """Work on the items for a moment, all items at the same time, and have results written with their fences."""
    tokens = {}
    try:
        for item in context.items:
            fence = context.fence(item)
            log("start", job=context.job_id, item=item, token=fence.token, fire=context.fire_time_s)
            tokens[item] = fence.token
        until = time.monotonic() + random.uniform(0.05, 0.5)
        while time.monotonic() < until and not context.wait_for_stop(0.04):
            item = random.choice(context.items)
            with contextlib.suppress(LatchworkError):  # the lock was lost: there is no fence any more
                writers.ask(context.fence(item), item)
    finally:
        for item, token in tokens.items():
            log("end", job=context.job_id, item=item, token=token)


def log_stops(log):
    """Have every run that is told to stop say so: only such a run may be made again for its fire time."""
    stop = JobRun.stop

    def told(run):
        if not run.stopping:
            for item in run.items:
                log("told", item=item)
        stop(run)

    JobRun.stop = told


def heartbeat(log):
    """Say when this process did not get to run for a while: the referee must not mistake that for a fault of ours."""
    last = time.monotonic()
    while True:
        time.sleep(0.05)
        here = time.monotonic()
        if here - last > 0.05 + STALL_S:
            log("stall", since=last)
        last = here


def serve(wire, url, node_id):
    """Be a node until SIGTERM."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    log = Log(wire, node_id)
    threading.Thread(target=heartbeat, args=(log,), daemon=True).start()
    log_stops(log)
    with latchwork.connect(url) as store:
        JobManager(
            store,
            node_id,
            jobs(log, store),
            session_ttl_s=SESSION_TTL_S,
            lock_ttl_s=LOCK_TTL_S,
            close_timeout_s=5.0,
            sweep_period_s=5.0,
        ).run_forever()
