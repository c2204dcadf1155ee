"""Calls of the main thread, made by threads of ours: for a client library that no interrupt may cut short.

Signal handlers run in the main thread, between two bytecodes of whatever it is doing, and what they raise is raised
there. gRPC's Python code takes its locks in functions that can be cut short (``threading.Condition``), and counts its
calls one bytecode after it has begun them: an interrupt there leaves a lock held, or a call that ``close`` waits for.
So the main thread makes only those calls that the other backend says bear it. It puts all others on a lane and waits
for the outcome; an interrupt ends the wait, and the call comes to its own end. A signal handler's call waits on a lane
too, behind no lock of its thread.

Other threads make their calls themselves, which saves the way to another thread and back. docs/design/0015 says what
that leaves open. Nothing here touches the network.
"""

from __future__ import annotations

import builtins
import copy
import logging
import sys
import threading
from _thread import LockType, allocate_lock, start_new_thread
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import ParamSpec, Protocol, TypeVar

from latchwork.backends.base import Backend, BackendSession, BackendWatch, Capability, Names, Sink
from latchwork.backends.futures import Outcome, chain, completed, failed, reject, then
from latchwork.errors import Unavailable
from latchwork.interrupts import Finally, mutex
from latchwork.types import Committed, Entry, HasId, Op, Ordered, SimpleCheck

_log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

#: For the threads to end once they are asked to.
_JOIN_S = 2.0
#: So much longer than a call may take: then whoever waits for it gives up as well (``store.answers``).
_HANDED_S = 2.0


class _Late(Outcome[T]):
    """Of a call that did not come back in time: whoever waits for it has waited long enough."""

    def _wait(self, timeout: float | None) -> None:  # noqa: ARG002
        raise TimeoutError


class Lane:
    """Threads that make calls for the main thread. Safe to share between threads.

    Args:
        name: of its threads.
        in_order: one thread makes the calls, which only begin something, in their order. Otherwise a call may take
            long, and one thread more than those that are busy waits for the next.
    """

    def __init__(self, name: str, *, in_order: bool) -> None:
        self._name = name
        self._in_order = in_order
        self._calls: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._mutex = mutex()
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self._is_open = False
        self._is_closed = False

    def takes(self) -> bool:
        """Whether this thread leaves its calls to others: it is the main one, and the lane is not closed."""
        is_main = threading.get_ident() == threading.main_thread().ident
        return is_main and not self._is_closed and not sys.is_finalizing()

    def call(self, fn: Callable[P, Future[T]], /, *args: P.args, **options: P.kwargs) -> Future[T]:
        """The future of a call, which is made in this thread unless it is the main one."""
        if not self.takes():
            return fn(*args, **options)
        outcome: Outcome[T] = Outcome()
        self.put(partial(fn, *args, **options), outcome)
        return outcome

    def handed(self, limit_s: float, fn: Callable[P, Future[T]], /, *args: P.args, **options: P.kwargs) -> Future[T]:
        """The future of a call, once the call was made: for who waits for it anyway, and need not be told twice.

        Another thread makes it, unless this is not the main one. A lock wakes each of the two, and nothing else is
        shared: a third of the processor time of ``call``.
        """
        if not self.takes():
            return fn(*args, **options)
        came = allocate_lock()
        came.acquire()
        answer: list[Future[T]] = []
        self._put(partial(_hand, partial(fn, *args, **options), answer, came))
        came.acquire(timeout=limit_s)
        return answer[0] if answer else _Late()

    def made(self, fn: Callable[[], T], limit_s: float | None, undo: Callable[[T], object] | None = None) -> T:
        """What a call returns that has no future, in time; undone if an interrupt ends the wait for it.

        Raises:
            Unavailable: the call has not returned in time.
        """
        if not self.takes():
            return fn()
        outcome: Outcome[T] = Outcome()
        kept: list[T] = []

        def undo_unless_kept() -> None:
            if not kept and undo is not None:
                outcome.call_at_once(lambda _: self.put(partial(_undone, outcome, undo), Outcome()))

        with Finally(undo_unless_kept):
            self.put(lambda: completed(fn()), outcome)
            try:
                kept.append(outcome.result(limit_s))
            except TimeoutError as error:
                if outcome.done():  # by now, or with such an error of its own
                    return outcome.result()
                raise Unavailable(f"no answer within {limit_s:.3g} s; try again") from error
        return kept[0]

    def put(self, call: Callable[[], Future[T]], outcome: Outcome[T]) -> None:
        """Have a call made soon, by another thread; the outcome ends as its future does."""
        self._put(partial(_make, call, outcome))

    def _put(self, call: Callable[[], object]) -> None:
        if not self._is_open:
            # Natively: an interrupt in ``Thread.start`` may leave a lock held that the new thread waits for.
            start_new_thread(self._add_thread, ())
            self._is_open = True
        self._calls.put(call)
        if self._is_closed:
            self._run_rest()

    def close(self, join_s: float) -> None:
        """Make what is left, and give the threads so long to end. Twice is fine."""
        self._is_closed = True
        self._calls.put(None)
        with self._mutex:
            threads = [*self._threads]
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(join_s)

    # Private: in threads that nothing interrupts.

    def _add_thread(self) -> None:
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        with self._mutex:
            if self._in_order and self._threads:
                return
            thread.start()  # inside: ``close`` joins no thread that is not started yet
            self._threads.add(thread)
            self._idle += 1

    def _run(self) -> None:
        while self._run_next():
            pass
        with self._mutex:
            self._threads.discard(threading.current_thread())

    def _run_next(self) -> bool:
        """Make the next call; False when this thread is needed no more."""
        call = self._calls.get()
        if call is None:
            self._calls.put(None)  # for the next thread
            return False
        if self._in_order:
            call()
            return True
        with self._mutex:
            self._idle -= 1
            is_last = self._idle == 0
        if is_last:
            self._add_thread()
        call()
        with self._mutex:
            stays = self._idle < 2  # one for the next call, one for a handler's in the midst of that
            self._idle += stays
        return stays

    def _run_rest(self) -> None:
        """Make what came behind the end of the lane: such calls are refused by a backend that is closed."""
        try:
            while True:
                call = self._calls.get_nowait()
                if call is not None:
                    call()
        except Empty:
            self._calls.put(None)


