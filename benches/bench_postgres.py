"""Measures a store on PostgreSQL in comparison with raw psycopg, in one run on one server.

    python benches/bench_postgres.py             every row, each with synchronous_commit on and off
    python benches/bench_postgres.py --seconds 5 --only puts,locks

Both sides run in turn in short rounds. A row is the median of the ratios of neighboring rounds, so that the load of the
machine has little influence. "cpu" is the processor time of this process per call, on which a busy machine has the
least influence. For idle stores and sessions, the processor time of the server's processes is measured. There are no
goals.
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import statistics
import threading
import time
from contextlib import ExitStack
from importlib.util import find_spec

import psutil
import psycopg

import latchwork
from latchwork.primitives import Lock
from latchwork_testkit.servers import PostgresServer

VALUE = bytes(100)
KEYS = 500
PROCESSES = 8
WAITERS = 10
SESSIONS = 1_000
#: Processes of one session each; a process has three connections to the server.
PROCESSES_OF_ONE = 250
TTL_S = 10.0
FORK = mp.get_context("forkserver")


def address(server):
    return f"postgresql://latchwork@{server.endpoint}/postgres"


def raw(server, sync):
    return psycopg.connect(address(server), autocommit=True, options=f"-c synchronous_commit={sync}")


class RawCalls:
    """The SQL statements of the store's get and put, executed with a cursor of psycopg."""

    def __init__(self, connection, store):
        backend = store._core.backend
        self.cursor = connection.cursor(binary=True)
        self.root = backend._connector.root
        self.reads = backend._read_statements._get.sql.decode()
        self.writes = backend._writes._write.sql.decode()
        for at in range(14, 0, -1):
            self.writes = self.writes.replace(f"${at}", "%s")
        self.reads = self.reads.replace("$1", "%(root)s").replace("$2", "%(key)s")
        connection.execute("select latchwork.supersede(%s, 0, 7, 0, '{}')", (self.root,))

    def get(self, key):
        return self.cursor.execute(self.reads, {"root": self.root, "key": key}, prepare=True).fetchone()

    def put(self, key):
        params = (
            self.root,
            7,
            "{1}",
            "{0}",
            "",
            "{}",
            "{}",
            "{1}",
            "p",
            f'{{"{key}"}}',
            "{NULL}",
            "{NULL}",
            "{100}",
            VALUE,
        )
        return self.cursor.execute(self.writes, params, prepare=True).fetchall()


def cpu_us(call, count=500):
    """Return the processor time of this process per call, in microseconds."""
    began = time.process_time()
    for number in range(count):
        call(f"k{number % KEYS}")
    return (time.process_time() - began) / count * 1e6


def rate(call, seconds):
    count, until = 0, time.perf_counter() + seconds
    while time.perf_counter() < until:
        call(f"k{count % KEYS}")
        count += 1
    return count / seconds


def calls(server, sync, seconds):
    """Compare get and put with the same SQL statements."""
    with latchwork.connect(server.url("calls", synchronous_commit=sync)) as store, raw(server, sync) as connection:
        theirs = RawCalls(connection, store)
        for key in range(KEYS):
            store.put(f"k{key}", VALUE)
        for name, ours, other in (
            ("get", store.get, theirs.get),
            ("put", lambda key: store.put(key, VALUE), theirs.put),
        ):
            pairs = [(rate(ours, 0.2), rate(other, 0.2)) for _ in range(max(5, int(seconds / 0.4)))]
            best = max(one for one, _ in pairs), max(two for _, two in pairs)
            ratio = statistics.median(one / two for one, two in pairs)
            print(
                f"{name}, sync {sync}: {ratio:.2f} of raw (best rounds {best[0]:,.0f}/s and {best[1]:,.0f}/s)",
                flush=True,
            )


