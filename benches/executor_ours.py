"""Worker nodes and submitters of latchwork for ``bench_executor.py``. Each is a separate process.

python executor_ours.py ROLE OPTIONS-JSON     prints lines of JSON
"""

from __future__ import annotations

import gc
import json
import os
import resource
import statistics
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import latchwork
from latchwork.errors import Conflict
from latchwork.executor import Executor, ExecutorWorker, Member
from latchwork.store import StoreObserver
from latchwork.store.observe.calls import ObservedBackend
from latchwork.tasks import TaskContext, current_task, task

NAME = "bench"
#: Number of parts of a backlog that are reported separately. The number of tasks is a multiple of it.
TENTHS = 10
#: Number of tasks before the measurement of throughput starts.
WARM = 200


@task(name="noop")
def noop(number: int) -> int:
    return number


@task(name="held")
def held(log: str, key: str) -> str:
    """Log that the task has started. The first attempt then waits to be killed, another one returns at once."""
    context: TaskContext = current_task()
    is_first = not any(f" {key} " in line for line in Path(log).read_text().splitlines())
    _say(log, f"begin {key} {context.node_id} {time.time()!r}")
    if is_first:
        context.wait_for_stop(600)
    _say(log, f"end {key} {context.node_id} {time.time()!r}")
    return key


def _say(log, line):
    with Path(log).open("a") as file:  # one write: lines of several processes do not mix
        file.write(line + "\n")


def answer(**what):
    sys.stdout.write(json.dumps(what) + "\n")  # one write: lines of several threads do not mix
    sys.stdout.flush()