def _made_here(call: Callable[P, Future[T]], /, *args: P.args, **options: P.kwargs) -> Future[T]:
    return call(*args, **options)


def _make(call: Callable[[], Future[T]], outcome: Outcome[T]) -> None:
    try:
        future = call()
    except BaseException as error:
        reject(outcome, error)
        return
    chain(future, outcome)


def _hand(call: Callable[[], Future[T]], answer: list[Future[T]], came: LockType) -> None:
    try:
        answer.append(call())
    except BaseException as error:
        answer.append(failed(error))
    came.release()


def _undone(outcome: Outcome[T], undo: Callable[[T], object]) -> Future[None]:
    if outcome.exception() is None:
        undo(outcome.result())
    return completed(None)


class Interruptible(Backend, Protocol):
    """A backend whose ``waiting`` may bear interrupts.

    Attributes:
        bears_interrupts: reads and commits of ``waiting`` may be made in a thread that signal handlers interrupt.
    """

    @property
    def bears_interrupts(self) -> bool:
        """See above."""
        ...

    @property
    def waiting(self) -> Interruptible:
        """As ``Backend.waiting``."""
        ...


class OffloadedBackend(Backend):
    """A backend around another one, whose code no signal handler interrupts then, but where it bears that.

    Args:
        open_inner: opens the other one; called where the calls are made, too.
        name: of the threads.
        limit_s: how long a call of the other backend that only begins something, or its ``close``, may take.

    Attributes:
        inner: the other one.
    """

    def __init__(self, open_inner: Callable[[], Interruptible], name: str, limit_s: float) -> None:
        self._begins = Lane(f"{name}-begin", in_order=True)
        self._waits = Lane(f"{name}-call", in_order=False)
        self._call = self._quick = self._begins.call
        self._limit_s = limit_s
        try:
            self.inner = self._waits.made(open_inner, None, lambda opened: opened.close())
        except BaseException:
            self._end_lanes(0.0)
            raise

    @property
    def capabilities(self) -> Capability:
        """Of the other."""
        return self.inner.capabilities

    @property
    def waiting(self) -> Backend:
        """The same for callers that wait: a thread makes the call, and has the answer."""
        face = copy.copy(self)
        face.inner = self.inner.waiting
        handed = partial(self._waits.handed, self._limit_s + _HANDED_S)
        face._call = handed  # noqa: SLF001 - a copy of our own
        face._quick = _made_here if self.inner.bears_interrupts else handed  # noqa: SLF001
        return face

    def get(self, key: str, *, stale_ok: bool) -> Future[Entry | None]:
        """As the other's."""
        return self._quick(self.inner.get, key, stale_ok=stale_ok)

    def get_many(self, keys: Sequence[str], *, stale_ok: bool = False) -> Future[list[Entry | None]]:
        """As the other's."""
        return self._quick(self.inner.get_many, keys, stale_ok=stale_ok)

    def children(self, prefix: str, *, stale_ok: bool = False) -> Future[Names]:
        """As the other's."""
        return self._quick(self.inner.children, prefix, stale_ok=stale_ok)

    def commit(self, checks: Sequence[SimpleCheck], ops: Sequence[Op]) -> Future[Committed]:
        """As the other's."""
        return self._quick(self.inner.commit, checks, ops)

    def create_sequential(self, key: str, value: bytes, session: HasId | None) -> Future[Entry]:
        """As the other's."""
        return self._call(self.inner.create_sequential, key, value, session)

    def create_ordered(self, stem: str, unique: str, value: bytes, session: HasId | None) -> Future[Ordered]:
        """As the other's."""
        return self._quick(self.inner.create_ordered, stem, unique, value, session)

    def delete_tree(self, prefix: str) -> Future[int]:
        """As the other's."""
        return self._call(self.inner.delete_tree, prefix)

    def open_session(self, ttl_s: float, on_gone: Callable[[], None]) -> Future[BackendSession]:
        """As the other's."""

        def opened() -> Future[BackendSession]:
            return then(self.inner.open_session(ttl_s, on_gone), partial(_Session, lane=lane, limit_s=self._limit_s))

        lane = self._begins
        return lane.call(opened)

    def watch(
        self, prefix: str, sink: Sink, *, leaf: bool = False, beside: bool = False, beats: bool = True
    ) -> BackendWatch:
        """As the other's."""
        begin = partial(self.inner.watch, prefix, sink, leaf=leaf, beside=beside, beats=beats)
        return self._begins.made(begin, self._limit_s, lambda watch: watch.close())

    def list(
        self, prefix: str, *, recursive: bool, limit: int | None, start_after: str | None, stale_ok: bool = False
    ) -> Future[builtins.list[Entry]]:
        """As the other's."""
        return self._quick(
            self.inner.list, prefix, recursive=recursive, limit=limit, start_after=start_after, stale_ok=stale_ok
        )

    def close(self) -> None:
        """Close the other, and end the threads; what takes too long is left to itself. Twice is fine."""
        with Finally(partial(self._end_lanes, 0.0)):
            try:
                self._waits.made(self.inner.close, self._limit_s)
            except Unavailable:
                _log.warning("the connection did not close within %.3g s; its threads are left behind", self._limit_s)
        self._end_lanes(_JOIN_S)

    def _end_lanes(self, join_s: float) -> None:
        self._begins.close(join_s)
        self._waits.close(join_s)


class _Session:
    """A session of the other backend."""

    def __init__(self, inner: BackendSession, *, lane: Lane, limit_s: float) -> None:
        self.id = inner.id
        self.ttl_s = inner.ttl_s
        self.opened_at = inner.opened_at
        self.token = inner.token
        self.renew_every_s = inner.renew_every_s
        self.confirm_gap_s = inner.confirm_gap_s
        self._inner = inner
        self._lane = lane
        self._limit_s = limit_s

    def renew(self) -> Future[float]:
        """As the other's."""
        return self._lane.call(self._inner.renew)

    def close(self) -> Future[None]:
        """As the other's; when this returns it has begun, and the session is refused."""
        return self._lane.made(self._inner.close, self._limit_s)
