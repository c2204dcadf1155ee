"""What goes wrong with workers and their jobs."""

from __future__ import annotations

from collections.abc import Sequence

from latchwork.errors import LatchworkError, OwnershipLost


class JobAlreadyRunning(LatchworkError):
    """A job of this name has live workers.

    Attributes:
        run: its run.
        live: the ids of its live workers, sorted.
    """

    def __init__(self, message: str, run: str = "", live: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.run = run
        self.live: tuple[int, ...] = tuple(live)


class JobFull(LatchworkError):
    """Every id of the job is taken by another worker."""


class WrongRun(LatchworkError):
    """The job is in another run than the one that was asked for."""


class RestartsExceeded(LatchworkError):
    """This worker was restarted too often: its job has failed."""


class JobTerminated(OwnershipLost):
    """The job has ended, and not because this worker completed: it was terminated, or has failed."""


class JobFailed(JobTerminated):
    """The job has failed, because one of its workers failed for good."""


class Removed(OwnershipLost):
    """This worker was removed when the job was scaled down."""


class JobFaulty(OwnershipLost):
    """A worker of the job was lost: everybody begins again, in the next epoch."""
