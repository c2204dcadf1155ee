"""Makes many calls of a store at the same time, with futures."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from latchwork._base.interrupts import condition, mutex, not_reentrant
from latchwork.backends.futures import CallbackQueue, with_callback_queue
from latchwork.store.calls import StoreCalls
from latchwork.store.forks import ForkGuard

P = ParamSpec("P")
T = TypeVar("T")

DEFAULT_MAX_IN_FLIGHT = 1000


def _as_pipeline_method(
    call: Callable[Concatenate[StoreCalls, P], Future[T]],
) -> Callable[Concatenate[Pipeline, P], Future[T]]:
    """Wrap a store call as a method of ``Pipeline`` that waits while the maximum number of calls is in flight."""
    name = call.__name__

    @wraps(call)
    @not_reentrant
    def send(self: Pipeline, /, *args: P.args, **options: P.kwargs) -> Future[T]:
        self._home.check()
        with self._lock:
            while self._count >= self._most:
                self._waiting += 1
                try:
                    self._fewer.wait()
                finally:
                    self._waiting -= 1
            self._count += 1
        try:
            future: Future[T] = getattr(self._calls, name)(*args, **options)
        except BaseException:
            self._leave(None)
            raise
        self._in_flight.add(future)  # without the lock: a single set operation is atomic, and costs half as much
        future.add_done_callback(self._leave)
        return with_callback_queue(future, self._callback_queue)

    send.__doc__ = f"See ``Store.{name}``."
    return send


class Pipeline:
    """The calls of a store, each of which returns a future immediately.

    A call blocks while ``max_in_flight`` calls are in flight.

    Calls in flight are unordered: wait for the future of a call before making a call that must follow it. As a context
    manager, the pipeline waits at the end until every call has ended. Errors stay in their futures. Thread-safe.

    Callbacks of its futures run one at a time, in the order in which the calls end, in a callback thread of the store,
    even for futures that are already done. They may call the store. A slow callback delays only the callbacks of this
    pipeline. Callbacks must not wait for locks and other primitives, which raise ``LatchworkError`` there, nor for
    other callbacks of this pipeline. After ``Store.close``, a callback may run in the thread that adds it. Not
    promised: that a callback has run when ``flush`` or ``result`` returns.

    The futures cannot be canceled: ``cancel`` always returns False.
    """

    def __init__(
        self,
        calls: StoreCalls,
        callback_queue: CallbackQueue,
        max_in_flight: int = DEFAULT_MAX_IN_FLIGHT,
        *,
        store: object = None,
    ) -> None:
        if max_in_flight < 1:
            raise ValueError(f"max_in_flight must be at least 1, not {max_in_flight}")
        self._calls = calls
        self._store = store  # keeps the store open while the pipeline is used
        self._callback_queue = callback_queue
        self._most = max_in_flight
        self._home = ForkGuard("this pipeline", remedy="connect again in the child")
        self._count = 0
        self._waiting = 0
        self._lock = mutex()
        self._fewer = condition(self._lock)
        self._in_flight: set[Future[Any]] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        if exc_type is not None and self._home.is_foreign:
            return  # in a child: do not hide the exception
        self.flush()

    def flush(self) -> None:
        """Wait until every call that was made earlier has ended.

        Raises:
            ForkedProcess: The calls were made by the parent of this process.
        """
        self._home.check()
        wait(list(self._in_flight))

    get = _as_pipeline_method(StoreCalls.get)
    get_many = _as_pipeline_method(StoreCalls.get_many)
    list = _as_pipeline_method(StoreCalls.list)
    children = _as_pipeline_method(StoreCalls.children)
    put = _as_pipeline_method(StoreCalls.put)
    create = _as_pipeline_method(StoreCalls.create)
    create_ordered_key = _as_pipeline_method(StoreCalls.create_ordered_key)
    delete = _as_pipeline_method(StoreCalls.delete)
    delete_tree = _as_pipeline_method(StoreCalls.delete_tree)
    commit = _as_pipeline_method(StoreCalls.commit)

    def _leave(self, future: Future[Any] | None) -> None:
        self._in_flight.discard(future)
        with self._lock:
            self._count -= 1
            if self._waiting:
                self._fewer.notify()
