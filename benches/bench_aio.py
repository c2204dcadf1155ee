"""What the twins for event loops cost, beside the sync ones, and beside kazoo called through ``asyncio.to_thread``.

    python benches/bench_aio.py [--waiters 10000] [--rounds 5] [--servers etcd35,zookeeper] [--only waiters,puts,lock]

- waiters: coroutines of one process, each of which waits for a lock that another process holds: threads and memory more
  than the idle process has; the seconds until all wait, and from the release of all until each has had its lock.
- puts: ``asyncio.gather`` of ``store.put`` and ``aio.Pipeline``, as parts of the puts per second of ``Pipeline``.
- lock: an uncontended acquire and release, as a multiple of the sync one; and kazoo's in ``asyncio.to_thread``.
- after each: the processor time of the longest call that the loop made, without the garbage collector's.

Both sides take turns in one run. Prints figures and judges none of them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import os
import resource
import statistics
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import latchwork
from latchwork import aio
from latchwork.primitives import Lock
from latchwork_testbed import servers

_PAGE = resource.getpagesize()


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * _PAGE / 1e6


@contextlib.contextmanager
def longest_turn(into):
    """Measure each call that the loop makes by the processor time of its thread."""
    run = asyncio.Handle._run  # noqa: SLF001 - what a loop calls

    collecting = [0.0, 0.0]  # the collector's time is nobody's step

    def collects(phase, _info):
        now = time.thread_time()
        if phase == "start":
            collecting[1] = now
        else:
            collecting[0] += now - collecting[1]

    gc.callbacks.append(collects)

    def measured(handle):
        began, collected = time.thread_time(), collecting[0]
        run(handle)
        took = time.thread_time() - began - (collecting[0] - collected)
        if took > into[0]:
            into[:] = [took, repr(handle)[:200]]

    asyncio.Handle._run = measured  # noqa: SLF001
    try:
        yield
    finally:
        asyncio.Handle._run = run  # noqa: SLF001
        gc.callbacks.remove(collects)


def hold(url, count):
    """In a process of its own: hold so many locks until a line comes in."""

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


async def puts(url, rounds, count=5000):
    """Puts per second, as parts of those of ``Pipeline``."""
    parts = {"gather": [], "aio.Pipeline": []}
    rates = []
    async with aio.connect(url) as store:
        for _ in range(rounds):
            base = count / await asyncio.to_thread(sync_puts, url, count)
            rates.append(base)
            began = time.perf_counter()
            await asyncio.gather(*(store.put(f"p/{number % 100}/{number}", b"x" * 100) for number in range(count)))
            parts["gather"].append(count / (time.perf_counter() - began) / base)
            began = time.perf_counter()
            async with store.pipeline() as pipe:
                for number in range(count):
                    pipe.put(f"p/{number % 100}/{number}", b"x" * 100)
            parts["aio.Pipeline"].append(count / (time.perf_counter() - began) / base)
    told = ", ".join(f"{name} {statistics.median(each):.2f}" for name, each in parts.items())
    print(f"  puts: Pipeline {statistics.median(rates):,.0f} per second; of that {told}", flush=True)


def sync_puts(url, count):
    with latchwork.connect(url) as store:
        began = time.perf_counter()
        with store.pipeline() as pipe:
            for number in range(count):
                pipe.put(f"p/{number % 100}/{number}", b"x" * 100)
        return time.perf_counter() - began


async def lock(url, rounds, server, uses=300):
    ratios, theirs, ours = [], [], []
    async with aio.connect(url) as store:
        mine = aio.Lock(store, f"lock-{uuid.uuid4().hex}")
        client = await asyncio.to_thread(kazoo_client, url) if server == "zookeeper" else None
        for _ in range(rounds):
            sync_s = await asyncio.to_thread(sync_lock, url, uses)
            began = time.perf_counter()
            for _ in range(uses):
                async with mine:
                    pass
            took = (time.perf_counter() - began) / uses
            ours.append(took)
            ratios.append(took / sync_s)
            if client is not None:
                kazoo = client.Lock(f"/{uuid.uuid4().hex}")
                began = time.perf_counter()
                for _ in range(uses):
                    await asyncio.to_thread(kazoo.acquire)
                    await asyncio.to_thread(kazoo.release)
                theirs.append((time.perf_counter() - began) / uses / took)
        if client is not None:
            await asyncio.to_thread(client.stop)
    kazoo_told = f"; kazoo in to_thread {statistics.median(theirs):.2f} x ours" if theirs else ""
    print(
        f"  lock: {statistics.median(ours) * 1e3:.2f} ms, {statistics.median(ratios):.2f} x the sync one{kazoo_told}",
        flush=True,
    )


def sync_lock(url, uses):
    with latchwork.connect(url) as store:
        mine = Lock(store, f"lock-{uuid.uuid4().hex}")
        with mine:
            pass
        began = time.perf_counter()
        for _ in range(uses):
            with mine:
                pass
        return (time.perf_counter() - began) / uses


def kazoo_client(url):
    from kazoo.client import KazooClient

    client = KazooClient(url.partition("://")[2].partition("/")[0])
    client.start()
    return client


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--waiters", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--servers", default="etcd35,zookeeper")
    parser.add_argument("--only", default="lock,puts,waiters")
    parser.add_argument("--hold", type=int, help=argparse.SUPPRESS)
    parser.add_argument("url", nargs="?", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.hold:
        hold(chosen.url, chosen.hold)
        return
    for name in chosen.servers.split(","):
        with launch(name) as server:
            turn = [0.0, ""]
            print(name, flush=True)
            with longest_turn(turn):
                for what in chosen.only.split(","):
                    url = server.url(f"bench-{uuid.uuid4().hex}")
                    play = {
                        "waiters": lambda url=url: waiters(url, chosen.waiters),
                        "puts": lambda url=url: puts(url, chosen.rounds),
                        "lock": lambda url=url, name=name: lock(url, chosen.rounds, name),
                    }[what]
                    asyncio.run(play())
                    print(f"    longest call of the loop: {turn[0] * 1e3:.1f} ms of processor time {turn[1]}")
                    turn[:] = [0.0, ""]


def launch(name):
    return servers.ZooKeeperServer() if name == "zookeeper" else servers.EtcdServer()


if __name__ == "__main__":
    if os.environ.get("PYTHONUNBUFFERED") is None:
        sys.stdout.reconfigure(line_buffering=True)
    main()
