"""Live updates: pages are told that something changed, and ask again for what they show.

All listeners of a process share one look per period, and no look is made while nobody listens. Nothing that was read
is sent: a page gets what it may see by its own request.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any

import anyio
from starlette.concurrency import run_in_threadpool

from latchwork.interrupts import mutex
from latchwork.web.problems import Problem

_PERIOD_S = 1.0
_PING_S = 15.0
_MOST_LISTENERS = 500


class Hub:
    """Who listens for what. Safe to share.

    Args:
        look: the present fingerprint of each topic, any value that differs once something changed; blocks, and may
            raise: then nothing has changed.
        period_s: seconds between two looks.
    """

    def __init__(self, look: Callable[[Iterable[str]], Mapping[str, Any]], period_s: float = _PERIOD_S) -> None:
        self._look = look
        self._period_s = period_s
        self._mutex = mutex()
        self._looking = mutex()
        self._topics: dict[str, int] = {}
        self._seen: dict[str, Any] = {}
        self._seen_at = float("-inf")
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether streams are to end."""
        return self._closed

    def close(self) -> None:
        """End all streams, within a period. Twice is fine."""
        self._closed = True

    async def changes(self, topic: str) -> AsyncIterator[bytes]:
        """The stream of one listener: an event ``change`` whenever the topic did, comments meanwhile.

        Raises:
            Problem: too many listen already.
        """
        self._enter(topic)
        try:
            async for chunk in self._stream(topic):
                yield chunk
        finally:
            self._leave(topic)

    async def _stream(self, topic: str) -> AsyncIterator[bytes]:
        yield b"retry: 3000\n\n"
        before = await run_in_threadpool(self._fresh, topic)
        told_at = time.monotonic()
        while not self._closed:
            await anyio.sleep(self._period_s)
            now = await run_in_threadpool(self._fresh, topic)
            if now != before:
                before, told_at = now, time.monotonic()
                yield b"event: change\ndata: {}\n\n"
            elif time.monotonic() - told_at > _PING_S:
                told_at = time.monotonic()
                yield b": ping\n\n"

    def _fresh(self, topic: str) -> Any:
        """Its fingerprint, at most a period old; one thread looks, for all topics that anybody listens for."""
        with self._looking:
            with self._mutex:
                is_fresh = topic in self._seen and time.monotonic() - self._seen_at < self._period_s * 0.9
                topics = list(self._topics)
            if not is_fresh:
                try:
                    self._seen = dict(self._look(topics))
                except Exception:
                    return self._seen.get(topic)
                self._seen_at = time.monotonic()
            return self._seen.get(topic)

    def _enter(self, topic: str) -> None:
        with self._mutex:
            if sum(self._topics.values()) >= _MOST_LISTENERS:
                raise Problem(
                    503, "too many pages listen already; reload this one by hand", headers={"Retry-After": "60"}
                )
            self._topics[topic] = self._topics.get(topic, 0) + 1

    def _leave(self, topic: str) -> None:
        with self._mutex:
            self._topics[topic] -= 1
            if not self._topics[topic]:
                del self._topics[topic]
