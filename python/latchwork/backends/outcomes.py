"""Descriptions of operations for messages, and the error of a deletion that stopped halfway."""

from __future__ import annotations

from collections.abc import Sequence

from latchwork.errors import Closed, LatchworkError, OutcomeUnknown, PermissionDenied, QuotaExceeded
from latchwork.types import Op, SessionAlive, SimpleCheck

#: A message names so many keys at most; servers do not say which of them they refused.
_NAMED = 5

#: Errors that mean the same when a part has been done.
_KEPT = (Closed, PermissionDenied, QuotaExceeded)


def describe_transaction(checks: Sequence[SimpleCheck], ops: Sequence[Op]) -> str:
    """Return a short description of a transaction for messages: its operations and their keys, then its checks."""
    if len(ops) == 1 and not checks:
        return _step(ops[0], "")
    steps: Sequence[SimpleCheck | Op] = (*ops, *checks)
    named = ", ".join(_step(step, "" if at < len(ops) else "check ") for at, step in enumerate(steps[:_NAMED]))
    return _and_more(named or "an empty transaction", len(steps))


def describe_read(keys: Sequence[str]) -> str:
    """Return a short description of a read of some keys for messages."""
    return _and_more(f"read {', '.join(map(repr, keys[:_NAMED]))}", len(keys))


def _step(step: SimpleCheck | Op, verb: str) -> str:
    if isinstance(step, SessionAlive):
        return f"check session {step.session_id!r}"
    return f"{verb or type(step).__name__.lower() + ' '}{step.key!r}"


def _and_more(named: str, count: int) -> str:
    return named if count <= _NAMED else f"{named} and {count - _NAMED} more"


def partial_deletion_error(description: str, deleted: int, found: int, error: LatchworkError) -> LatchworkError:
    """Return the error for the deletion of a tree that stopped after some keys were deleted.

    It has the type of the original error, unless that type means that nothing was done. Then it is ``OutcomeUnknown``.

    Args:
        description: A description of the call, with which the message begins.
        deleted: The number of keys that were deleted.
        found: The number of keys that were to be deleted.
        error: The error at which the deletion stopped.
    """
    # what follows the semicolon is advice for that transaction
    reason = str(error).removeprefix(f"{description}: ").partition(";")[0]
    told = f"{description}: {deleted} of {found} keys were deleted, then: {reason}; do it again for the rest"
    return type(error)(told) if isinstance(error, _KEPT) else OutcomeUnknown(told)
