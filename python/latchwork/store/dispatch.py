"""Threads for user callbacks, so that these never run in a thread of a client library.

A serial drain serves one listener: each signal runs its function in a thread pool, one run at a time, and signals
during a run cause only one more run. A callback queue makes every submitted call, such as a callback of a future, even
after the store is closed.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

from latchwork._base.execution_context import current_task_caller
from latchwork._base.interrupts import mutex
from latchwork._base.user_code import call_user
from latchwork.store.forks import ForkGuard
from latchwork.store.observers import call_each

_log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

#: Number of threads. Slow callbacks of more listeners than this delay the others.
POOL_SIZE = 16

_here = threading.local()


@contextmanager
def callback_scope() -> Iterator[None]:
    """Mark the current thread as running a user callback during a ``with`` block."""
    before = is_in_callback()
    _here.is_in_callback = True
    try:
        yield
    finally:
        _here.is_in_callback = before


def is_in_callback() -> bool:
    """Return whether the current thread is running a user callback. A long wait in it may cause a deadlock."""
    caller = current_task_caller()
    return getattr(_here, "is_in_callback", False) if caller is None else caller.acts_for is not None


class Dispatcher:
    """Pools of a limited number of callback threads. Thread-safe."""

    def __init__(self, name: str, size: int = POOL_SIZE) -> None:
        self._home = ForkGuard("callbacks")
        self._pool = ThreadPoolExecutor(max_workers=size, thread_name_prefix=f"latchwork-callbacks-{name}")
        self._futures = ThreadPoolExecutor(max_workers=size, thread_name_prefix=f"latchwork-futures-{name}")

    def create_serial_drain(self, drain: Callable[[], None], label: str) -> SerialDrain:
        """Create an object that calls ``drain`` in the thread pool after each signal, one call at a time.

        Args:
            drain: Processes everything that is waiting.
            label: Description of the listener for messages.
        """
        return SerialDrain(self._pool, drain, label)

    def create_callback_queue(self) -> CallbackQueue:
        """Return a queue that makes submitted calls in order.

        It still works after ``close``. After ``close_callback_queues`` it makes each call in the thread that submits
        it.
        """
        return CallbackQueue(self._futures, self._home)

    def submit(self, call: Callable[P, T], *args: P.args, **options: P.kwargs) -> Future[T]:
        """Call a function in the thread pool, and return a future of its result."""
        return self._futures.submit(call, *args, **options)

    def close(self) -> None:
        """Start no more functions of ``create_serial_drain``. A function that is running completes."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def close_callback_queues(self) -> None:
        """Make all submitted calls of the callback queues, and then stop their threads."""
        self._futures.shutdown(wait=False)


class CallbackQueue:
    """Makes submitted calls one at a time, in order, in a pool thread. Thread-safe.

    After the pool is closed, and in a forked child, the submitting thread makes the calls, because an event loop that
    awaits a future must always be called.
    """

    __slots__ = ("_calls", "_home", "_lock", "_pool", "_running")

    def __init__(self, pool: ThreadPoolExecutor, home: ForkGuard) -> None:
        self._pool = pool
        self._home = home
        self._lock = mutex()
        self._calls: deque[tuple[Callable[[Any], object], Any]] = deque()
        self._running = False

    def __call__(self, fn: Callable[[Any], object], value: Any) -> None:
        """Submit the call ``fn(value)``, which is made after all calls that were submitted earlier."""
        if self._home.is_foreign:
            self._call(fn, value)
            return
        with self._lock:
            self._calls.append((fn, value))
            if self._running:
                return
            self._running = True
        try:
            self._pool.submit(self._run)
        except RuntimeError:  # the pool was closed, with the store or with the process
            self._run()

    def _run(self) -> None:
        try:
            while self._has_more():
                self._call_next()
        except BaseException:  # an interrupt in a user thread: the next call makes the remaining calls
            with self._lock:
                self._running = False
            raise

    def _has_more(self) -> bool:
        with self._lock:
            self._running = bool(self._calls)
            return self._running

    def _call_next(self) -> None:
        self._call(*self._calls.popleft())

    @staticmethod
    def _call(fn: Callable[[Any], object], value: Any) -> None:
        try:
            with callback_scope():
                call_user(fn, value)
        except Exception:
            _log.exception("a callback of a future raised an exception; the other callbacks are still called")


class SerialDrain:
    """Calls the drain function of one listener in a thread pool. Thread-safe."""

    def __init__(self, pool: ThreadPoolExecutor, drain: Callable[[], None], label: str) -> None:
        self._pool = pool
        self._drain = drain
        self._label = label
        self._lock = mutex()
        self._queued = False
        self._running = False
        self._again = False
        self._closed = False

    def signal(self) -> None:
        """Make sure that the drain function is called at least once after now."""
        with self._lock:
            if self._closed or self._queued:
                return
            if self._running:
                self._again = True
                return
            self._queued = True
        self._submit()

    def close(self) -> None:
        """Do not start the drain function again. A call in progress completes."""
        with self._lock:
            self._closed = True

    def _submit(self) -> None:
        try:
            self._pool.submit(self._run)
        except RuntimeError:  # the pool was closed: there are no more listeners
            self.close()

    def _run(self) -> None:
        with self._lock:
            self._queued = False
            if self._closed:
                return
            self._running = True
        try:
            with callback_scope():
                self._drain()
        except BaseException:  # an interrupt of a listener must not stop the drain, since the thread is ours
            _log.exception(
                "a listener of %s raised an exception; it will be called again at the next change", self._label
            )
        with self._lock:
            self._running = False
            self._queued = self._again and not self._closed
            self._again = False
            queued = self._queued
        if queued:
            self._submit()


class CallbackThread:
    """A daemon thread that makes queued calls in order, and exists only while there are any. Thread-safe.

    Unlike a ``CallbackQueue``, it does not use the pool, all of whose threads may be occupied by slow callbacks.

    Args:
        name: Name of the thread.
        what: Description of the listeners in log messages, such as ``a state listener of session 7f3a``.
    """

    def __init__(self, name: str, what: str) -> None:
        self._name = name
        self._what = what
        self._lock = mutex()
        self._batches: deque[Sequence[Callable[[], None]]] = deque()
        self._running = False

    def add(self, calls: Sequence[Callable[[], None]]) -> None:
        """Append calls to the queue. This does not start the thread: call ``start`` afterwards."""
        if calls:
            with self._lock:
                self._batches.append(calls)

    def start(self) -> bool:
        """Start the thread if calls are queued and it is not running. The caller must not hold a mutex.

        Returns:
            False if no thread could be started. The calls are then made after the next ``start``, or by ``run``.
        """
        with self._lock:
            if self._running or not self._batches:
                return True
            self._running = True
        try:
            threading.Thread(target=self.run, name=self._name, daemon=True).start()
        except RuntimeError as error:  # no more threads are available, or the interpreter is exiting
            _log.warning("%s cannot be called in a thread: %s", self._what, error)
            with self._lock:
                self._running = False
            return False
        return True

    def run(self) -> None:
        """Make all queued calls in the current thread."""
        while True:
            with self._lock:
                self._running = bool(self._batches)
                if not self._batches:
                    return
                calls = self._batches.popleft()
            try:
                with callback_scope():
                    call_each(calls, _log, "%s raised", self._what)
            except BaseException:  # an exit that a listener raised must not silence later calls
                _log.exception("%s raised SystemExit or KeyboardInterrupt, which ends only this call", self._what)
