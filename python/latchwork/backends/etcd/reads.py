"""Reads of keys and lists. Every request is linearizable unless stale answers are allowed.

Lists are read in pages. A list of direct children first reads values. When a page contains deeper keys, it continues
with keys only, skips each subtree in which a page ends (to ``child0``, the first key after it), and reads the values of
direct children last. So neither large subtrees nor their values are read in vain, and a flat directory needs one pass.
The next page is requested while the previous one is decoded.

Under load, single reads are combined: while some are in flight, later ones are collected and sent as one request,
because a request costs the client ten times as much as a key in it. A collected read is sent when an earlier one has
ended, so it starts after its call and is linearizable. It cannot wait forever, because the requests before it have
earlier deadlines. If a combined request is refused because the account may not read one of the keys, each read is sent
separately.

Several ranges are read at the same time, either each linearizable, or at one revision. A read-only transaction would do
both in one request. But if it is interrupted while it runs, etcd before 3.5.7 and 3.4.23 panics (etcd issues 14110 and
14891). Only newer servers get such transactions, and only where they replace many requests. Transactions that may write
are safe.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from latchwork._base.interrupts import mutex
from latchwork._core import EtcdCodec, EtcdPage
from latchwork.backends.etcd import errors as rpc_errors
from latchwork.backends.etcd import rpc_pb2 as pb
from latchwork.backends.etcd.connection import EtcdConnection, decode_response, malformed_response_error
from latchwork.backends.etcd.layout import EtcdKeys, KeyRange
from latchwork.backends.etcd.writing.requests import Operation
from latchwork.backends.futures import (
    FutureGenerator,
    LightFuture,
    chain,
    reject,
    resolve,
    run_generator,
    then,
    together,
)
from latchwork.backends.outcomes import describe_read
from latchwork.errors import Closed, LatchworkError, Unavailable
from latchwork.types import Entry

_FIRST_PAGE = 256
_LAST_PAGE = 10_000
_LAST_NAMES = 10_000
_PAGE_BYTES = 1_000_000
_MAX_GETS = 100
#: Requests on their way, beyond which reads gather.
_MAX_REQUESTS = 8
#: Reads of one request; the server takes 128.
_MAX_BATCH = 100


class EtcdReader:
    """Reads keys and lists for one store. Thread-safe.

    With ``in_caller_thread``, single requests, and the first of several, are sent in the calling thread.
    """

    def __init__(
        self, connection: EtcdConnection, keys: EtcdKeys, codec: EtcdCodec, *, in_caller_thread: bool = False
    ) -> None:
        self._connection = connection
        self._keys = keys
        self._codec = codec
        self._in_caller_thread = in_caller_thread
        self._merged = {stale_ok: MergedReads(connection, codec, stale_ok=stale_ok) for stale_ok in (False, True)}

    def get(self, key: str, *, stale_ok: bool) -> Future[Entry | None]:
        """Read a key. The future returns its entry, or None. Under load, the read is combined with others."""
        if self._connection.survives_canceled_reads and not self._in_caller_thread:
            return self._merged[stale_ok].get(key)
        codec = self._codec
        return self._connection.read(
            "Range", codec.get(key, stale_ok), f"read {key!r}", codec.entry, in_caller_thread=self._in_caller_thread
        )

    def get_many(self, keys: Sequence[str], *, stale_ok: bool = False) -> Future[list[Entry | None]]:
        """Read several keys, a hundred per request, with all requests in flight at the same time.

        ``stale_ok`` has an effect only if all keys fit into one request. The future returns an entry or None for each
        key.
        """
        stale_ok = stale_ok and len(keys) <= _MAX_GETS
        in_caller_thread = self._in_caller_thread and len(keys) <= _MAX_GETS
        starts = range(0, len(keys), _MAX_GETS)
        chunks = [
            self._get_chunk(keys[at : at + _MAX_GETS], stale_ok=stale_ok, in_caller_thread=in_caller_thread)
            for at in starts
        ]

        return (
            chunks[0]
            if len(chunks) == 1
            else then(together(chunks), lambda found: [*itertools.chain.from_iterable(found)])
        )

    def entries(
        self, prefix: str, *, recursive: bool, limit: int | None, start_after: str | None
    ) -> Future[list[Entry]]:
        """Read the entries below a prefix, sorted by key. See ``Backend.list`` for the arguments."""
        return run_generator(self._list(self._spans(prefix, start_after), limit, prefix, recursive=recursive))

    def children(self, prefix: str) -> Future[list[str]]:
        """Read the names directly below a prefix, including names that only have keys below them."""
        name_offset = len(prefix) + 1 if prefix else 0

        def steps() -> FutureGenerator[list[str]]:
            names: dict[str, None] = {}
            for span in self._spans(prefix, None):
                found = yield from self._list_keys(span, prefix)
                names.update((key[name_offset:].partition("/")[0], None) for key in found)
            return sorted(names)

        return run_generator(steps())

    # Private.

    def _get_chunk(self, keys: Sequence[str], *, stale_ok: bool, in_caller_thread: bool) -> Future[list[Entry | None]]:
        what = describe_read(keys)
        if self._connection.survives_canceled_reads:
            request = self._codec.get_many(keys, stale_ok)
            return self._connection.read("Txn", request, what, self._codec.found, in_caller_thread=in_caller_thread)
        apart = [self._codec.get(key, stale_ok) for key in keys]
        in_caller_thread = in_caller_thread and len(apart) == 1
        return together(
            [
                self._connection.read("Range", request, what, self._codec.entry, in_caller_thread=in_caller_thread)
                for request in apart
            ]
        )

    def _spans(self, prefix: str, start_after: str | None) -> list[KeyRange]:
        spans = self._keys.ranges_below(prefix)
        if start_after is None:
            return spans
        after = self._keys.encode_key(start_after) + b"\0"
        return [(max(start, after), end) for start, end in spans if after < end]

    def _page(
        self, span: KeyRange, limit: int, prefix: str, *, keys_only: bool = False, in_caller_thread: bool = False
    ) -> Future[EtcdPage]:
        request = pb.RangeRequest(key=span[0], range_end=span[1], limit=limit, keys_only=keys_only)
        return self._connection.read(
            "Range", request, f"list {prefix!r}", self._codec.page, in_caller_thread=in_caller_thread
        )

    def _list(
        self, spans: Sequence[KeyRange], limit: int | None, prefix: str, *, recursive: bool
    ) -> FutureGenerator[list[Entry]]:
        found: list[Entry] = []
        name_offset = None if recursive else self._name_offset(prefix)
        for start, end in spans:
            asked = _keys_to_request(_FIRST_PAGE, limit, len(found))
            next_page = (
                self._page((start, end), asked, prefix, in_caller_thread=self._in_caller_thread) if asked else None
            )
            while next_page is not None:
                page = yield next_page
                self._keys.invalid_keys.record(page.strangers())
                next_page, deeper = None, False
                wanted = page.count(name_offset)
                asked = _keys_to_request(_estimate_page_size(page), limit, len(found) + wanted) if page.more else 0
                rest = (_key_after_page(page.last(), name_offset), end) if asked else (end, end)
                if rest[0] < end:
                    deeper = wanted < page.count()
                    # on its way while this page is decoded
                    next_page = None if deeper else self._page(rest, asked, prefix)
                found.extend(page.entries(name_offset))
                if deeper:
                    found += yield from self._read_children_by_name(rest, limit and limit - len(found), prefix)
        return found

    def _read_children_by_name(
        self, key_range: KeyRange, limit: int | None, prefix: str
    ) -> FutureGenerator[list[Entry]]:
        """Read the entries directly below a prefix that has many deeper keys: first the names, then the values."""
        name_offset = self._name_offset(prefix)
        found: list[Entry] = []
        names = yield from self._list_keys(key_range, prefix, limit)
        direct = [name for name in names if self._keys.encode_key(name).find(b"/", name_offset) < 0]
        for at in range(0, len(direct), 10 * _MAX_GETS):
            entries = yield self.get_many(direct[at : at + 10 * _MAX_GETS])
            found += [entry for entry in entries if entry is not None]
        return found if limit is None else found[:limit]

    def _list_keys(self, key_range: KeyRange, prefix: str, limit: int | None = None) -> FutureGenerator[list[str]]:
        """Read the keys in a range, but only some of those in a subtree that is larger than a page.

        Args:
            key_range: The range.
            prefix: The prefix of the list.
            limit: Stop after this number of keys directly below the prefix. None reads all.
        """
        found: list[str] = []
        name_offset = self._name_offset(prefix)
        direct, size = 0, _FIRST_PAGE
        at, end = key_range
        while at < end:
            page = yield self._page((at, end), size, prefix, keys_only=True, in_caller_thread=self._in_caller_thread)
            self._keys.invalid_keys.record(page.strangers())
            found.extend(page.names())
            direct += page.count(name_offset)
            if not page.more or (limit is not None and direct >= limit):
                break
            at, size = _key_after_page(page.last(), name_offset), min(size * 4, _LAST_NAMES)
        return found

    def _name_offset(self, prefix: str) -> int:
        """Return the index in a raw key at which the name below a prefix begins."""
        return len(self._keys.encode_key(prefix)) + (1 if prefix else 0)


def _key_after_page(raw_key: bytes, name_offset: int | None) -> bytes:
    """Return the raw key at which to continue after a page: after its last key, or after the subtree of that key.

    Args:
        raw_key: The last key of the page.
        name_offset: The index at which the name below the prefix begins. None does not skip subtrees.
    """
    slash = -1 if name_offset is None else raw_key.find(b"/", name_offset)
    return raw_key + b"\0" if slash < 0 else raw_key[:slash] + b"0"


def _keys_to_request(size: int, limit: int | None, found: int) -> int:
    """Return the number of keys to request next.

    Args:
        size: The number of keys in a page.
        limit: The maximum number of results, or None.
        found: The number of results so far.
    """
    return size if limit is None else max(min(size, limit - found), 0)


def _estimate_page_size(page: EtcdPage) -> int:
    """Return how many entries fit into a megabyte if they have the average size of the entries on this page."""
    average = max(page.size // len(page), 1)
    return int(min(max(_PAGE_BYTES // average, 16), _LAST_PAGE))


class _PendingRead(LightFuture["Entry | None"]):
    """A read that waits until it is sent together with others."""

    __slots__ = ("deadline", "key")

    def __init__(self, key: str, deadline: float) -> None:
        super().__init__()
        self.key = key
        self.deadline = deadline


class MergedReads:
    """Combines reads of single keys into few requests, which either are all linearizable or may all be stale.
    Thread-safe.
    """

    def __init__(self, connection: EtcdConnection, codec: EtcdCodec, *, stale_ok: bool) -> None:
        self._connection = connection
        self._codec = codec
        self._stale_ok = stale_ok
        self._lock = mutex()
        self._in_flight = 0
        self._waiting: list[_PendingRead] = []

    def get(self, key: str) -> Future[Entry | None]:
        """Read a key. The request is sent now, or together with others when an earlier request has ended."""
        with self._lock:
            alone = self._in_flight < _MAX_REQUESTS
            if alone:
                self._in_flight += 1
        if not alone:
            return self._add_to_batch(key)
        future = self._read(key, None)
        future.add_done_callback(self._send_next_batch)
        return future

    # Private.

    def _add_to_batch(self, key: str) -> Future[Entry | None]:
        pending = _PendingRead(key, self._connection.clock.now() + self._connection.call_timeout_s)
        with self._lock:
            self._waiting.append(pending)
            enough = len(self._waiting) >= _MAX_BATCH or self._in_flight < _MAX_REQUESTS
            batch = self._take_batch() if enough else []
        self._send(batch)
        return pending

    def _take_batch(self) -> list[_PendingRead]:
        """Remove and return the reads for the next request. The caller holds the lock."""
        batch, self._waiting = self._waiting, []
        if batch:
            self._in_flight += 1
        return batch

    def _send(self, batch: list[_PendingRead]) -> None:
        if not batch:
            return
        request = self._codec.get_many([pending.key for pending in batch], self._stale_ok)
        what = describe_read([pending.key for pending in batch])
        future = self._connection.read("Txn", request, what, self._codec.found, deadline=batch[0].deadline)
        future.add_done_callback(lambda done: self._on_batch_answer(batch, done))

    def _on_batch_answer(self, batch: list[_PendingRead], done: Future[list[Entry | None]]) -> None:
        self._send_next_batch(done)
        error = done.exception()
        if error is None:
            for pending, entry in zip(batch, done.result(), strict=True):
                resolve(pending, entry)
        else:
            for pending in batch:
                self._fail_or_resend(pending, error)

    def _send_next_batch(self, _: Future[Any]) -> None:
        """Send the collected reads, because a request has ended."""
        with self._lock:
            self._in_flight -= 1
            batch = self._take_batch()
        self._send(batch)

    def _fail_or_resend(self, pending: _PendingRead, error: BaseException) -> None:
        """Handle the error of a request for several reads, for one of these reads.

        If there was no answer in time, the read fails. If the server refused the request, the read is sent again alone.

        Args:
            pending: The read.
            error: The error of the request.
        """
        if isinstance(error, Unavailable):
            mine = Unavailable(f"could not read {pending.key!r} together with others: {error}")
            mine.__cause__ = error.__cause__
            reject(pending, mine)
        elif isinstance(error, Closed):
            reject(pending, error)
        else:
            chain(self._read(pending.key, pending.deadline), pending)

    def _read(self, key: str, deadline: float | None) -> Future[Entry | None]:
        request = self._codec.get(key, self._stale_ok)
        return self._connection.read("Range", request, f"read {key!r}", self._codec.entry, deadline=deadline)


def read_ranges(
    connection: EtcdConnection,
    ranges: Sequence[Any],
    description: str,
    *,
    deadline: float | None = None,
    in_caller_thread: bool = False,
) -> Future[list[Any]]:
    """Read at most 128 ranges. The future returns the answers in order.

    Args:
        connection: The connection.
        ranges: ``RangeRequest`` messages.
        description: A description of the call with its key, for messages.
        deadline: Local clock time. None is the call timeout from now.
        in_caller_thread: Send a single request in this thread.
    """
    if not connection.survives_canceled_reads:
        return read_separately(connection, ranges, description, deadline=deadline)
    request = pb.TxnRequest(success=[pb.RequestOp(request_range=each) for each in ranges])
    if deadline is None:
        return connection.read(
            "Txn",
            request,
            description,
            lambda answer: _ranges_of(decode_response("Txn", answer)),
            in_caller_thread=in_caller_thread,
        )
    return then(run_generator(connection.call("Txn", request, description, deadline)), _ranges_of)


def read_pages(
    connection: EtcdConnection, codec: EtcdCodec, ranges: Sequence[Any], description: str
) -> Future[list[EtcdPage]]:
    """Read one page of each range, with one request each, all in flight at the same time. The future returns the pages.

    Args:
        connection: The connection.
        codec: Decodes the answers.
        ranges: ``RangeRequest`` messages.
        description: A description of the call with its key, for messages.
    """
    until = connection.clock.now() + connection.call_timeout_s

    def page(request: Any) -> FutureGenerator[EtcdPage]:
        answer = yield from connection.call_undecoded("Range", request, description, until)
        try:
            return codec.page(answer)
        except ValueError as error:
            raise malformed_response_error(description, error) from error

    return together([run_generator(page(each)) for each in ranges])


def read_separately(
    connection: EtcdConnection, ranges: Sequence[Any], description: str, *, deadline: float | None = None
) -> Future[list[Any]]:
    """Read ranges with one request each, all in flight at the same time. The future returns the answers in order.

    Args:
        connection: The connection.
        ranges: ``RangeRequest`` messages.
        description: A description of the call with its key, for messages.
        deadline: Local clock time. None is the call timeout from now.
    """
    until = connection.clock.now() + connection.call_timeout_s if deadline is None else deadline
    sent = [run_generator(connection.call("Range", each, description, until)) for each in ranges]
    return together(sent)


def read_at_one_revision(
    connection: EtcdConnection, reads: Sequence[Operation], description: str, deadline: float
) -> FutureGenerator[list[pb.ResponseOp]]:
    """Read several ranges at one revision, which was current after the call began. Return the responses.

    Raises:
        Unavailable: The server compacts its history faster than it can be read.
    """
    first, *others = [pb.RangeRequest(**operation["request_range"]) for operation in reads]
    while True:
        answer = yield from connection.call("Range", first, description, deadline)
        for each in others:
            each.revision = answer.header.revision
        try:
            answers = [answer, *(yield read_separately(connection, others, description, deadline=deadline))]
            return [pb.ResponseOp(response_range=each) for each in answers]
        except LatchworkError as error:
            compacted = error.__cause__ is not None and rpc_errors.message_contains(error.__cause__, "compacted")
            if not compacted or connection.clock.now() >= deadline:
                raise


def _ranges_of(answer: Any) -> list[Any]:
    return [one.response_range for one in answer.responses]
