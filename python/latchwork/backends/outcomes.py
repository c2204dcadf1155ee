"""What callers are told of work that takes several transactions. Nothing here touches the network."""

from __future__ import annotations

from latchwork.errors import Closed, LatchworkError, OutcomeUnknown, PermissionDenied, QuotaExceeded

#: Errors that mean the same when a part has been done.
_KEPT = (Closed, PermissionDenied, QuotaExceeded)


def partly_deleted(what: str, deleted: int, found: int, error: LatchworkError) -> LatchworkError:
    """What to tell of a tree that was deleted by halves, and then not.

    Of the family that the error is of, unless that says that nothing was done.

    Args:
        what: the call, as the error's message begins.
        deleted: keys that are gone.
        found: keys that were there.
        error: of the transaction that failed.
    """
    reason = str(error).removeprefix(f"{what}: ").partition(";")[0]  # what follows is advice for that transaction
    told = f"{what}: {deleted} of {found} keys were deleted, then: {reason}; do it again for the rest"
    return type(error)(told) if isinstance(error, _KEPT) else OutcomeUnknown(told)
