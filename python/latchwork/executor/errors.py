"""Errors of executor tasks, other than those their functions raise. Does no I/O."""

from __future__ import annotations

from collections.abc import Mapping

from latchwork.errors import LatchworkError


class TaskDied(LatchworkError):
    """A task was claimed ``max_attempts`` times and never ended: each time its worker died or released it.

    It is now a dead letter. ``latchwork executor dead list`` shows it with the last reason.
    """


class NoSuchMember(LatchworkError, LookupError):
    """The only member that may run a task is missing, or left before running it."""


class NoSuchTask(LatchworkError, LookupError):
    """No task has this ID: it was never submitted, its result was fetched, or it was forgotten."""


class TaskExists(LatchworkError):
    """A detached task with this ID exists, with another function or other arguments."""


class TaskCancelled(LatchworkError):
    """The outcome of a task that another client canceled. A wait for its result raises ``CancelledError``."""


class AllFailed(LatchworkError):
    """None of several calls succeeded, of which one had to.

    Attributes:
        errors: The error of each call, in the order of the calls.
    """

    def __init__(self, message: str, errors: tuple[BaseException, ...] = ()) -> None:
        super().__init__(message)
        self.errors = errors


class SomeFailed(LatchworkError):
    """A task that ran on all members failed on some.

    Attributes:
        results: Results of the successful runs, by member.
        errors: Errors of the failed runs, by member.
    """

    def __init__(
        self,
        message: str,
        results: Mapping[str, object] | None = None,
        errors: Mapping[str, BaseException] | None = None,
    ) -> None:
        super().__init__(message)
        self.results = dict(results or {})
        self.errors = dict(errors or {})
