"""The asyncio forms of the store, its sessions, mirrors and signals, and of the pipeline."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from concurrent.futures import Future
from functools import partial
from typing import Any, Self, TypeVar

from latchwork._base.event import Signal
from latchwork.aio.factory import as_current_task, run_and_wrap
from latchwork.aio.steps import ThreadStep, await_step
from latchwork.aio.wrapper import AsyncWrapper, unwrap, wrap_async
from latchwork.backends.futures import call_at_once
from latchwork.clock import SYSTEM_CLOCK, Clock
from latchwork.store import Session, Store
from latchwork.store.calls import StoreCalls
from latchwork.store.connect import connect_for
from latchwork.store.driving.background_loop import run_in_task
from latchwork.store.driving.loop import LoopMailbox, with_note
from latchwork.store.observe.calls import StoreObserver
from latchwork.store.owner import CodeLocation, find_caller_location
from latchwork.store.pipeline import DEFAULT_MAX_IN_FLIGHT
from latchwork.store.steps import Pause, StoreCall, cancelled_write_note

T = TypeVar("T")


def run_in_thread(call: Callable[[], T], undo: Callable[[T], object] | None = None) -> Coroutine[Any, Any, T]:
    """Make a blocking call in a separate thread, and return its result.

    Args:
        call: The call.
        undo: Called with the result if the awaiting task was canceled meanwhile.
    """
    return run_and_wrap(lambda: await_step(ThreadStep(call, undo)))


def _store_call(name: str) -> Callable[..., Awaitable[Any]]:
    async def call(self: AsyncWrapper, *args: Any, **options: Any) -> Any:
        store: Store = self._of
        if name == "commit":
            args = tuple(map(unwrap, args))
        if options:
            options = {name: unwrap(value) for name, value in options.items()}
        if store.time_left_s() is not None:  # the call ends when the ownership does
            return await run_in_task(lambda: await_step(StoreCall(getattr(store, name), *args, **options)))
        mailbox = LoopMailbox.for_running_loop()
        limit = mailbox.in_flight_limit(store.connection)
        if not limit.try_acquire():
            await limit.acquire()
        try:
            future = store.start_call(name, *args, **options)
            if not future.done():
                waiter = mailbox.future_with_timeout(future, store.remaining_timeout_s())
                try:
                    await waiter
                except asyncio.CancelledError as error:
                    future.cancel()
                    with_note(error, cancelled_write_note(name, args))
                    raise
                finally:
                    mailbox.cancel_timeout(waiter)
                if not future.done():
                    raise store.timeout_error(name, args)
            return future.result()
        finally:
            limit.release()

    call.__name__ = name
    call.__doc__ = getattr(Store, name).__doc__
    return call


class AsyncStore(AsyncWrapper):
    """The hand-written methods of the asyncio form of ``Store``. The others are generated."""

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the sessions, and then close the connection. Idempotent."""
        await run_in_thread(self._of.close)

    @property
    def session(self) -> Awaitable[Any]:
        """The default session. ``await store.session`` opens it on first use, and again after it was lost."""
        return self.primary_session()

    async def primary_session(self) -> Any:
        """Return the default session. It is opened on first use, and again after it was lost."""
        return wrap_async(await run_in_task(lambda: await_step(StoreCall(self._of.primary_session))))

    async def open_session(self, ttl_s: float) -> Any:
        """Open a separate session, whose keys are deleted when it ends. See ``latchwork.Store.open_session``."""
        return await run_in_thread(lambda: self._of.open_session(ttl_s), Session.close)

    async def reopen(self) -> Any:
        """Open a new store with the same options, in a forked child. See ``latchwork.Store.reopen``."""
        return await run_in_thread(partial(self._of.reopen_for, find_caller_location()), Store.close)

    async def mirror(self, prefix: str, *, wait: bool = True, values: bool = True) -> Any:
        """Return a local read-only copy of all keys at and below a prefix, which is kept up to date.

        The arguments are those of ``latchwork.Store.mirror``.
        """
        with as_current_task():
            mirror = self._of.mirror(prefix, wait=False, values=values)
        return await run_and_wrap(lambda: self._of.ready(mirror)) if wait else wrap_async(mirror)

    def pipeline(self, *, max_in_flight: int = DEFAULT_MAX_IN_FLIGHT) -> Pipeline:
        """Create a pipeline, whose calls return futures at once, so that many calls can be in flight.

        Args:
            max_in_flight: Maximum number of calls in flight. Further calls wait.
        """
        return Pipeline(self, max_in_flight)


for _name in vars(StoreCalls):
    if not _name.startswith("_"):
        setattr(AsyncStore, _name, _store_call(_name))


