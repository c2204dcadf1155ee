"""Live updates: pages are notified of changes and then reload what they show.

All listeners of a process share one poll per period. There is no poll without listeners. Events contain no data: pages
fetch what they may see with their own requests. Streams poll in separate threads, so a slow database or log store
delays streams but not pages.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

import anyio
from anyio.lowlevel import RunVar

from latchwork.spi import mutex
from latchwork_workflows.web.problems import HttpProblem

T = TypeVar("T")
_PERIOD_S = 1.0
_PING_S = 15.0
_MAX_LISTENERS = 500
#: The maximum number for one account.
_MAX_OF_ONE = 50
#: Seconds between checks of a listener's permission, while the stream sends.
_ASK_S = 3.0
_THREADS = 8
_limiter: RunVar[anyio.CapacityLimiter] = RunVar("latchwork-streams")


def _most_listeners() -> int:
    from latchwork_workflows.web.connections import get_default_max_connections  # lazy, because it loads a server

    return min(_MAX_LISTENERS, get_default_max_connections() // 2)


class LiveHub:
    """Notifies open pages of changes, by topic. Thread-safe."""

    def __init__(
        self,
        look: Callable[[Iterable[str]], Mapping[str, Any]],
        period_s: float = _PERIOD_S,
        max_listeners: int | None = None,
    ) -> None:
        self._look = look
        self._max_listeners = _most_listeners() if max_listeners is None else max_listeners
        self._period_s = period_s
        self._mutex = mutex()
        self._looking = mutex()
        self._topics: dict[str, int] = {}
        self._listeners: Counter[str] = Counter()
        self._seen: dict[str, Any] = {}
        self._seen_at = float("-inf")
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether the hub is closed, so that all streams must end."""
        return self._closed

    @property
    def listeners(self) -> int:
        """The number of open streams of all kinds."""
        return self._listeners.total()

    def close(self) -> None:
        """End all streams soon. Idempotent."""
        self._closed = True

    async def guard_stream(
        self, chunks: AsyncGenerator[bytes, None], account: str, is_allowed: Callable[[], Awaitable[bool]]
    ) -> AsyncGenerator[bytes, None]:
        """Return a stream that ends soon after its account loses the permission for it.

        Args:
            chunks: The chunks to send. Closed with the stream.
            account: The name of the account.
            is_allowed: Returns whether the account may still listen. Called before sending, at most every few seconds.
        Raises:
            HttpProblem: This account, or all accounts together, have too many streams. Raised before anything is sent.
        """
        made = self._guarded(chunks, account, is_allowed)
        first = await anext(made)  # raises before the response begins
        return _prepend(first, made)

    async def _guarded(
        self, chunks: AsyncGenerator[bytes, None], account: str, still: Callable[[], Awaitable[bool]]
    ) -> AsyncGenerator[bytes, None]:
        self._count_stream(account)
        try:
            async with aclosing(chunks):
                asked_at = time.monotonic()
                async for chunk in chunks:
                    if time.monotonic() - asked_at > _ASK_S:
                        if not await still():
                            return
                        asked_at = time.monotonic()
                    yield chunk
        finally:
            self._uncount_stream(account)

    async def stream_changes(self, topic: str) -> AsyncGenerator[bytes, None]:
        """Yield an event ``change`` whenever a topic has changed. Comments in between keep the connection open."""
        with self._mutex:
            self._topics[topic] = self._topics.get(topic, 0) + 1
        try:
            async for chunk in self._stream(topic):
                yield chunk
        finally:
            self._forget(topic)

    async def _stream(self, topic: str) -> AsyncIterator[bytes]:
        yield b"retry: 3000\n\n"
        before = await self._get_fingerprint(topic)
        told_at = time.monotonic()
        while not self._closed:
            await anyio.sleep(self._period_s)
            now = await self._get_fingerprint(topic)
            if now != before:
                before, told_at = now, time.monotonic()
                yield b"event: change\ndata: {}\n\n"
            elif time.monotonic() - told_at > _PING_S:
                told_at = time.monotonic()
                yield b": ping\n\n"

    async def _get_fingerprint(self, topic: str) -> Any:
        """Return a value that differs whenever the data of a topic has changed.

        The value is at most one polling period old. Concurrent callers share one query.
        """
        if not self._is_fresh(topic):
            await run_in_stream_thread(self._refresh, topic)
        return self._seen.get(topic)

    def _is_fresh(self, topic: str) -> bool:
        return topic in self._seen and time.monotonic() - self._seen_at < self._period_s * 0.9

    def _refresh(self, topic: str) -> None:
        with self._looking:
            if self._is_fresh(topic):
                return
            with self._mutex:
                topics = list(self._topics)
            try:
                self._seen = dict(self._look(topics))
            except Exception:
                self._seen = {each: self._seen.get(each) for each in topics}  # nothing has changed, as far as we know
            self._seen_at = time.monotonic()

    def _count_stream(self, account: str) -> None:
        retry = {"Retry-After": "60"}
        with self._mutex:
            if self._listeners[account] >= _MAX_OF_ONE:
                what = f"your account has {_MAX_OF_ONE} live pages open, the maximum; close some of them"
                raise HttpProblem(429, what, headers=retry)
            if self._listeners.total() >= self._max_listeners:
                raise HttpProblem(
                    503, "too many live pages are open on this server; reload this page later", headers=retry
                )
            self._listeners[account] += 1

    def _uncount_stream(self, account: str) -> None:
        with self._mutex:
            self._listeners[account] -= 1
            self._listeners += Counter()  # drops accounts without a stream

    def _forget(self, topic: str) -> None:
        with self._mutex:
            self._topics[topic] -= 1
            if not self._topics[topic]:
                del self._topics[topic]


async def run_in_stream_thread(call: Callable[..., T], *args: Any) -> T:
    """Run a query of a stream in one of a few threads reserved for streams, so that it cannot delay pages."""
    try:
        limiter = _limiter.get()
    except LookupError:
        limiter = anyio.CapacityLimiter(_THREADS)
        _limiter.set(limiter)
    return await anyio.to_thread.run_sync(call, *args, limiter=limiter)


async def _prepend(first: bytes, made: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(made):
        yield first
        async for chunk in made:
            yield chunk
