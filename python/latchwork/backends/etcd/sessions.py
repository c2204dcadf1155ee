"""Sessions, which are leases with a marker key. The timer of the connection renews them.

The session ID is the lease ID in hexadecimal, 62 random bits, so it is never reused, and the lease of a key names its
owner. The marker ``@s/<id>`` is bound to the lease and exists exactly as long. Writes of a session compare it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from concurrent.futures import Future

import grpc

from latchwork._base.interrupts import mutex
from latchwork.backends.base import BackendSession, BackendWatch, Delta, Snapshot, WatchEvent
from latchwork.backends.etcd import errors as rpc_errors
from latchwork.backends.etcd import rpc_pb2 as pb
from latchwork.backends.etcd.connection import EtcdConnection
from latchwork.backends.etcd.layout import EtcdKeys, lease_id_of_session, single_key_range
from latchwork.backends.etcd.watching.watches import StoreWatches
from latchwork.backends.etcd.writing.slots import grant_lease
from latchwork.backends.etcd.writing.txn import build_marker_creation
from latchwork.backends.etcd.writing.writes import EtcdWriter
from latchwork.backends.futures import FutureGenerator, LightFuture, chain, failed, run_generator
from latchwork.errors import LatchworkError, SessionLost

_log = logging.getLogger(__name__)

_MIN_RENEWAL_TIMEOUT_S = 0.5


class EtcdSession:
    """A ``BackendSession`` with a lease and a marker key that is bound to the lease. Thread-safe."""

    confirm_gap_s = 0.0

    def __init__(self, owner: EtcdSessions, session_id: str, ttl_s: float, opened_at: float) -> None:
        self.id = session_id
        self.ttl_s = ttl_s
        self.opened_at = opened_at
        self.token = 0
        self.renew_every_s = ttl_s / 3
        self.timer = owner.timer
        #: Set when it is closed here; ends when that is done, or left to the TTL.
        self.closing: Future[None] | None = None
        self._owner = owner

    def renew(self) -> Future[float]:
        """Renew the lease for another TTL. The future returns the local clock time at which the request was sent."""
        return self._owner.renew(self)

    def close(self) -> Future[None]:
        """End the session by revoking its lease, which deletes the session's keys.

        If the server does not answer within the call timeout, the lease expires after its TTL.
        """
        return self._owner.end(self)


class EtcdSessions:
    """The open sessions of one store. Thread-safe.

    Attributes:
        ended: IDs of the sessions that this store has closed and that may still exist on the server. Operations with
            one of them are refused before any I/O.
        timer: Renews the sessions of all stores that share the connection.
    """

    def __init__(self, connection: EtcdConnection, keys: EtcdKeys, writer: EtcdWriter, watches: StoreWatches) -> None:
        self._connection = connection
        self._keys = keys
        self._writer = writer
        self._watches = watches
        self._lock = mutex()
        self._open: dict[str, tuple[EtcdSession, BackendWatch | None]] = {}
        self.ended: set[str] = set()
        self.timer = connection.timer

    def open(self, ttl_s: float, on_gone: Callable[[], None]) -> Future[BackendSession]:
        """Open a session: grant a lease, write the marker, and watch the marker to call ``on_gone`` when it is
        deleted.
        """
        return run_generator(self._open_session(ttl_s, on_gone))

    def renew(self, session: EtcdSession) -> Future[float]:
        """Send one request that renews a session, without a retry."""
        if session.closing is not None:
            return failed(SessionLost(f"session {session.id} was closed here; open a new session"))
        return run_generator(self._send_renewal(session))

    def end(self, session: EtcdSession) -> Future[None]:
        """End a session and revoke its lease. Its later requests are refused at once."""
        with self._lock:
            if session.closing is not None:
                return session.closing
            closing = session.closing = LightFuture()
            self.ended.add(session.id)
            _, watch = self._open.pop(session.id, (None, None))
        if watch is not None:
            watch.close()
        chain(run_generator(self._revoke(session)), closing)
        return closing

    def end_all(self) -> list[Future[None]]:
        """End all open sessions. Return their futures."""
        with self._lock:
            sessions = [session for session, _ in self._open.values()]
        return [self.end(session) for session in sessions]

    # Private.

    def _renewal_timeout_s(self, session: EtcdSession) -> float:
        """Return the timeout of one renewal in seconds. It leaves time for a renewal through another member."""
        return min(self._connection.call_timeout_s, max(_MIN_RENEWAL_TIMEOUT_S, session.ttl_s / 4))

    def _open_session(self, ttl_s: float, on_gone: Callable[[], None]) -> FutureGenerator[BackendSession]:
        deadline = self._connection.clock.now() + self._connection.call_timeout_s
        sent_at = self._connection.clock.now()
        lease, granted_s = yield from grant_lease(
            self._connection, max(1, math.ceil(ttl_s)), "open a session", deadline
        )
        session = EtcdSession(self, f"{lease:x}", granted_s, sent_at)
        txn = build_marker_creation(self._keys, session.id, b"%d" % granted_s)
        try:
            session.token = yield self._writer.write(txn, lambda: txn, deadline)
        except LatchworkError:
            self.end(session)
            raise
        watch = self._watches.watch_spans(
            [single_key_range(self._keys.session_key(session.id))], _MarkerSink(session.id, on_gone)
        )
        with self._lock:
            if session.closing is None:
                self._open[session.id] = (session, watch)
                return session
        watch.close()
        return session

    def _send_renewal(self, session: EtcdSession) -> FutureGenerator[float]:
        request = pb.LeaseKeepAliveRequest(ID=lease_id_of_session(session.id))
        refreshed = False
        while True:
            sent_at = self._connection.clock.now()
            try:
                answer = yield self._connection.send("LeaseKeepAlive", request, self._renewal_timeout_s(session))
            except grpc.RpcError as error:
                if refreshed or rpc_errors.classify_outcome(error) is not rpc_errors.CallOutcome.STALE_TOKEN:
                    self._connection.record_failure(error)
                    raise rpc_errors.translate_error(error, f"renew session {session.id}") from error
                refreshed = True
                yield self._connection.refresh_token(sent_at + self._renewal_timeout_s(session))
            else:
                if answer.TTL <= 0:
                    raise SessionLost(f"session {session.id} ended on the server; open a new session")
                return sent_at

    def _revoke(self, session: EtcdSession) -> FutureGenerator[None]:
        deadline = self._connection.clock.now() + self._connection.call_timeout_s
        request = pb.LeaseRevokeRequest(ID=lease_id_of_session(session.id))
        try:
            yield from self._connection.call("LeaseRevoke", request, f"close session {session.id}", deadline)
        except SessionLost:
            pass
        except LatchworkError as error:
            _log.info("session %s could not be closed (%s); its keys disappear after its TTL", session.id, error)
            # Again until the server has said that it is gone; closing the connection drops what is to come.
            self._connection.timer.call_later(session.ttl_s, lambda: run_generator(self._revoke(session)))
            return
        self.ended.discard(session.id)


class _MarkerSink:
    """The callback of the watch on a session's marker. It reports the deletion of the marker once."""

    def __init__(self, session_id: str, on_gone: Callable[[], None]) -> None:
        self._id = session_id
        self._on_gone: Callable[[], None] | None = on_gone

    def __call__(self, event: WatchEvent) -> None:
        gone = (isinstance(event, Snapshot) and not event.entries) or (
            isinstance(event, Delta) and any(change.entry is None for change in event.changes)
        )
        if gone and self._on_gone is not None:
            tell, self._on_gone = self._on_gone, None
            _log.info("session %s ended on the server", self._id)
            tell()
