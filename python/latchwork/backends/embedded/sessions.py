"""Sessions, which are stored as rows with a deadline.

A deadline is a time of CLOCK_BOOTTIME, which all processes of the machine share and which continues during suspend. It
is valid only until the next restart, whose boot ID is in the row. A time namespace of a container may shift that clock,
so deadlines are stored in the time of the initial namespace (``clock_offset_s``). A transaction compares the deadline
with the clock: an expired session has ended even if its row still exists, and it is never renewed. Its keys are deleted
with a separate token. The store's session thread calls ``renew``.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Protocol

from latchwork.backends.embedded import SPEC, writes
from latchwork.errors import ConnectFailed
from latchwork.types import Committed, Op, SimpleCheck

#: Minimum TTL of a session: a shorter one would end when a busy machine delays its owner a little.
MIN_TTL_S = SPEC.capabilities.min_ttl_s
_RENEWALS_PER_TTL = 3
_SLACK_S = 1.0  # floats are rounded; a second is nothing against a boot


class SessionBackend(Protocol):
    """The methods of the embedded backend that its sessions call."""

    def renew_session(self, session: EmbeddedSession) -> Future[float]:
        """Extend a session by its TTL from now. The future returns the local time at which the renewal began."""
        ...

    def commit_renewing(
        self, session: EmbeddedSession, checks: Sequence[SimpleCheck], ops: Sequence[Op]
    ) -> Future[Committed]:
        """Commit a transaction that also renews a session."""
        ...

    def end_session(self, session: EmbeddedSession) -> Future[None]:
        """End a session and delete its keys."""
        ...


class EmbeddedSession:
    """A ``BackendSession`` that is stored as a row of the sessions table. Thread-safe."""

    confirm_gap_s = 0.0  # the file itself confirms: each renewal counts

    def __init__(
        self,
        backend: SessionBackend,
        session_id: str,
        *,
        ttl_s: float,
        opened_at: float,
        token: int,
        on_gone: Callable[[], None],
    ) -> None:
        self._backend = backend
        self._on_gone: Callable[[], None] | None = on_gone
        self.id = session_id
        self.ttl_s = ttl_s
        self.opened_at = opened_at
        self.token = token
        self.renew_every_s = ttl_s / _RENEWALS_PER_TTL

    def renew(self) -> Future[float]:
        """Extend the session by its TTL from now. The future returns the local time at which the renewal began.

        The renewal waits for the lock of the file for at most an eighth of the TTL. It fails with ``SessionLost`` if
        the session has ended.
        """
        return self._backend.renew_session(self)

    def commit(self, checks: Sequence[SimpleCheck], ops: Sequence[Op]) -> Future[Committed]:
        """Commit a transaction that also renews the session. See ``Backend.commit``."""
        return self._backend.commit_renewing(self, checks, ops)

    def close(self) -> Future[None]:
        """End the session. Later requests that use it fail. Idempotent."""
        return self._backend.end_session(self)

    def notify_gone(self) -> None:
        """Call the ``on_gone`` callback once, because the session has ended."""
        callback, self._on_gone = self._on_gone, None
        if callback is not None:
            callback()


def read_boot_id() -> str:
    """Return an ID that changes with each restart of this machine. Empty if the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def clock_offset_s(proc: Path = Path("/proc/self")) -> float:
    """Return the number of seconds by which the clock of this process is ahead of the machine's clock.

    The offset is not 0 only in a time namespace, such as that of a container.

    Args:
        proc: The directory of this process in procfs.
    Raises:
        ConnectFailed: The offset is unknown because this process has unshared its time namespace.
    """
    try:
        lines = (proc / "timens_offsets").read_text(encoding="utf-8").splitlines()
        is_known = (proc / "ns/time").readlink() == (proc / "ns/time_for_children").readlink()
    except OSError:
        return 0.0  # a system without time namespaces
    for name, seconds, nanoseconds in map(str.split, lines):
        if name in {"boottime", "7"}:
            if not is_known:  # the offsets are those of its children
                raise ConnectFailed(
                    "this process has unshared its time namespace, so how its clock stands to that of other processes "
                    "cannot be compared; open the store in a child of it"
                )
            return int(seconds) + int(nanoseconds) / 1e9
    return 0.0


def open_session(conn: sqlite3.Connection, root: str, boot: str, ttl_s: float, now: float) -> tuple[str, int]:
    """Add a session to the database. Return its ID and a new token.

    Args:
        conn: A connection inside a transaction.
        root: The root of the store.
        boot: The current boot ID. A session does not survive a restart of the machine.
        ttl_s: TTL in seconds.
        now: The current machine time.
    """
    session_id = secrets.token_hex(8)
    conn.execute("INSERT INTO sessions VALUES (?, ?, ?, ?, ?)", (session_id, root, boot, ttl_s, now + ttl_s))
    return session_id, writes.create_token(conn)


def renew_session(conn: sqlite3.Connection, root: str, session_id: str, boot: str, now: float) -> bool:
    """Extend a session by its TTL from ``now``. Return False if the session has ended."""
    if not is_session_alive(conn, root, session_id, boot, now):
        return False
    conn.execute("UPDATE sessions SET deadline = ? + ttl_s WHERE id = ?", (now, session_id))
    return True


def is_session_alive(conn: sqlite3.Connection, root: str, session_id: str, boot: str, now: float) -> bool:
    """Return whether a session is active: not removed, not expired, and opened since the machine was started."""
    query = "SELECT 1 FROM sessions WHERE id = ? AND root = ? AND boot = ? AND deadline > ? AND deadline <= ? + ttl_s"
    return conn.execute(query, (session_id, root, boot, now, now + _SLACK_S)).fetchone() is not None


def end_session(conn: sqlite3.Connection, session_id: str) -> None:
    """Remove a session and its keys. Does nothing if the session does not exist."""
    (root,) = conn.execute("SELECT root FROM sessions WHERE id = ?", (session_id,)).fetchone() or (None,)
    if root is None:
        return
    conn.execute("DELETE FROM sessions WHERE id = ?", (session_id,))
    keys = [key for (key,) in conn.execute("SELECT key FROM entries WHERE owner = ?", (session_id,))]
    writes.delete_keys(conn, root, keys)


def find_expired_sessions(conn: sqlite3.Connection, now: float) -> list[str]:
    """Return the IDs of expired sessions that were opened since the machine was started.

    This is fast, because every write calls it.
    """
    return [session_id for (session_id,) in conn.execute("SELECT id FROM sessions WHERE deadline <= ?", (now,))]


def find_sessions_of_earlier_boots(conn: sqlite3.Connection, boot: str, now: float) -> list[str]:
    """Return the IDs of sessions that were opened before the machine was restarted.

    A session whose deadline is more than its TTL in the future is one of them.
    """
    query = "SELECT id FROM sessions WHERE boot <> ? OR deadline > ? + ttl_s"
    return [session_id for (session_id,) in conn.execute(query, (boot, now + _SLACK_S))]


def find_next_deadline(conn: sqlite3.Connection) -> float | None:
    """Return the time at which the next session expires, or None if there are no sessions."""
    deadline = conn.execute("SELECT min(deadline) FROM sessions").fetchone()[0]
    return None if deadline is None else float(deadline)
