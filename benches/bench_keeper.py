"""Measures the cost of holding many locks with one keeper: the writes on the server, and the client's time and memory.

    python benches/bench_keeper.py [--locks 10000] [--ttl-s 9] [--intervals 5] [--only etcd,zookeeper] [--json FILE]

A keeper renews one owner every third of the TTL, however many locks it holds. The bench counts committed proposals on
etcd, and transactions on ZooKeeper, where the heartbeat of a client is one as well. It therefore also measures a single
lock. Prints figures without goals.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
import urllib.request
import uuid
from collections.abc import Callable
from pathlib import Path

import latchwork
from latchwork.primitives import LockKeeper
from latchwork_testkit.servers import EtcdServer, ZooKeeperServer


def proposals(server: EtcdServer) -> int:
    """Return the number of committed proposals of an etcd server."""
    address = f"http://{server.url().partition('//')[2].partition('/')[0]}/metrics"
    with urllib.request.urlopen(address, timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    (line,) = (each for each in lines if each.startswith("etcd_server_proposals_committed_total "))
    return int(float(line.split()[1]))


def transactions(server: ZooKeeperServer) -> int:
    """Return the number of the last transaction of a ZooKeeper server."""
    (line,) = (each for each in server.send_four_letter_word("srvr").splitlines() if each.startswith("Zxid:"))
    return int(line.partition(":")[2], 16)


def hold(url: str, count: Callable[[], int], locks: int, ttl_s: float, intervals: int) -> dict[str, float]:
    """Return the figures of one keeper that holds this number of locks."""
    names = [f"item-{number}" for number in range(locks)]
    with latchwork.connect(url) as store, LockKeeper(store, ttl_s=ttl_s) as keeper:
        begun = time.perf_counter()
        held = keeper.try_acquire_many(names)
        taken_s = time.perf_counter() - begun
        before, cpu, begun = count(), time.process_time(), time.perf_counter()
        time.sleep(intervals * ttl_s / 3)
        took_s = time.perf_counter() - begun
        figures = {
            "locks": len(held),
            "taken_s": taken_s,
            "writes_per_interval": (count() - before) * ttl_s / 3 / took_s,
            "core_percent": 100 * (time.process_time() - cpu) / took_s,
            "held_all": float(all(lock.is_held for lock in held.values())),
        }
        begun = time.perf_counter()
        keeper.release(names)
        return {**figures, "released_s": time.perf_counter() - begun}


def main() -> None:
    """Start a server of each kind, hold one lock and many locks, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--locks", type=int, default=10_000)
    parser.add_argument("--ttl-s", type=float, default=9.0)
    parser.add_argument("--intervals", type=int, default=5)
    parser.add_argument("--only", default="etcd,zookeeper")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    kinds = {"etcd": (lambda: EtcdServer("3.5"), proposals), "zookeeper": (ZooKeeperServer, transactions)}
    figures = {}
    print("| server | locks | taken | writes per interval | client, of a core | released |\n|---|---|---|---|---|---|")
    for kind in options.only.split(","):
        start, counted = kinds[kind]
        with start() as server:
            for locks in (1, options.locks):
                url = server.url(f"bench-{uuid.uuid4().hex[:8]}")
                row = hold(url, lambda: counted(server), locks, options.ttl_s, options.intervals)  # noqa: B023
                figures[f"{kind}, {locks}"] = row
                print(
                    f"| {kind} | {locks} | {row['taken_s']:.2f} s | {row['writes_per_interval']:.2f} "
                    f"| {row['core_percent']:.2f} % | {row['released_s']:.2f} s |",
                    flush=True,
                )
    print(f"memory of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
