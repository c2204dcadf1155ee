"""Conversion of lost connections and ZooKeeper's error codes to latchwork's errors."""

from __future__ import annotations

from latchwork.backends.zookeeper import wire
from latchwork.errors import (
    Closed,
    InvalidKey,
    LatchworkError,
    OutcomeUnknown,
    PermissionDenied,
    QuotaExceeded,
    SessionLost,
    Unavailable,
)

#: Refusals that reading again and sending again cannot help with.
FINAL_CODES = frozenset({wire.NO_AUTH, wire.EPHEMERAL_PARENT, wire.INVALID_ACL, wire.QUOTA_EXCEEDED})


class NoReply(Exception):
    """The error of a request that got no reply.

    Attributes:
        sent: Whether the request was sent, so that its outcome is unknown.
        has_ended: Whether the ZooKeeper session has ended or the connection was closed.
    """

    def __init__(self, *, sent: bool, has_ended: bool) -> None:
        super().__init__("no reply")
        self.sent = sent
        self.has_ended = has_ended


class WriteCounterMissing(Exception):
    """The znode in which a connection numbers its writes does not exist. Nothing was written."""


def no_reply_error(
    no_reply: NoReply, *, description: str, is_write: bool, session_id: str | None = None, closed: bool = False
) -> LatchworkError:
    """Return latchwork's error for a request without a reply.

    Args:
        no_reply: The error of the request.
        description: A description of the call with its key, such as ``put 'a/b'``.
        is_write: Whether the request could change data.
        session_id: ID of the session. None for the store's main connection.
        closed: Whether to report an ended connection as ``Closed``.
    """
    if is_write and no_reply.sent:
        return OutcomeUnknown(
            f"{description}: the connection was lost before the answer; read the key to see what happened"
        )
    if no_reply.has_ended and session_id is not None:
        return session_lost_error(session_id, description)
    if no_reply.has_ended and closed:
        return Closed(f"{description}: the store was closed; open a new one")
    return Unavailable(f"{description}: no ZooKeeper server answered in time; nothing was changed, try again")


def session_lost_error(session_id: str, description: str) -> SessionLost:
    """Return the ``SessionLost`` error for a call that uses an ended session.

    Args:
        session_id: ID of the session.
        description: A description of the call with its key.
    """
    return SessionLost(
        f"{description}: session {session_id} has ended; stop the work it protected and open a new session"
    )


def refusal_error(code: int, *, description: str, key: str) -> LatchworkError:
    """Return latchwork's error for a request that the server refused. It had no effect.

    Args:
        code: ZooKeeper's error code.
        description: A description of the call.
        key: The key that the request concerns.
    """
    if code == wire.NO_AUTH:
        return PermissionDenied(
            f"{description}: this account has no right to do that to {key!r}; fix its ACL or the account"
        )
    if code == wire.INVALID_ACL:
        return PermissionDenied(
            f"{description}: the server refused the ACL; acl=creator needs a user and a password in the URL"
        )
    if code == wire.EPHEMERAL_PARENT:
        return InvalidKey(f"{key!r} lies below a session-bound key; session-bound keys cannot have keys below them")
    if code == wire.QUOTA_EXCEEDED:
        return QuotaExceeded(
            f"{description}: a quota set on the server for {key!r} is used up; raise it or delete keys"
        )
    return Unavailable(f"{description}: the ZooKeeper server refused with error {code}; nothing was changed, try again")


def raise_for_read_error(code: object, description: str, key: str) -> None:
    """Raise an error if a read failed. A znode that does not exist is not an error.

    Args:
        code: ZooKeeper's error code.
        description: A description of the call.
        key: The key that was read.
    Raises:
        LatchworkError: The read failed.
    """
    assert isinstance(code, int)
    if code not in {wire.NO_NODE, wire.OK}:
        raise refusal_error(code, description=f"{description} {key!r}", key=key)
