"""The plans of the libraries that ``bench_plans.py`` compares: graphs of Dask, canvas of Celery, flows of Prefect.

    python plans_peers.py PEER WHAT URL COUNT ROUNDS     prints a line of JSON

Runs in an interpreter that has these libraries, and imports nothing of latchwork. Each library is used as its manual
describes for this shape of work. Results are checked.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import time

LAYER, DEPS = 100, 10


def noop(number=0):
    return number


def first(parts):
    return parts[0]


def nap(number):
    time.sleep(0.05)
    return number


if sys.argv[1:2] == ["celery"] or "celery" in sys.argv[0]:
    from celery import Celery, chain, chord, group

    URL = os.environ["BENCH_REDIS"]
    app = Celery("bench", broker=URL, backend=URL)
    app.conf.update(worker_hijack_root_logger=False, broker_connection_retry_on_startup=True)
    noop_task, first_task = app.task(name="noop")(noop), app.task(name="first")(first)


class CeleryPeer:
    """Celery's canvas: groups, chords and chains. It has no graphs in which a task has several dependencies, except the
    last task of a chord.
    """

    def __init__(self, _url):
        noop_task.delay(0).get(timeout=60)

    def fan(self, count):
        return group(noop_task.s(n) for n in range(count)).delay().get(timeout=300) == list(range(count))

    def chord(self, count):
        return chord((noop_task.s(n) for n in range(count)), first_task.s()).delay().get(timeout=300) == 0

    def chain(self, count):
        return chain(noop_task.s(7), *(noop_task.s() for _ in range(count - 1))).delay().get(timeout=300) == 7


class DaskPeer:
    """Dask's delayed graphs, computed by a scheduler and workers in separate processes."""

    def __init__(self, url):
        import dask
        from distributed import Client

        self.dask = dask
        self.client = Client(url, timeout=30)
        self.client.wait_for_workers(4)
        self.noop, self.first, self.nap = (dask.delayed(fn, pure=False) for fn in (noop, first, nap))

    def run(self, made):
        return self.client.gather(self.client.compute(made, optimize_graph=False))

    def fan(self, count):
        return self.run([self.noop(n) for n in range(count)]) == list(range(count))

    def deps(self, count):
        chance, before, made = random.Random(3), [], []
        for begin in range(0, count, LAYER):
            numbers = range(begin, min(count, begin + LAYER))
            layer = [self.first(chance.sample(before, DEPS)) if before else self.noop(n) for n in numbers]
            before = layer
            made += layer
        return len(self.run(made)) == count

    def chord(self, count):
        return self.run([self.first([self.noop(n) for n in range(count)])]) == [0]

    def chain(self, count):
        made = self.noop(7)
        for _ in range(count - 1):
            made = self.noop(made)
        return self.run([made]) == [7]

    def killed(self, count):
        """Return how many results the client has after the scheduler was killed in the middle and started again."""
        futures = self.client.compute([self.nap(n) for n in range(count)], optimize_graph=False)
        until = time.monotonic() + 60
        while sum(each.status == "finished" for each in futures) < count // 3 and time.monotonic() < until:
            time.sleep(0.02)
        had = sum(each.status == "finished" for each in futures)
        print(json.dumps({"kill": True}), flush=True)
        sys.stdin.readline()
        return {"had": had, "done": self.gathered(futures)}

    def gathered(self, futures, patience_s=20.0):
        from concurrent.futures import ThreadPoolExecutor, wait

        pool = ThreadPoolExecutor(32)
        asked = [pool.submit(each.result, timeout=patience_s) for each in futures]
        wait(asked, timeout=patience_s + 5)
        found = sum(each.done() and each.exception() is None for each in asked)
        pool.shutdown(wait=False, cancel_futures=True)
        return found


class PrefectPeer:
    """A Prefect flow whose tasks run in threads of its process. Its server keeps states in SQLite."""

    def __init__(self, _url):
        from prefect import flow, task

        self.flow, self.task = flow, task

    def _run(self, body):
        from prefect.task_runners import ThreadPoolTaskRunner

        return self.flow(body, task_runner=ThreadPoolTaskRunner(max_workers=16), log_prints=False)()

    def fan(self, count):
        one = self.task(noop)
        return self._run(lambda: [each.result() for each in one.map(range(count))]) == list(range(count))

    def chain(self, count):
        one = self.task(noop)

        def body():
            future = one.submit(7)
            for _ in range(count - 1):
                future = one.submit(future)
            return future.result()

        return self._run(body) == 7


PEERS = {"celery": CeleryPeer, "dask": DaskPeer, "prefect": PrefectPeer}


def main():
    name, what, url, count, rounds = sys.argv[1:6]
    peer = PEERS[name](url)
    if what == "killed":
        print(json.dumps({"asked": int(count), **peer.killed(int(count))}), flush=True)
        os._exit(0)
    took = []
    for _ in range(int(rounds)):
        begun = time.perf_counter()
        if not getattr(peer, what)(int(count)):
            raise SystemExit(f"{name} gives wrong results for {what}")
        took.append(time.perf_counter() - begun)
    print(json.dumps({"seconds": statistics.median(took)}), flush=True)
    os._exit(0)  # threads of clients have nothing more to do


if __name__ == "__main__":
    main()
