"""Measures a hand-over of a lock: the time from when one process begins to release it until another process holds it.

    python benches/bench_handover.py [--servers zookeeper,etcd35] [--contenders 2,10] [--rounds 4] [--json FILE]

Several processes contend for one lock, and try again at once after each hold. The locks run in turn: latchwork's
``Lock`` and ``LeaderLatch``, kazoo's ``Lock`` and etcd3's ``Lock``. Also measures, after ``kill -9`` of the leader, the
time until another process leads, and the time until a raw client sees the session-bound key disappear. Prints figures
without goals.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
import uuid
from itertools import pairwise
from pathlib import Path

import latchwork
from latchwork.primitives import LeaderLatch, Lock
from latchwork_testkit.etcd_rpc import import_etcd3
from latchwork_testkit.servers import EtcdServer, ZooKeeperServer

#: Long enough for the one that gave it to have queued again: else that is measured, not the hand-over.
HOLD_S = 0.010
TTL_S = 10.0
KILL_TTL_S = 2.0
CYCLES = 300
PEERS = {
    "zookeeper": ("ours", "latch", "kazoo"),
    "etcd34": ("ours", "latch", "etcd3"),
    "etcd35": ("ours", "latch", "etcd3"),
}
SERVERS = {"zookeeper": ZooKeeperServer, "etcd34": lambda: EtcdServer("3.4"), "etcd35": lambda: EtcdServer("3.5")}


def now():
    return time.clock_gettime(time.CLOCK_MONOTONIC)


# One contender per process: yields functions that acquire and release its kind of lock.


def ours(url, name):
    store = latchwork.connect(url, session_ttl_s=TTL_S)
    lock = Lock(store, name)
    return lock.acquire, lock.release, store.close


def latch(url, name):
    store = latchwork.connect(url, session_ttl_s=TTL_S)
    candidate = LeaderLatch(store, name, node_id=str(os.getpid()))

    def take():
        candidate.start()
        candidate.wait()

    def close():
        candidate.close()
        store.close()

    return take, candidate.leave, close


def kazoo(url, name):
    from kazoo.client import KazooClient

    client = KazooClient(hosts=url.partition("://")[2].partition("/")[0], timeout=TTL_S)
    client.start()
    lock = client.Lock(f"/kazoo/{name}")

    def close():
        client.stop()
        client.close()

    return lock.acquire, lock.release, close


def etcd3(url, name):
    library = import_etcd3()
    host, _, port = url.partition("://")[2].partition("/")[0].partition(":")
    client = library.client(host=host, port=int(port))
    lock = client.lock(name, ttl=int(TTL_S))
    return lambda: lock.acquire(timeout=None), lock.release, client.close


def contend(kind, url, name, seconds):
    """Acquire and release the lock repeatedly until the process must stop. Then print the time of each acquire
    and release.
    """
    take, give, close = globals()[kind](url, name)
    take()
    give()  # everything is connected and imported
    print("ready", flush=True)
    sys.stdin.readline()
    until = now() + float(seconds)
    turns = []
    while now() < until:
        take()
        had = now()
        time.sleep(HOLD_S)
        turns.append((had, now()))
        give()
    print(json.dumps(turns), flush=True)
    close()


def hand_overs(kind, url, contenders, seconds):
    """Return the seconds of each hand-over from one process to another."""
    name = uuid.uuid4().hex
    command = [sys.executable, __file__, "--contend", kind, url, name, str(seconds)]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(contenders)
    ]
    try:
        for process in processes:
            assert process.stdout.readline().strip() == "ready"
        for process in processes:
            process.stdin.write("go\n")
            process.stdin.flush()
        turns = sorted(
            (had, given, at)
            for at, process in enumerate(processes)
            for had, given in json.loads(process.stdout.readline())
        )
        for process in processes:
            process.wait(30)
    finally:
        for process in processes:
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()
    steady = turns[contenders : -contenders or None]
    return [after[0] - before[1] for before, after in pairwise(steady) if before[2] != after[2]]


def quantile(values, part):
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]


def compare(server, url, contenders, rounds, seconds):
    figures = {kind: [] for kind in PEERS[server]}
    for _ in range(rounds):
        for kind in figures:
            figures[kind] += hand_overs(kind, url, contenders, seconds)
    rows = {}
    for kind, values in figures.items():
        rows[kind] = {"p50_ms": quantile(values, 0.5) * 1e3, "p99_ms": quantile(values, 0.99) * 1e3, "n": len(values)}
    peer = rows[PEERS[server][2]]
    for kind, row in rows.items():
        row["p50_of_peer"] = row["p50_ms"] / peer["p50_ms"]
        row["p99_of_peer"] = row["p99_ms"] / peer["p99_ms"]
        row["p50_of_lock"] = row["p50_ms"] / rows["ours"]["p50_ms"]
        print(
            f"{server:10} {contenders:3} contenders  {kind:6} p50 {row['p50_ms']:7.2f} ms  p99 {row['p99_ms']:7.2f} ms"
            f"  of {PEERS[server][2]}: {row['p50_of_peer']:.2f} {row['p99_of_peer']:.2f}"
            f"  of our lock: {row['p50_of_lock']:.2f}  ({row['n']} hand-overs)",
            flush=True,
        )
    return rows


# After kill -9.


def lead(url, name):
    store = latchwork.connect(url, session_ttl_s=KILL_TTL_S)
    LeaderLatch(store, name, node_id="victim").start()
    sys.stdin.readline()


def see_gone_raw(server, url, name):
    """Return an event that is set, with the time, when a raw client's watch reports that the only ticket is gone."""
    address, _, root = url.partition("://")[2].partition("/")
    seen = threading.Event()
    if server == "zookeeper":
        from kazoo.client import KazooClient

        client = KazooClient(hosts=address)
        client.start()
        path = f"/{root}/{name}"
        ticket = min(child for child in client.get_children(path) if child.startswith("t"))
        client.exists(f"{path}/{ticket}", lambda _event: (setattr(seen, "at", now()), seen.set()))
        return seen, lambda: (client.stop(), client.close())
    library = import_etcd3()
    host, _, port = address.partition(":")
    client = library.client(host=host, port=int(port))

    def look(response):
        for event in response.events:
            if isinstance(event, library.events.DeleteEvent):
                seen.at = now()
                seen.set()

    client.add_watch_prefix_callback(f"/{root}/{name}/t", look)
    return seen, client.close


