"""The embedded backend, which runs every operation as a transaction on one SQLite database.

The calling thread does the work, and the returned futures are completed. ``ThreadedBackend`` is for callers that must
not block. Stores in memory are shared by name.
"""

from __future__ import annotations

import builtins
import copy
import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from latchwork._base.event import Signal
from latchwork._base.interrupts import mutex
from latchwork.backends.base import CALLS, Backend, BackendSession, Delta, Snapshot, WatchCallback, WatchEvent
from latchwork.backends.capabilities import Capabilities
from latchwork.backends.embedded import reads, sessions, writes
from latchwork.backends.embedded.connection import Database, FileDatabase, Work, open_memory_database
from latchwork.backends.embedded.file_signal import FileSignal, signal_commit
from latchwork.backends.embedded.sessions import EmbeddedSession
from latchwork.backends.embedded.watches import POLL_S, EmbeddedWatch, Poller, WatchEvents
from latchwork.backends.futures import attempt, completed, failed
from latchwork.backends.key_syntax import InvalidKeys
from latchwork.backends.schemes import find_spec
from latchwork.backends.url import StoreURL
from latchwork.clock import Clock
from latchwork.errors import Closed, Conflict, LatchworkError, SessionLost, Unavailable
from latchwork.types import Committed, Create, Entry, HasId, Op, OrderedKey, SimpleCheck

T = TypeVar("T")

_log = logging.getLogger(__name__)

_TREE_BATCH = 500  # keys deleted in one transaction: others get their turn in between
_SWEEP_TIMEOUT_S = 0.0
_CLOSE_TIMEOUT_S = 1.0
#: One of them writes at a time; a few more read.
_THREADS = 4
_lock = mutex()


