"""Watches of prefixes, which use persistent recursive watches of the server. An event has the path of a key, which is
then read.

One connection serves all watches, without a thread per watch. A watch first sets the server's watch, sends a barrier,
reads the subtree and reports a ``Snapshot``. Then it reads the keys for which events arrive. A few such reads are in
flight at a time, and they are reported in the order of sending. Everything starts again with each connection. Changes
between two reads are merged. A key never moves back to an older state, because the reads of one connection never do and
the first read follows a barrier. One barrier per second serves all watches: the events of everything that was committed
before the barrier arrive before its answer.

The server does not report revoked permissions. A watch notices that at its next read. One request reads the prefixes of
all watches every few seconds.
"""

from __future__ import annotations

import functools
import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from latchwork._base.interrupts import mutex
from latchwork.backends.base import Broken, Current, Delta, Snapshot, WatchCallback
from latchwork.backends.delivery import DeliveringWatch
from latchwork.backends.futures import FutureGenerator, run_generator
from latchwork.backends.timer import Timer
from latchwork.backends.zookeeper import wire
from latchwork.backends.zookeeper.connection import ZooKeeperConnection
from latchwork.backends.zookeeper.errors import NoReply
from latchwork.backends.zookeeper.reads import GuardedRead, Lister
from latchwork.backends.zookeeper.watching.single_keys import SingleKeyWatch, SingleKeyWatches
from latchwork.backends.zookeeper.wire import ADD_WATCH, MULTI_READ, NO_AUTH, OK, REMOVE_WATCHES
from latchwork.clock import Clock
from latchwork.errors import LatchworkError, PermissionDenied
from latchwork.types import Change, Entry

_log = logging.getLogger(__name__)

_HEARTBEAT_S = 1.0
#: For this long after a caller asked how old a state may be, it is proven to be current with each heartbeat; seconds.
_ASKED_S = 30.0
_RETRY_S = 0.2
#: Beats of the heart between two looks at whether the prefixes may still be read, and prefixes that one request is for.
_RIGHTS_EVERY, _PREFIXES = 4, 200
#: Reads of changed keys in flight. With only one, a change whose event is late waits for the read of the one before.
_READS_IN_FLIGHT = 4
#: What is at a prefix is read for that, unless it is more: then the names below it are.
_SMALL = 4_096
_LOAD_TIMEOUT_S = 60.0


class ZooKeeperWatch(DeliveringWatch):
    """A watch of a prefix. ``ZooKeeperWatchHub`` delivers its events."""

    def __init__(
        self,
        prefix: str,
        callback: WatchCallback,
        drop: Callable[[ZooKeeperWatch], None],
        *,
        heartbeats: bool,
        prove: Callable[[], None],
    ) -> None:
        super().__init__(prefix, callback, drop)
        self.heartbeats = heartbeats  # whether it is notified when its state is known to be current
        self.prove_current = prove
        self.loads = 0  # how often it began to load; a load that is not the newest reports nothing
        self.live = False
        self.dirty: set[str] = set()  # named by events while loading
        self.tokens: dict[str, int] = {}  # of the keys reported
        self.size = 0  # of the value at the prefix, as last reported

    def new_changes(self, found: dict[str, Entry | None]) -> tuple[Change, ...]:
        """Compare entries that were read with the last reported ones, and return the changes.

        Args:
            found: The entry of each key that was read. None for a key that does not exist.
        """
        news = []
        for key, entry in found.items():
            if entry is None:
                if self.tokens.pop(key, None) is not None:
                    news.append(Change(key, None))
            elif entry.token > self.tokens.get(key, 0):
                self.tokens[key] = entry.token
                news.append(Change(key, entry))
                if key == self.prefix:
                    self.size = len(entry.value)
        return tuple(news)


