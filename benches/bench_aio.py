"""Measures the asyncio API of latchwork, next to the synchronous API and to raw clients called with
``asyncio.to_thread``.

    python benches/bench_aio.py [--waiters 10000] [--rounds 5] [--servers etcd35,zookeeper]
        [--only lock,puts,waiters,peers] [--peers 200]

- waiters: coroutines of one process, each of which waits for a lock that another process holds. Measures threads and
additional memory of the process, the seconds until all wait, and the seconds from the release of all locks until each
coroutine has had its lock.
- peers: the same with locks of the raw client (kazoo, etcd3), where each waiter is a thread.
- puts: puts per second with ``asyncio.gather`` of ``store.put``, with ``aio.Pipeline``, and with the raw client in
``asyncio.to_thread``, in relation to ``Pipeline``. "cpu" is the same ratio for the processor time of this process.
- lock: an uncontended acquire and release in relation to the synchronous API, and that of the raw client in
``asyncio.to_thread``.

Both sides run in turn in the same thread. The main thread receives interrupts, so its calls to etcd run in another
thread (docs/design/steps.md). The synchronous side is therefore also measured in another thread. Prints figures without
goals.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import resource
import statistics
import subprocess
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import latchwork
from latchwork import aio
from latchwork.primitives import Lock
from latchwork_testkit import servers
from latchwork_testkit.etcd_rpc import import_etcd3

_PAGE = resource.getpagesize()


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * _PAGE / 1e6


def hold(url, count):
    """Hold this number of locks until a line arrives on standard input. Runs in a separate process."""

    async def all_of_them():
        async with aio.connect(url, session_ttl_s=30) as store:
            locks = [aio.Lock(store, f"locks/{number}") for number in range(count)]
            for first in range(0, count, 500):
                await asyncio.gather(*(lock.acquire() for lock in locks[first : first + 500]))
            print("held", flush=True)
            await asyncio.to_thread(sys.stdin.readline)
            for first in range(0, count, 500):
                await asyncio.gather(*(lock.release() for lock in locks[first : first + 500]))
            print("released", flush=True)

    asyncio.run(all_of_them())


async def waiters(url, count):
    holder = subprocess.Popen(
        [sys.executable, __file__, "--hold", str(count), url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        await asyncio.to_thread(holder.stdout.readline)
        async with aio.connect(url, session_ttl_s=30) as store:
            await store.session
            await asyncio.sleep(1.0)
            idle_mb, idle_threads = resident_mb(), threading.active_count()
            began = time.perf_counter()
            had = []

            async def wait(number):
                async with aio.Lock(store, f"locks/{number}"):
                    had.append(number)

            tasks = [asyncio.create_task(wait(number)) for number in range(count)]
            while len(await store.children("locks/0")) < 2 or len(await store.children(f"locks/{count - 1}")) < 2:
                await asyncio.sleep(0.1)
            all_wait_s = time.perf_counter() - began
            await asyncio.sleep(2.0)
            more_mb, threads = resident_mb() - idle_mb, threading.active_count()
            began = time.perf_counter()
            holder.stdin.write("\n")
            holder.stdin.flush()
            await asyncio.gather(*tasks)
            print(
                f"  {count} waiters: {threads} threads ({idle_threads} idle), {more_mb:.0f} MB more, all wait after "
                f"{all_wait_s:.1f} s, {len(had)} had it {time.perf_counter() - began:.1f} s after the release began",
                flush=True,
            )
    finally:
        holder.kill()
        holder.wait()


async def peers(peer, count):
    """Measure waiting for this number of locks of the raw client, with a thread for each."""
    names = [f"peer-{uuid.uuid4().hex[:8]}-{number}" for number in range(count)]
    await asyncio.to_thread(peer.hold, names)
    idle_mb, idle_threads = resident_mb(), threading.active_count()
    loop, had = asyncio.get_running_loop(), []
    with ThreadPoolExecutor(count) as pool:
        waits = [loop.run_in_executor(pool, peer.wait_for, name, had.append) for name in names]
        await asyncio.sleep(5.0)
        more_mb, threads = resident_mb() - idle_mb, threading.active_count()
        began = time.perf_counter()
        await asyncio.to_thread(peer.release)
        await asyncio.gather(*waits)
    print(
        f"  {count} waiters of {peer.name}, a thread each: {threads} threads ({idle_threads} idle), {more_mb:.0f} MB "
        f"more, {len(had)} had it {time.perf_counter() - began:.1f} s after the release began",
        flush=True,
    )


class Clock:
    """A context manager that measures the time and the processor time of its block, in seconds."""

    def __enter__(self):
        self._began = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_):
        now = time.perf_counter(), time.process_time()
        self.took = tuple(end - begin for end, begin in zip(now, self._began, strict=True))

    def per(self, count):
        return [each / count for each in self.took]


def format_ratios(pairs):
    """Return the median ratios of time and processor time as text, followed by the ratios of time of all rounds."""
    wall, cpu = ([pair[at] for pair in pairs] for at in (0, 1))
    return (
        f"{statistics.median(wall):.2f} (cpu {statistics.median(cpu):.2f}; {' '.join(f'{each:.2f}' for each in wall)})"
    )


def ratio(over, under):
    return [one / other for one, other in zip(over, under, strict=True)]


async def puts(url, rounds, peer, count=5000, of_peer=1000):
    """Measure puts per second in relation to ``Pipeline``."""
    theirs = f"{peer.name} in to_thread"
    parts = {"gather": [], "aio.Pipeline": [], "Pipeline in another thread": [], theirs: []}
    rates = []
    async with aio.connect(url) as store:
        for _ in range(rounds):
            base = sync_puts(url, count)
            rates.append(1 / base[0])
            with Clock() as clock:
                await asyncio.gather(*(store.put(f"p/{number % 100}/{number}", b"x" * 100) for number in range(count)))
            parts["gather"].append(ratio(base, clock.per(count)))
            with Clock() as clock:
                async with store.pipeline() as pipe:
                    for number in range(count):
                        pipe.put(f"p/{number % 100}/{number}", b"x" * 100)
            parts["aio.Pipeline"].append(ratio(base, clock.per(count)))
            parts["Pipeline in another thread"].append(ratio(base, await asyncio.to_thread(sync_puts, url, count)))
            await asyncio.to_thread(peer.put, "warm", b"")
            with Clock() as clock:
                await asyncio.gather(*(asyncio.to_thread(peer.put, "warm", b"x" * 100) for _ in range(of_peer)))
            parts[theirs].append(ratio(base, clock.per(of_peer)))
    print(f"  puts: Pipeline {statistics.median(rates):,.0f} per second; parts of that:")
    for name, pairs in parts.items():
        print(f"    {name} {format_ratios(pairs)}", flush=True)


def sync_puts(url, count):
    with latchwork.connect(url) as store, Clock() as clock, store.pipeline() as pipe:
        for number in range(count):
            pipe.put(f"p/{number % 100}/{number}", b"x" * 100)
    return clock.per(count)


async def lock(url, rounds, peer, uses=300):
    ours, apart, theirs, took = [], [], [], []
    async with aio.connect(url) as store:
        mine = aio.Lock(store, f"lock-{uuid.uuid4().hex}")
        async with mine:
            pass
        for _ in range(rounds):
            base = sync_lock(url, uses)
            with Clock() as clock:
                for _ in range(uses):
                    async with mine:
                        pass
            took.append(clock.per(uses)[0])
            ours.append(ratio(clock.per(uses), base))
            apart.append(ratio(await asyncio.to_thread(sync_lock, url, uses), base))
            raw = peer.lock(uuid.uuid4().hex)
            with Clock() as other:
                for _ in range(uses):
                    await asyncio.to_thread(raw.acquire)
                    await asyncio.to_thread(raw.release)
            theirs.append(ratio(other.per(uses), clock.per(uses)))
    print(f"  lock: {statistics.median(took) * 1e3:.2f} ms, {format_ratios(ours)} x the sync one", flush=True)
    print(f"    the sync one in another thread {format_ratios(apart)} x in the same", flush=True)
    print(f"    {peer.name} in to_thread {format_ratios(theirs)} x ours", flush=True)


def sync_lock(url, uses):
    with latchwork.connect(url) as store:
        mine = Lock(store, f"lock-{uuid.uuid4().hex}")
        with mine:
            pass
        with Clock() as clock:
            for _ in range(uses):
                with mine:
                    pass
    return clock.per(uses)


class Kazoo:
    """The client kazoo, with its lock recipe."""

    name = "kazoo"

    def __init__(self, endpoint):
        from kazoo.client import KazooClient

        self._clients = [KazooClient(endpoint, timeout=60) for _ in range(2)]
        for client in self._clients:
            client.start()
        self._client, self._other = self._clients
        self._held = []

    def lock(self, name):
        return self._client.Lock(f"/peers/{name}")

    def put(self, name, value):
        self._client.ensure_path(f"/peers/{name}") if not value else self._client.set(f"/peers/{name}", value)

    def hold(self, names):
        self._held = [self._other.Lock(f"/peers/{name}") for name in names]
        for held in self._held:
            held.acquire()

    def release(self):
        for held in self._held:
            held.release()

    def wait_for(self, name, notify):
        with self.lock(name):
            notify(name)

    def close(self):
        for client in self._clients:
            client.stop()
            client.close()


class Etcd3(Kazoo):
    """The client python-etcd3, with its lock."""

    name = "etcd3"

    def __init__(self, endpoint):
        etcd3 = import_etcd3()
        host, _, port = endpoint.rpartition(":")
        self._client, self._other = (etcd3.client(host, int(port)) for _ in range(2))
        self._held = []

    def lock(self, name):
        return self._client.lock(name, ttl=60)

    def put(self, name, value):
        self._client.put(name, value)

    def hold(self, names):
        self._held = [self._other.lock(name, ttl=600) for name in names]
        for held in self._held:
            held.acquire()

    def wait_for(self, name, notify):
        waiting = self.lock(name)
        waiting.acquire(timeout=None)
        notify(name)
        waiting.release()

    def close(self):
        self._client.close()
        self._other.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--waiters", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--servers", default="etcd35,zookeeper")
    parser.add_argument("--only", default="lock,puts,waiters,peers")
    parser.add_argument("--peers", type=int, default=200)
    parser.add_argument("--hold", type=int, help=argparse.SUPPRESS)
    parser.add_argument("url", nargs="?", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.hold:
        hold(chosen.url, chosen.hold)
        return
    for name in chosen.servers.split(","):
        with launch(name) as server, contextlib.closing(peer_of(name)(server.endpoint)) as peer:
            print(name, flush=True)
            for what in chosen.only.split(","):
                url = server.url(f"bench-{uuid.uuid4().hex}")
                play = {
                    "waiters": lambda url=url: waiters(url, chosen.waiters),
                    "peers": lambda peer=peer: peers(peer, chosen.peers),
                    "puts": lambda url=url, peer=peer: puts(url, chosen.rounds, peer),
                    "lock": lambda url=url, peer=peer: lock(url, chosen.rounds, peer),
                }[what]
                asyncio.run(play())


def peer_of(name):
    return Kazoo if name == "zookeeper" else Etcd3


def launch(name):
    return servers.ZooKeeperServer() if name == "zookeeper" else servers.EtcdServer()


if __name__ == "__main__":
    if os.environ.get("PYTHONUNBUFFERED") is None:
        sys.stdout.reconfigure(line_buffering=True)
    os.environ["LATCHWORK_ASYNC_WARN"] = "0"
    main()
