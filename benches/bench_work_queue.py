"""Measures a work queue: puts, takes and acknowledgments per second, takes from a long partition, and wake-ups.

    python benches/bench_work_queue.py [--backends memory,sqlite,etcd35,zookeeper] [--items 100000] [--sort-keys 200]
                                    [--seconds 2] [--json FILE]

A long partition has the given number of items, and a short one a hundredth of that. A take should cost the same from
both. The ``queue`` figures are those of a ``Queue`` on the same store, with items put and taken one by one. Prints
figures without goals. The only check is that waiting consumers write nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
import time
import uuid
from contextlib import ExitStack
from pathlib import Path

import latchwork
from latchwork.primitives import Queue, WorkQueue
from latchwork_testkit.servers import EtcdServer, ZooKeeperServer

SERVERS = {"etcd34": lambda: EtcdServer(version="3.4"), "etcd35": lambda: EtcdServer(version="3.5")}
SERVERS["zookeeper"] = ZooKeeperServer
OP_COUNT = 90
VALUE = b"x" * 200


def url_of(name, stack):
    """Return the URL of a new store."""
    if name == "memory":
        return f"memory://{uuid.uuid4().hex}"
    if name == "sqlite":
        return f"sqlite:///{stack.enter_context(tempfile.TemporaryDirectory())}/bench.db"
    return stack.enter_context(SERVERS[name]()).url()


def per_second(use, seconds):
    """Return how many things a function does per second. The function returns how many it did."""
    done, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        done += use()
    return done / (time.perf_counter() - begun)


def median_ms(use, times):
    """Return the median time of a function, in milliseconds."""
    took = []
    for _ in range(times):
        begun = time.perf_counter()
        use()
        took.append((time.perf_counter() - begun) * 1000)
    return statistics.median(took)


def fill(store, work_queue, partition, items, sort_keys):
    """Put items with sort keys into a partition, many in one transaction."""
    ops = []
    for sort_key in range(sort_keys):
        ids = [f"{n:08d}" for n in range(sort_key, items, sort_keys)]
        parts = (ids[at : at + OP_COUNT] for at in range(0, len(ids), OP_COUNT))
        ops += [work_queue.put_ops(partition, f"{sort_key:06d}", dict.fromkeys(part, VALUE)) for part in parts]
    with store.pipeline(max_in_flight=8) as pipeline:
        for future in [pipeline.commit([], each) for each in ops]:
            future.result()


def rates(store, seconds):
    """Return the puts, takes and acknowledgments per second of one thread."""
    work_queue, number = WorkQueue(store, "rates"), iter(range(10**9))

    def put():
        at = next(number)
        work_queue.put("any", f"{at // 500:06d}", f"{at:08d}", VALUE)
        return 1

    def put_together():
        many = [f"{next(number):08d}" for _ in range(40)]
        store.commit([], work_queue.put_ops("many", f"{int(many[0]) // 500:06d}", dict.fromkeys(many, VALUE)))
        return len(many)

    found = {"put_s": per_second(put, seconds), "put_40_together_s": per_second(put_together, seconds)}
    held, takes = [], {1: [], 16: []}
    for limit, partition in ((1, "any"), (16, "many")):

        def cycle(limit=limit, partition=partition):
            begun = time.perf_counter()
            held[:] = work_queue.try_take([partition], limit=limit)
            takes[limit].append((time.perf_counter() - begun) / max(1, len(held)))
            for claim in held:
                claim.ack()
            return len(held)

        found[f"take_{limit}_and_ack_s"] = per_second(cycle, seconds)
        found[f"take_{limit}_s"] = 1 / statistics.median(takes[limit])
    claims = work_queue.try_take(["many"], limit=400)
    begun = time.perf_counter()
    for claim in claims[: len(claims) // 2]:
        claim.ack()
    found["ack_s"] = len(claims) // 2 / (time.perf_counter() - begun)
    rest = [claim.prepare_ack() for claim in claims[len(claims) // 2 :]]
    begun = time.perf_counter()
    for at in range(0, len(rest), 40):
        parts = rest[at : at + 40]
        store.commit([check for part in parts for check in part.checks], [op for part in parts for op in part.ops])
        for part in parts:
            part.mark_committed()
    found["ack_40_together_s"] = len(rest) / (time.perf_counter() - begun)
    work_queue.close()
    return found


def queue_rates(store, seconds):
    """Return the same figures for a ``Queue``."""
    queue = Queue(store, "queue")
    put = per_second(lambda: bool(queue.put(VALUE)), seconds)
    both = per_second(lambda: queue.take(10).ack() or 1, seconds)
    queue.close()
    return {"queue_put_s": put, "queue_take_and_ack_s": both}


def take_cost(store, items, sort_keys):
    """Measure a take from a partition with this number of items, from one with a hundredth of them, and from one with
    many claimed items.
    """
    found = {}
    for name, count, of in (("short", items // 100, max(1, sort_keys // 100)), ("long", items, sort_keys)):
        with WorkQueue(store, f"partition-{name}") as work_queue:
            begun = time.perf_counter()
            fill(store, work_queue, "any", count, of)
            found[f"fill_{name}_s"] = count / (time.perf_counter() - begun)
            work_queue.try_take(["any"])
            found[f"take_from_{name}_ms"] = median_ms(
                lambda work_queue=work_queue: work_queue.try_take(["any"])[0].ack(), 30
            )
            found[f"look_at_{name}_ms"] = median_ms(lambda work_queue=work_queue: work_queue.wait_free("any", 0), 30)
            if name == "long":
                held = work_queue.try_take(["any"], limit=1000)
                found["take_behind_1000_taken_ms"] = median_ms(lambda b=work_queue: b.try_take(["any"]), 10)
                del held
    return found


def versions(store):
    """Return the last version of each key."""
    return {(entry.key, entry.version) for entry in store.list("wake", recursive=True)}


def wake_up(url):
    """Measure from a put to the return of ``wait_free`` in another client, and count what idle consumers write."""
    with latchwork.connect(url) as mine, latchwork.connect(url) as theirs:
        work_queue, waiting, woken = WorkQueue(mine, "wake"), WorkQueue(theirs, "wake"), []
        took, queues = [], [WorkQueue(theirs, "wake") for _ in range(5)]
        threads = [threading.Thread(target=each.wait_free, args=("idle", 2.0)) for each in queues]
        for each in threads:
            each.start()
        while len(work_queue.waiting_consumers("idle")) < len(queues):
            time.sleep(0.01)
        before = versions(mine)
        time.sleep(1.0)
        written = versions(mine) ^ before
        for each in threads:
            each.join()
        for at in range(30):
            thread = threading.Thread(target=lambda: woken.append((waiting.wait_free("any", 10), time.perf_counter())))
            thread.start()
            while not work_queue.waiting_consumers("any"):
                time.sleep(0.002)
            time.sleep(0.02)
            begun = time.perf_counter()
            work_queue.put("any", "s", f"{at:04d}", VALUE)
            thread.join()
            took.append((woken[-1][1] - begun) * 1000)
            work_queue.try_take(["any"])[0].ack()
        return {
            "put_to_woken_p50_ms": statistics.median(took),
            "put_to_woken_p95_ms": sorted(took)[int(len(took) * 0.95)],
            "writes_of_idle_takers": float(len(written)),
        }


def measure(name, arguments):
    """Return all figures of one backend."""
    with ExitStack() as stack:
        url = url_of(name, stack)
        store = stack.enter_context(latchwork.connect(url))
        return {
            **rates(store, arguments.seconds),
            **queue_rates(store, arguments.seconds),
            **wake_up(url),
            **take_cost(store, arguments.items, arguments.sort_keys),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", default="memory,sqlite,etcd35,zookeeper")
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--sort-keys", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found = {name: measure(name, arguments) for name in arguments.backends.split(",")}
    figures = list(next(iter(found.values())))
    print(f"{'':28}" + "".join(f"{name:>12}" for name in found))
    for figure in figures:
        print(f"{figure:28}" + "".join(f"{each[figure]:12,.2f}" for each in found.values()))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found, indent=1))
    if any(each["writes_of_idle_takers"] for each in found.values()):
        raise SystemExit("consumers that wait have written something")


if __name__ == "__main__":
    main()
