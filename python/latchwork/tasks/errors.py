"""Errors of tasks: of the function, the payload or the run. Nothing here touches the network."""

from __future__ import annotations

from collections.abc import Iterable

from latchwork.errors import LatchworkError

#: Maximum number of functions that a message names.
_SHOWN = 5


class UnknownFunction(LatchworkError, LookupError):
    """No function of that name is registered here, or the given function is not registered."""

    @classmethod
    def for_name(cls, name: str, known: Iterable[str]) -> UnknownFunction:
        """Build the error for an unknown function name. The message lists similar registered names."""
        from difflib import get_close_matches  # rarely needed, and each process of a task imports this

        names = sorted(known)
        near = get_close_matches(name, names, _SHOWN) or names[:_SHOWN]
        there = f"near it: {', '.join(near)}" if near else "none is registered"
        return cls(f"no function {name[:200]!r} is registered here ({there}); import the module that has it")


class NotSerializable(LatchworkError, TypeError):
    """A value cannot be stored without change; the message names the argument, and the position in it."""


class BadPayload(LatchworkError, ValueError):
    """Stored arguments or a stored result cannot be used here. No code from the payload was or will be run."""


class PickleRefused(BadPayload):
    """The payload is pickled, and pickles are not allowed here: pass ``allow_pickle=True`` to trust them."""


class PayloadTooLarge(LatchworkError, ValueError):
    """A payload is larger than ``max_payload_bytes``; store it elsewhere, and pass its address."""


class TaskTimeout(LatchworkError, TimeoutError):
    """A task ran for longer than its ``timeout_s``, and was stopped."""


class TaskStopped(LatchworkError):
    """A task was stopped before it ended: it was canceled, its claim was lost, or its node is closing."""


class TaskRefused(LatchworkError):
    """A task refused to run here, by ``TaskContext.refuse``. Another node may take it."""


class TaskProcessDied(LatchworkError):
    """The process of a task ended without a result: it was killed, or called ``os._exit``."""


class RemoteError(LatchworkError):
    """A task raised an exception whose class is not available here, so this exception is raised instead.

    Attributes:
        type_name: The class of that exception, as ``module:qualname``.
        text: Its message.
    """

    def __init__(self, message: str, type_name: str = "", text: str = "") -> None:
        super().__init__(message)
        self.type_name = type_name
        self.text = text


class RemoteTraceback(LatchworkError):
    """The traceback of a task from the process that ran it, as text. It is the ``__cause__`` of the exception raised
    here.
    """

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""' if self.args else ""