class EmbeddedBackend(Backend):
    """A ``Backend`` on a SQLite database in a file or in memory. Thread-safe."""

    def __init__(self, url: StoreURL, clock: Clock) -> None:
        """Open the file, or the database in memory. ``open_backend`` documents the errors."""
        self._root = url.root
        self._clock = clock
        self._call_timeout_s = url.call_timeout_s
        self._boot_id = sessions.read_boot_id()
        self._clock_offset_s = 0.0 if url.scheme == "memory" else sessions.clock_offset_s()
        self._lock = mutex()
        self._invalid_keys = InvalidKeys(self._root)
        self._sessions: dict[str, EmbeddedSession] = {}
        self._closed_sessions: set[str] = set()  # closed here: refused even while their rows are still there
        self._closed = False
        self._memory = open_shared_database(url.path or "") if url.scheme == "memory" else None
        self._db = self._memory.database if self._memory else FileDatabase(url)
        self._file = self._db if isinstance(self._db, FileDatabase) else None
        self.polled = self._file is not None
        wake = Signal() if self._file is None else _file_signal(self._file.path)
        declared = find_spec(url.scheme).capabilities
        if url.options.get("sync") == "full":
            declared = replace(declared, survives="power loss")
        if self.polled and not isinstance(wake, FileSignal):
            declared = replace(declared, poll_interval_s=POLL_S)
        self._capabilities = declared
        self._threaded = ThreadedBackend(self, declared.name)
        self._poller = Poller(self, clock, Path(url.path or "").name, wake)
        try:
            self._remove_ended_sessions(url.connect_timeout_s)
        except BaseException:
            self._poller.close()
            self._release()
            raise
        if self._memory is not None:
            self._memory.add_poller(self._poller)
        self._poller.start()

    @property
    def capabilities(self) -> Capabilities:
        """The features and limits of this store.

        With ``sync=full``, a file also survives a power loss. Changes of other processes are polled for only if the
        system has no inotify.
        """
        return self._capabilities

    @property
    def for_event_loop(self) -> Backend:
        """A variant of this backend that makes its calls in a few separate threads."""
        return cast("Backend", self._threaded)

    def within(self, limit_s: float) -> EmbeddedBackend:
        """Return a variant of this backend whose calls end within ``limit_s`` seconds, including the wait for other
        writers.
        """
        variant = copy.copy(self)
        variant._call_timeout_s = min(limit_s, self._call_timeout_s)  # noqa: SLF001 - a copy of our own
        return variant

    # Reads: never stale here, so ``stale_ok`` changes nothing.

    def get(self, key: str, *, stale_ok: bool) -> Future[Entry | None]:  # noqa: ARG002
        """Read a key, linearizably. The future returns its entry, or None if it does not exist."""
        return self._read(lambda conn: reads.read_entry(conn, self._root, key))

    def get_many(self, keys: Sequence[str], *, stale_ok: bool = False) -> Future[builtins.list[Entry | None]]:  # noqa: ARG002
        """Read several keys at one point in time. The future returns an entry or None for each key, in order."""

        def work(conn: sqlite3.Connection) -> builtins.list[Entry | None]:
            found = reads.read_entries(conn, self._root, keys)
            return [found.get(key) for key in keys]

        return self._read(work)

    def list(
        self,
        prefix: str,
        *,
        recursive: bool,
        limit: int | None,
        start_after: str | None,
        stale_ok: bool = False,  # noqa: ARG002
    ) -> Future[builtins.list[Entry]]:
        """Read the entries below a prefix at one point in time, sorted by key. See ``Backend.list``."""
        return self._read(
            lambda conn: reads.list_entries_below(
                conn,
                self._root,
                prefix,
                self._invalid_keys,
                recursive=recursive,
                limit=limit,
                start_after=start_after,
            )
        )

    def children(self, prefix: str, *, stale_ok: bool = False) -> Future[builtins.list[str]]:  # noqa: ARG002
        """Read the names directly below a prefix, unique and sorted."""
        return self._read(lambda conn: reads.list_child_names(conn, self._root, prefix, self._invalid_keys))

    # Writes.

    def commit(self, checks: Sequence[SimpleCheck], ops: Sequence[Op]) -> Future[Committed]:
        """Commit a transaction: apply all operations if all checks hold, otherwise none."""
        return attempt(lambda: self._commit(checks, ops))

    def create_sequential(self, key: str, value: bytes, session: HasId | None) -> Future[Entry]:
        """Create a key with a ten-digit number as suffix. Numbers below a parent are never reused."""

        def work(conn: sqlite3.Connection) -> Entry:
            alive = self._remove_expired_and_make_check(conn)
            return writes.create_sequential(conn, self._root, key, value, session, is_alive=alive)

        return attempt(lambda: self._write(work))

    def create_ordered_key(
        self, key_prefix: str, unique_suffix: str, value: bytes, session: HasId | None
    ) -> Future[OrderedKey]:
        """Create a key and read the older keys with the same key prefix, in one transaction. See
        ``Backend.create_ordered_key``.
        """
        op = Create(key_prefix + unique_suffix, value, session)

        def work(conn: sqlite3.Connection) -> OrderedKey | Conflict:
            return writes.create_ordered_key(
                conn, self._root, key_prefix, op, self._remove_expired_and_make_check(conn)
            )

        return attempt(lambda: _or_raise(self._write(work)))

    def delete_tree(self, prefix: str) -> Future[int]:
        """Delete the key at a prefix and all keys below it, in batches. The future returns the number of deleted
        keys.
        """

        def work(conn: sqlite3.Connection) -> int:
            keys = reads.list_keys_at_and_below(conn, self._root, prefix, _TREE_BATCH)
            writes.delete_keys(conn, self._root, keys)
            return len(keys)

        def all_batches() -> int:
            total = 0
            while (count := self._write(work)) == _TREE_BATCH:
                total += count
            return total + count

        return attempt(all_batches)

    # Sessions.

    def open_session(self, ttl_s: float, on_gone: Callable[[], None]) -> Future[BackendSession]:
        """Open a session, which also ends when the machine is restarted. The minimum TTL is 0.25 s."""
        return attempt(lambda: self._open_session(max(float(ttl_s), sessions.MIN_TTL_S), on_gone))

    def renew_session(self, session: EmbeddedSession) -> Future[float]:
        """Extend a session by its TTL from now. Called by ``EmbeddedSession.renew``."""

        def renew() -> float:
            sent_at = self._clock.now()
            self._write(lambda conn: self._renew(conn, session), session.ttl_s / 8, is_renewal=True)
            return sent_at

        return attempt(renew)

    def commit_renewing(
        self, session: EmbeddedSession, checks: Sequence[SimpleCheck], ops: Sequence[Op]
    ) -> Future[Committed]:
        """Commit a transaction that also renews a session. Called by ``EmbeddedSession.commit``."""

        def work(conn: sqlite3.Connection) -> Committed | Conflict:
            self._renew(conn, session)
            return writes.apply_transaction(conn, self._root, checks, ops, self._remove_expired_and_make_check(conn))

        return attempt(lambda: _or_raise(self._write(work)))

    def _renew(self, conn: sqlite3.Connection, session: EmbeddedSession) -> None:
        alive = session.id not in self._closed_sessions
        if not alive or not sessions.renew_session(conn, self._root, session.id, self._boot_id, self._machine_time()):
            raise SessionLost(f"session {session.id} has ended; stop what it protected and use a new session")

    def end_session(self, session: EmbeddedSession) -> Future[None]:
        """End a session and delete its keys. Called by ``EmbeddedSession.close``."""
        with self._lock:
            known = self._sessions.pop(session.id, None) is not None or session.id in self._closed_sessions
            if known:
                self._closed_sessions.add(session.id)
        if self._closed or not known:
            return completed(None)
        return attempt(lambda: self._end_in_database(session.id))

    # Watches.

    def watch(
        self,
        prefix: str,
        callback: WatchCallback,
        *,
        single_key: bool = False,  # noqa: ARG002
        siblings: bool = False,  # noqa: ARG002
        heartbeats: bool = True,
    ) -> EmbeddedWatch:
        """Watch all keys at and below a prefix. ``single_key`` and ``siblings`` have no effect here.

        Args:
            prefix: The key prefix.
            callback: Callback for the events.
            single_key: Ignored.
            siblings: Ignored.
            heartbeats: Also send ``Current`` events while nothing changes.
        """
        self._require_open()
        return self._poller.watch(prefix, callback, heartbeats=heartbeats)

    def close(self) -> None:
        """End all watches and sessions, join the thread and close the connections. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._closed_sessions.update(self._sessions)
        self._threaded.end()
        self._poller.close()
        if self._memory is not None:
            self._memory.remove_poller(self._poller)
        try:
            self._remove_ended_sessions(min(_CLOSE_TIMEOUT_S, self._call_timeout_s))
        except LatchworkError as error:
            _log.warning(
                "sessions %s end at their deadlines only: %s",
                ", ".join(sorted(self._closed_sessions)) or "of others",
                error,
            )
        finally:
            self._release()

    # What the poller asks for.

    def has_new_commits(self) -> bool:
        """Return whether any process may have committed a transaction since the last call."""
        return self._file.has_new_commits() if self._file is not None else False

    def read_events(self, watches: Sequence[EmbeddedWatch], since: int, as_of: float) -> WatchEvents:
        """Read the next event of each watch, all at one point in time.

        Args:
            watches: The watches.
            since: Token of the newest write that was reported before.
            as_of: Local clock time at which this read began.
        """
        with self._lock:
            own = list(self._sessions.values())

        def work(conn: sqlite3.Connection) -> tuple[WatchEvents, builtins.list[EmbeddedSession]]:
            alive = self._make_session_check(conn)
            gone = [session for session in own if not alive(session.id)]
            events = self._events(conn, watches, since, as_of)
            deadline = sessions.find_next_deadline(conn)
            local = None if deadline is None else deadline + self._clock_offset_s
            return WatchEvents(reads.read_newest_token(conn), local, events), gone

        view, gone = self._db.read(work, self._call_timeout_s)
        for session in gone:
            session.notify_gone()
        return view

    def remove_ended_sessions(self) -> bool:
        """Remove sessions that have expired or were closed. Return False if the database was locked by another
        process.
        """
        try:
            self._remove_ended_sessions(_SWEEP_TIMEOUT_S)
        except Unavailable:
            return False
        return True

    # Private.

    def _machine_time(self) -> float:
        """Return the current time of the clock for session deadlines, which all processes of this machine share."""
        return self._clock.now() - self._clock_offset_s

    def _release(self) -> None:
        if self._memory is not None:
            close_shared_database(self._memory)
        else:
            self._db.close()

    def _require_open(self) -> None:
        if self._closed:
            raise Closed(f"{self._db.location} was closed; connect again")

    def _read(self, work: Work[T]) -> Future[T]:
        def run() -> T:
            self._require_open()
            return self._db.read(work, self._call_timeout_s)

        return attempt(run)

    def _write(self, work: Work[T], limit_s: float | None = None, *, is_renewal: bool = False) -> T:
        self._require_open()
        limit_s = self._call_timeout_s if limit_s is None else limit_s
        try:
            result = self._db.write(work, limit_s, is_urgent=is_renewal)
            self._notify()
        except Exception:
            raise
        except BaseException:  # an interrupt: it may be committed
            self._notify()
            raise
        return result

    def _notify(self) -> None:
        if self._file is not None:
            signal_commit(self._file.path)
        (self._memory or self._poller).notify_commit()

    def _commit(self, checks: Sequence[SimpleCheck], ops: Sequence[Op]) -> Committed:
        def work(conn: sqlite3.Connection) -> Committed | Conflict:
            return writes.apply_transaction(conn, self._root, checks, ops, self._remove_expired_and_make_check(conn))

        def only_checks(conn: sqlite3.Connection) -> Committed | Conflict:
            failed = writes.find_failed_checks(conn, self._root, checks, self._make_session_check(conn))
            return writes.conflict_error(failed) if failed else Committed(0)

        self._require_open()
        return _or_raise(self._write(work) if ops else self._db.read(only_checks, self._call_timeout_s))

    def _make_session_check(self, conn: sqlite3.Connection) -> writes.IsAlive:
        """Return a function that checks whether a session is active. Call it only inside a transaction."""
        now = self._machine_time()
        return lambda session_id: (
            session_id not in self._closed_sessions
            and sessions.is_session_alive(conn, self._root, session_id, self._boot_id, now)
        )

    def _remove_expired_and_make_check(self, conn: sqlite3.Connection) -> writes.IsAlive:
        """Remove expired sessions with their keys, then return a function that checks whether a session is active."""
        for session_id in sessions.find_expired_sessions(conn, self._machine_time()):
            sessions.end_session(conn, session_id)
        return self._make_session_check(conn)

    def _open_session(self, ttl_s: float, on_gone: Callable[[], None]) -> EmbeddedSession:
        opened_at = self._clock.now()

        def work(conn: sqlite3.Connection) -> tuple[str, int]:
            return sessions.open_session(conn, self._root, self._boot_id, ttl_s, self._machine_time())

        session_id, token = self._write(work)
        session = EmbeddedSession(self, session_id, ttl_s=ttl_s, opened_at=opened_at, token=token, on_gone=on_gone)
        with self._lock:
            if self._closed:
                raise Closed(f"{self._db.location} was closed; connect again")  # the row goes at its deadline
            self._sessions[session_id] = session
        # Its own poller must know the new deadline, and so must the others: this one's thread may not live to see it.
        (self._memory or self._poller).poll_soon()
        return session

    def _end_in_database(self, session_id: str) -> None:
        try:
            self._write(
                lambda conn: sessions.end_session(conn, session_id), min(_CLOSE_TIMEOUT_S, self._call_timeout_s)
            )
        except LatchworkError:
            self._poller.remove_ended_sessions_soon()
            raise
        with self._lock:
            self._closed_sessions.discard(session_id)

    def _remove_ended_sessions(self, limit_s: float) -> None:
        """Remove sessions that have expired, were closed, or were opened before the last restart of the machine.

        Args:
            limit_s: Seconds to wait for the lock of the database.
        """
        with self._lock:
            ended = set(self._closed_sessions)

        def work(conn: sqlite3.Connection) -> bool:
            now = self._machine_time()
            dead = {
                *ended,
                *sessions.find_expired_sessions(conn, now),
                *sessions.find_sessions_of_earlier_boots(conn, self._boot_id, now),
            }
            for session_id in sorted(dead):
                sessions.end_session(conn, session_id)
            return bool(dead)

        is_changed = self._db.write(work, limit_s)
        with self._lock:
            self._closed_sessions -= ended
        if is_changed:
            self._notify()

    def _events(
        self, conn: sqlite3.Connection, watches: Sequence[EmbeddedWatch], since: int, as_of: float
    ) -> builtins.list[WatchEvent | None]:
        followed = [watch.prefix for watch in watches if not watch.is_new]
        changes = reads.read_changes_since(conn, self._root, since, followed, self._invalid_keys) if followed else None
        events: builtins.list[WatchEvent | None] = []
        for watch in watches:
            if watch.is_new or changes is None:
                found = reads.list_entries_at_and_below(conn, self._root, watch.prefix, self._invalid_keys)
                events.append(Snapshot(tuple(found), as_of))
                continue
            own = tuple(change for change in changes if reads.is_at_or_below(change.key, watch.prefix))
            events.append(Delta(own, as_of) if own else None)
        return events


def _file_signal(path: Path) -> Signal | FileSignal:
    try:
        return FileSignal(path)
    except OSError as error:
        _log.info("changes of other processes in %s are polled every %g ms: %s", path, POLL_S * 1000, error)
        return Signal()


def _or_raise(outcome: T | Conflict) -> T:
    if isinstance(outcome, Conflict):
        raise outcome
    return outcome


class ThreadedBackend:
    """A wrapper that makes the calls of an embedded backend in separate threads. Thread-safe."""

    def __init__(self, backend: Backend, name: str, pool: ThreadPoolExecutor | None = None) -> None:
        self._backend = backend
        self._name = name
        self._pool = pool or ThreadPoolExecutor(max_workers=_THREADS, thread_name_prefix=f"latchwork-calls-{name}")

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._backend, name)
        return partial(self._in_thread, found) if name in CALLS else found

    def within(self, limit_s: float) -> Backend:
        """Return a variant of this backend whose calls end within ``limit_s`` seconds. It uses the same threads."""
        return cast("Backend", ThreadedBackend(self._backend.within(limit_s), self._name, self._pool))

    def end(self) -> None:
        """Stop the threads after their current calls. Idempotent."""
        self._pool.shutdown(wait=True)

    def _in_thread(self, call: Callable[..., Future[Any]], *args: Any, **options: Any) -> Future[Any]:
        try:
            return self._pool.submit(_result, call, args, options)
        except RuntimeError:
            if threading.main_thread().is_alive():
                return failed(Closed(f"the {self._name} store was closed; connect again"))
            return failed(
                Closed(
                    f"the {self._name} store starts no asynchronous calls once the interpreter is exiting; end them "
                    "before the main thread ends"
                )
            )


def _result(call: Callable[..., Future[Any]], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    return call(*args, **options).result()


class SharedMemoryDatabase:
    """A database in memory that several stores of this process share, and the pollers of these stores. Thread-safe."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.database: Database = open_memory_database(name)
        self.users = 0
        self._pollers: tuple[Poller, ...] = ()
        self._lock = mutex()

    def add_poller(self, poller: Poller) -> None:
        """Add a poller, which is notified of every later commit."""
        with self._lock:
            self._pollers = (*self._pollers, poller)

    def remove_poller(self, poller: Poller) -> None:
        """Remove a poller, which is no longer notified."""
        with self._lock:
            self._pollers = tuple(each for each in self._pollers if each is not poller)

    def notify_commit(self) -> None:
        """Notify all pollers of a commit."""
        for poller in self._pollers:
            poller.notify_commit()

    def poll_soon(self) -> None:
        """Make all pollers look for changes at once."""
        for poller in self._pollers:
            poller.poll_soon()


_by_name: dict[str, SharedMemoryDatabase] = {}


def open_shared_database(name: str) -> SharedMemoryDatabase:
    """Return the in-memory database with this name. Create it if it does not exist.

    The caller must call ``close_shared_database`` once for each call.
    """
    with _lock:
        shared = _by_name.get(name)
        if shared is None:
            shared = _by_name[name] = SharedMemoryDatabase(name)
        shared.users += 1
        return shared


def close_shared_database(shared: SharedMemoryDatabase) -> None:
    """Release an in-memory database. Its data are deleted when its last user has released it."""
    with _lock:
        shared.users -= 1
        if shared.users:
            return
        _by_name.pop(shared.name, None)
    shared.database.close()


def _forget_in_child() -> None:
    global _lock  # noqa: PLW0603 - the parent's may be held by a thread that the child does not have
    _lock = mutex()
    _by_name.clear()


os.register_at_fork(after_in_child=_forget_in_child)
