"""Reads of single keys, merged under load: while some are on their way, later ones gather and go out as one request.

A request costs the client ten times what a key in it does. A read that waits is sent when one before it has ended, so
it begins after its caller has called, and is as linearizable as it is alone. It cannot wait for ever: the requests it
waits for have earlier deadlines than its own.

Only for servers that bear transactions of reads; see ``ranges.py``. When such a transaction is refused, because one of
its keys may not be read, each of its reads is sent by itself, so that each gets its own answer.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from latchwork._core import EtcdCodec
from latchwork.backends.etcd.connection import Link
from latchwork.backends.futures import Outcome, chain, reject, resolve
from latchwork.backends.outcomes import read_of
from latchwork.errors import Closed, Unavailable
from latchwork.interrupts import mutex
from latchwork.types import Entry

#: Requests on their way, beyond which reads gather.
_AT_ONCE = 8
#: Reads of one request; the server takes 128.
_MOST = 100


class _Wish(Outcome["Entry | None"]):
    """A read that waits to be sent with others."""

    __slots__ = ("deadline", "key")

    def __init__(self, key: str, deadline: float) -> None:
        super().__init__()
        self.key = key
        self.deadline = deadline


class MergedReads:
    """The single reads of one store, linearizable or all stale. Safe to share between threads."""

    def __init__(self, link: Link, codec: EtcdCodec, *, stale_ok: bool) -> None:
        self._link = link
        self._codec = codec
        self._stale_ok = stale_ok
        self._lock = mutex()
        self._in_flight = 0
        self._waiting: list[_Wish] = []

    def get(self, key: str) -> Future[Entry | None]:
        """The entry, or None; sent now, or with others as soon as a read before it has ended."""
        with self._lock:
            alone = self._in_flight < _AT_ONCE
            if alone:
                self._in_flight += 1
        if not alone:
            return self._gather(key)
        future = self._read(key, None)
        future.add_done_callback(self._go_on)
        return future

    # Private.

    def _gather(self, key: str) -> Future[Entry | None]:
        wish = _Wish(key, self._link.clock.now() + self._link.call_timeout_s)
        with self._lock:
            self._waiting.append(wish)
            enough = len(self._waiting) >= _MOST or self._in_flight < _AT_ONCE
            batch = self._take() if enough else []
        self._send(batch)
        return wish

    def _take(self) -> list[_Wish]:
        """With the lock held: what goes out next."""
        batch, self._waiting = self._waiting, []
        if batch:
            self._in_flight += 1
        return batch

    def _send(self, batch: list[_Wish]) -> None:
        if not batch:
            return
        request = self._codec.get_many([wish.key for wish in batch], self._stale_ok)
        what = read_of([wish.key for wish in batch])
        future = self._link.read("Txn", request, what, self._codec.found, deadline=batch[0].deadline)
        future.add_done_callback(lambda done: self._ended(batch, done))

    def _ended(self, batch: list[_Wish], done: Future[list[Entry | None]]) -> None:
        self._go_on(done)
        error = done.exception()
        if error is None:
            for wish, entry in zip(batch, done.result(), strict=True):
                resolve(wish, entry)
        else:
            for wish in batch:
                self._fail(wish, error)

    def _go_on(self, _: Future[Any]) -> None:
        """A request has ended: send what has gathered."""
        with self._lock:
            self._in_flight -= 1
            batch = self._take()
        self._send(batch)

    def _fail(self, wish: _Wish, error: BaseException) -> None:
        """Its request has failed: the server did not answer in time, or refused one of the reads."""
        if isinstance(error, Unavailable):
            mine = Unavailable(f"could not read {wish.key!r} together with others: {error}")
            mine.__cause__ = error.__cause__
            reject(wish, mine)
        elif isinstance(error, Closed):
            reject(wish, error)
        else:
            chain(self._read(wish.key, wish.deadline), wish)

    def _read(self, key: str, deadline: float | None) -> Future[Entry | None]:
        request = self._codec.get(key, self._stale_ok)
        return self._link.read("Range", request, f"read {key!r}", self._codec.entry, deadline=deadline)
