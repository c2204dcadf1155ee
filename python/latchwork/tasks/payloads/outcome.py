"""How a run of a task ended: a value, or an exception that can be raised where the task was submitted.

An exception travels as the name of its class, its arguments, its attributes, its text, and the text of its traceback.
It is made again as ``raised`` says; otherwise it is a ``RemoteError``. Nothing here touches the network.
"""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

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
from latchwork.words import message, printable, reason, short

#: So many characters of a message, and of a traceback, travel; the middle of what is longer is left out.
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
        traceback: where it was raised, for people.
        stored: its arguments and attributes, packed; empty when they cannot be.
        is_final: whether it is an error of the call, which no further try mends.
        is_refusal: whether the call was not for this node: unknown there, or refused.
    """

    module: str
    name: str
    text: str
    traceback: str = ""
    stored: bytes = b""
    is_final: bool = False
    is_refusal: bool = False

    @classmethod
    def of(cls, error: BaseException, *, is_final: bool = False, is_refusal: bool = False) -> Failure:
        """Return the failure that an exception is. Raises nothing, whatever the class of the exception does."""
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
        """The class, if it is loaded here."""
        return loaded_class(self.module, self.name)

    @property
    def summary(self) -> str:
        """One printable line."""
        text = " ".join(self.text.split())
        return printable(f"{self.name}: {text}" if text else self.name)

    def exception(self) -> BaseException:
        """The exception to raise: with where it was raised as its ``__cause__``."""
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
    """What a task returns when its value comes later: something that its system is to do before."""

    @abstractmethod
    def to_bytes(self) -> bytes:
        """As its system reads it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended.

    Attributes:
        payload: the value, as a payload; empty when it failed.
        failure: the exception; None when it returned.
        instead: what was returned instead of a value; only systems that say so get one.
    """

    payload: bytes = b""
    failure: Failure | None = None
    instead: bytes = b""

    @classmethod
    def failed(cls, error: BaseException, *, is_final: bool = False, is_refusal: bool = False) -> Outcome:
        """The outcome of a run that raised."""
        return cls(failure=Failure.of(error, is_final=is_final, is_refusal=is_refusal))

    @property
    def is_success(self) -> bool:
        """Whether it returned."""
        return self.failure is None

    def to_bytes(self) -> bytes:
        """As it is stored."""
        if self.instead:
            return pack_plain([_INSTEAD, self.instead], "an outcome")
        if self.failure is None:
            return pack_plain([_VALUE, self.payload], "an outcome")
        f = self.failure
        return pack_plain(
            [_RAISED, f.module, f.name, f.text, f.traceback, f.stored, f.is_final, f.is_refusal], "an outcome"
        )

    @classmethod
    def of(cls, data: bytes) -> Outcome:
        """The outcome in bytes that anybody may have written.

        Raises:
            BadPayload: there is none in them.
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
        """The value; the exception is raised.

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
    """Its arguments and those of its attributes that are plain values; empty when the arguments are not."""
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
    """Text from elsewhere, its lines kept, made harmless for a terminal."""
    return "\n".join(printable(line.replace("\t", "    ")) for line in text.split("\n"))
