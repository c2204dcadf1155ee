"""Errors of worker groups."""

from __future__ import annotations

from collections.abc import Sequence

from latchwork.errors import LatchworkError, OwnershipLost


class GroupAlreadyRunning(LatchworkError):
    """The group exists: it has running workers, or another client has just submitted it.

    Attributes:
        run: ID of the existing run.
        running_ranks: Ranks of its running workers, sorted.
    """

    def __init__(self, message: str, run: str = "", running_ranks: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.run = run
        self.running_ranks: tuple[int, ...] = tuple(running_ranks)


class GroupFull(LatchworkError):
    """Every rank of the group is taken by another worker."""


class WrongRun(LatchworkError):
    """The group is in a different run than the requested one."""


class RestartsExceeded(LatchworkError):
    """This worker was restarted more often than allowed, so its group has failed."""


class GroupTerminated(OwnershipLost):
    """The group ended before this worker completed: it was terminated or has failed."""


class GroupFailed(GroupTerminated):
    """The group has failed because one of its workers failed permanently."""


class WorkerRemoved(OwnershipLost):
    """This worker was removed because the group was scaled down or another process replaced it."""


class EpochEnded(OwnershipLost):
    """Another worker of the group was lost, so all workers restart in the next epoch."""
