"""Creation of sequential keys. One transaction increments the counter and creates the key.

With two transactions, a lower number could appear after a higher one, so that a lock could have two owners. The counter
of a parent is outside the parent (``@q/<parent>``) and is kept when all keys are deleted. A store sends creations below
one parent one after the other, because they would conflict with each other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from concurrent.futures import Future
from dataclasses import dataclass

from latchwork._base.interrupts import mutex
from latchwork.backends.etcd import rpc_pb2 as pb
from latchwork.backends.etcd.connection import EtcdConnection
from latchwork.backends.etcd.layout import EtcdKeys
from latchwork.backends.etcd.writing import requests
from latchwork.backends.etcd.writing.compiler import TxnCompiler
from latchwork.backends.etcd.writing.txn import CounterMoved, Txn, counter_condition
from latchwork.backends.etcd.writing.writes import EtcdWriter
from latchwork.backends.futures import FutureGenerator, LightFuture, reject, resolve, run_generator
from latchwork.backends.key_syntax import append_number
from latchwork.errors import Conflict, LatchworkError, Unavailable
from latchwork.types import Create, Entry, HasId

#: Maximum number of cached counters. Counters of parents without waiting creations are dropped first.
_REMEMBERED = 1_000


@dataclass(slots=True)
class _PendingCreation:
    """A sequential key to create, and the future of its entry."""

    key: str
    value: bytes
    session: HasId | None
    deadline: float
    outcome: Future[Entry]


class _CreationQueue:
    """The creations that wait below one parent, with the last known revision (0 for none) and value of its counter."""

    def __init__(self) -> None:
        self.waiting: deque[_PendingCreation] = deque()
        self.busy = False
        self.counter: tuple[int, int] | None = None


class SequentialKeys:
    """Creates sequential keys, whose suffix is a growing number, for one store. Thread-safe."""

    def __init__(
        self,
        connection: EtcdConnection,
        keys: EtcdKeys,
        writer: EtcdWriter,
        compiler: TxnCompiler,
        ended: Collection[str],
    ) -> None:
        self._connection = connection
        self._keys = keys
        self._writer = writer
        self._compiler = compiler
        self._ended = ended
        self._lock = mutex()
        self._lines: dict[str, _CreationQueue] = {}

    def create(self, key: str, value: bytes, session: HasId | None) -> Future[Entry]:
        """Create a key with a numeric suffix. The suffix is greater than those of all keys that were created before
        below the same parent.

        Args:
            key: The key without the suffix.
            value: The value.
            session: The session to which the key is bound, or None.
        """
        deadline = self._connection.clock.now() + self._connection.call_timeout_s
        pending = _PendingCreation(key, value, session, deadline, LightFuture())
        parent = key.rpartition("/")[0]
        with self._lock:
            queue = self._lines.get(parent)
            if queue is None:
                if len(self._lines) >= _REMEMBERED:
                    self._lines = {name: each for name, each in self._lines.items() if each.busy}
                queue = self._lines[parent] = _CreationQueue()
            queue.waiting.append(pending)
            first, queue.busy = not queue.busy, True
        if first:
            run_generator(self._serve(parent, queue))
        return pending.outcome

    def _serve(self, parent: str, queue: _CreationQueue) -> FutureGenerator[None]:
        while (pending := self._next(queue)) is not None:
            try:
                entry = yield from self._create_one(parent, queue, pending)
            except Exception as error:  # passed to the caller
                reject(pending.outcome, error)
            else:
                resolve(pending.outcome, entry)

    def _next(self, queue: _CreationQueue) -> _PendingCreation | None:
        with self._lock:
            queue.busy = bool(queue.waiting)
            return queue.waiting.popleft() if queue.busy else None

    def _create_one(self, parent: str, queue: _CreationQueue, pending: _PendingCreation) -> FutureGenerator[Entry]:
        """Create one key. Retry with the newest number until a transaction succeeds. Return the entry.

        Args:
            parent: The parent of the key.
            queue: The queue of the parent.
            pending: The key to create.
        """
        while True:
            if self._connection.clock.now() >= pending.deadline:
                raise Unavailable(f"could not create {pending.key!r} with a number in time; try again")
            if queue.counter is None:
                queue.counter = yield from self._read_counter(parent, pending)
            revision, last = queue.counter
            txn = self._txn(parent, pending, revision, last + 1)
            queue.counter = None
            try:
                committed = yield self._writer.write(txn, _start_over, pending.deadline)
            except CounterMoved as moved:
                queue.counter = (moved.revision, moved.number)
            except _StartOver:
                continue
            except Conflict:
                queue.counter = (revision, last + 1)  # another program created such a key: skip its number
            else:
                queue.counter = (committed.token, last + 1)
                entry: Entry = committed.entries[0]
                return entry

    def _txn(self, parent: str, pending: _PendingCreation, revision: int, number: int) -> Txn:
        create = Create(append_number(pending.key, number), pending.value, pending.session)
        txn = self._compiler.compile_commit((), (create,), self._ended)
        counter = self._keys.counter_key(parent)
        txn.conditions.append(counter_condition(counter, revision))
        txn.ops.append(requests.put_operation(counter, b"%d" % number))
        decode = txn.decode
        txn.decode = lambda answers, at: decode(answers[:-1], at)
        txn.what = f"create {pending.key!r} with a number"
        return txn

    def _read_counter(self, parent: str, pending: _PendingCreation) -> FutureGenerator[tuple[int, int]]:
        request = pb.RangeRequest(key=self._keys.counter_key(parent))
        answer = yield from self._connection.call("Range", request, f"number keys in {parent!r}", pending.deadline)
        return (answer.kvs[0].mod_revision, int(answer.kvs[0].value)) if answer.kvs else (0, 0)


class _StartOver(LatchworkError):
    """A transaction was not applied and must be built again, because the counter may have changed."""


def _start_over() -> Txn:
    raise _StartOver