def after_kill(server, url, rounds):
    ratios = []
    for _ in range(rounds):
        name = uuid.uuid4().hex
        command = [sys.executable, __file__, "--lead", url, name]
        victim = subprocess.Popen(command, stdin=subprocess.PIPE)
        with latchwork.connect(url, session_ttl_s=KILL_TTL_S) as store:
            try:
                onlooker = LeaderLatch(store, name, node_id="-")
                while onlooker.leader() is None:
                    time.sleep(0.05)
                with LeaderLatch(store, name, node_id="next") as following:
                    while following.state != "waiting":
                        time.sleep(0.01)
                    seen, close = see_gone_raw(server, url, name)
                    time.sleep(0.5)
                    victim.send_signal(signal.SIGKILL)
                    killed_at = now()
                    following.wait(60.0)
                    led_s = now() - killed_at
                    seen.wait(60.0)
                    raw_s = seen.at - killed_at
                    close()
            finally:
                victim.kill()
                victim.wait()
                victim.stdin.close()
        ratios.append(led_s / raw_s)
        print(
            f"{server:10} kill -9   next leads after {led_s:.3f} s, a raw client sees it after {raw_s:.3f} s",
            flush=True,
        )
    print(f"{server:10} kill -9   ratio: median {statistics.median(ratios):.3f}, worst {max(ratios):.3f}", flush=True)
    return ratios


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--servers", default="zookeeper,etcd34,etcd35")
    parser.add_argument("--contenders", default="2,10")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = {}
    for server in options.servers.split(","):
        with SERVERS[server]() as running:
            url = running.url("bench")
            for contenders in map(int, options.contenders.split(",")):
                results[f"{server}/{contenders}"] = compare(server, url, contenders, options.rounds, options.seconds)
            if options.kills:
                results[f"{server}/kill"] = after_kill(server, url, options.kills)
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--contend"]:
        contend(*sys.argv[2:])
    elif sys.argv[1:2] == ["--lead"]:
        lead(*sys.argv[2:])
    else:
        main()