def put_many(url, number, seconds, barrier, counts):
    with latchwork.connect(url) as store, store.pipeline(max_in_flight=64) as pipeline:
        store.put(f"p{number}/warm", VALUE)
        barrier.wait()
        count, until = 0, time.perf_counter() + seconds
        if seconds < 0:
            return
        while time.perf_counter() < until:
            pipeline.put(f"p{number}/k{count % KEYS}", VALUE)
            count += 1
        pipeline.flush()
        counts.put(count)


def put_one_by_one(url, number, seconds, barrier, counts):
    with latchwork.connect(url) as store:
        store.put(f"p{number}/warm", VALUE)
        barrier.wait()
        counts.put(rate(lambda key: store.put(f"p{number}/{key}", VALUE), seconds) * seconds)


def insert(url, _number, seconds, barrier, counts):
    dsn, sync = url
    with psycopg.connect(dsn, autocommit=True, options=f"-c synchronous_commit={sync}") as connection:
        cursor = connection.cursor(binary=True)
        barrier.wait()
        sql = "insert into bench values (%s, %s)"
        counts.put(rate(lambda key: cursor.execute(sql, (key, VALUE), prepare=True), seconds) * seconds)


def in_processes(work, url, seconds):
    barrier, counts = FORK.Barrier(PROCESSES), FORK.Queue()
    workers = [FORK.Process(target=work, args=(url, n, seconds, barrier, counts)) for n in range(PROCESSES)]
    for worker in workers:
        worker.start()
    total = sum(counts.get(timeout=120) for _ in workers)
    for worker in workers:
        worker.join()
    return total / seconds


def puts(server, sync, seconds):
    """Compare puts of eight processes on one root with inserts of eight processes into one table."""
    with raw(server, sync) as connection:
        connection.execute("create table if not exists bench (k text, v bytea)")
    url, base = server.url("puts", synchronous_commit=sync), (address(server), sync)
    for _ in range(2):
        theirs = in_processes(insert, base, seconds)
        one = in_processes(put_one_by_one, url, seconds)
        many = in_processes(put_many, url, seconds)
        print(
            f"puts of {PROCESSES} processes, sync {sync}: one by one {one:,.0f}/s ({one / theirs:.2f} of raw inserts), "
            f"64 in flight {many:,.0f}/s ({many / theirs:.2f}); raw {theirs:,.0f}/s",
            flush=True,
        )


def callbacks(server, sync, seconds):
    """Measure the time from a put to the callback in another store."""
    url, took, told = server.url("told", synchronous_commit=sync), [], threading.Event()
    with latchwork.connect(url) as store, latchwork.connect(url) as other, other.watch("k") as watch:
        watch.subscribe(lambda _: (took.append(time.perf_counter()), told.set()))
        store.put("k", VALUE)
        told.wait(5)
        delays, until = [], time.perf_counter() + seconds
        while time.perf_counter() < until:
            time.sleep(0.02)
            told.clear()
            began = time.perf_counter()
            store.put("k", VALUE)
            told.wait(5)
            delays.append((took[-1] - began) * 1000)
    print(f"put to callback, sync {sync}: p50 {spread(delays)}", flush=True)


def spread(times):
    ordered = sorted(times)
    return f"{ordered[len(ordered) // 2]:.1f} ms, p99 {ordered[int(len(ordered) * 0.99)]:.1f} ms ({len(ordered)} times)"