def used_s():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def resident():
    """Return the memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


class Calls(StoreObserver):
    """Counts the calls of a process on its store, by kind. Of commits, it also counts those refused and the keys
    written.
    """

    def __init__(self):
        self.counts = Counter()
        told = ObservedBackend._told  # noqa: SLF001 - observers do not learn what is written

        def observed(backend, name, call, *args, **options):
            future = told(backend, name, call, *args, **options)
            if name == "commit":
                future.add_done_callback(partial(self._written, len(args[1])))
            return future

        ObservedBackend._told = observed  # noqa: SLF001

    def _written(self, keys, done):
        self.counts["keys"] += 0 if done.exception() else keys

    def called(self, info):
        self.counts["requests"] += 1
        self.counts[info.call] += 1
        self.counts["refused"] += isinstance(info.error, Conflict)


def node(url, slots=8, node_id=None, ttl_s=10.0, counts=False):
    """Run a worker until its standard input ends. For each line of input, print its calls so far, if they are
    counted.
    """
    calls = Calls()
    with latchwork.connect(url, observers=[calls] if counts else []) as store:
        worker = ExecutorWorker(store, NAME, slots=slots, node_id=node_id, session_ttl_s=ttl_s)
        with worker:
            worker.wait_ready(60)
            answer(ready=True, ttl_s=worker.health().session_remaining_s)
            for _ in sys.stdin:
                answer(**calls.counts)
            answer(**{name: value for name, value in vars_of(worker).items() if isinstance(value, int)})


def vars_of(worker):
    stats = worker.stats()
    return {name: getattr(stats, name) for name in stats.__slots__}


def idle(url):
    """Run a process that is connected and does nothing."""
    with latchwork.connect(url) as store:
        store.session  # noqa: B018 - opens it
        answer(ready=True)
        sys.stdin.read()


def throughput(url, count, counts=False):
    """Measure the seconds from the first call to the last result, after a warm-up and the command to begin."""
    calls = Calls() if counts else None
    with latchwork.connect(url, observers=[calls] if calls else []) as store, Executor(store, NAME) as pool:
        for future in [pool.submit(noop, number) for number in range(WARM)]:
            future.result(60)
        answer(ready=True)
        sys.stdin.readline()
        before = Counter(calls.counts) if calls else Counter()
        used, begun = used_s(), time.perf_counter()
        futures = [pool.submit(noop, number) for number in range(count)]
        submitted = time.perf_counter() - begun
        found = [future.result(240) for future in futures]
        took = time.perf_counter() - begun
        if found != list(range(count)):
            raise SystemExit("results are missing, or in another order")
        made = calls.counts - before if calls else {}
        answer(seconds=took, submitted_s=submitted, used_s=used_s() - used, **made)


def latency(url, count, pause_s=0.02):
    """Measure the seconds from a call to its result, one after another, with a pause before each."""
    with latchwork.connect(url) as store, Executor(store, NAME) as pool:
        answer(**round_trips(lambda number: pool.submit(noop, number), count, pause_s))


def round_trips(submit, count, pause_s):
    submit(0).result(60)
    took = []
    for number in range(count):
        time.sleep(pause_s)
        begun = time.perf_counter()
        submit(number).result(60)
        took.append(time.perf_counter() - begun)
    took.sort()
    return {"p50_s": statistics.median(took), "p99_s": took[int(len(took) * 0.99)], "worst_s": took[-1]}


def backlog(url, count):
    """Queue tasks before a worker runs, report when they are stored, then measure how they are processed."""
    with latchwork.connect(url) as store, Executor(store, NAME) as pool:
        for future in [pool.submit(noop, number) for number in range(200)]:
            future.cancel()
        gc.collect()
        before, begun = resident(), time.perf_counter()
        futures = [pool.submit(noop, number) for number in range(count)]
        pool.flush(600)
        stored_s = time.perf_counter() - begun
        gc.collect()
        answer(bytes=(resident() - before) / count, stored_s=stored_s)
        sys.stdin.readline()
        done, lock = 0, threading.Lock()
        begun = time.perf_counter()

        def count_one(_future):
            nonlocal done
            with lock:
                done += 1
                if done * TENTHS % count == 0:
                    answer(at_s=time.perf_counter() - begun)

        for future in futures:
            future.add_done_callback(count_one)
        if [future.result(3600) for future in futures] != list(range(count)):
            raise SystemExit("results are missing, or in another order")
        answer(done=count)


def detached(url, count, threads=16):
    """Measure how much memory a process keeps for each task that outlives it."""
    with latchwork.connect(url) as store, Executor(store, NAME) as pool, ThreadPoolExecutor(threads) as several:

        def put(numbers):  # one future of ours for each thread: 1.6 kB for each task would hide what is measured
            return [pool.detached(noop, n) for n in numbers]

        list(several.map(put, [range(n, 500, threads) for n in range(threads)]))
        gc.collect()
        before, begun = resident(), time.perf_counter()
        refs = [ref for part in several.map(put, [range(n, count, threads) for n in range(threads)]) for ref in part]
        took = time.perf_counter() - begun
        gc.collect()
        answer(bytes=(resident() - before) / len(refs), seconds=took)


def kills(url, log, rounds):
    """Submit a task to each of the given nodes, which are then killed."""
    with latchwork.connect(url) as store, Executor(store, NAME) as pool:
        for number in range(rounds):
            ids = json.loads(sys.stdin.readline())
            calls = {f"r{number}-{each}": pool.with_options(target=Member(each, otherwise="any")) for each in ids}
            futures = {key: view.submit(held, log, key) for key, view in calls.items()}
            answer(submitted=sorted(futures))
            found = {key: future.result(120) for key, future in futures.items()}
            if any(key != value for key, value in found.items()):
                raise SystemExit("a task has the result of another")
            answer(ended=len(found))


ROLES = {
    "node": node,
    "idle": idle,
    "throughput": throughput,
    "latency": latency,
    "backlog": backlog,
    "detached": detached,
    "kills": kills,
}

if __name__ == "__main__":
    ROLES[sys.argv[1]](**json.loads(sys.argv[2]))
    sys.stdout.flush()
    if os.environ.get("BENCH_HARD_EXIT"):
        os._exit(0)
