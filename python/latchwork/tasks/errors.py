"""What goes wrong with a task: its function, its payload, its run. Nothing here touches the network."""

from __future__ import annotations

from collections.abc import Iterable

from latchwork.errors import LatchworkError

#: A message names so many functions that there are.
_SHOWN = 5


class UnknownFunction(LatchworkError, LookupError):
    """No function of that name is registered here; or what was given is registered nowhere."""

    @classmethod
    def of(cls, name: str, known: Iterable[str]) -> UnknownFunction:
        """The error about a name, with those that are near it."""
        from difflib import get_close_matches  # rarely needed, and each process of a task imports this

        names = sorted(known)
        near = get_close_matches(name, names, _SHOWN) or names[:_SHOWN]
        there = f"near it: {', '.join(near)}" if near else "none is registered"
        return cls(f"no function {name[:200]!r} is registered here ({there}); import the module that has it")


class NotSerializable(LatchworkError, TypeError):
    """A value cannot be stored so that the same comes back; the message names the argument, and where in it."""


class BadPayload(LatchworkError, ValueError):
    """What is stored as arguments or as a result cannot be used here; nothing of it was run, and none ever will be."""


class PickleRefused(BadPayload):
    """The payload is pickled, and this side was not told to trust pickles: ``allow_pickle=True``."""


class PayloadTooLarge(LatchworkError, ValueError):
    """A payload is above ``max_payload_bytes``; store it elsewhere, and pass its address."""


class TaskTimeout(LatchworkError, TimeoutError):
    """A task ran for longer than its ``timeout_s``, and was stopped."""


class TaskStopped(LatchworkError):
    """A task was told to stop before its end: it was cancelled, its claim was lost, or its node closes."""


class TaskRefused(LatchworkError):
    """A task refused to run here, by ``TaskContext.refuse``: another node may take it."""


class TaskProcessDied(LatchworkError):
    """The process of a task ended without an answer: it was killed, or called ``os._exit``."""


class RemoteError(LatchworkError):
    """A task raised an exception whose class is not known here, so that it cannot be raised itself.

    Attributes:
        type_name: the class as ``module:qualname``.
        text: its message.
    """

    def __init__(self, message: str, type_name: str = "", text: str = "") -> None:
        super().__init__(message)
        self.type_name = type_name
        self.text = text


class RemoteTraceback(LatchworkError):
    """Where a task raised: the ``__cause__`` of the exception that comes back. Its text is the traceback there."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""' if self.args else ""
