"""The twins of a store and of what it gives: written by hand where a call of the store is a future already."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from concurrent.futures import Future
from functools import partial
from typing import Any, Self, TypeVar

from latchwork.aio.registry import Twin, inside, twin_of
from latchwork.aio.threads import InThread, one
from latchwork.aio.twinning import acting_here, answer
from latchwork.backends.futures import call_at_once
from latchwork.clock import SYSTEM_CLOCK, Clock
from latchwork.store import Session, Store
from latchwork.store.calls import Calls
from latchwork.store.connect import connect_for
from latchwork.store.driving.helper import drive
from latchwork.store.driving.loop import LoopMailbox, noted
from latchwork.store.observe.calls import StoreObserver
from latchwork.store.owner import Origin, origin
from latchwork.store.pipeline import DEFAULT_MAX_IN_FLIGHT
from latchwork.store.steps import Ask, Pause, Signal, unknown

T = TypeVar("T")


def in_thread(call: Callable[[], T], undo: Callable[[T], object] | None = None) -> Coroutine[Any, Any, T]:
    """Make a call that blocks; see ``InThread``."""
    return answer(lambda: one(InThread(call, undo)))


def _asks(name: str) -> Callable[..., Awaitable[Any]]:
    async def asked(self: Twin, *args: Any, **options: Any) -> Any:
        store: Store = self._of
        if name == "commit":
            args = tuple(map(inside, args))
        if options:
            options = {name: inside(value) for name, value in options.items()}
        if store.time_left_s() is not None:  # it ends with an ownership, at that moment
            return await drive(lambda: one(Ask(getattr(store, name), *args, **options)))
        arrivals = LoopMailbox.here()
        room = arrivals.room(store.connection)
        if not room.take():
            await room.turn()
        try:
            future = store.begin(name, *args, **options)
            if not future.done():
                waiter = arrivals.waiter(future, store.answer_s())
                try:
                    await waiter
                except asyncio.CancelledError as error:
                    future.cancel()
                    noted(error, unknown(name, args))
                    raise
                finally:
                    arrivals.forget(waiter)
                if not future.done():
                    raise store.late(name, args)
            return future.result()
        finally:
            room.leave()

    asked.__name__ = name
    asked.__doc__ = getattr(Store, name).__doc__
    return asked


class StoreTwin(Twin):
    """What of a store is not made from its methods."""

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End its sessions at once, then its watches and the connection. Twice is fine."""
        await in_thread(self._of.close)

    @property
    def session(self) -> Awaitable[Any]:
        """The primary session: ``await store.session``; opened on first use, and anew after it was lost."""
        return self.primary_session()

    async def primary_session(self) -> Any:
        """The same as ``session``."""
        return twin_of(await drive(lambda: one(Ask(self._of.primary_session))))

    async def open_session(self, ttl_s: float) -> Any:
        """A session of its own; see ``Store.open_session``."""
        return await in_thread(lambda: self._of.open_session(ttl_s), Session.close)

    async def reopen(self) -> Any:
        """Connect again as this store was: for a child of a fork; see ``Store.reopen``."""
        return await in_thread(partial(self._of.reopen_for, origin()), Store.close)

    async def mirror(self, prefix: str, *, wait: bool = True, values: bool = True) -> Any:
        """A local read-only mapping of all keys at and below a prefix; see ``Store.mirror``."""
        with acting_here():
            mirror = self._of.mirror(prefix, wait=False, values=values)
        return await answer(lambda: self._of.ready(mirror)) if wait else twin_of(mirror)

    def pipeline(self, *, max_in_flight: int = DEFAULT_MAX_IN_FLIGHT) -> Pipeline:
        """The same calls, many in flight: each returns an awaitable at once."""
        return Pipeline(self, max_in_flight)


for _name in vars(Calls):
    if not _name.startswith("_"):
        setattr(StoreTwin, _name, _asks(_name))


