"""Measures each primitive on ZooKeeper in comparison with the recipe of kazoo.

    python benches/bench_primitives.py [--rounds 5] [--uses 100] [--only Counter,Queue] [--json FILE]

One process uses the primitive without contention. The bench measures the time of a use and the processor time of the
client. Both sides run in turn on one server, so that the ratios are meaningful on a busy machine. Prints figures
without goals. kazoo's recipes promise less: they have no fence and no deadline, and a counter may count twice if an
answer is lost.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from kazoo.client import KazooClient

import latchwork
from latchwork.primitives import (
    Counter,
    DoubleBarrier,
    Election,
    Lock,
    Queue,
    ReadWriteLock,
    Semaphore,
)
from latchwork_testkit.servers import ZooKeeperServer

Use = Callable[[], object]


class Sides(NamedTuple):
    """The functions that use a primitive once, for both sides."""

    ours: Use
    kazoo: Use


def lock(store, client, name):
    mine, theirs = Lock(store, name), client.Lock(f"/{name}")
    return Sides(lambda: both(mine.acquire, mine.release), lambda: both(theirs.acquire, theirs.release))


def read_lock(store, client, name):
    mine, theirs = ReadWriteLock(store, name).read, client.ReadLock(f"/{name}")
    return Sides(lambda: both(mine.acquire, mine.release), lambda: both(theirs.acquire, theirs.release))


def semaphore(store, client, name):
    mine, theirs = Semaphore(store, name, leases=3), client.Semaphore(f"/{name}", max_leases=3)
    return Sides(lambda: both(mine.acquire, mine.release), lambda: both(theirs.acquire, theirs.release))


def election(store, client, name):
    mine, theirs = Election(store, name, node_id="n"), client.Election(f"/{name}", "n")
    return Sides(lambda: mine.run(lambda _term, _work: None), lambda: theirs.run(lambda: None))


def counter(store, client, name):
    mine, theirs = Counter(store, name), client.Counter(f"/{name}")
    return Sides(mine.add, lambda: theirs.__add__(1))


def queue(store, client, name):
    mine, theirs = Queue(store, name), client.LockingQueue(f"/{name}")

    def ours():
        mine.put(b"x" * 100)
        mine.take(10).ack()

    def kazoo():
        theirs.put(b"x" * 100)
        theirs.get(10)
        theirs.consume()

    return Sides(ours, kazoo)


def double_barrier(store, client, name):
    mine = [DoubleBarrier(store, name, parties=2, member_id=member) for member in "ab"]
    theirs = [client.DoubleBarrier(f"/{name}", 2, member) for member in "ab"]
    return Sides(lambda: together(mine), lambda: together(theirs))


POOL = ThreadPoolExecutor(2)
KINDS = {
    "Lock": lock,
    "ReadWriteLock.read": read_lock,
    "Semaphore": semaphore,
    "Election": election,
    "Counter": counter,
    "Queue": queue,
    "DoubleBarrier": double_barrier,
}


def both(first, second):
    first()
    second()


def together(barriers):
    """Return a function that lets two members enter and leave, one of them in another thread."""
    other = POOL.submit(lambda: both(barriers[1].enter, barriers[1].leave))
    both(barriers[0].enter, barriers[0].leave)
    other.result()


def measure(use: Use, uses: int) -> tuple[list[float], float]:
    """Return the seconds of each use, and the average processor seconds of a use."""
    took, cpu = [], time.process_time()
    for _ in range(uses):
        begun = time.perf_counter()
        use()
        took.append(time.perf_counter() - begun)
    return took, (time.process_time() - cpu) / uses


def compare(sides: Sides, rounds: int, uses: int) -> dict[str, float]:
    """Return the medians of both sides in milliseconds, and the median ratios over the rounds."""
    for use in sides:
        measure(use, max(3, uses // 10))
    took: dict[str, list[float]] = {"ours": [], "kazoo": []}
    wall, cpu = [], []
    for at in range(rounds):
        seen = {}
        for side in ("ours", "kazoo") if at % 2 == 0 else ("kazoo", "ours"):
            times, processor_s = measure(getattr(sides, side), uses)
            took[side] += times
            seen[side] = (statistics.median(times), processor_s)
        wall.append(seen["ours"][0] / seen["kazoo"][0])
        cpu.append(seen["ours"][1] / seen["kazoo"][1])
    return {
        "ours_p50_ms": 1000 * statistics.median(took["ours"]),
        "kazoo_p50_ms": 1000 * statistics.median(took["kazoo"]),
        "ratio": statistics.median(wall),
        "cpu_ratio": statistics.median(cpu),
    }


def main() -> None:
    """Start a server, compare both sides, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--uses", type=int, default=100, help="of each side in each round")
    parser.add_argument("--only", default=",".join(KINDS), help="kinds, with commas")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    figures = {}
    print("| on ZooKeeper, one use | ours p50 | kazoo p50 | ours / kazoo | processor time, ours / kazoo |")
    print("|---|---|---|---|---|")
    with ZooKeeperServer() as server, latchwork.connect(server.url("bench"), session_ttl_s=10) as store:
        client = KazooClient(hosts=server.endpoint, timeout=10)
        client.start()
        for kind in options.only.split(","):
            row = compare(KINDS[kind](store, client, f"bench-{uuid.uuid4().hex[:8]}"), options.rounds, options.uses)
            figures[kind] = row
            print(
                f"| {kind} | {row['ours_p50_ms']:.2f} ms | {row['kazoo_p50_ms']:.2f} ms | {row['ratio']:.2f} "
                f"| {row['cpu_ratio']:.2f} |",
                flush=True,
            )
        client.stop()
        client.close()
    POOL.shutdown()
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
