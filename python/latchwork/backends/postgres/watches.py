"""The thread of an open store that reads changes, delivers them to watches and removes expired sessions.

It reads the rows of the table of changes that follow the last one it has read. It does so after a write of this store,
after a notification of another store, and every second or two in case a notification was lost because its sender ended.
Behind a connection pooler there are no notifications: there it polls every 30 ms while there are watches.

Each read is one snapshot of the database. If the last known change is no longer in the table, it was removed as too
old, or the server has gone back to an older state. Then every watch starts again with a ``Snapshot``.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import select
import struct
import threading
from collections.abc import Iterable

from latchwork._base.interrupts import mutex
from latchwork._base.trouble_log import TroubleLog
from latchwork.backends.base import Broken as BrokenWatch
from latchwork.backends.base import Current, Delta, Snapshot, WatchCallback, WatchEvent
from latchwork.backends.delivery import DeliveringWatch
from latchwork.backends.postgres import errors
from latchwork.backends.postgres.change_notifier import ChangeNotifier
from latchwork.backends.postgres.connection import PostgresConnection, Row, Statement, decode_number
from latchwork.backends.postgres.errors import ConnectionBroken, ServerError
from latchwork.backends.postgres.opener import ConnectionOpener
from latchwork.backends.postgres.reads import ReadStatements, decode_entry, decode_text
from latchwork.backends.postgres.store_connector import StoreConnector
from latchwork.errors import Closed, LatchworkError, PermissionDenied
from latchwork.types import Change, Entry

_log = logging.getLogger(__name__)

_CURRENT_EVERY_S = 1.0
_FALLBACK_S = 2.0
POLL_S = 0.03
#: Between two reads, so that one read finds many commits.
_PAUSE_S = 0.002
_RECONNECT_S = 0.1
_LOOK_TIMEOUT_S = 20.0
#: Stores end expired sessions of other stores after a random delay of at most this.
_SWEEP_JITTER_S = 0.1
_IDLE_SWEEP_S = 5.0


class PostgresWatch(DeliveringWatch):
    """A watch of a prefix. The thread of the ``ChangeWatcher`` delivers its events."""

    def __init__(self, hub: ChangeWatcher, prefix: str, callback: WatchCallback, *, heartbeats: bool) -> None:
        super().__init__(prefix, callback, hub.remove)
        self.heartbeats = heartbeats
        self.is_new = True
        self.last_event_at = 0.0


class ChangeWatcher:
    """The thread that reads changes of a root, delivers them to the watches and removes expired sessions. Thread-
    safe.
    """

    def __init__(
        self, connector: StoreConnector, read_statements: ReadStatements, name: str, notices: ChangeNotifier
    ) -> None:
        self._connector = connector
        self._read_statements = read_statements
        self._clock = connector.clock
        self._notices = notices
        self._lock = mutex()
        self._watches: dict[str, list[PostgresWatch]] = {}  # by prefix
        self._opener = ConnectionOpener(connector, name)
        self._connection: PostgresConnection | None = None
        self._known: tuple[int, int] | None = None  # token and request of the last delivered change
        self._look_at = 0.0  # local clock time; brought forward by those who know of a change
        self._looked_at = 0.0
        self._sweep_at = 0.0
        self._trouble = TroubleLog(_log)
        self._closing = False
        query = connector.schema.query
        self._begin = query("begin", "begin transaction isolation level repeatable read read only")
        self._commit = query("commit", "commit")
        self._changes = query(
            "changes",
            "select token, request, key, created from {s}.changes where root = $1 and token >= $2 order by token",
        )
        self._newest = query(
            "newest",
            "select token, request, key, created from {s}.changes where root = $1 order by token desc limit 1",
        )
        self._sweep = query("sweep", "select * from {s}.sweep($1)")
        self._listen = query("listen", f"listen {connector.channel_name}")
        self._wakes, self._wake = os.pipe()
        os.set_blocking(self._wakes, False)
        os.set_blocking(self._wake, False)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def watch(self, prefix: str, callback: WatchCallback, *, heartbeats: bool) -> PostgresWatch:
        """Add a watch of a key prefix. The thread of this object delivers its events.

        Args:
            prefix: The key prefix.
            callback: Callback for the events.
            heartbeats: Also send ``Current`` events while nothing changes.
        """
        watch = PostgresWatch(self, prefix, callback, heartbeats=heartbeats)
        with self._lock:
            if self._closing:
                raise Closed(f"the store on {self._connector.server_name} was closed; connect again")
            self._watches.setdefault(prefix, []).append(watch)
        self.poll_soon()
        return watch

    def remove(self, watch: PostgresWatch) -> None:
        """Remove a watch."""
        with self._lock:
            same_prefix = self._watches.get(watch.prefix, [])
            if watch in same_prefix:
                same_prefix.remove(watch)
            if not same_prefix:
                self._watches.pop(watch.prefix, None)

    def record_write(self) -> None:
        """Wake the thread after a write of this store, if any key is watched."""
        if self._watches:
            self.poll_soon()

    def poll_soon(self) -> None:
        """Make the thread look for changes at once."""
        self._look_at = 0.0
        self._wake_thread()

    def schedule_expiry_check(self, ttl_s: float) -> None:
        """Look for expired sessions after ``ttl_s`` seconds, because a session with this TTL was opened."""
        self._sweep_at = min(self._sweep_at, self._clock.now() + ttl_s)
        self._wake_thread()

    def close(self, deadline: float) -> None:
        """Close all watches, join the thread and close the connection. Idempotent.

        Args:
            deadline: Local clock time until which to wait for an attempt to connect.
        """
        with self._lock:
            if self._closing:
                return
            self._closing = True
            watches = [watch for each in self._watches.values() for watch in each]
        for watch in watches:
            watch.close()
        self._wake_thread()
        if self._thread.ident is not None and threading.current_thread() is not self._thread:
            self._thread.join()
        self._opener.close(deadline)
        os.close(self._wakes)
        os.close(self._wake)

    # Private: in the thread.

    def _wake_thread(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it has more than enough wakes to read
            os.write(self._wake, b"x")

    def _run(self) -> None:
        while not self._closing:
            try:
                self._step()
                self._wait()
            except ConnectionBroken as error:
                self._fail(error)
            except PermissionDenied as error:
                self._end_watches(error)
            except LatchworkError as error:
                self._fail(error)
            except Exception as error:
                _log.exception("following the changes failed; please report this")
                self._fail(error)
        self._disconnect()

    def _step(self) -> None:
        now = self._clock.now()
        sweeps = now >= self._sweep_at
        looks = bool(self._watches) and now >= self._look_at
        if not (sweeps or looks):
            return
        connection = self._connected()
        deadline = now + _LOOK_TIMEOUT_S
        if sweeps:
            self._sweep_now(connection, deadline)
        if looks or self._watches:
            self._read_changes(connection, deadline)
        self._trouble.record_success("watches are up to date again")

    def _connected(self) -> PostgresConnection:
        if self._connection is None:
            self._connection = self._opener.open(self._clock.now() + self._connector.call_timeout_s)
            self._sweep_at = 0.0
            if not self._connector.is_pooled:
                _run_statements(
                    self._connection, [Statement(self._listen)], self._clock.now() + self._connector.call_timeout_s
                )
        return self._connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _sweep_now(self, connection: PostgresConnection, deadline: float) -> None:
        (rows,) = _run_statements(connection, [Statement(self._sweep, (b"%d" % self._connector.root,))], deadline)
        ended, next_s = decode_number(rows[0][0]), rows[0][1]
        left_s = _IDLE_SWEEP_S if next_s is None else max(0.0, float(struct.unpack("!d", next_s)[0]))
        self._sweep_at = self._clock.now() + min(left_s, _IDLE_SWEEP_S) + random.uniform(0.0, _SWEEP_JITTER_S)
        if ended:
            _log.info("%d expired sessions of other clients were removed", ended)
            self._look_at = 0.0
            self._notices.add(None)

    def _read_changes(self, connection: PostgresConnection, deadline: float) -> None:
        with self._lock:
            watches = [watch for each in self._watches.values() for watch in each]
        self._looked_at = as_of = self._clock.now()
        self._look_at = as_of + self._pause_s()
        root, known = b"%d" % self._connector.root, self._known
        since = b"%d" % (known[0] if known is not None else 0)
        first = [Statement(self._begin), Statement(self._newest, (root,)), Statement(self._changes, (root, since))]
        _, last, rows = _run_statements(connection, first if known is not None else first[:2], deadline, 3)
        is_gap = known is None or not rows or (decode_number(rows[0][0]), decode_number(rows[0][1])) != known
        changed = (
            {}
            if is_gap or known is None
            else {decode_text(row[2]): row for row in rows if decode_number(row[0]) > known[0]}
        )
        watched = self._find_watched(changed)
        wanted = [key for key in watched if changed[key][3] is not None]
        new = [watch for watch in watches if watch.is_new or is_gap]
        reads = [self._read_statements.select_at_and_below(watch.prefix) for watch in new]
        statements = [
            self._read_statements.select_keys(wanted),
            *(each for read in reads for each in read),
            Statement(self._commit),
        ]
        if wanted or new:
            answers = iter(_run_statements(connection, statements if wanted else statements[1:], deadline))
        else:  # no caller waits for the end of the transaction
            answers = iter(_run_statements(connection, statements[-1:], deadline, unanswered=1))
        found = {each.key: each for each in map(decode_entry, next(answers))} if wanted else {}
        events = self._make_deltas(changed, watched, found, as_of)
        for watch, read in zip(new, reads, strict=True):
            events[watch] = Snapshot(tuple(decode_entry(row) for _ in read for row in next(answers)), as_of)
        self._known = (decode_number(last[0][0]), decode_number(last[0][1])) if last else None
        for watch in watches:
            self._deliver(watch, events.get(watch), as_of)

    def _find_watched(self, changed: Iterable[str]) -> dict[str, list[PostgresWatch]]:
        """Return the watched keys among the changed ones, each with its watches."""
        watches: dict[str, list[PostgresWatch]] = {}
        with self._lock:
            for key in changed:
                found = [] if key.startswith("@") else list(self._watches.get("", ()))
                at = key.find("/")
                while at > 0:
                    found += self._watches.get(key[:at], ())
                    at = key.find("/", at + 1)
                found += self._watches.get(key, ())
                if found:
                    watches[key] = found
        return watches

    @staticmethod
    def _make_deltas(
        changed: dict[str, Row], watches: dict[str, list[PostgresWatch]], found: dict[str, Entry], as_of: float
    ) -> dict[PostgresWatch, WatchEvent]:
        """Return the next event for each watch that has already received its first ``Snapshot``.

        Args:
            changed: The changed keys with their rows.
            watches: The watches of each changed key.
            found: The current entries of the changed keys.
            as_of: Local clock time at which the state was read.
        """
        own: dict[PostgresWatch, list[Change]] = {}
        for key in sorted(watches, key=lambda key: decode_number(changed[key][0])):
            for watch in watches[key]:
                own.setdefault(watch, []).append(Change(key, found.get(key)))
        return {watch: Delta(tuple(changes), as_of) for watch, changes in own.items()}

    def _deliver(self, watch: PostgresWatch, event: WatchEvent | None, as_of: float) -> None:
        if watch.is_new and not isinstance(event, Snapshot):
            return
        watch.is_new = False
        if event is None and watch.heartbeats and as_of - watch.last_event_at >= _CURRENT_EVERY_S * 0.9:
            event = Current(as_of)
        if event is not None:
            watch.last_event_at = as_of
            watch.deliver(event)

    def _is_relevant(self, notification: bytes) -> bool:
        """Return whether another store's notification contains a key that is watched here."""
        keys = self._notices.parse_notification(notification)
        return keys is None or bool(self._find_watched(keys))

    def _pause_s(self) -> float:
        """Return the seconds until the next poll if no notification arrives."""
        if self._connector.is_pooled:
            return POLL_S
        with self._lock:
            heartbeats = any(watch.heartbeats for each in self._watches.values() for watch in each)
        return _CURRENT_EVERY_S if heartbeats else _FALLBACK_S

    def _fail(self, error: Exception) -> None:
        self._disconnect()
        if not self._closing:
            self._trouble.record_failure(error, "watches are delayed, retrying")
        self._clock.wait(self._connector.closing, _RECONNECT_S)
        self._look_at = 0.0

    def _end_watches(self, error: LatchworkError) -> None:
        self._disconnect()
        with self._lock:
            watches = [watch for each in self._watches.values() for watch in each]
            self._watches.clear()
        for watch in watches:
            watch.deliver(BrokenWatch(error))
        self._sweep_at = self._clock.now() + _IDLE_SWEEP_S

    def _wait(self) -> None:
        """Wait until the next poll is due or a notification arrives. The pause since the last poll is never shorter
        than a minimum.
        """
        connection = self._connection
        while not self._closing:
            if connection is not None and any(map(self._is_relevant, connection.take_notifications())):
                self._look_at = 0.0  # it may have come with an answer: the socket shows nothing then
            now = self._clock.now()
            due = self._sweep_at
            if self._watches:
                due = min(due, max(self._look_at, self._looked_at + _PAUSE_S))
            if now >= due:
                return
            waits = [self._wakes] if connection is None else [self._wakes, connection.fileno]
            # Real time even under a virtual clock: other processes do not wait for that clock.
            ready, _, _ = select.select(waits, [], [], min(due - now, _IDLE_SWEEP_S))
            if self._wakes in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wakes, 4096)


def _run_statements(
    connection: PostgresConnection,
    statements: list[Statement],
    deadline: float,
    count: int | None = None,
    *,
    unanswered: int = 0,
) -> list[list[Row]]:
    """Run statements and return their rows.

    Args:
        connection: The connection.
        statements: The statements.
        deadline: Local clock time.
        count: The length of the result, or None for one list per statement. Statements that were not executed have an
            empty list.
        unanswered: The number of statements at the end whose answers are ignored and not waited for.
    Raises:
        ConnectionBroken: The connection was lost, or the server refuses the statements temporarily.
        LatchworkError: The server refuses the statements.
    """
    rows: list[list[Row]] = []
    for answer in connection.run(statements, deadline, unanswered=unanswered):
        if isinstance(answer, ServerError):
            if answer.is_transient:
                raise ConnectionBroken(str(answer)) from answer
            raise errors.translate_error(answer, "follow the changes")
        rows.append(answer)
    return rows + [[]] * ((count or 0) - len(rows))
