"""A minimal executor on ``baseline_stores``. Each role is a separate process.

    python benches/baseline_executor.py ROLE OPTIONS-JSON     prints lines of JSON

A task is one key ``q/<number>`` with its state, and its outcome is one key ``r/<number>``:

    submit    check s/<submitter>; write q/<n>                           up to 90 in one transaction
    claim     check q/<n>, s/<runner>, s/<submitter>; write q/<n>        up to 40
    end       the same checks; delete q/<n>, write r/<n>                 up to 40
    collect   delete r/<n> after the futures have their results          up to 90

A task takes three transactions in series. A runner whose session ends loses its claims. Another runner takes ``q/<n>``
as it was claimed, and checks that the session is gone. Claims are fenced, and an outcome is stored before its future
has it. Unlike latchwork's executor, it has no partitions, priorities, targets, retries, dead letters, cancellation,
checks of arguments, handling of lost answers, or large values. Several runners share the numbers evenly, so they never
contend.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from collections import Counter
from concurrent.futures import Future

from baseline_stores import connect, in_background
from executor_ours import WARM, answer, round_trips, used_s

SUBMIT, CLAIM, END = 90, 40, 40
IN_FLIGHT = 2
TTL_S = 10
FUNCTIONS = {"noop": lambda number: number}


class Pump:
    """Sends items in batches while fewer than a maximum number of transactions are in flight. A call of `put` sends at
    once if it can.
    """

    def __init__(self, send, most, store, in_flight=1):
        self.send, self.most, self.left = send, most, in_flight
        self.lock, self.waiting = threading.Lock(), []
        self.event = threading.Event() if store.blocks else None
        if store.blocks:
            self.left = 1
            in_background(self._run)

    def put(self, items):
        with self.lock:
            self.waiting += items
        self._go() if self.event is None else self.event.set()

    def _run(self):
        while True:
            self.event.wait()
            self.event.clear()
            self._go()

    def _go(self):
        while True:
            with self.lock:
                if not self.waiting or not self.left:
                    return
                batch, self.waiting = self.waiting[: self.most], self.waiting[self.most :]
                self.left -= 1
            self.send(batch, self._done)

    def _done(self):
        with self.lock:
            self.left += 1
        if self.event is None:
            self._go()


class Submitter:
    """Stores tasks and completes their futures."""

    def __init__(self, kind, url):
        self.store = connect(kind, url)
        self.sid = self.store.open(TTL_S)
        self.number, self.futures, self.read = 0, {}, []
        self.tasks = Pump(self._submit, SUBMIT, self.store, IN_FLIGHT)
        self.results = Pump(self._collect, SUBMIT, self.store)
        self.store.follow("r/", self._ended)

    def submit(self, function, *arguments):
        future = Future()
        self.number += 1
        name = f"{self.number:08d}"
        self.futures[name] = future
        call = {"function": function, "submitter": self.sid, "arguments": arguments}
        self.tasks.put([(name, json.dumps(call).encode())])
        return future

    def _submit(self, batch, done):
        def landed(is_committed, _):
            if not is_committed:
                os._exit(1)  # the session of the submitter is gone
            done()

        self.store.txn([(f"s/{self.sid}", True)], [("q/" + name, value) for name, value in batch], landed)

    def _ended(self, changes):
        for key, value, _ in changes:
            if (future := self.futures.pop(key[2:], None)) is not None:
                future.set_result(json.loads(value))
                self.read.append(key)
        if len(self.read) >= SUBMIT:
            read, self.read = self.read, []
            self.results.put(read)

    def _collect(self, keys, done):
        self.store.txn([], [(key, None) for key in keys], lambda *_: done())


class Runner:
    """Claims and runs the tasks of its share of the numbers."""

    def __init__(self, kind, url, rank=0, of=1):
        self.store, self.rank, self.of = connect(kind, url), rank, of
        self.sid = self.store.open(TTL_S)
        self.ready = queue.SimpleQueue()
        self.claims = Pump(self._claim, CLAIM, self.store)
        self.ends = Pump(self._end, END, self.store)
        in_background(self._work)
        self.store.follow("q/", self._submitted)
        self.store.follow("s/", self._died, deletes=True)
        self._submitted(self.store.list("q/"))

    def _submitted(self, changes):
        found = [
            (key, value, version, None)
            for key, value, version in changes
            if value and value.startswith(b"{") and int(key[2:]) % self.of == self.rank
        ]
        if found:
            self.claims.put(found)

    def _died(self, changes):
        for session in [key for key, value, _ in changes if value is None]:
            claimed = f"C{session[2:]}|".encode()
            left = [each for each in self.store.list("q/") if each[1].startswith(claimed)]
            if left:
                self.claims.put([(key, value[len(claimed) :], version, session) for key, value, version in left])

    def _claim(self, batch, done):
        checks = {key: version for key, _, version, _ in batch} | {f"s/{self.sid}": True}
        checks |= {f"s/{json.loads(value)['submitter']}": True for _, value, _, _ in batch}
        checks |= {session: False for _, _, _, session in batch if session}

        def landed(is_committed, versions):
            if is_committed:
                for (key, value, _, _), version in zip(batch, versions, strict=True):
                    self.ready.put((key, value, version))
            elif len(batch) > 1:  # another runner has one of them
                for each in batch:
                    self._claim([each], lambda: None)
            done()

        mine = f"C{self.sid}|".encode()
        self.store.txn(list(checks.items()), [(key, mine + value) for key, value, _, _ in batch], landed)

    def _work(self):
        while True:
            key, value, version = self.ready.get()
            call = json.loads(value)
            outcome = FUNCTIONS[call["function"]](*call["arguments"])
            self.ends.put([(key, version, call["submitter"], json.dumps(outcome).encode())])

    def _end(self, batch, done):
        checks = {key: version for key, version, _, _ in batch} | {f"s/{self.sid}": True}
        checks |= {f"s/{submitter}": True for _, _, submitter, _ in batch}
        ops = [op for key, _, _, outcome in batch for op in ((key, None), ("r/" + key[2:], outcome))]

        def landed(is_committed, _):
            if not is_committed and len(batch) > 1:
                for each in batch:
                    self._end([each], lambda: None)
            done()

        self.store.txn(list(checks.items()), ops, landed)


def node(kind, url, rank, of):
    """Run tasks until standard input ends. For each line of input, print the transactions so far."""
    runner = Runner(kind, url, rank, of)
    answer(ready=True, ttl_s=TTL_S)
    for _ in sys.stdin:
        answer(**runner.store.counts)


def throughput(kind, url, count):
    """Measure the seconds from the first call to the last result, after a warm-up and the command to begin."""
    pool = Submitter(kind, url)
    for future in [pool.submit("noop", number) for number in range(WARM)]:
        future.result(60)
    answer(ready=True)
    sys.stdin.readline()
    before, used, begun = Counter(pool.store.counts), used_s(), time.perf_counter()
    found = [future.result(240) for future in [pool.submit("noop", number) for number in range(count)]]
    took = time.perf_counter() - begun
    if found != list(range(count)):
        raise SystemExit("results are missing, or in another order")
    answer(seconds=took, used_s=used_s() - used, **(pool.store.counts - before))


def latency(kind, url, count, pause_s=0.02):
    """Measure the seconds from a call to its result, one after another, with a pause before each."""
    pool = Submitter(kind, url)
    answer(**round_trips(lambda number: pool.submit("noop", number), count, pause_s))


if __name__ == "__main__":
    {"node": node, "throughput": throughput, "latency": latency}[sys.argv[1]](**json.loads(sys.argv[2]))
    sys.stdout.flush()
    os._exit(0)
