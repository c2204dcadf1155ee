"""The session of a store as a separate ZooKeeper session with its own connection.

Its marker, the znode ``@s/<id>``, is ephemeral and never created again. Every request of the session sets or checks the
marker, so that no request can be applied in another ZooKeeper session. The store's session thread calls ``renew``.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

from latchwork._base.interrupts import mutex
from latchwork.backends.futures import FutureGenerator, LightFuture, completed, reject, resolve, run_generator
from latchwork.backends.zookeeper import wire
from latchwork.backends.zookeeper.connection import ConnectionSettings, ZooKeeperConnection
from latchwork.backends.zookeeper.errors import NoReply, no_reply_error, refusal_error, session_lost_error
from latchwork.backends.zookeeper.layout import ZnodeLayout
from latchwork.backends.zookeeper.reads import ZooKeeperReader
from latchwork.backends.zookeeper.wire import MULTI, NO_NODE, OK, SESSION_EXPIRED, SYNC
from latchwork.backends.zookeeper.writing.write_task import WriteTask, create_write_counter
from latchwork.errors import SessionLost, Unavailable
from latchwork.types import Committed, Op, SimpleCheck

_log = logging.getLogger(__name__)

_Commit = Callable[["ZooKeeperSession", Sequence[SimpleCheck], Sequence[Op]], Future[Committed]]
#: Seconds from the end of a session until the resources of its thread are released.
_TIDY_S = 0.5


class ZooKeeperSession:
    """A ``BackendSession`` with its own ZooKeeper session and connection. Thread-safe."""

    def __init__(
        self,
        settings: ConnectionSettings,
        layout: ZnodeLayout,
        ttl_s: float,
        on_gone: Callable[[], None],
        commit: _Commit,
    ) -> None:
        self.id = uuid.uuid4().hex
        self.token = 0
        self._settings = settings
        self._marker = layout.session_path(self.id)
        self._on_gone = on_gone
        self._commit = commit
        self._lock = mutex()
        self._closing: Future[None] | None = None
        self._check = wire.encode_multi([wire.encode_check(self._marker)])
        self.connection = ZooKeeperConnection(settings, ttl_s, self, f"latchwork-zk-session-{self.id[:8]}")

    @property
    def ttl_s(self) -> float:
        """The TTL in seconds that the server granted."""
        return self.connection.ttl_s

    @property
    def opened_at(self) -> float:
        """The local clock time at which the handshake that opened the session was sent."""
        return self.connection.opened_at

    @property
    def renew_every_s(self) -> float:
        """The interval between two renewals in seconds: a third of the TTL.

        Each renewal adds a transaction to the log of every server, so it is not made more often.
        """
        return self.ttl_s / 3

    @property
    def confirm_gap_s(self) -> float:
        """A quarter of the TTL in seconds. Within that time a server reports to the leader that the session is
        active.
        """
        return self.ttl_s / 4

    @property
    def touch_after_s(self) -> tuple[float, ...]:
        """The seconds after a renewal at which touches are sent.

        The first touch confirms this renewal. The second one counts with the next renewal. The third one is sent before
        the next renewal in case that is late.
        """
        return (self.ttl_s * 0.05, self.ttl_s * 0.08, self.ttl_s * 0.252)

    @property
    def resumed_at(self) -> float:
        """The local clock time at which the last handshake was sent.

        With each handshake the timeout of the session begins again at the leader, whichever server receives it.
        """
        return self.connection.handshake_at

    def open(self, reader: ZooKeeperReader) -> FutureGenerator[ZooKeeperSession]:
        """Connect, and create the ephemeral znode of the session.

        Raises:
            Unavailable: The session could not be opened within ``call_timeout_s``. No connection or session remains.
        """
        what = "open a session"
        self.connection.start()
        try:
            task = WriteTask(self.connection, self.connection.deadline(), self.id, what)
            self.token = yield from create_write_counter(reader, task, self._marker)
        except BaseException as error:
            self.close()
            if isinstance(error, SessionLost):
                raise Unavailable(f"{what}: the session ended before it was ready; try again") from error
            raise
        _log.info("session %s opened, ttl %.3f s", self.id, self.ttl_s)
        return self

    def renew(self) -> Future[float]:
        """Renew the session with a check of its znode, which a quorum of servers answers while the session is active.

        The future returns the local clock time at which the renewal was sent.
        """
        return run_generator(self._renew())

    def _renew(self) -> FutureGenerator[float]:
        what = "renew"
        deadline = self._settings.clock.now() + min(self._settings.call_timeout_s, self.ttl_s)
        call = self.connection.call(MULTI, self._check, deadline)
        try:
            reply = yield call
        except NoReply as no_reply:
            raise no_reply_error(no_reply, description=what, is_write=False, session_id=self.id) from no_reply
        error = wire.parse_multi(reply).error
        if error in {NO_NODE, SESSION_EXPIRED}:
            raise session_lost_error(self.id, what)
        if error != OK:
            raise refusal_error(error, description=what, key=self._marker)
        return call.sent_at

    def touch(self) -> Future[float]:
        """Send a sync request, which writes nothing. It reaches the leader after the server's report that the session
        is active.

        The future returns the local clock time at which it was sent.
        """
        return run_generator(self._touch())

    def _touch(self) -> FutureGenerator[float]:
        what = "touch"
        deadline = self._settings.clock.now() + min(self._settings.call_timeout_s, self.ttl_s)
        call = self.connection.call(SYNC, wire.encode_text("/"), deadline)
        try:
            reply = yield call
        except NoReply as no_reply:
            raise no_reply_error(no_reply, description=what, is_write=False, session_id=self.id) from no_reply
        if reply.error != OK:
            raise refusal_error(reply.error, description=what, key=self._marker)
        return call.sent_at

    def commit(self, checks: Sequence[SimpleCheck], ops: Sequence[Op]) -> Future[Committed]:
        """Commit a transaction through this session's connection. It writes the session's znode, so it also renews the
        session.
        """
        return self._commit(self, checks, ops)

    def close(self) -> Future[None]:
        """End the ZooKeeper session and delete the keys that are bound to it. Idempotent.

        Without a connection, this is done with the next one, unless the session has expired by then.
        """
        with self._lock:
            if self._closing is not None:
                return self._closing
            closing: Future[None] = LightFuture()
            self._closing = closing
        end = self.connection.close_session(
            self._settings.clock.now() + max(self.ttl_s, self._settings.call_timeout_s), discard=True
        )
        end.add_done_callback(lambda _: self._on_close_end(closing))
        self._settings.timer.call_later(self._settings.call_timeout_s, lambda: self._on_close_timeout(closing))
        return closing

    def _on_close_end(self, closing: Future[None]) -> None:
        self.connection.abandon()
        self._clean_up_later()
        resolve(closing, None)

    def _clean_up_later(self) -> None:
        """Release the resources of the connection's thread once it has ended, at the latest when the store opens
        another session.
        """
        self._settings.timer.call_later(_TIDY_S, partial(self.connection.join, 0.0))

    def _on_close_timeout(self, closing: Future[None]) -> None:
        reject(closing, Unavailable(f"session {self.id}: no server was reached to end it; it ends there by its TTL"))

    # Called by the connection.

    def on_connected(self) -> None:
        """Do nothing, because the connection itself sends the waiting requests."""

    def on_event(self, kind: int, path: str) -> None:
        """Do nothing, because no watch is set on this connection."""

    def on_event_batch_end(self) -> None:
        """Do nothing, because no watch is set on this connection."""

    def on_expired(self) -> bool:
        """Return True to stop, because a session of the store never continues with another ZooKeeper session."""
        _log.info("session %s was ended by the server", self.id)
        with self._lock:
            gone = self._closing is None
            self._closing = self._closing or completed(None)
        self._clean_up_later()
        if gone:
            self._on_gone()
        return True
