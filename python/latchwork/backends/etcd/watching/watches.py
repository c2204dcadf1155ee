"""Watches: one stream to the server for all watches of the stores that share a connection, read by one thread.

A watch is a few key ranges. It reads each at a revision R (Snapshot), then watches it from R + 1. After a disconnect,
each range continues from the revision after its last event. A watch starts over with a Snapshot when the server has
compacted that revision, does not have it yet, or ends the watch. The server may lack it because it lags, was restored
from a backup, or has lost writes.

A server serves watches that start behind its newest revision in a loop that runs every 100 ms. With other clients
writing, this affects most watches that start after a read. A watch of a single key starts in the other
order: watch from the present, then read at R. Events up to R are dropped, and later ones are held until the read is
delivered.

``Current``: one progress request is sent regularly for all watches. A server answers it only after every watch of the
stream has caught up, which is a proof. Before 3.4.25 and 3.5.8 it answers at once, even before queued events. So an
answer proves that the state was current when the *previous* request was sent, and a watch that an old server created
behind its revision gets time to catch up before answers count. No answer moves the revision from which a watch resumes.

etcd checks permissions only when a watch is created. So every few seconds one small read of each watched root is sent.
Only if it is refused, each watch below it is read, and a watch whose read is refused ends.
"""

from __future__ import annotations

import functools
import itertools
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import grpc

from latchwork._base.event import Signal
from latchwork._base.interrupts import mutex
from latchwork._core import EtcdCodec
from latchwork.backends.base import Broken, Current, Delta, Snapshot, WatchCallback
from latchwork.backends.etcd import errors as rpc_errors
from latchwork.backends.etcd import rpc_pb2 as pb
from latchwork.backends.etcd.connection import EtcdConnection
from latchwork.backends.etcd.layout import EtcdKeys, KeyRange, single_key_range
from latchwork.backends.etcd.reads import read_pages
from latchwork.backends.etcd.watching.stream import EtcdWatch, Stream
from latchwork.errors import AuthenticationFailed, Closed, LatchworkError, PermissionDenied
from latchwork.types import Change

_log = logging.getLogger(__name__)

_RETRY_S = 0.2
#: A watch that missed more revisions reads the state again instead of following them one by one.
_FAR_BEHIND = 2_000
#: Revisions a second that an old server catches up with at the least (10,000 were measured on 3.5.1).
_CATCH_UP_PER_S = 2_000.0
_DENIALS = 3
_DELETE = 1
#: The errors of an account without permissions, or of one that was removed.
REFUSALS = (PermissionDenied, AuthenticationFailed)
#: An open watch whose account has lost its rights ends after so long, and what two reads take.
_RIGHTS_EVERY_S = 4.0
_CLOSED = "the store was closed; open a new one"


class StoreWatches:
    """The watches of one store. Thread-safe."""

    def __init__(self, hub: EtcdWatchHub, keys: EtcdKeys, codec: EtcdCodec) -> None:
        self._hub = hub
        self._keys = keys
        self._codec = codec
        self._closed = False

    def watch(
        self, prefix: str, callback: WatchCallback, *, single_key: bool = False, heartbeats: bool = True
    ) -> EtcdWatch:
        """Watch a key, and all keys below it unless ``single_key`` is true.

        Args:
            prefix: The key.
            callback: Callback for the events.
            single_key: Watch a single session-bound key, and report only its deletion.
            heartbeats: Also send ``Current`` events while nothing changes.
        """
        spans = (
            [single_key_range(self._keys.encode_key(prefix))] if single_key else self._keys.ranges_at_or_below(prefix)
        )
        return self.watch_spans(
            spans, callback, description=f"watch {prefix!r}", single_key=single_key, heartbeats=heartbeats
        )

    def watch_spans(
        self,
        spans: Sequence[KeyRange],
        callback: WatchCallback,
        *,
        description: str = "",
        single_key: bool = False,
        heartbeats: bool = False,
    ) -> EtcdWatch:
        """Watch ranges of raw keys.

        Args:
            spans: The ranges.
            callback: Callback for the events.
            description: A description of the watch for messages.
            single_key: Watch a single session-bound key, and report only its deletion.
            heartbeats: Also send ``Current`` events while nothing changes.
        """
        watch = EtcdWatch(
            self._hub.drop,
            self._keys,
            self._codec,
            spans,
            callback,
            what=description,
            single_key=single_key,
            heartbeats=heartbeats,
        )
        self._hub.add(watch)
        if self._closed:  # meanwhile, so that ``close`` may have missed this one
            watch.close()
            raise Closed(_CLOSED)
        return watch

    def close(self) -> None:
        """End all watches, and refuse new ones. Idempotent."""
        self._closed = True
        for watch in self._hub.list_watches_of(self._keys):
            watch.close()


