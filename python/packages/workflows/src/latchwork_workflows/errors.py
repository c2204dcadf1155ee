"""What goes wrong with a workflow. Nothing here touches the network or a database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from latchwork.errors import LatchworkError


class Problem(NamedTuple):
    """One thing that is wrong with a definition.

    Attributes:
        path: where, such as ``tasks[3].params.script``; empty for the whole.
        message: what is wrong, and what to write instead.
    """

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class DefinitionInvalid(LatchworkError, ValueError):
    """A definition cannot be run.

    Attributes:
        problems: all that is wrong with it, in the order of the definition; never empty.
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = list(problems)
        first = "; ".join(str(each) for each in self.problems[:5])
        more = f"; and {len(self.problems) - 5} more" if len(self.problems) > 5 else ""
        super().__init__(f"the definition has {_counted(len(self.problems))}: {first}{more}")


class UnknownWorkflow(LatchworkError, LookupError):
    """There is no workflow, version, instance or task of this name or id."""


class WrongState(LatchworkError):
    """The instance, or the task, is in a state that does not take this command; the message says which state would."""


class KeyReused(WrongState):
    """A unique key was given before, for another command."""


class BadRequest(LatchworkError, ValueError):
    """A value of the request is not valid; the message names it."""


class NotAllowed(LatchworkError, PermissionError):
    """The user, or the caller, may not do this."""


class StoreMismatch(LatchworkError):
    """The store and the database do not belong together, or one of them was restored from a backup."""


class SchemaTooNew(LatchworkError):
    """The database was made by a later version."""


class NotOwner(LatchworkError):
    """A newer owner has the shard. Never told to users: the node that sees it ends its run of the shard."""


def _counted(count: int) -> str:
    return "a problem" if count == 1 else f"{count} problems"
