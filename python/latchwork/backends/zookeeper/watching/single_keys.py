"""Watches of single session-bound keys, which use one-shot watches of the server.

One request reads the first state and sets the watch. The event of the watch reports the deletion, and nothing must be
removed. The time to hand over a lock depends on this. With ``siblings``, the thread that receives the event requests
the sibling names at once, usually before the owner of the key writes again.

A state *without* the key is valid only after a barrier, because the connected server may be behind. A deletion is valid
if it follows a state with the key on the same connection while no read is in flight. Otherwise the key is read again.

A server before 3.9 keeps one watch per path and connection: a one-shot watch would replace a persistent one of
``ZooKeeperWatchHub`` at the same path. There the events of ``ZooKeeperWatchHub`` are used, and the key is read again
when ``ZooKeeperWatchHub`` removes its watch. Both classes share a lock that orders these requests.

The server does not report revoked permissions, and hides later changes. So one request reads all keys every few
seconds.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future

from latchwork.backends.base import Broken, Delta, Snapshot, WatchCallback
from latchwork.backends.delivery import DeliveringWatch
from latchwork.backends.futures import run_generator
from latchwork.backends.timer import Timer
from latchwork.backends.zookeeper import wire
from latchwork.backends.zookeeper.connection import ZooKeeperConnection
from latchwork.backends.zookeeper.errors import NoReply, refusal_error
from latchwork.backends.zookeeper.layout import decode_entry, get_parent
from latchwork.backends.zookeeper.loop import Request
from latchwork.backends.zookeeper.reads import ZooKeeperReader
from latchwork.backends.zookeeper.wire import GET_DATA, MULTI_READ, NO_AUTH, NO_NODE, OK, REMOVE_WATCHES
from latchwork.types import Change, Entry

_log = logging.getLogger(__name__)

_RETRY_S = 0.2
#: Seconds between two looks at whether the keys may still be read, and how many one request is for.
_RIGHTS_EVERY_S, _KEYS_PER_REQUEST = 4.0, 200
_UNKNOWN_AGE = float("-inf")


class SingleKeyWatch(DeliveringWatch):
    """A watch of a single session-bound key. ``SingleKeyWatches`` delivers its events."""

    def __init__(
        self, prefix: str, callback: WatchCallback, drop: Callable[[SingleKeyWatch], None], *, siblings: bool
    ) -> None:
        super().__init__(prefix, callback, drop)
        self.siblings = siblings
        self.asks = 0  # an answer to an ask that is not the newest is of no use
        self.waits = False  # for an answer
        self.told: int | None = None  # token of the last reported state; None before the first
        self.has_ended = False


class SingleKeyWatches:
    """All watches of single session-bound keys of a store. Thread-safe.

    Args:
        connection: The connection on which the watches are set.
        reader: Reads the keys.
        timer: Schedules later reads.
        lock: The lock that is shared with the watches of prefixes.
        is_watched: Returns whether a watch of prefixes exists for exactly this key. Called with the lock held.
    """

    def __init__(
        self,
        connection: ZooKeeperConnection,
        reader: ZooKeeperReader,
        timer: Timer,
        *,
        lock: threading.Lock,
        is_watched: Callable[[str], bool],
    ) -> None:
        self._connection = connection
        self._reader = reader
        self._layout = reader.layout
        self._timer = timer
        self._lock = lock
        self._is_watched = is_watched
        self._watches: dict[str, list[SingleKeyWatch]] = {}  # by path
        self._beating = False

    def watch(self, prefix: str, callback: WatchCallback, *, siblings: bool) -> SingleKeyWatch:
        """Watch a key. The first event has its current state.

        Args:
            prefix: The key.
            callback: Callback for the events.
            siblings: Also read the names next to the key when it is deleted.
        """
        watch = SingleKeyWatch(prefix, callback, self._drop, siblings=siblings)
        with self._lock:
            self._watches.setdefault(self._layout.path(prefix), []).append(watch)
            begin, self._beating = not self._beating, True
        self._send_read(watch)
        if begin:
            self._timer.call_later(_RIGHTS_EVERY_S, self._read_all_again)
        return watch

    def _drop(self, watch: SingleKeyWatch) -> None:
        """Remove a closed watch, and the server's watch if no other watch needs it."""
        with self._lock:
            self._forget(watch, remove=not watch.has_ended)

    def close(self) -> None:
        """Close all watches."""
        for watch in self._all():
            watch.close()

    def read_again(self, prefix: str) -> None:
        """Read a key again, because the server's watches of it were removed."""
        for watch in self._at(self._layout.path(prefix)):
            self._send_read(watch)

    # Called by the connection.

    def on_connected(self) -> None:
        """Set all watches again on a new connection, because a server keeps them for one connection only."""
        for watch in self._all():
            self._send_read(watch)

    def on_event(self, kind: int, path: str) -> None:
        """Handle a watch event of the server. It may belong to a watch of a prefix.

        Args:
            kind: ZooKeeper's event type.
            path: The path of the znode.
        """
        if path not in self._watches:
            return
        for watch in self._at(path):
            if kind == wire.DELETED and watch.told is not None and not watch.waits:
                self._end(watch, _UNKNOWN_AGE)
            elif kind in {wire.DELETED, wire.CHANGED}:
                self._send_read(watch)

    # Private.

    def _all(self) -> list[SingleKeyWatch]:
        with self._lock:
            return [watch for same in self._watches.values() for watch in same]

    def _at(self, path: str) -> list[SingleKeyWatch]:
        with self._lock:
            return list(self._watches.get(path, ()))

    def _forget(self, watch: SingleKeyWatch, *, remove: bool) -> None:
        """Remove a watch. The caller holds the lock.

        Args:
            watch: The watch.
            remove: Whether to remove the server's watch, too.
        """
        path = self._layout.path(watch.prefix)
        same = self._watches.get(path, [])
        if watch not in same:
            return
        same.remove(watch)
        if same:
            return
        del self._watches[path]
        if remove and not self._is_watched(watch.prefix):
            self._connection.call(REMOVE_WATCHES, wire.encode_path_request(path, wire.ANY_WATCH))

    def _send_read(self, watch: SingleKeyWatch, *, barrier: bool = False) -> None:
        with self._lock:
            if watch.closed or watch.has_ended:
                return
            watch.asks += 1
            watch.waits = True
            number = watch.asks
            path = self._layout.path(watch.prefix)
            payload = (
                wire.encode_get_data_and_watch(path)
                if not self._is_watched(watch.prefix)
                else wire.encode_path_request(path)
            )
            send = self._connection.read if barrier else self._connection.call
            call = send(GET_DATA, payload)
        call.add_done_callback(lambda _: self._on_answer(watch, number, call))

    def _on_answer(self, watch: SingleKeyWatch, number: int, call: Request) -> None:
        if watch.asks != number:
            return
        watch.waits = False
        error = call.exception()
        if error is not None:
            if not (isinstance(error, NoReply) and self._connection.has_ended):
                self._read_again_later(watch, number)
            return
        reply = call.result()
        if reply.error not in {OK, NO_NODE}:
            self._on_refusal(watch, number, reply.error)
            return
        entry = decode_entry(watch.prefix, wire.parse_data(reply.body)[0]) if reply.error == OK else None
        if entry is not None:
            self._report(watch, entry)
        elif call.linearizable:
            self._end(watch, call.sent_at)
        else:
            self._send_read(watch, barrier=True)

    def _read_again_later(self, watch: SingleKeyWatch, number: int) -> None:
        """Read the key of a watch again some time after an error. With a new connection this happens earlier.

        Args:
            watch: The watch.
            number: The number of the failed read. Nothing is done if a later one was sent.
        """

        def again() -> None:
            if watch.asks == number:
                self._send_read(watch)

        self._timer.call_later(_RETRY_S, again)

    def _read_all_again(self) -> None:
        """Read all keys, to find missed changes and revoked permissions."""
        with self._lock:
            paths = list(self._watches)
            self._beating = bool(paths) and not self._connection.has_ended
        if not self._beating:
            return
        for at in range(0, len(paths), _KEYS_PER_REQUEST):
            some = paths[at : at + _KEYS_PER_REQUEST]
            call = self._connection.call(MULTI_READ, wire.encode_multi([wire.encode_get_data(path) for path in some]))
            call.add_done_callback(functools.partial(self._apply_answers, some))
        self._timer.call_later(_RIGHTS_EVERY_S, self._read_all_again)

    def _apply_answers(self, paths: list[str], done: Future[wire.Reply]) -> None:
        if done.exception() is not None or done.result().error != OK:
            return
        for path, found in zip(paths, wire.parse_multi_read(done.result().body), strict=True):
            if isinstance(found, int):
                for watch in self._at(path):
                    if not watch.waits:
                        self._send_read(watch)

    def _on_refusal(self, watch: SingleKeyWatch, number: int, code: int) -> None:
        if code != NO_AUTH:
            self._read_again_later(watch, number)
            return
        watch.deliver(Broken(refusal_error(code, description=f"watch {watch.prefix!r}", key=watch.prefix)))
        watch.close()

    def _report(self, watch: SingleKeyWatch, entry: Entry) -> None:
        told, watch.told = watch.told, max(watch.told or 0, entry.token)
        if told is None:
            watch.deliver(Snapshot((entry,), _UNKNOWN_AGE))
        elif entry.token > told:
            watch.deliver(Delta((Change(watch.prefix, entry),)))

    def _end(self, watch: SingleKeyWatch, as_of: float) -> None:
        with self._lock:
            watch.has_ended = True
            self._forget(watch, remove=False)
        if watch.told is None:
            watch.deliver(Snapshot((), as_of))
        elif watch.siblings:
            names = run_generator(
                self._reader.list_names(self._connection, get_parent(watch.prefix), self._connection.deadline())
            )
            names.add_done_callback(lambda read: self._report_end(watch, read))
        else:
            self._report_end(watch, None)

    def _report_end(self, watch: SingleKeyWatch, names: Future[list[str]] | None) -> None:
        """Report the deletion of the key.

        Args:
            watch: The watch.
            names: The future of the names next to the key, or None. If they could not be read, None is reported.
        """
        siblings = tuple(names.result()) if names is not None and names.exception() is None else None
        watch.deliver(Delta((Change(watch.prefix, None),), siblings=siblings))
