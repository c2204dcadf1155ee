"""What goes wrong with workers and their groups."""

from __future__ import annotations

from collections.abc import Sequence

from latchwork.errors import LatchworkError, OwnershipLost


class GroupAlreadyRunning(LatchworkError):
    """A group of this name has live workers.

    Attributes:
        run: its run.
        live: the ids of its live workers, sorted.
    """

    def __init__(self, message: str, run: str = "", live: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.run = run
        self.live: tuple[int, ...] = tuple(live)


class GroupFull(LatchworkError):
    """Every id of the group is taken by another worker."""


class WrongRun(LatchworkError):
    """The group is in another run than the one that was asked for."""


class RestartsExceeded(LatchworkError):
    """This worker was restarted too often: its group has failed."""


class GroupTerminated(OwnershipLost):
    """The group has ended, and not because this worker completed: it was terminated, or has failed."""


class GroupFailed(GroupTerminated):
    """The group has failed, because one of its workers failed for good."""


class WorkerRemoved(OwnershipLost):
    """This worker was removed when the group was scaled down."""


class EpochEnded(OwnershipLost):
    """A worker of the group was lost: everybody begins again, in the next epoch."""