def hand_over(make, seconds):
    """Let ten threads take a lock in turn. Return the seconds from each release to the next acquire."""
    delays, released, ends = [], [0.0], time.perf_counter() + seconds

    def turns(number):
        with make(number) as (take, give):
            while time.perf_counter() < ends:
                take()
                if released[0]:
                    delays.append((time.perf_counter() - released[0]) * 1000)
                time.sleep(0.002)
                released[0] = time.perf_counter()
                give()

    threads = [threading.Thread(target=turns, args=(number,)) for number in range(WAITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return delays[WAITERS:]


class OurLock:
    def __init__(self, url):
        self.store = latchwork.connect(url)

    def __enter__(self):
        lock = Lock(self.store, "turns")
        return lock.acquire, lock.release

    def __exit__(self, *_):
        self.store.close()


class AdvisoryLock:
    def __init__(self, server):
        self.connection = psycopg.connect(address(server), autocommit=True)

    def __enter__(self):
        run = self.connection.execute
        return lambda: run("select pg_advisory_lock(5)"), lambda: run("select pg_advisory_unlock(5)")

    def __exit__(self, *_):
        self.connection.close()


class ToozLock:
    def __init__(self, server, number):
        from tooz import coordination

        url = f"postgresql://latchwork@{server.endpoint}/postgres"
        self.coordinator = coordination.get_coordinator(url, b"n%d" % number)
        self.coordinator.start()

    def __enter__(self):
        lock = self.coordinator.get_lock(b"turns")
        return lock.acquire, lock.release

    def __exit__(self, *_):
        self.coordinator.stop()


def locks(server, sync, seconds):
    """Measure the hand-over of a lock with ten waiters, each with its own store."""
    url = server.url("locks", synchronous_commit=sync)
    print(
        f"lock hand-over, {WAITERS} waiters, sync {sync}: p50 {spread(hand_over(lambda _: OurLock(url), seconds))}",
        flush=True,
    )
    if sync == "on":
        print(f"  raw pg_advisory_lock: p50 {spread(hand_over(lambda _: AdvisoryLock(server), seconds))}", flush=True)
        if find_spec("tooz") and find_spec("psycopg2"):
            print(f"  tooz: p50 {spread(hand_over(lambda number: ToozLock(server, number), seconds))}", flush=True)


def hold_sessions(url, stores, sessions, ready, stop):
    """Keep this number of stores open, each with this number of sessions."""
    with ExitStack() as stack:
        for _ in range(stores):
            store = stack.enter_context(latchwork.connect(url, connect_timeout_s=60, call_timeout_s=60))
            for _ in range(sessions):
                store.open_session(TTL_S)
        ready.put(1)
        stop.wait()


def cpu_share(server, seconds):
    """Return the processor time of the server's processes as a fraction of one core."""

    def used():
        total = 0.0
        for process in [psutil.Process(server.pid), *psutil.Process(server.pid).children()]:
            times = process.cpu_times()
            total += times.user + times.system
        return total

    before = used()
    time.sleep(seconds)
    return (used() - before) / seconds


def idle(server, sync, seconds):
    """Measure stores without sessions, a thousand sessions in ten processes, and processes with one session each."""
    if sync == "off":
        return
    for number, (processes, stores, sessions) in enumerate(
        ((0, 0, 0), (10, 10, 0), (10, 1, SESSIONS // 10), (PROCESSES_OF_ONE, 1, 1))
    ):
        url, ready, stop = server.url(f"idle-{number}"), FORK.Queue(), FORK.Event()
        arguments = (url, stores, sessions, ready, stop)
        holders = [FORK.Process(target=hold_sessions, args=arguments) for _ in range(processes)]
        for holder in holders:
            holder.start()
        for _ in holders:
            ready.get(timeout=300)
        time.sleep(TTL_S / 2)
        share = cpu_share(server, max(seconds, 3 * TTL_S))
        stop.set()
        for holder in holders:
            holder.join()
        print(
            f"idle, TTL {TTL_S:g} s, {processes} processes with {stores} stores of {sessions} sessions: "
            f"{100 * share:.2f} % of one core of the server",
            flush=True,
        )


ROWS = {row.__name__: row for row in (calls, puts, callbacks, locks, idle)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", help=f"some of {', '.join(ROWS)}, joined by commas")
    options = parser.parse_args()
    FORK.set_forkserver_preload(["latchwork", "latchwork.backends.postgres.backend"])
    with PostgresServer(settings={"max_connections": str(3 * PROCESSES_OF_ONE + 100)}) as server:
        for name in options.only.split(",") if options.only else ROWS:
            for _ in range(options.rounds):
                for sync in ("on", "off"):
                    ROWS[name](server, sync, options.seconds)


if __name__ == "__main__":
    main()
