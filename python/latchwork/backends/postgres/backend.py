"""The PostgreSQL backend, which combines reads, writes, sessions and watches. Thread-safe.

A store has up to three connections: one for reads, one for writes and renewals, one for watches.
"""

from __future__ import annotations

import builtins
import copy
import itertools
import logging
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from operator import itemgetter
from typing import Any

from latchwork._base.interrupts import mutex
from latchwork.backends.base import Backend, BackendSession, BackendWatch, ServerInfo, WatchCallback
from latchwork.backends.capabilities import Capabilities
from latchwork.backends.futures import FutureGenerator, failed, run_generator
from latchwork.backends.outcomes import describe_read
from latchwork.backends.postgres import SPEC
from latchwork.backends.postgres.call_queue import CallQueue, PostgresCall
from latchwork.backends.postgres.change_notifier import ChangeNotifier
from latchwork.backends.postgres.commits import (
    PostgresCommit,
    TreeDeletion,
    build_ordered_commit,
    build_sequential_commit,
)
from latchwork.backends.postgres.connection import Query, Row, Statement
from latchwork.backends.postgres.reads import Read, ReadQueue, ReadStatements, decode_entry, decode_text
from latchwork.backends.postgres.sessions import PostgresSessions
from latchwork.backends.postgres.store_connector import StoreConnector
from latchwork.backends.postgres.watches import POLL_S, ChangeWatcher
from latchwork.backends.postgres.writes import NotifyStores, WriteBarrier, WriteQueue
from latchwork.backends.timer import Timer
from latchwork.backends.url import StoreURL
from latchwork.clock import Clock
from latchwork.errors import LatchworkError
from latchwork.types import Committed, Create, Entry, HasId, Op, OrderedKey, SimpleCheck

_log = logging.getLogger(__name__)
_numbers = itertools.count(1)

_CLOSE_S = 2.0
#: The part of all connections above which too few are left.
_MANY = 0.8
_INFO = Statement(
    Query(
        b"server_info",
        b"select current_setting('server_version'), extract(epoch from clock_timestamp())::text, "
        b"(select count(*) from pg_stat_activity where backend_type = 'client backend')::text, "
        b"current_setting('max_connections')",
        frozenset(),
    ),
    (),
)


