"""latchwork's side of the store benchmark, and the base class that the raw clients share with it.

A side does one operation at a time, or starts operations and waits for them later. Operations are numbered: ``get(n)``
reads key n of ``KEYS``, ``create(n)`` creates a new key, ``delete(n)`` deletes an existing one, and ``txn(n)`` checks
two keys and writes both, as the ``txn(n)`` before has left them.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from latchwork import At, Put

KEYS = 500
VALUE = bytes(100)
IN_FLIGHT = 1000
OPERATIONS = ("get", "stale", "put", "create", "delete", "txn")
CHILDREN = 10_000


class Cost(NamedTuple):
    """The cost of a round: the time, and the processor time of this process without the server."""

    seconds: float
    cpu_s: float


class Stopwatch:
    """Measures the time and the processor time since it was created."""

    def __init__(self):
        self._cpu, self._wall = time.process_time(), time.perf_counter()

    def cost(self):
        return Cost(time.perf_counter() - self._wall, time.process_time() - self._cpu)


class Side:
    """A client. ``do`` has a function for each operation. ``start`` has functions that return a value for ``wait``."""

    name = ""

    def __init__(self):
        self.do = {}
        self.start = {}
        self.at = {}

    def wait(self, started):
        return started.result()

    def prepare(self, operation, count):
        """Create what this many operations need. Not timed."""
        first = self.at.setdefault(operation, 0)
        if operation.startswith("delete"):
            self.fill(f"gone{n}" for n in range(first, first + count))

    def one_by_one(self, operation, count):
        """Return the cost of this many operations, one after another."""
        first, do = self._numbers(operation, count), self.do[operation]
        watch = Stopwatch()
        for n in range(first, first + count):
            do(n)
        return watch.cost()

    def in_flight(self, operation, count):
        """Return the cost of this many operations, all started at once."""
        first, start, wait = self._numbers(operation, count), self.start[operation], self.wait
        watch = Stopwatch()
        for outcome in [start(n) for n in range(first, first + count)]:
            wait(outcome)
        return watch.cost()

    def _numbers(self, operation, count):
        """Return the numbers of the next operations. Creations and deletions never use a number twice."""
        first = self.at.setdefault(operation, 0)
        if operation.startswith(("create", "delete")):
            self.at[operation] = first + count
        return first


class Ours(Side):
    """latchwork's store."""

    name = "latchwork"

    def __init__(self, store):
        super().__init__()
        self.store = store
        self.pipeline = store.pipeline(max_in_flight=IN_FLIGHT)
        self.entries = {}
        self.do = {
            "get": lambda n: store.get(f"k{n % KEYS}"),
            "stale": lambda n: store.get(f"k{n % KEYS}", stale_ok=True),
            "put": lambda n: store.put(f"k{n % KEYS}", VALUE),
            "create": lambda n: store.create(f"new{n}", VALUE),
            "delete": lambda n: store.delete(f"gone{n}"),
            "txn": self._txn,
        }
        pipeline = self.pipeline
        self.start = {
            "get": lambda n: pipeline.get(f"k{n % KEYS}"),
            "stale": lambda n: pipeline.get(f"k{n % KEYS}", stale_ok=True),
            "put": lambda n: pipeline.put(f"k{n % KEYS}", VALUE),
            "create": lambda n: pipeline.create(f"new{n}", VALUE),
            "delete": lambda n: pipeline.delete(f"gone{n}"),
            "txn": lambda n: pipeline.commit(*self._two(n)),
        }
        self.fill(f"k{n}" for n in range(KEYS))
        self.fill(f"t{n}{side}" for n in range(IN_FLIGHT) for side in "ab")

    def prepare(self, operation, count):
        super().prepare(operation, count)
        if operation == "txn":
            names = [f"t{n}{side}" for n in range(IN_FLIGHT) for side in "ab"]
            self.entries = dict(zip(names, self.store.get_many(names), strict=True))

    def fill(self, names):
        with self.store.pipeline() as pipeline:
            for name in names:
                pipeline.put(name, VALUE)

    def fill_folder(self):
        self.fill(f"folder/{n:05d}" for n in range(CHILDREN))

    def list_folder(self):
        """Return names, values and versions, as every side must."""
        return [(entry.key, entry.value, entry.token) for entry in self.store.list("folder")]

    def _two(self, n):
        n %= IN_FLIGHT
        entries = self.entries
        a, b = f"t{n}a", f"t{n}b"
        return [At(entries[a]), At(entries[b])], [Put(a, VALUE), Put(b, VALUE)]

    def _txn(self, n):
        done = self.store.commit(*self._two(n))
        for entry in done.entries:
            self.entries[entry.key] = entry
