"""Errors of workflows. This module has no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from latchwork.errors import LatchworkError


class Problem(NamedTuple):
    """A problem of a definition.

    Attributes:
        path: The location, such as ``tasks[3].params.script``. Empty for the whole definition.
        message: What is wrong, and how to fix it.
    """

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class DefinitionInvalid(LatchworkError, ValueError):
    """A definition is invalid.

    Attributes:
        problems: All its problems, in the order of the definition. Never empty.
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = list(problems)
        first = "; ".join(str(each) for each in self.problems[:5])
        more = f"; and {len(self.problems) - 5} more" if len(self.problems) > 5 else ""
        super().__init__(f"the definition has {_counted(len(self.problems))}: {first}{more}")


class NotFound(LatchworkError, LookupError):
    """A workflow, run, task, pool or other object of this name or ID does not exist. The message names it.

    Also raised for an object that the account may not see.
    """


class WrongState(LatchworkError):
    """The state of the run or task does not allow this command. The message names the states that do."""


class KeyReused(WrongState):
    """A unique key was used before for a different command."""


class BadRequest(LatchworkError, ValueError):
    """A value of the request is invalid. The message names it."""


class NotAllowed(LatchworkError, PermissionError):
    """The user or the caller has no permission for this."""


class StoreMismatch(LatchworkError):
    """The store and the database do not belong together, or one of them was restored from a backup."""


class SchemaTooNew(LatchworkError):
    """The database was created by a later version."""


class NotOwner(LatchworkError):
    """There is a newer owner of the shard. Not shown to users: the node that gets it stops running the shard."""


def _counted(count: int) -> str:
    return "a problem" if count == 1 else f"{count} problems"
