"""Outcomes of task runs: a value, or an exception that can be raised where the task was submitted.

An exception is stored as the name of its class, its arguments, its attributes, its text, and the text of its traceback.
It is rebuilt if its class is loaded; otherwise it becomes a ``RemoteError``. Nothing here touches the network.
"""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from msgspec import Struct

from latchwork._base.text import message, printable, reason, short
from latchwork.tasks.errors import BadPayload, RemoteError, RemoteTraceback
from latchwork.tasks.payloads.codec import Payloads
from latchwork.tasks.payloads.values import (
    RaisedParts,
    loaded_class,
    names_of,
    pack,
    pack_plain,
    parts_of,
    rebuilt,
    unpack,
)

#: Maximum number of characters of a message and of a traceback; the middle of a longer text is left out.
MOST_TEXT = 8_000
MOST_TRACEBACK = 32_000
_VALUE, _RAISED, _INSTEAD = "value", "raised", "instead"


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception that a task raised.

    Attributes:
        module: the module of its class.
        name: the qualified name of its class.
        text: its message.
        traceback: its traceback as text, for people.
        stored: its arguments and attributes, packed; empty if they cannot be.
        is_final: whether the call itself is wrong, so that a retry cannot help.
        is_refusal: whether the call was not for this node: the function is unknown there, or the task refused.
    """

    module: str
    name: str
    text: str
    traceback: str = ""
    stored: bytes = b""
    is_final: bool = False
    is_refusal: bool = False

    @classmethod
    def from_exception(cls, error: BaseException, *, is_final: bool = False, is_refusal: bool = False) -> Failure:
        """Build the failure for an exception. Raises nothing, whatever the class of the exception does."""
        return cls(
            *names_of(type(error)),
            _cut(message(error), MOST_TEXT),
            _cut(_traceback_of(error), MOST_TRACEBACK),
            _stored(error),
            is_final,
            is_refusal,
        )

    @property
    def type_name(self) -> str:
        """The class as ``module:qualname``."""
        return f"{self.module}:{self.name}"

    @property
    def loaded_class(self) -> type[Exception] | None:
        """Return the class, if it is loaded here."""
        return loaded_class(self.module, self.name)

    @property
    def summary(self) -> str:
        """Return one printable line."""
        text = " ".join(self.text.split())
        return printable(f"{self.name}: {text}" if text else self.name)

    def exception(self) -> BaseException:
        """Build the exception to raise. Its ``__cause__`` is the traceback of the task."""
        error = self._made()
        BaseException.__setattr__(error, "__cause__", RemoteTraceback(_lines(self.traceback)))  # not one of its class
        return error

    def _made(self) -> BaseException:
        made = rebuilt(self._parts()) if self.stored and self.loaded_class is not None else None
        return made or RemoteError(self.summary, self.type_name, self.text)

    def _parts(self) -> RaisedParts:
        try:
            found = unpack(self.stored, "an exception")
        except BadPayload:
            found = None
        match found:
            case [tuple(args), dict(state)] if all(type(name) is str for name in state):
                return RaisedParts(self.module, self.name, args, state)
        return RaisedParts("", "", (), {})


class Instead(ABC):
    """Returned by a task whose value is computed later: work that its system has to do first."""

    @abstractmethod
    def to_bytes(self) -> bytes:
        """Encode it for its system."""


class Outcome(Struct, frozen=True):
    """The outcome of a run.

    Attributes:
        payload: the value, as a payload; empty if it failed.
        failure: the exception; None if it returned.
        instead: the ``Instead`` that was returned, encoded; only for systems that support it.
        why_cut: why the node ended the run, which then runs again; empty if it did not. It is not stored.
    """

    payload: bytes = b""
    failure: Failure | None = None
    instead: bytes = b""
    why_cut: str = ""

    @classmethod
    def failed(
        cls, error: BaseException, *, is_final: bool = False, is_refusal: bool = False, why_cut: str = ""
    ) -> Outcome:
        """Build the outcome of a run that raised."""
        return cls(failure=Failure.from_exception(error, is_final=is_final, is_refusal=is_refusal), why_cut=why_cut)

    @property
    def is_success(self) -> bool:
        """Whether it returned."""
        return self.failure is None

    def to_bytes(self) -> bytes:
        """Encode it for storage."""
        if self.instead:
            return pack_plain([_INSTEAD, self.instead], "an outcome")
        if self.failure is None:
            return pack_plain([_VALUE, self.payload], "an outcome")
        f = self.failure
        return pack_plain(
            [_RAISED, f.module, f.name, f.text, f.traceback, f.stored, f.is_final, f.is_refusal], "an outcome"
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Outcome:
        """Decode an outcome from untrusted bytes.

        Raises:
            BadPayload: the bytes are not an outcome.
        """
        match unpack(data, "an outcome"):
            case ["value", bytes(payload)]:
                return cls(payload)
            case ["instead", bytes(instead)]:
                return cls(instead=instead)
            case ["raised", str(module), str(name), str(text), str(where), bytes(stored), bool(final), bool(refused)]:
                return cls(failure=Failure(module, name, text, where, stored, final, refused))
        raise BadPayload(f"{short(data)} is no outcome of a task")

    def result(self, payloads: Payloads, type_: Any = Any, what: str = "the result") -> Any:
        """Return the value, or raise the exception.

        Raises:
            BadPayload: the value cannot be used here, or does not fit the type.
            PickleRefused: it is pickled.
            Exception: the task's own, or ``RemoteError``; its ``__cause__`` is a ``RemoteTraceback``.
        """
        if self.failure is not None:
            raise self.failure.exception()
        if self.instead:
            raise BadPayload(f"{what} comes later")
        return payloads.decode(self.payload, type_, what)


def _stored(error: BaseException) -> bytes:
    """Pack its arguments, and the attributes that are plain values; empty if the arguments are not."""
    try:
        parts = parts_of(error)
    except BaseException:  # of the properties of its class
        return b""
    state = {name: value for name, value in parts.state.items() if type(name) is str and _packed([value])}
    return _packed([parts.args, state])


def _packed(value: object) -> bytes:
    try:
        return pack(value, "an exception")
    except BaseException:  # of a class of the user
        return b""


def _traceback_of(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except BaseException as broken:
        return f"<its traceback cannot be made: {reason(broken)}>\n"


def _cut(text: str, most: int) -> str:
    clean = text.encode("utf-8", "backslashreplace").decode()
    half = most // 2
    return clean if len(clean) <= most else f"{clean[:half]}\n... {len(clean) - most:,} characters ...\n{clean[-half:]}"


def _lines(text: str) -> str:
    """Escape untrusted text for a terminal, and keep its lines."""
    return "\n".join(printable(line.replace("\t", "    ")) for line in text.split("\n"))
