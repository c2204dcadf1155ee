"""The one seam between gRPC's errors and ours.

Nothing here touches the network. Two questions about a failed call: what may have become of it (``fate``), and which
error of ours says so (``translate``).
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import grpc

from latchwork.errors import (
    AuthenticationFailed,
    LatchworkError,
    PermissionDenied,
    QuotaExceeded,
    SessionLost,
    TransactionTooLarge,
    Unavailable,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_Code = grpc.StatusCode
#: gRPC's words when no connection could be picked for the call: it never left this process.
_NEVER_SENT = ("failed to connect to all addresses", "empty address list", "DNS resolution failed")
_STALE_TOKEN = ("invalid auth token", "revision of auth store is old", "invalid auth management")
#: A member that is up but cannot serve: another member may.
_MEMBER_TROUBLE = ("no leader", "timed out", "not healthy", "stopped", "Deadline")


class Fate(enum.Enum):
    """What may have become of a call that failed."""

    REFUSED = "the server said no: it was not applied and never will be"
    STALE_TOKEN = "refused for its token only: with a new one it may succeed"  # noqa: S105 - no secret
    NEVER_SENT = "it never left this process"
    UNKNOWN = "it may have been applied, or be yet"


_DEFINITE = {
    _Code.INVALID_ARGUMENT,
    _Code.NOT_FOUND,
    _Code.ALREADY_EXISTS,
    _Code.PERMISSION_DENIED,
    _Code.RESOURCE_EXHAUSTED,
    _Code.FAILED_PRECONDITION,
    _Code.OUT_OF_RANGE,
    _Code.UNIMPLEMENTED,
    _Code.UNAUTHENTICATED,
}


def details(error: grpc.RpcError) -> str:
    """What the server or gRPC said, in one line."""
    found = error.details() if hasattr(error, "details") else None
    return " ".join((found or str(error)).split())[:300]


def code(error: grpc.RpcError) -> grpc.StatusCode:
    """The status of a failed call."""
    found = error.code() if hasattr(error, "code") else None
    return found if isinstance(found, grpc.StatusCode) else _Code.UNKNOWN


def fate(error: grpc.RpcError) -> Fate:
    """What may have become of a call that failed."""
    said = details(error)
    if any(words in said for words in _STALE_TOKEN):
        return Fate.STALE_TOKEN
    if code(error) in _DEFINITE:
        return Fate.REFUSED
    if code(error) is _Code.UNAVAILABLE and any(words in said for words in _NEVER_SENT):
        return Fate.NEVER_SENT
    return Fate.UNKNOWN


def member_in_trouble(error: grpc.RpcError) -> bool:
    """Whether another member of the cluster is worth a try, although the connection to this one stands."""
    return code(error) is _Code.DEADLINE_EXCEEDED or any(words in details(error) for words in _MEMBER_TROUBLE)


def says(error: BaseException, words: str) -> bool:
    """Whether an error of a call has these words in its details."""
    return isinstance(error, grpc.RpcError) and words in details(error)


def translate(error: grpc.RpcError, what: str) -> LatchworkError:
    """Our error for a failed call; the original is its cause.

    Args:
        error: as gRPC raised it.
        what: the action with its key, such as "read 'a/b'".
    """
    said = details(error)
    for words, make in _BY_WORDS:
        if words in said:
            return caused(make(what), error)
    make_by_code = _BY_CODE.get(code(error))
    if make_by_code is not None:
        return caused(make_by_code(what), error)
    return caused(Unavailable(f"etcd could not {what} in time ({said}); try again"), error)


def caused(ours: LatchworkError, error: BaseException) -> LatchworkError:
    """Our error with the original as its cause."""
    ours.__cause__ = error
    return ours


def _denied(what: str) -> LatchworkError:
    return PermissionDenied(f"the account may not {what}; grant it read and write on the prefix of the store's root")


def _unauthenticated(what: str) -> LatchworkError:
    return AuthenticationFailed(
        f"etcd refused the account when asked to {what}; check the user and the password in the connection URL"
    )


def _nameless(what: str) -> LatchworkError:
    return AuthenticationFailed(
        f"etcd wants a user when asked to {what}; put user:password@ before the host in the connection URL"
    )


def _full(what: str) -> LatchworkError:
    return QuotaExceeded(
        f"etcd is out of space and could not {what}; compact and defragment it, disarm its alarm, or raise its quota"
    )


def _busy(what: str) -> LatchworkError:
    return Unavailable(f"etcd has too many requests to {what}; try again later")


def _oversized(what: str) -> LatchworkError:
    return TransactionTooLarge(f"the request to {what} exceeds what this etcd server takes; write less at once")


def _lease_gone(what: str) -> LatchworkError:
    return SessionLost(f"could not {what}: its session ended on the server; open a new session")


_BY_WORDS: tuple[tuple[str, Callable[[str], LatchworkError]], ...] = (
    ("lease not found", _lease_gone),
    ("permission denied", _denied),
    ("authentication failed", _unauthenticated),
    ("user name is empty", _nameless),
    ("space exceeded", _full),
    ("too many requests", _busy),
    ("too large", _oversized),
    ("larger than max", _oversized),
    ("too many operations", _oversized),
)
_BY_CODE: dict[grpc.StatusCode, Callable[[str], LatchworkError]] = {
    _Code.PERMISSION_DENIED: _denied,
    _Code.UNAUTHENTICATED: _unauthenticated,
    _Code.RESOURCE_EXHAUSTED: _busy,
}
