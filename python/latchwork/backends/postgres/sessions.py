"""Sessions, which are stored as rows with a deadline by the server's clock.

The session threads of the store request the renewals. Renewals that are requested within a twentieth of the shortest
TTL are sent in one statement.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from latchwork._base.interrupts import mutex
from latchwork.backends.base import BackendSession
from latchwork.backends.futures import LightFuture, chain, completed, failed, reject, resolve, then
from latchwork.backends.postgres import SPEC
from latchwork.backends.postgres.commits import RepeatableCall, session_lost_error
from latchwork.backends.postgres.connection import Row, Statement, decode_number, encode_text_array
from latchwork.backends.postgres.reads import decode_text
from latchwork.backends.postgres.store_connector import StoreConnector
from latchwork.backends.postgres.writes import WriteQueue
from latchwork.backends.timer import Timer

#: Shorter sessions would end when a busy machine delays their owner a little.
MIN_TTL_S = SPEC.capabilities.min_ttl_s
_TOGETHER_PART = 1 / 20
_RENEWALS_PER_TTL = 3


class PostgresSession:
    """A ``BackendSession`` that is stored as a row of the sessions table. Thread-safe."""

    confirm_gap_s = 0.0

    def __init__(self, owner: PostgresSessions, session_id: str, ttl_s: float, opened_at: float, token: int) -> None:
        self._owner = owner
        self.id = session_id
        self.ttl_s = ttl_s
        self.opened_at = opened_at
        self.token = token
        self.renew_every_s = ttl_s / _RENEWALS_PER_TTL

    def renew(self) -> Future[float]:
        """Extend the session by its TTL from now. The future returns the local clock time at which the request was
        sent.
        """
        return self._owner.renew(self)

    def close(self) -> Future[None]:
        """End the session and delete its keys. Later requests that use it fail. Idempotent."""
        return self._owner.end(self)


class PostgresSessions:
    """The open sessions of one store. Thread-safe.

    Attributes:
        ended: IDs of the sessions that were closed by this store and may still be in the database.
    """

    def __init__(
        self, connector: StoreConnector, calls: WriteQueue, timer: Timer, opened: Callable[[float], None]
    ) -> None:
        self._connector = connector
        self._calls = calls
        self._timer = timer
        self._opened = opened
        self._lock = mutex()
        self._open: dict[str, PostgresSession] = {}
        self._asked: dict[str, Future[float]] = {}
        self.ended: set[str] = set()
        query = connector.schema.query
        self._open_query = query("open_session", "select {s}.open_session($1, $2, $3)")
        self._renew_query = query("renew_sessions", "select {s}.renew_sessions($1, $2)")
        self._close_query = query("close_sessions", "select {s}.close_sessions($1, $2)")

    @property
    def ids(self) -> list[str]:
        """The IDs of the sessions that are open in this store."""
        with self._lock:
            return list(self._open)

    def open(self, ttl_s: float) -> Future[BackendSession]:
        """Open a session. The future returns it."""
        ttl_s = max(float(ttl_s), MIN_TTL_S)
        opened_at = self._connector.clock.now()
        session_id = secrets.token_hex(8)
        params = (b"%d" % self._connector.root, session_id.encode(), repr(ttl_s).encode())

        def made(rows: list[Row]) -> BackendSession:
            session = PostgresSession(self, session_id, ttl_s, opened_at, decode_number(rows[0][0]))
            with self._lock:
                self._open[session_id] = session
            self._opened(ttl_s)
            return session

        deadline = opened_at + self._connector.call_timeout_s
        return self._calls.submit(RepeatableCall("open a session", deadline, Statement(self._open_query, params), made))

    def renew(self, session: PostgresSession) -> Future[float]:
        """Extend a session by its TTL from now, in one request with other sessions that are renewed at about the same
        time.
        """
        outcome: Future[float] = LightFuture()
        with self._lock:
            if session.id not in self._open:
                return failed(session_lost_error(session.id))
            is_first = not self._asked
            before = self._asked.get(session.id)
            if before is None:
                self._asked[session.id] = outcome
            least_s = min(each.ttl_s for each in self._open.values())
            together = len(self._open) > 1
        if before is not None:
            chain(before, outcome)
        elif is_first and together:
            self._timer.call_later(least_s * _TOGETHER_PART, self._send)
        elif is_first:
            self._send()
        return outcome

    def end(self, session: PostgresSession) -> Future[None]:
        """End a session and delete its keys. Its later requests are refused at once."""
        with self._lock:
            known = self._open.pop(session.id, None) is not None
            if known:
                self.ended.add(session.id)
            retry = not known and session.id in self.ended
        if not known and not retry:
            return completed(None)

        def ended(_: object) -> None:
            self.ended.discard(session.id)

        deadline = self._connector.clock.now() + self._connector.call_timeout_s
        params = (b"%d" % self._connector.root, encode_text_array([session.id]))
        what = f"close session {session.id}"
        closing = RepeatableCall(what, deadline, Statement(self._close_query, params), lambda _: None, writes=True)
        return then(self._calls.submit(closing), ended)

    def _send(self) -> None:
        with self._lock:
            asked, self._asked = self._asked, {}
            ttl_s = min((self._open[each].ttl_s for each in asked if each in self._open), default=MIN_TTL_S)
        if not asked:
            return
        sent_at = [0.0]

        def sent() -> None:
            sent_at[0] = self._connector.clock.now()

        statement = Statement(self._renew_query, (b"%d" % self._connector.root, encode_text_array(list(asked))))
        deadline = self._connector.clock.now() + min(self._connector.call_timeout_s, max(0.5, ttl_s / 4))
        ask = RepeatableCall(f"renew {len(asked)} sessions", deadline, statement, _names, once=True, sent=sent)
        self._calls.submit(ask).add_done_callback(lambda done: self._renewed(asked, sent_at[0], done))

    def _renewed(self, asked: dict[str, Future[float]], sent_at: float, done: Future[Sequence[str]]) -> None:
        error = done.exception()
        alive = set() if error is not None else set(done.result())
        for session_id, outcome in asked.items():
            if error is not None:
                reject(outcome, error)
            elif session_id in alive:
                resolve(outcome, sent_at)
            else:
                reject(outcome, session_lost_error(session_id))


def _names(rows: list[Row]) -> list[str]:
    return [decode_text(row[0]) for row in rows]