class PostgresBackend(Backend):
    """A ``Backend`` on one root of a PostgreSQL database. Thread-safe."""

    _now = False

    def __init__(self, url: StoreURL, clock: Clock) -> None:
        """Connect to the server. ``open_backend`` documents the errors."""
        number = next(_numbers)
        self._clock = clock
        self._commits_later = url.options.get("synchronous_commit") == "off"
        self._connector = StoreConnector(url, clock)
        greeted = self._connector.connect_first()
        self._read_statements = ReadStatements(self._connector.schema, self._connector.root)
        self._reads = ReadQueue(self._connector, f"latchwork-postgres-reads-{number}", greeted)
        self._timer = Timer(clock, f"latchwork-postgres-timer-{number}")
        notices = self._notices = ChangeNotifier(secrets.token_hex(8), clock, self._timer, self._notify)
        self._hub = ChangeWatcher(self._connector, self._read_statements, f"latchwork-postgres-watch-{number}", notices)
        self._writes = WriteQueue(
            self._connector, f"latchwork-postgres-writes-{number}", self._hub.record_write, notices
        )
        self._sessions = PostgresSessions(self._connector, self._writes, self._timer, self._hub.schedule_expiry_check)
        self._lock = mutex()
        self._closed = False
        self._hub.start()

    @property
    def capabilities(self) -> Capabilities:
        """The features and limits of this store.

        Behind a connection pooler, changes are polled. Without synchronous commits, a crash of the server loses the
        last writes.
        """
        return replace(
            SPEC.capabilities,
            survives="restart" if self._commits_later else SPEC.capabilities.survives,
            poll_interval_s=POLL_S if self._connector.is_pooled else 0.0,
        )

    @property
    def for_blocking_calls(self) -> PostgresBackend:
        """A variant of this backend that makes its calls in the caller's thread and blocks until they end."""
        face = copy.copy(self)
        face._now = True  # noqa: SLF001 - a copy of our own
        return face

    # Reads: never stale here, so ``stale_ok`` changes nothing.

    def get(self, key: str, *, stale_ok: bool) -> Future[Entry | None]:  # noqa: ARG002
        """Read a key, linearizably. The future returns its entry, or None if it does not exist."""
        statement = self._read_statements.select_key(key)
        return self._read(f"read {key!r}", [statement], lambda rows: decode_entry(rows[0]) if rows else None)

    def get_many(self, keys: Sequence[str], *, stale_ok: bool = False) -> Future[builtins.list[Entry | None]]:  # noqa: ARG002
        """Read several keys at one point in time. The future returns an entry or None for each key, in order."""

        def decode(rows: builtins.list[Row]) -> builtins.list[Entry | None]:
            found = {each.key: each for each in map(decode_entry, rows)}
            return [found.get(key) for key in keys]

        return self._read(describe_read(keys), [self._read_statements.select_keys(keys)], decode)

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
        statements = self._read_statements.select_below(
            prefix, recursive=recursive, limit=limit, start_after=start_after
        )
        return self._read(f"list {prefix!r}", statements, lambda rows: [decode_entry(row) for row in rows[:limit]])

    def children(self, prefix: str, *, stale_ok: bool = False) -> Future[builtins.list[str]]:  # noqa: ARG002
        """Read the names directly below a prefix, unique and sorted."""
        return self._read(
            f"read the children of {prefix!r}",
            self._read_statements.select_names_below(prefix),
            lambda rows: sorted({decode_text(row[0]) for row in rows}),
        )

    def server_info(self) -> ServerInfo:
        """Read the version of the server, its clock, and how many of its connections are in use. Blocks."""
        version, clock, used, limit = map(
            decode_text, self._read("ask the server about itself", [_INFO], itemgetter(0)).result()
        )
        remedy = "" if int(used) < _MANY * int(limit) else "raise max_connections: a store has up to three connections"
        return ServerInfo(version, "14", float(clock), f"{used} of {limit} connections", remedy)

    # Writes.

    def commit(self, checks: Sequence[SimpleCheck], ops: Sequence[Op]) -> Future[Committed]:
        """Commit a transaction: apply all operations if all checks hold, otherwise none.

        Transactions of this store that wait at the same time are sent in one statement.
        """
        return self._write(lambda deadline: PostgresCommit(deadline, checks, ops, self._sessions.ended))

    def create_sequential(self, key: str, value: bytes, session: HasId | None) -> Future[Entry]:
        """Create a key whose suffix is the next number below its parent."""
        return self._write(
            lambda deadline: build_sequential_commit(deadline, key, value, session, self._sessions.ended)
        )

    def create_ordered_key(
        self, key_prefix: str, unique_suffix: str, value: bytes, session: HasId | None
    ) -> Future[OrderedKey]:
        """Create a key and read the older keys with the same key prefix, in one transaction. See
        ``Backend.create_ordered_key``.
        """
        op = Create(key_prefix + unique_suffix, value, session)
        return self._write(lambda deadline: build_ordered_commit(deadline, key_prefix, op, self._sessions.ended))

    def delete_tree(self, prefix: str) -> Future[int]:
        """Delete the key at a prefix and all keys below it, in several transactions.

        The future returns the number of deleted keys.
        """
        return self._write(lambda deadline: TreeDeletion(deadline, prefix))

    # Sessions and watches.

    def open_session(self, ttl_s: float, on_gone: Callable[[], None]) -> Future[BackendSession]:  # noqa: ARG002
        """Open a session. The minimum TTL is one second.

        ``on_gone`` is not called. If another client ends the session, its next renewal fails.
        """
        return self._sessions.open(ttl_s)

    def watch(
        self,
        prefix: str,
        callback: WatchCallback,
        *,
        single_key: bool = False,  # noqa: ARG002
        siblings: bool = False,  # noqa: ARG002
        heartbeats: bool = True,
    ) -> BackendWatch:
        """Watch all keys at and below a prefix. ``single_key`` and ``siblings`` have no effect here.

        Args:
            prefix: The key prefix.
            callback: Callback for the events.
            single_key: Ignored.
            siblings: Ignored.
            heartbeats: Also send ``Current`` events while nothing changes.
        """
        return self._hub.watch(prefix, callback, heartbeats=heartbeats)

    def close(self) -> None:
        """End all watches and sessions, join the threads and close the connections. Idempotent."""
        with self._lock:
            closed, self._closed = self._closed, True
        if closed:
            return
        deadline = self._clock.now() + min(_CLOSE_S, self._connector.call_timeout_s)
        if self._writes.is_used:
            self._notices.send_soon()
            leaving = self._writes.make_close_call(deadline, [*self._sessions.ids, *self._sessions.ended])
            try:
                self._writes.submit(leaving).result(min(_CLOSE_S, self._connector.call_timeout_s))
            except (LatchworkError, TimeoutError) as error:
                _log.info("sessions of a store that is closed end at their deadlines only: %s", error)
        self._connector.closing.set()
        self._timer.close()
        for queue in (self._writes, self._reads):
            queue.close(deadline)
        self._hub.close(deadline)

    # Private.

    def _deadline(self) -> float:
        return self._clock.now() + self._connector.call_timeout_s

    def _made(self, queue: CallQueue, call: PostgresCall) -> Future[Any]:
        return queue.call_now(call) if self._now else queue.submit(call)

    def _read(
        self, description: str, statements: Sequence[Statement], decode: Callable[[builtins.list[Row]], Any]
    ) -> Future[Any]:
        read = Read(description, self._deadline(), statements, decode)
        if not self._writes.is_in_doubt:
            return self._made(self._reads, read)

        def steps() -> FutureGenerator[Any]:  # a read is final only once it is known what became of the writes before
            yield self._writes.submit(
                WriteBarrier(f"{description}, which waits for a write whose outcome is unknown", read.deadline)
            )
            return (yield self._reads.submit(read))

        return run_generator(steps())

    def _write(self, make: Callable[[float], PostgresCall]) -> Future[Any]:
        try:
            return self._made(self._writes, make(self._deadline()))
        except (LatchworkError, ValueError) as error:
            return failed(error)

    def _notify(self) -> None:
        self._writes.submit(NotifyStores(self._deadline()))