class EtcdWatchHub:
    """All watches on one connection. Thread-safe."""

    def __init__(self, connection: EtcdConnection, name: str) -> None:
        self._connection = connection
        self._lock = mutex()
        self._watches: set[EtcdWatch] = set()
        self._tickets = itertools.count(1)
        self._stream: Stream | None = None
        self._closing = Signal()
        self._thread: threading.Thread | None = None
        self._rights = PermissionChecks(connection, self._watches_to_check, self._fail_watch)
        self._name = name

    def add(self, watch: EtcdWatch) -> None:
        """Add a watch and read its current state."""
        with self._lock:
            if self._closing.is_set():
                raise Closed(_CLOSED)
            self._watches.add(watch)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
        self._start(watch)
        if watch.what:
            self._rights.start()

    def list_watches_of(self, keys: EtcdKeys) -> list[EtcdWatch]:
        """Return the watches of the store that has these keys."""
        with self._lock:
            return [watch for watch in self._watches if watch.keys is keys]

    def drop(self, watch: EtcdWatch) -> None:
        """Remove a closed watch. Also tell the server to stop watching its ranges."""
        with self._lock:
            self._watches.discard(watch)
            self._cancel(watch)

    def close(self, join_s: float) -> None:
        """End all watches, and wait at most ``join_s`` seconds for the thread. Idempotent."""
        with self._lock:
            self._closing.set()
            watches, stream, thread = list(self._watches), self._stream, self._thread
        for watch in watches:
            watch.close()
        if stream is not None:
            stream.end()
        if thread is not None and thread is not threading.current_thread():
            thread.join(join_s)

    # From the snapshot to the stream.

    def _start(self, watch: EtcdWatch) -> None:
        """Read the current state of a new watch, then watch its changes. A watch of a single key is added to the stream
        first.
        """
        if watch.single_key:
            with self._lock:
                if self._stream is not None:
                    self._create(self._stream, watch)
                on_stream = watch.parts[0].watch_id is not None
            if not on_stream:
                return
        self._read(watch)

    def _read(self, watch: EtcdWatch) -> None:
        with watch.lock:
            watch.epoch += 1
            epoch = watch.epoch
        sent_at = self._connection.clock.now()
        ranges = [pb.RangeRequest(key=part.span[0], range_end=part.span[1]) for part in watch.parts]
        what = f"watch {watch.keys.decode_key(watch.parts[0].span[0])!r}"
        future = read_pages(self._connection, watch.codec, ranges, what)
        future.add_done_callback(lambda done: self._on_initial_state(watch, epoch, done, sent_at))

    def _on_initial_state(self, watch: EtcdWatch, epoch: int, done: Future[Any], sent_at: float) -> None:
        error = done.exception()
        if error is not None:
            self._on_failed_read(watch, epoch, error)
            return
        pages = done.result()
        entries = tuple(entry for page in pages for entry in page.entries())
        for page in pages:
            watch.keys.invalid_keys.record(page.strangers())
        with watch.lock:
            if watch.closed or watch.epoch != epoch:
                return
            with self._lock:  # all parts at once: a stream that starts now takes all of them or none
                for part, page in zip(watch.parts, pages, strict=True):
                    part.resume_at, part.resumes = max(part.resume_at, page.revision + 1), False
            held, watch.held = watch.held, None
            if watch.single_key:
                watch.read_at = pages[0].revision
            self._deliver(watch, Snapshot(entries, sent_at))
            for response in held or ():
                self._report(watch, response)
        with self._lock:
            if self._stream is not None:
                self._create(self._stream, watch)

    def _on_failed_read(self, watch: EtcdWatch, epoch: int, error: BaseException) -> None:
        if watch.epoch != epoch:
            return
        if isinstance(error, REFUSALS) or (isinstance(error, Closed) and not self._closing.is_set()):
            self._fail_watch(watch, error)
        elif not self._closing.is_set() and not watch.closed:
            _log.debug("a watch waits for the server: %s", error)
            self._connection.timer.call_later(_RETRY_S, lambda: self._start(watch))

    def _read_again(self, watch: EtcdWatch) -> None:
        """Read the state of a watch again, because changes may be missing. Its old ranges deliver no more events."""
        with self._lock:
            self._cancel(watch)
            for part in watch.parts:
                part.resume_at = 0
        if watch.single_key:
            with watch.lock:
                watch.held = []
        self._start(watch)

    def _fail_watch(self, watch: EtcdWatch, error: LatchworkError) -> None:
        with watch.lock:
            if not watch.closed:
                self._deliver(watch, Broken(error))
                watch.closed = True
        self.drop(watch)

    def _fail_all_watches(self, error: LatchworkError) -> None:
        """End all watches with an error, because the user's channel is closed or refuses answers of this size."""
        with self._lock:
            watches = [] if self._closing.is_set() else [*self._watches]
        for watch in watches:
            self._fail_watch(watch, error)

    def _watches_to_check(self) -> list[EtcdWatch]:
        with self._lock:
            return [] if self._closing.is_set() else [watch for watch in self._watches if watch.what]

    # Under self._lock: what goes out on the stream.

    def _create(self, stream: Stream, watch: EtcdWatch) -> None:
        if watch not in self._watches or any(part.ticket for part in watch.parts):
            return
        watch.live_at = None
        for part in watch.parts:
            stream.create(part, next(self._tickets))

    def _cancel(self, watch: EtcdWatch) -> None:
        for part in watch.parts:
            part.ticket = 0
            watch_id, part.watch_id = part.watch_id, None
            if watch_id is not None and self._stream is not None:
                self._stream.parts.pop(watch_id, None)
                self._stream.cancel(watch_id)

    # The thread.

    def _run(self) -> None:
        while not self._closing.is_set():
            stream = Stream(self._connection.clock)
            try:
                self._follow(stream)
            except grpc.RpcError as error:
                self._on_stream_error(error)
            except Closed as error:
                self._fail_all_watches(error)
                return
            except ValueError as error:
                _log.debug("the watch stream could not be opened: %s", error)
            except Exception:
                _log.exception("the watch stream failed unexpectedly; a new one is opened")
            finally:
                self._abandon_stream(stream)
            self._connection.clock.wait(self._closing, _RETRY_S / 4)

    def _follow(self, stream: Stream) -> None:
        """Open a stream, add all watches to it, and deliver events until the stream ends."""
        stream.call = self._connection.watch_stream(stream.yield_requests(self._closing))
        with self._lock:
            if self._closing.is_set():
                stream.call.cancel()
                return
            self._stream = stream
            for watch in self._watches:
                if watch.single_key or all(part.resume_at for part in watch.parts):
                    self._create(stream, watch)
        for response in stream.call:
            self._receive(stream, response)

    def _abandon_stream(self, stream: Stream) -> None:
        stream.end()
        with self._lock:
            if self._stream is stream:
                self._stream = None
            for part in (*stream.parts.values(), *(part for part, _ in stream.creating)):
                part.ticket, part.watch_id, part.watch.live_at = 0, None, None
                part.resumes = True
            stream.parts.clear()
            stream.creating.clear()

    def _on_stream_error(self, error: grpc.RpcError) -> None:
        if self._closing.is_set():
            return
        _log.debug("the watch stream was interrupted: %s", rpc_errors.get_message(error))
        effect = rpc_errors.classify_outcome(error)
        if effect is rpc_errors.CallOutcome.STALE_TOKEN:
            self._connection.refresh_token()
        elif rpc_errors.message_contains(error, rpc_errors.OVERSIZED_ANSWER):
            self._fail_all_watches(rpc_errors.translate_error(error, "watch"))
        elif effect is not rpc_errors.CallOutcome.REFUSED:
            self._connection.record_failure(error)

    def _receive(self, stream: Stream, response: Any) -> None:
        if response.events:
            self._events(stream, response)
        if response.created:
            self._on_created(stream, response)
        elif response.canceled:
            self._on_canceled(stream, response)
        elif not response.events:
            self._on_progress(stream)

    def _events(self, stream: Stream, response: Any) -> None:
        part = stream.parts.get(response.watch_id)
        if part is None:
            return
        watch = part.watch
        with watch.lock:
            if stream.parts.get(response.watch_id) is part and not watch.closed:
                if watch.held is None:
                    self._report(watch, response)
                else:
                    watch.held.append(response)
                part.resume_at = max(part.resume_at, response.events[-1].kv.mod_revision + 1)  # after the delivery

    def _report(self, watch: EtcdWatch, response: Any) -> None:
        changes: dict[str, Change] = {}
        for event in response.events:
            if event.kv.mod_revision > watch.read_at:
                key = watch.keys.decode_key_or_none(event.kv.key)
                if key is None:
                    continue
                changes.pop(key, None)
                changes[key] = Change(key, None if event.type == _DELETE else watch.keys.entry(event.kv))
        if changes:
            self._deliver(watch, Delta(tuple(changes.values())))

    def _on_created(self, stream: Stream, response: Any) -> None:
        """Handle the answer to a request to watch a range.

        Answers arrive in the order of the requests. A refusal may lack the ID of the range.
        """
        with self._lock:
            if not stream.creating:
                return
            part, ticket = stream.creating.popleft()
            current = part.ticket == ticket
            if response.canceled:
                part.ticket = 0 if current else part.ticket
            elif not current:
                stream.cancel(response.watch_id)
            else:
                part.watch_id = response.watch_id
                stream.parts[response.watch_id] = part
                part.resume_at = part.resume_at or response.header.revision + 1  # a single key, from the present
                part.behind = max(0, response.header.revision - part.resume_at)
                self._mark_live(part.watch)
        if response.canceled and current:
            self._on_range_ended(stream, part.watch, response)
        elif current and part.resumes and part.behind > _FAR_BEHIND:
            _log.info("a watch is %d revisions behind after a disconnect; reading again", part.behind)
            self._read_again(part.watch)
        elif current and part.resumes and part.resume_at > response.header.revision + 1:
            _log.info("a watch is ahead of revision %d, the server's newest; reading again", response.header.revision)
            self._read_again(part.watch)
        elif current and part.watch.held is not None:
            self._read(part.watch)

    def _mark_live(self, watch: EtcdWatch) -> None:
        """Record that a watch has received all earlier events. From now on responses to progress requests count for it.

        An old server sends such responses earlier, too.
        """
        if all(part.watch_id is not None for part in watch.parts):
            watch.denials = 0
            behind = max(part.behind for part in watch.parts)
            late_s = 0.0 if self._connection.progress_follows_events else behind / _CATCH_UP_PER_S
            watch.live_at = self._connection.clock.now() + late_s

    def _on_canceled(self, stream: Stream, response: Any) -> None:
        with self._lock:
            part = stream.parts.pop(response.watch_id, None)
            if part is not None:
                part.ticket, part.watch_id = 0, None
        if part is not None:
            self._on_range_ended(stream, part.watch, response)

    def _on_range_ended(self, stream: Stream, watch: EtcdWatch, response: Any) -> None:
        """Handle the message that the server has stopped watching a range.

        An expired token looks like a missing permission, so the client first logs in again.
        """
        reason = response.cancel_reason
        if response.compact_revision:
            _log.info("a watch fell behind compaction at revision %d; reading again", response.compact_revision)
            self._read_again(watch)
            return
        _log.debug("the server ended a watch: %s", reason)
        if "permission denied" not in reason:
            with self._lock:
                self._cancel(watch)
            self._connection.timer.call_later(_RETRY_S, lambda: self._read_again(watch))
            return
        watch.denials += 1
        if watch.denials >= _DENIALS:
            what = watch.keys.decode_key(watch.parts[0].span[0])
            self._fail_watch(
                watch, PermissionDenied(f"the account may not watch {what!r}; grant it read on that prefix")
            )
        else:
            self._connection.refresh_token().add_done_callback(lambda _: self._renew_stream(stream, watch))

    def _renew_stream(self, stream: Stream, watch: EtcdWatch) -> None:
        """Read the state of a watch again, and move all watches to a new stream that uses the new token."""
        self._read_again(watch)
        stream.end()

    def _on_progress(self, stream: Stream) -> None:
        proven_at = stream.on_progress_answer()
        if proven_at is None:
            return
        with self._lock:
            watches = {part.watch for part in stream.parts.values() if part.watch.heartbeats}
        for watch in watches:
            with watch.lock:
                live_at = watch.live_at
                if not watch.closed and watch.held is None and live_at is not None and live_at <= proven_at:
                    self._deliver(watch, Current(proven_at))

    def _deliver(self, watch: EtcdWatch, event: Any) -> None:
        """Pass an event to a watch, which must not block. The caller holds the lock of the watch."""
        try:
            watch.callback(event)
        except Exception:
            _log.exception("the callback of a watch raised an exception; the watch continues with the next event")


