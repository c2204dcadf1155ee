"""What goes wrong with a task of an executor, beside what its function raises. Nothing here touches the network."""

from __future__ import annotations

from collections.abc import Mapping

from latchwork.errors import LatchworkError


class TaskDied(LatchworkError):
    """A task was taken ``max_attempts`` times and ended none: each time its node died, or gave it back.

    It is a dead letter now: ``latchwork executor dead list`` shows it, with what the last node said.
    """


class NoSuchMember(LatchworkError, LookupError):
    """The member that alone may run a task is not there, or left before it had run it."""


class NoSuchTask(LatchworkError, LookupError):
    """No task of this id is known: it was never submitted, its result was fetched, or somebody forgot it."""


class TaskExists(LatchworkError):
    """A detached task of this id is known, and calls another function or has other arguments."""


class TaskCancelled(LatchworkError):
    """The outcome of a task that another client took back. A wait for its result raises ``CancelledError``."""


class AllFailed(LatchworkError):
    """Of calls of which one had to succeed, none did.

    Attributes:
        errors: what each of them raised, in the order of the calls.
    """

    def __init__(self, message: str, errors: tuple[BaseException, ...] = ()) -> None:
        super().__init__(message)
        self.errors = errors


class SomeFailed(LatchworkError):
    """Of a task that ran on all members, some failed.

    Attributes:
        results: what the others returned, by member.
        errors: what these raised, by member.
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
