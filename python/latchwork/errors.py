"""Every error latchwork raises: one root, families by what the caller can do about them.

No exception of a client library ever reaches a caller; the original stays as ``__cause__``.
A message says what happened, to which key, and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence


class LatchworkError(Exception):
    """Root of every error that latchwork raises on purpose."""


# Fix the call.


class InvalidURL(LatchworkError, ValueError):
    """A connection URL has an unknown scheme or option, or a malformed host."""


class InvalidKey(LatchworkError, ValueError):
    """A key is malformed, reserved, or lies below a session-bound key."""


class ValueTooLarge(LatchworkError, ValueError):
    """A value with its key exceeds 1,000,000 bytes."""


class TransactionTooLarge(LatchworkError, ValueError):
    """A transaction exceeds the limits of the contract or of its backend."""


class BackendNotInstalled(LatchworkError, ImportError):
    """The client library of a backend is missing; the message has the install line."""


# Fix the account.


class AuthenticationFailed(LatchworkError):
    """The server refused the user or the password."""


class PermissionDenied(LatchworkError):
    """The account may not do this to this key."""


class UserCodeFailed(LatchworkError):
    """User code raised what must not reach its caller as it is, such as ``SystemExit``; the original is the cause."""


# Read again, try again.


class KeyExists(LatchworkError):
    """A key to be created is there already."""


class Conflict(LatchworkError):
    """A transaction's check did not hold; nothing was written.

    Attributes:
        failed: at least one of the checks (or ``Create`` operations) that did not hold.
    """

    def __init__(self, message: str, failed: Sequence[object] = ()) -> None:
        super().__init__(message)
        self.failed: tuple[object, ...] = tuple(failed)


# Not applied; retry is safe.


class Unavailable(LatchworkError):
    """The server could not serve the call in time; it was not applied."""


class ConnectFailed(Unavailable):
    """No server could be reached within ``connect_timeout_s``."""


# May have been applied, or be yet.


class OutcomeUnknown(LatchworkError):
    """A write was cut off: it may have been applied, or may be applied yet."""


# Free or grow the server.


class QuotaExceeded(LatchworkError):
    """The server or the disk is out of space."""


# Stop the work it protected.


class OwnershipLost(LatchworkError):
    """What protected this work is no longer ours: stop it."""


class SessionLost(OwnershipLost):
    """The session ended; its keys are gone or will be."""


class LockLost(OwnershipLost):
    """The lock ran out or was taken over."""


class NotLeader(OwnershipLost):
    """Leadership is not held, or is held no longer."""


class MemberEvicted(OwnershipLost):
    """Somebody removed this member from its group, and it does not join again by itself."""


# The condition did not come true.


class WaitTimeout(LatchworkError, TimeoutError):
    """A wait ended without its condition; nothing of it is left behind."""


class BarrierBroken(WaitTimeout):
    """A round of a barrier ended without everybody; the next round is usable.

    Attributes:
        missing: the members that had not come, sorted; those of the last time where a barrier knows no names.
        arrived: the members that had come, sorted.
    """

    def __init__(self, message: str, missing: Sequence[str] = (), arrived: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.missing: tuple[str, ...] = tuple(missing)
        self.arrived: tuple[str, ...] = tuple(arrived)


class OnceFailed(LatchworkError):
    """What was to run once in the cluster has failed for good, here or elsewhere."""


# Repair or delete what is stored.


class BadRecord(LatchworkError, ValueError):
    """A stored value is no record of ours: something else wrote to its key, or it was damaged."""


# The object cannot be used here.


class Closed(LatchworkError):
    """The object was closed."""


class ForkedProcess(LatchworkError):
    """The store was opened before a fork; open a new one in the child."""


class NodeIdInUse(LatchworkError):
    """Another live node uses this node id."""


class ReentrantCall(LatchworkError):
    """A signal handler or a finalizer called what its own thread is inside of already; nothing was done.

    Set a flag there, and make the call when the thread has returned.
    """


# One rule for operations of several calls.

_NOT_APPLIED = (Unavailable, QuotaExceeded, AuthenticationFailed, PermissionDenied)


def after_unknown(error: BaseException, unknown: OutcomeUnknown | None) -> BaseException:
    """Return the error with which an operation ends: ``error``, or an ``OutcomeUnknown`` in its place.

    An operation that reads or retries after ``OutcomeUnknown`` may meet an error that says "not applied". That is true
    of the last call only, and would invite the caller to repeat what may have been done.

    Args:
        error: the last error.
        unknown: the unknown outcome that the operation met before; None if there was none.
    """
    if unknown is None or not isinstance(error, _NOT_APPLIED):
        return error
    made = OutcomeUnknown(f"{unknown}; after that: {error}")
    made.__cause__ = error
    return made
