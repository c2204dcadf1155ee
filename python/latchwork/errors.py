"""All errors that latchwork raises, grouped by what the caller can do about them.

Exceptions of client libraries never reach a caller; they are the ``__cause__``. A message says what happened, to which
key, and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence


class LatchworkError(Exception):
    """The base class of all errors that latchwork raises."""


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
    """User code raised an exception that must not reach the caller as it is, such as ``SystemExit``. It is the
    cause.
    """


# Read again, try again.


class KeyExists(LatchworkError):
    """A key to create already exists."""


class Conflict(LatchworkError):
    """A check of a transaction failed, and nothing was written.

    Attributes:
        failed: At least one of the checks or ``Create`` operations that failed.
    """

    def __init__(self, message: str, failed: Sequence[object] = ()) -> None:
        super().__init__(message)
        self.failed: tuple[object, ...] = tuple(failed)


# Not applied; retry is safe.


class Unavailable(LatchworkError):
    """The server could not serve the call in time. The call was not applied."""


class ConnectFailed(Unavailable):
    """No server could be reached within ``connect_timeout_s``."""


# May have been applied, or may still be.


class OutcomeUnknown(LatchworkError):
    """The answer to a write was lost. The write may have been applied, or may still be."""


# Free or grow the server.


class QuotaExceeded(LatchworkError):
    """A quota is used up: that of the server, of an account, or the numbers of sequential keys below a parent."""


class StoreFull(QuotaExceeded):
    """The server or its disk is out of space. Reads and deletions work; other writes fail until there is space."""


# Stop the work that it protected.


class OwnershipLost(LatchworkError):
    """The ownership that protected this work has ended. Stop the work."""


class SessionLost(OwnershipLost):
    """The session has ended. Its keys are gone or will be."""


class LockLost(OwnershipLost):
    """The lock has expired or was taken over."""


class NotLeader(OwnershipLost):
    """This candidate is not the leader, or is no longer."""


class MemberEvicted(OwnershipLost):
    """This member was evicted from its group. It does not join again by itself."""


# The condition was not met.


class WaitTimeout(LatchworkError, TimeoutError):
    """The condition was not met in time. Nothing of the wait is left behind."""


class BarrierBroken(WaitTimeout):
    """A round of a barrier ended before all members arrived. The next round is usable.

    Attributes:
        missing: The members that had not arrived, sorted. A barrier that knows no names lists those of the last round.
        arrived: The members that had arrived, sorted.
    """

    def __init__(self, message: str, missing: Sequence[str] = (), arrived: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.missing: tuple[str, ...] = tuple(missing)
        self.arrived: tuple[str, ...] = tuple(arrived)


class OnceFailed(LatchworkError):
    """The function that was to run once in the cluster has failed permanently, here or elsewhere."""


# Repair or delete the stored value.


class BadRecord(LatchworkError, ValueError):
    """A stored value is not a valid record: another program wrote it, or it was damaged."""


# The object cannot be used here.


class Closed(LatchworkError):
    """The object was closed."""


class ForkedProcess(LatchworkError):
    """The store was opened before a fork; open a new one in the child."""


class NodeIdInUse(LatchworkError):
    """Another running node uses this node ID."""


class ReentrantCall(LatchworkError):
    """A signal handler or finalizer made a call while its thread was inside another one. It had no effect.

    Set a flag there, and make the call after the thread has returned.
    """


# For operations of several calls.

_NOT_APPLIED = (Unavailable, QuotaExceeded, AuthenticationFailed, PermissionDenied)


def keep_outcome_unknown(error: BaseException, unknown: OutcomeUnknown | None) -> BaseException:
    """Return ``error``, or ``OutcomeUnknown`` in its place if the operation's earlier call had an unknown outcome.

    An operation of several calls may get ``OutcomeUnknown`` from one write, and from its next call an error that means
    "not applied". That error is true of the last call only. It would invite the caller to repeat the operation,
    although the earlier write may have been applied.

    Args:
        error: The error of the last call.
        unknown: The error of an earlier call, or None.
    """
    if unknown is None or not isinstance(error, _NOT_APPLIED):
        return error
    made = OutcomeUnknown(f"{unknown}; after that: {error}")
    made.__cause__ = error
    return made
