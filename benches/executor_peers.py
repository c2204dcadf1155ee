"""Submitters of the libraries that ``bench_executor.py`` compares: Celery, RQ, Dask, procrastinate, DBOS and a process
pool.

    python executor_peers.py PEER WHAT URL COUNT     prints a line of JSON; for an interpreter that has these
    python executor_peers.py PEER worker URL SLOTS   a worker of procrastinate or DBOS

Imports nothing of latchwork. Each library is used as its manual begins: submit a call, wait for its result.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import active_children

REDIS = os.environ.get("BENCH_REDIS", "")


def noop(number):
    return number


if "celery" in sys.argv[0] or sys.argv[1:2] == ["celery"]:
    from celery import Celery

    app = Celery("bench", broker=REDIS, backend=REDIS)
    app.conf.update(worker_hijack_root_logger=False, broker_connection_retry_on_startup=True)
    noop_task = app.task(name="noop")(noop)


class CeleryPeer:
    def __init__(self, _url):
        noop_task.delay(0).get(timeout=60)

    def submit(self, number):
        return noop_task.delay(number)

    def result(self, handle):
        return handle.get(timeout=120)


class RqPeer:
    def __init__(self, url):
        from redis import Redis
        from rq import Queue

        self.queue = Queue("bench", connection=Redis.from_url(url))
        self.result(self.submit(0))

    def submit(self, number):
        import executor_peers  # a worker finds the function by its module's name

        return self.queue.enqueue(executor_peers.noop, number)

    def result(self, job):
        found = job.latest_result(timeout=120)
        return None if found is None else found.return_value


class DaskPeer:
    def __init__(self, url):
        from distributed import Client

        self.client = Client(url)
        self.client.wait_for_workers(4)
        self.result(self.submit(0))

    def submit(self, number):
        return self.client.submit(noop, number, pure=False)

    def result(self, future):
        return future.result(timeout=120)

    def results(self, futures):
        return self.client.gather(futures)

    def map(self, count):
        return self.client.gather(self.client.map(noop, range(count), pure=False))


class PoolPeer:
    """A pool of four processes on this machine. It has no server, stores nothing, and ends with the submitter."""

    def __init__(self, _url):
        self.pool = ProcessPoolExecutor(4)
        self.results([self.submit(number) for number in range(8)])

    def submit(self, number):
        return self.pool.submit(noop, number)

    def result(self, future):
        return future.result(timeout=120)

    def results(self, futures):
        return [future.result(timeout=120) for future in futures]

    def map(self, count):
        return list(self.pool.map(noop, range(count), chunksize=max(1, count // 40)))

    def close(self):
        self.pool.shutdown()


class ProcrastinatePeer:
    """procrastinate. Its jobs have no results, so a trigger notifies the submitter of their ends."""

    ENDS = """
        create or replace function bench_ended() returns trigger language plpgsql as
        $$ begin perform pg_notify('bench_ended', new.id::text); return new; end $$;
        create or replace trigger bench_ended after update of status on procrastinate_jobs
        for each row when (new.status = 'succeeded') execute function bench_ended()"""

    def __init__(self, url):
        import procrastinate
        import psycopg

        self.app = procrastinate.App(connector=procrastinate.SyncPsycopgConnector(conninfo=url))
        self.app.open()
        self.task = self.app.configure_task("noop", queue="bench")
        self.connection = psycopg.connect(url, autocommit=True)
        self.ended = set()
        self.connection.execute(self.ENDS)
        self.connection.execute("listen bench_ended")
        self.result((self.task.defer(number=0), 0))

    @staticmethod
    def prepare(url):
        import procrastinate

        with procrastinate.App(connector=procrastinate.SyncPsycopgConnector(conninfo=url)).open() as app:
            app.schema_manager.apply_schema()

    @staticmethod
    def work(url, slots):
        import procrastinate

        app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url))

        @app.task(name="noop", queue="bench")
        async def noop(number):
            return number

        app.run_worker(queues=["bench"], concurrency=slots)

    def submit(self, number):
        return self.task.defer(number=number), number

    def result(self, handle):
        job, number = handle
        while job not in self.ended:
            for notify in self.connection.notifies(timeout=120, stop_after=1):
                self.ended.add(int(notify.payload))
        return number


class DbosPeer:
    """DBOS. The queue and the submitter poll, here every 50 ms instead of every second."""

    POLL_S = 0.05

    def __init__(self, url):
        from dbos import DBOSClient

        self.client = DBOSClient(system_database_url=url)
        self.result(self.submit(0))

    @staticmethod
    def prepare(url):
        """Do nothing: the first worker creates the tables."""

    @classmethod
    def work(cls, url, slots):
        import threading

        from dbos import DBOS, Queue

        Queue("bench", worker_concurrency=slots, polling_interval_sec=cls.POLL_S)
        DBOS(config={"name": "bench", "system_database_url": url, "log_level": "ERROR", "application_version": "1"})
        DBOS.workflow(name="noop")(noop)
        DBOS.launch()
        threading.Event().wait()

    def submit(self, number):
        return self.client.enqueue({"queue_name": "bench", "workflow_name": "noop", "app_version": "1"}, number)

    def result(self, handle):
        return handle.get_result(polling_interval_sec=self.POLL_S)


PEERS = {
    "celery": CeleryPeer,
    "rq": RqPeer,
    "dask": DaskPeer,
    "procrastinate": ProcrastinatePeer,
    "dbos": DbosPeer,
    "pool": PoolPeer,
}


def used_s():
    """Return the processor seconds of this process and of its running child processes."""
    usage, children = resource.getrusage(resource.RUSAGE_SELF), 0.0
    for child in active_children():
        with open(f"/proc/{child.pid}/stat") as file:  # noqa: PTH123 - nothing else here needs a path
            fields = file.read().rpartition(")")[2].split()
        children += sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
    return usage.ru_utime + usage.ru_stime + children


def throughput(peer, count):
    """Return the seconds from the first call to the last result."""
    used, begun = used_s(), time.perf_counter()
    handles = [peer.submit(number) for number in range(count)]
    submitted = time.perf_counter() - begun
    found = peer.results(handles) if hasattr(peer, "results") else [peer.result(handle) for handle in handles]
    took = time.perf_counter() - begun
    if list(found) != list(range(count)):
        raise SystemExit("results are missing, or in another order")
    return {"seconds": took, "submitted_s": submitted, "used_s": used_s() - used}


def batch(peer, count):
    """Return the seconds for the same calls submitted as one batch."""
    used, begun = used_s(), time.perf_counter()
    found = peer.map(count)
    if list(found) != list(range(count)):
        raise SystemExit("results are missing, or in another order")
    return {"seconds": time.perf_counter() - begun, "used_s": used_s() - used}


def latency(peer, count):
    """Return the seconds from a call to its result, one after another, while nothing else runs."""
    took = []
    for number in range(count):
        time.sleep(0.02)
        begun = time.perf_counter()
        peer.result(peer.submit(number))
        took.append(time.perf_counter() - begun)
    took.sort()
    return {"p50_s": statistics.median(took), "p99_s": took[int(len(took) * 0.99)]}


WHAT = {"throughput": throughput, "batch": batch, "latency": latency}


def main():
    name, what, url, count = sys.argv[1:5]
    if what == "worker":
        PEERS[name].work(url, int(count))
    if what == "prepare":
        PEERS[name].prepare(url)
        return
    peer = PEERS[name](url)
    print(json.dumps(WHAT[what](peer, int(count))), flush=True)
    if hasattr(peer, "close"):
        peer.close()
    os._exit(0)  # threads of clients have nothing more to do


if __name__ == "__main__":
    main()