class PermissionChecks:
    """Checks regularly whether the account may still read the watched keys. Thread-safe.

    Args:
        connection: The connection.
        watched: Returns the watches to check now. Empty when the connection is being closed.
        end: Ends a watch with the error of a refused read.
    """

    def __init__(
        self,
        connection: EtcdConnection,
        watched: Callable[[], list[EtcdWatch]],
        end: Callable[[EtcdWatch, LatchworkError], None],
    ) -> None:
        self._connection = connection
        self._watched = watched
        self._end = end
        self._lock = mutex()
        self._looking = False

    def start(self) -> None:
        """Start checking the permissions regularly."""
        with self._lock:
            begin, self._looking = not self._looking, True
        if begin:
            self._check_later()

    def _check_later(self) -> None:
        self._connection.timer.call_later(_RIGHTS_EVERY_S, self._check)

    def _check(self) -> None:
        with self._lock:
            roots = {watch.keys.root for watch in self._watched()}
            self._looking = bool(roots)
        for root in roots:
            whole = self._may_read((root, root[:-1] + b"0"), "watch the root", member_only=True)
            whole.add_done_callback(functools.partial(self._on_answer, root))
        if roots:
            self._check_later()

    def _on_answer(self, root: bytes, asked: Future[Any]) -> None:
        if isinstance(asked.exception(), REFUSALS):
            for watch in self._watched():
                for part in watch.parts if watch.keys.root == root else ():
                    answer = self._may_read(part.span, watch.what)
                    answer.add_done_callback(functools.partial(self._on_part_answer, watch))

    def _on_part_answer(self, watch: EtcdWatch, asked: Future[Any]) -> None:
        error = asked.exception()
        if isinstance(error, REFUSALS):
            self._end(watch, error)

    def _may_read(self, span: KeyRange, description: str, *, member_only: bool = False) -> Future[Any]:
        request = pb.RangeRequest(key=span[0], range_end=span[1], limit=1, keys_only=True, serializable=member_only)
        return self._connection.read("Range", request, description, lambda answer: answer)
