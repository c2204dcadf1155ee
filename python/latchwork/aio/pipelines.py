"""Many calls in flight from one event loop, with less work for each than ``asyncio.gather`` of a store's calls."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Self

from latchwork.aio.registry import Twin, inside
from latchwork.backends.futures import call_at_once
from latchwork.store.calls import Calls
from latchwork.store.driving.loop import Arrivals
from latchwork.store.pipeline import DEFAULT_MAX_IN_FLIGHT


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
        arrivals = Arrivals.here()
        outcome: asyncio.Future[Any] = arrivals.loop.create_future()
        if name == "commit":
            args = tuple(map(inside, args))
        begin = partial(self._store.begin, name, *args, **{key: inside(value) for key, value in options.items()})
        if self._count >= self._most:
            self._kept.append((outcome, begin))
        else:
            self._begin(arrivals, outcome, begin)
        return outcome

    def _begin(self, arrivals: Arrivals, outcome: asyncio.Future[Any], begin: Callable[[], Future[Any]]) -> None:
        future = begin()
        self._count += 1
        call_at_once(future, lambda ended: arrivals.post(self._ended, (arrivals, outcome, ended)))

    def _ended(self, what: tuple[Arrivals, asyncio.Future[Any], Future[Any]]) -> None:
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