class AsyncSession(AsyncWrapper):
    """The hand-written methods of the asyncio form of ``Session``. The others are generated."""

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the session now. Its keys are deleted at once if the server is reachable. Idempotent."""
        await run_in_thread(self._of.close)


class AsyncMirror(AsyncWrapper):
    """The methods of the asyncio form of ``Mirror`` that make it a mapping."""

    def __getitem__(self, key: str) -> Any:
        return self._of[key]

    def __iter__(self) -> Any:
        return iter(self._of)

    def __len__(self) -> int:
        return len(self._of)

    def __contains__(self, key: object) -> bool:
        return key in self._of


class AsyncSignal(AsyncWrapper):
    """A signal that is set once and stays set."""

    def is_set(self) -> bool:
        """Return whether the signal is set."""
        return bool(self._of.is_set())

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the signal is set.

        Args:
            timeout_s: Seconds to wait. None waits forever.
        Returns:
            True once it is set, False after the timeout.
        """
        signal: Signal = self._of
        return await run_in_task(lambda: await_step(Pause(SYSTEM_CLOCK, signal, timeout_s)))


class Connecting:
    """A store that is being opened: ``async with connect(url) as store``, or ``store = await connect(url)``."""

    def __init__(self, url: str | None, created: CodeLocation, **options: Any) -> None:
        self._created = created
        self._url = url
        self._options = options
        self._store: Any = None

    def __await__(self) -> Generator[Any, None, Any]:
        return self._open().__await__()

    async def __aenter__(self) -> Any:
        self._store = await self._open()
        return self._store

    async def __aexit__(self, *_: object) -> None:
        await self._store.close()

    async def _open(self) -> Any:
        return await run_in_thread(partial(connect_for, self._created, self._url, **self._options), Store.close)


def connect_later(
    url: str | None = None,
    *,
    client: object = None,
    clock: Clock | None = None,
    observers: Iterable[StoreObserver] = (),
    **overrides: object,
) -> Connecting:
    """Create an object that opens a store when it is awaited or entered with ``async with``.

    The arguments and errors are those of ``latchwork.connect``.
    """
    return Connecting(url, find_caller_location(), client=client, clock=clock, observers=observers, **overrides)


class Pipeline:
    """The calls of a store, each of which returns an ``asyncio.Future`` at once. Only for one event loop.

    At most ``max_in_flight`` calls are in flight. Further ones wait and are sent in order. The server may apply calls
    in flight in any order, so await a call before making one that depends on it. As a context manager, the pipeline
    waits for all calls at the end. Errors stay in their futures.

    Canceling the future of a call that has not been sent withdraws the call. A call that has been sent may be applied.
    """

    def __init__(self, store: AsyncWrapper, max_in_flight: int = DEFAULT_MAX_IN_FLIGHT) -> None:
        if max_in_flight < 1:
            raise ValueError(f"max_in_flight must be at least 1, not {max_in_flight}")
        self._store = unwrap(store)
        self._max_in_flight = max_in_flight
        self._in_flight = 0
        self._waiting: deque[tuple[asyncio.Future[Any], Callable[[], Future[Any]]]] = deque()
        self._idle: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.flush()

    async def flush(self) -> None:
        """Wait until all calls have ended, including calls that are made meanwhile."""
        while self._in_flight:
            if self._idle is None or self._idle.done():
                self._idle = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._idle)

    def _send(self, name: str, *args: Any, **options: Any) -> asyncio.Future[Any]:
        mailbox = LoopMailbox.for_running_loop()
        outcome: asyncio.Future[Any] = mailbox.loop.create_future()
        if name == "commit":
            args = tuple(map(unwrap, args))
        start = partial(self._store.start_call, name, *args, **{key: unwrap(value) for key, value in options.items()})
        if self._in_flight >= self._max_in_flight:
            self._waiting.append((outcome, start))
        else:
            self._start(mailbox, outcome, start)
        return outcome

    def _start(self, mailbox: LoopMailbox, outcome: asyncio.Future[Any], start: Callable[[], Future[Any]]) -> None:
        future = start()
        self._in_flight += 1
        call_at_once(future, lambda ended: mailbox.post(self._ended, (mailbox, outcome, ended)))

    def _ended(self, message: tuple[LoopMailbox, asyncio.Future[Any], Future[Any]]) -> None:
        mailbox, outcome, ended = message
        self._in_flight -= 1
        if not outcome.done():
            error = ended.exception()
            if error is None:
                outcome.set_result(ended.result())
            else:
                outcome.set_exception(error)
        while self._waiting and self._in_flight < self._max_in_flight:
            waiting, start = self._waiting.popleft()
            if waiting.done():  # canceled before it was sent
                continue
            try:
                self._start(mailbox, waiting, start)
            except BaseException as error:
                waiting.set_exception(error)
        if not self._in_flight and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)


def _call(name: str) -> Callable[..., asyncio.Future[Any]]:
    def call(self: Pipeline, *args: Any, **options: Any) -> asyncio.Future[Any]:
        return self._send(name, *args, **options)

    call.__name__ = name
    call.__doc__ = f"See ``Store.{name}``."
    return call


for _name in vars(StoreCalls):
    if not _name.startswith("_"):
        setattr(Pipeline, _name, _call(_name))