class SessionTwin(Twin):
    """What of a session is not made from its methods."""

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the session now: its keys vanish at once if the server is reachable. Twice is fine."""
        await in_thread(self._of.close)


class MirrorTwin(Twin):
    """What of a mapping is not made from its methods."""

    def __getitem__(self, key: str) -> Any:
        return self._of[key]

    def __iter__(self) -> Any:
        return iter(self._of)

    def __len__(self) -> int:
        return len(self._of)

    def __contains__(self, key: object) -> bool:
        return key in self._of


class SignalTwin(Twin):
    """Something that is set once, for good."""

    def is_set(self) -> bool:
        """True once it is set."""
        return bool(self._of.is_set())

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is set; False when the time is over first."""
        signal: Signal = self._of
        return await drive(lambda: one(Pause(SYSTEM_CLOCK, signal, timeout_s)))


class Connecting:
    """``async with connect(url) as store``, or ``store = await connect(url)`` and ``await store.close()``."""

    def __init__(self, url: str | None, created: Origin, **options: Any) -> None:
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
        return await in_thread(partial(connect_for, self._created, self._url, **self._options), Store.close)


def connect_later(
    url: str | None = None,
    *,
    client: object = None,
    clock: Clock | None = None,
    observers: Iterable[StoreObserver] = (),
    **overrides: object,
) -> Connecting:
    """Open a store for tasks of an event loop; see ``latchwork.connect`` for the arguments and errors."""
    return Connecting(url, origin(), client=client, clock=clock, observers=observers, **overrides)


class Pipeline:
    """The store's calls, each of which returns an ``asyncio.Future`` at once; at most so many are in flight.

    Further calls are kept until one has ended, in their order. Calls in flight have no order among each other: make
    what must follow another once that was awaited. As a context manager it waits at the end until every call has ended;
    errors stay in their futures. For tasks of one loop.

    A future that is cancelled takes back a call that was not sent yet; one that was sent may have been applied.
    """

    def __init__(self, store: Twin, max_in_flight: int = DEFAULT_MAX_IN_FLIGHT) -> None:
        if max_in_flight < 1:
            raise ValueError(f"max_in_flight must be at least 1, not {max_in_flight}")
        self._store = inside(store)
        self._most = max_in_flight
        self._count = 0
        self._kept: deque[tuple[asyncio.Future[Any], Callable[[], Future[Any]]]] = deque()
        self._idle: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.flush()

    async def flush(self) -> None:
        """Wait until every call made so far has ended, and those made meanwhile."""
        while self._count:
            if self._idle is None or self._idle.done():
                self._idle = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._idle)

    def _send(self, name: str, *args: Any, **options: Any) -> asyncio.Future[Any]:
        arrivals = LoopMailbox.here()
        outcome: asyncio.Future[Any] = arrivals.loop.create_future()
        if name == "commit":
            args = tuple(map(inside, args))
        begin = partial(self._store.begin, name, *args, **{key: inside(value) for key, value in options.items()})
        if self._count >= self._most:
            self._kept.append((outcome, begin))
        else:
            self._begin(arrivals, outcome, begin)
        return outcome

    def _begin(self, arrivals: LoopMailbox, outcome: asyncio.Future[Any], begin: Callable[[], Future[Any]]) -> None:
        future = begin()
        self._count += 1
        call_at_once(future, lambda ended: arrivals.post(self._ended, (arrivals, outcome, ended)))

    def _ended(self, what: tuple[LoopMailbox, asyncio.Future[Any], Future[Any]]) -> None:
        arrivals, outcome, ended = what
        self._count -= 1
        if not outcome.done():
            error = ended.exception()
            if error is None:
                outcome.set_result(ended.result())
            else:
                outcome.set_exception(error)
        while self._kept and self._count < self._most:
            kept, begin = self._kept.popleft()
            if kept.done():  # cancelled before it was sent
                continue
            try:
                self._begin(arrivals, kept, begin)
            except BaseException as error:
                kept.set_exception(error)
        if not self._count and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)


def _call(name: str) -> Callable[..., asyncio.Future[Any]]:
    def call(self: Pipeline, *args: Any, **options: Any) -> asyncio.Future[Any]:
        return self._send(name, *args, **options)

    call.__name__ = name
    call.__doc__ = f"See ``Store.{name}``."
    return call


for _name in vars(Calls):
    if not _name.startswith("_"):
        setattr(Pipeline, _name, _call(_name))
