"""Submitters of the peers of ``bench_executor.py``: Celery, RQ and Dask. Run by an interpreter that has these.

    python executor_peers.py PEER WHAT URL COUNT     prints a line of JSON

Imports nothing of latchwork. Each peer is used as its manual begins: a call submitted, its result asked for.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import sys
import time

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


PEERS = {"celery": CeleryPeer, "rq": RqPeer, "dask": DaskPeer}


def used_s():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def throughput(peer, count):
    """Seconds from the first call to the last result."""
    used, begun = used_s(), time.perf_counter()
    handles = [peer.submit(number) for number in range(count)]
    submitted = time.perf_counter() - begun
    found = peer.results(handles) if hasattr(peer, "results") else [peer.result(handle) for handle in handles]
    took = time.perf_counter() - begun
    if list(found) != list(range(count)):
        raise SystemExit("results are missing, or in another order")
    return {"seconds": took, "submitted_s": submitted, "used_s": used_s() - used}


def batch(peer, count):
    """The same in one call."""
    used, begun = used_s(), time.perf_counter()
    found = peer.map(count)
    if list(found) != list(range(count)):
        raise SystemExit("results are missing, or in another order")
    return {"seconds": time.perf_counter() - begun, "used_s": used_s() - used}


def latency(peer, count):
    """Seconds from a call to its result, one after the other, while nothing else happens."""
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
    peer = PEERS[name](url)
    print(json.dumps(WHAT[what](peer, int(count))), flush=True)
    os._exit(0)  # threads of clients have nothing more to do


if __name__ == "__main__":
    main()