class ZooKeeperWatchHub:
    """All watches of a store. Thread-safe."""

    def __init__(self, connection: ZooKeeperConnection, lister: Lister, timer: Timer, clock: Clock) -> None:
        self._connection = connection
        self._lister = lister
        self._layout = lister.reader.layout
        self._timer = timer
        self._clock = clock
        self._lock = mutex()
        self._watches: dict[str, list[ZooKeeperWatch]] = {}
        self._dirty: set[str] = set()
        self._current: float | None = None
        #: In the order in which to report them: reads in flight, and times at which the state before was current.
        self._reports: deque[GuardedRead | float] = deque()
        self._reads_alone = False  # a read that needs several requests is in flight
        self._pumping = self._beating = self._closed = False
        self._beats = self._connects = 0
        self._proofs_until = -math.inf
        is_watched = self._watches.__contains__
        self._leaves = SingleKeyWatches(connection, lister.reader, timer, lock=self._lock, is_watched=is_watched)

    def watch_single_key(self, prefix: str, callback: WatchCallback, *, siblings: bool) -> SingleKeyWatch:
        """Watch a single session-bound key. The first event has its current state. See ``Backend.watch``."""
        return self._leaves.watch(prefix, callback, siblings=siblings)

    def watch(self, prefix: str, callback: WatchCallback, *, heartbeats: bool = True) -> ZooKeeperWatch:
        """Watch a prefix. The first event has its current state. See ``Backend.watch``."""
        watch = ZooKeeperWatch(prefix, callback, self._drop, heartbeats=heartbeats, prove=self._confirm_state)
        with self._lock:
            self._watches.setdefault(prefix, []).append(watch)
            begin = not self._beating
            self._beating = True
        self._load(watch)
        if begin:
            self._timer.call_later(_HEARTBEAT_S, self._send_heartbeats)
        return watch

    def _drop(self, watch: ZooKeeperWatch) -> None:
        """Remove a closed watch, and the server's watch if no other watch needs it."""
        with self._lock:
            same = self._watches.get(watch.prefix, [])
            if watch in same:
                same.remove(watch)
            removed = not same and self._watches.pop(watch.prefix, None) is not None and not self._closed
            if removed:
                path = self._layout.path(watch.prefix)
                self._connection.call(REMOVE_WATCHES, wire.encode_path_request(path, wire.ANY_WATCH))
        if removed:
            self._leaves.read_again(watch.prefix)

    def close(self) -> None:
        """Close all watches."""
        with self._lock:
            self._closed = True
        for watch in self._all():
            watch.close()
        self._leaves.close()

    def _all(self) -> list[ZooKeeperWatch]:
        with self._lock:
            return [watch for same in self._watches.values() for watch in same]

    # Called by the connection.

    def on_connected(self) -> None:
        """Start all watches again on a new connection, because a server keeps them for one connection only."""
        with self._lock:
            self._connects += 1
            self._dirty.clear()
            self._current = None
            for same in self._watches.values():
                for watch in same:
                    watch.live = False
        for watch in self._all():
            self._load(watch)
        self._leaves.on_connected()

    def on_event(self, kind: int, path: str) -> None:
        """Record that a key has changed. It is read by ``on_event_batch_end``.

        Args:
            kind: ZooKeeper's event type.
            path: The path of the znode.
        """
        self._leaves.on_event(kind, path)
        if not self._watches:
            return
        key = self._layout.key_of(path)
        if key is None:
            return
        with self._lock:
            for watch in self._find_watches_covering(key):
                if watch.live:
                    self._dirty.add(key)
                else:
                    watch.dirty.add(key)

    def on_event_batch_end(self) -> None:
        """Read the keys that have changed. The events of a transaction usually arrive together, so that one read
        suffices.
        """
        self._wake_thread()

    def _find_watches_covering(self, key: str) -> list[ZooKeeperWatch]:
        found = [] if key.startswith("@") else list(self._watches.get("", ()))
        end = len(key)
        while end > 0:
            found += self._watches.get(key[:end], ())
            end = key.rfind("/", 0, end)
        return found

    # Loading.

    def _load(self, watch: ZooKeeperWatch) -> None:
        with self._lock:
            if watch.closed or self._closed:
                return
            watch.live = False
            watch.loads += 1
            watch.dirty = set()
            load = watch.loads
            path = self._layout.path(watch.prefix)
            payload = wire.encode_path_request(path, wire.RECURSIVE)
            added = self._connection.call(ADD_WATCH, payload, self._clock.now() + _LOAD_TIMEOUT_S)
        run_generator(self._load_steps(watch, load, added)).add_done_callback(
            lambda ended: self._on_load_end(watch, load, ended)
        )

    def _load_steps(self, watch: ZooKeeperWatch, load: int, added: Future[wire.Reply]) -> FutureGenerator[None]:
        context = self._lister.reader.make_context(self._connection, self._clock.now() + _LOAD_TIMEOUT_S)
        confirmed = self._connection.send_barrier(context.deadline)
        first = self._lister.send_subtree_requests(
            context, watch.prefix
        )  # all at once: answers come in the order of asking
        reply = yield added
        if reply.error != wire.OK:
            raise LatchworkError(
                f"the server refused a recursive watch with error {reply.error}; it needs 3.6 or newer"
            )
        yield confirmed
        entries = yield from self._lister.read_subtree_with_root(context, watch.prefix, first)
        with self._lock:
            if watch.loads != load:
                return
            watch.tokens = {entry.key: entry.token for entry in entries}
            watch.size = next((len(entry.value) for entry in entries if entry.key == watch.prefix), 0)
        watch.deliver(Snapshot(tuple(entries), confirmed.sent_at))
        with self._lock:
            if watch.loads == load:
                watch.live = True
                self._dirty |= watch.dirty
                watch.dirty = set()

    def _on_load_end(self, watch: ZooKeeperWatch, load: int, ended: Future[None]) -> None:
        error = ended.exception()
        if error is None:
            self._wake_thread()
        elif watch.loads != load or watch.closed:
            return
        elif isinstance(error, PermissionDenied):
            watch.deliver(Broken(error))
            watch.close()
        elif not self._connection.has_ended:  # a lost connection loads again by itself; loading once more does no harm
            if not isinstance(error, (NoReply, LatchworkError)):
                _log.error("watch %r could not read: %s", watch.prefix, error, exc_info=error)
            self._timer.call_later(_RETRY_S, lambda: self._load_again(watch, load))

    def _load_again(self, watch: ZooKeeperWatch, load: int) -> None:
        if watch.loads == load and not watch.live:
            self._load(watch)

    # Living.

    def _wake_thread(self) -> None:
        with self._lock:
            self._send_read()
            if self._pumping or not (self._reports or self._dirty):
                return
            self._pumping = True
        run_generator(self._read_changes()).add_done_callback(self._on_reads_end)

    def _on_reads_end(self, ended: Future[None]) -> None:
        error = ended.exception()
        if error is None:
            return
        with self._lock:
            self._pumping = self._reads_alone = False
            self._reports.clear()
        if not isinstance(error, NoReply):
            _log.error("a change could not be reported: %s; all watches read again", error, exc_info=error)
            for watch in self._all():
                self._load(watch)

    def _send_read(self) -> None:
        """Send a read of the changed keys if one request suffices and not too many are in flight. The caller holds the
        lock.
        """
        if self._reads_alone:
            return
        if self._dirty and len(self._reports) < _READS_IN_FLIGHT:
            deadline = self._clock.now() + _LOAD_TIMEOUT_S
            read = self._lister.reader.send_guarded_read(self._connection, self._dirty, deadline)
            if read is not None:
                self._dirty.clear()
                self._reports.append(read)
        if not self._dirty and self._current is not None:
            self._reports.append(self._current)
            self._current = None

    def _read_changes(self) -> FutureGenerator[None]:
        """Report what was read, in the order in which it was requested."""
        while True:
            with self._lock:
                self._send_read()
                next_report = self._reports[0] if self._reports else None
                if next_report is None:
                    if not self._dirty:
                        self._pumping = False
                        return
                    keys = self._take_changed_keys()
            if isinstance(next_report, GuardedRead):
                yield from self._report_read(next_report)
            elif next_report is not None:
                with self._lock:
                    self._reports.popleft()
                for watch in self._all():
                    if watch.live and watch.heartbeats:
                        watch.deliver(Current(next_report))
            else:
                yield from self._read_and_report(keys)

    def _take_changed_keys(self) -> list[str]:
        """Return all changed keys, for a read of several requests. No other read is sent meanwhile. The caller holds
        the lock.
        """
        keys, self._dirty = list(self._dirty), set()
        self._reads_alone = True
        return keys

    def _report_read(self, read: GuardedRead) -> FutureGenerator[None]:
        """Report the result of a read that was sent.

        If a key has children, a second request is needed. It would be newer than the reads that were sent meanwhile, so
        their keys are read again with it.
        """
        reply = yield read.request
        with self._lock:
            self._reports.popleft()
        try:
            entries, parents = self._lister.reader.decode_guarded_read(read, reply)
        except PermissionDenied:
            self._load_covering(read.keys)
            return
        if not parents:
            self._report(read.keys, entries)
            return
        with self._lock:
            for each in (read, *self._reports):
                if isinstance(each, GuardedRead):
                    self._dirty.update(each.keys)
                else:
                    self._current = each
            self._reports.clear()
            keys = self._take_changed_keys()
        yield from self._read_and_report(keys)

    def _read_and_report(self, keys: list[str]) -> FutureGenerator[None]:
        """Read the keys from ``_take_changed_keys`` with as many requests as needed, and report them.

        If the last requests were sent on another connection, nothing is reported: the watches may have loaded newer
        states there.
        """
        connects = self._connects
        deadline = self._clock.now() + _LOAD_TIMEOUT_S
        try:
            entries = yield from self._lister.reader.read_with_guards(self._connection, keys, deadline)
        except PermissionDenied:
            self._load_covering(keys)
        else:
            if connects == self._connects:
                self._report(keys, entries)
        with self._lock:
            self._reads_alone = False

    def _load_covering(self, keys: Sequence[str]) -> None:
        """Load the watches of keys that may not be read. A watch that may not read its prefix finds out by that."""
        for watch in {id(each): each for key in keys for each in self._covering_now(key)}.values():
            self._load(watch)

    def _report(self, keys: Sequence[str], entries: Sequence[Entry | None]) -> None:
        """Report the states of keys to all watches that cover them."""
        by_watch: dict[int, tuple[ZooKeeperWatch, dict[str, Entry | None]]] = {}
        for key, entry in zip(keys, entries, strict=True):
            for watch in self._covering_now(key):
                by_watch.setdefault(id(watch), (watch, {}))[1][key] = entry
        for watch, found in by_watch.values():
            if watch.live and (news := watch.new_changes(found)):
                watch.deliver(Delta(news))

    def _covering_now(self, key: str) -> list[ZooKeeperWatch]:
        with self._lock:
            return self._find_watches_covering(key)

    # The heartbeat.

    def _confirm_state(self) -> None:
        """Send a barrier to confirm that the reported state is up to date. Called only on request, because it costs a
        transaction.
        """
        self._proofs_until = self._clock.now() + _ASKED_S

    def _send_heartbeats(self) -> None:
        with self._lock:
            self._beating = bool(self._watches) and not self._closed
            if not self._beating:
                return
        if self._connection.is_connected:
            now = self._clock.now()
            if now < self._proofs_until:
                call = self._connection.send_barrier(now + 2 * _HEARTBEAT_S)
                call.add_done_callback(lambda _: self._on_confirmation(call.sent_at, call.exception() is None))
            self._beats += 1
            if self._beats % _RIGHTS_EVERY == 0:
                self._check_permissions()
        self._timer.call_later(_HEARTBEAT_S, self._send_heartbeats)

    def _on_confirmation(self, sent_at: float, answered: bool) -> None:
        if answered:
            with self._lock:
                self._current = sent_at
            self._wake_thread()

    def _check_permissions(self) -> None:
        """Check whether the client may still read each watched prefix.

        Watches that are affected read their state again. They end with an error if they are not permitted to.
        """
        with self._lock:
            sizes = {prefix: max(watch.size for watch in same) for prefix, same in self._watches.items() if same}
        prefixes = list(sizes)
        deadline = self._clock.now() + 2 * _HEARTBEAT_S
        for at in range(0, len(prefixes), _PREFIXES):
            some = prefixes[at : at + _PREFIXES]
            reads = [
                (wire.encode_get_data if sizes[prefix] <= _SMALL else wire.encode_get_children)(
                    self._layout.path(prefix)
                )
                for prefix in some
            ]
            call = self._connection.call(MULTI_READ, wire.encode_multi(reads), deadline)
            call.add_done_callback(functools.partial(self._apply_permissions, some))

    def _apply_permissions(self, prefixes: list[str], done: Future[wire.Reply]) -> None:
        if done.exception() is not None or done.result().error != OK:
            return
        for prefix, found in zip(prefixes, wire.parse_multi_read(done.result().body), strict=True):
            if found == NO_AUTH:
                with self._lock:
                    same = list(self._watches.get(prefix, ()))
                for watch in same:
                    self._load(watch)
