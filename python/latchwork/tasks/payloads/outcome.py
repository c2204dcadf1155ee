"""Outcomes of task runs: a value, or an exception that can be raised again where the task was submitted.

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
    ExceptionData,
    exception_data,
    find_loaded_class,
    module_and_name,
    pack,
    pack_plain,
    rebuild_exception,
    unpack,
)

#: Maximum number of characters of a message and of a traceback; the middle of a longer text is left out.
MOST_TEXT = 8_000
MOST_TRACEBACK = 32_000
_VALUE, _RAISED, _DEFERRED = "value", "raised", "deferred"


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception that a task raised, in a form that can be stored.

    Attributes:
        module: The module of its class.
        name: The qualified name of its class.
        text: Its message.
        traceback: Its traceback as text, for people.
        stored: Its arguments and attributes, encoded; empty if they cannot be encoded.
        is_final: Whether the call itself is invalid, so that a retry cannot help.
        is_refusal: Whether the node could not run the call: it does not know the function, or the task refused to run
            there.
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
        """Convert an exception for storage. Never raises, even if methods of the exception fail.

        Args:
            error: The exception.
            is_final: Whether the call itself is invalid, so that a retry cannot help.
            is_refusal: Whether the node could not run the call.
        """
        return cls(
            *module_and_name(type(error)),
            _shorten(message(error), MOST_TEXT),
            _shorten(_traceback_of(error), MOST_TRACEBACK),
            _pack_exception(error),
            is_final,
            is_refusal,
        )

    @property
    def type_name(self) -> str:
        """The class of the exception as ``module:qualname``."""
        return f"{self.module}:{self.name}"

    @property
    def loaded_class(self) -> type[Exception] | None:
        """The class of the exception; None if it is not loaded in this process."""
        return find_loaded_class(self.module, self.name)

    @property
    def summary(self) -> str:
        """The class name and the message, as one printable line."""
        text = " ".join(self.text.split())
        return printable(f"{self.name}: {text}" if text else self.name)

    def exception(self) -> BaseException:
        """Build the exception to raise. Its ``__cause__`` contains the traceback of the task."""
        error = self._made()
        BaseException.__setattr__(
            error, "__cause__", RemoteTraceback(_escape_lines(self.traceback))
        )  # not one of its class
        return error

    def _made(self) -> BaseException:
        made = rebuild_exception(self._parts()) if self.stored and self.loaded_class is not None else None
        return made or RemoteError(self.summary, self.type_name, self.text)

    def _parts(self) -> ExceptionData:
        try:
            found = unpack(self.stored, "an exception")
        except BadPayload:
            found = None
        match found:
            case [tuple(args), dict(state)] if all(type(name) is str for name in state):
                return ExceptionData(self.module, self.name, args, state)
        return ExceptionData("", "", (), {})


class DeferredResult(ABC):
    """The base class of values that a task returns when its result is computed later, such as a child plan."""

    @abstractmethod
    def to_bytes(self) -> bytes:
        """Encode the value for the system that computes the result."""


class Outcome(Struct, frozen=True):
    """The outcome of a task's run: a value or an exception.

    Attributes:
        payload: The value, as a payload; empty if the run failed.
        failure: The exception; None if the run returned.
        deferred: The encoded ``DeferredResult`` that was returned, if the system allows it; else empty.
        stop_reason: Why the node stopped the run, which is then repeated; empty if it did not. Not stored.
    """

    payload: bytes = b""
    failure: Failure | None = None
    deferred: bytes = b""
    stop_reason: str = ""

    @classmethod
    def from_exception(
        cls, error: BaseException, *, is_final: bool = False, is_refusal: bool = False, stop_reason: str = ""
    ) -> Outcome:
        """Build the outcome of a run that raised an exception.

        Args:
            error: The exception.
            is_final: Whether the call itself is invalid, so that a retry cannot help.
            is_refusal: Whether the node could not run the call.
            stop_reason: Why the node stopped the run; empty if it did not.
        """
        return cls(
            failure=Failure.from_exception(error, is_final=is_final, is_refusal=is_refusal), stop_reason=stop_reason
        )

    @property
    def is_success(self) -> bool:
        """Whether the run returned without an exception."""
        return self.failure is None

    def to_bytes(self) -> bytes:
        """Encode the outcome for storage."""
        if self.deferred:
            return pack_plain([_DEFERRED, self.deferred], "an outcome")
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
            BadPayload: The bytes are not an outcome.
        """
        match unpack(data, "an outcome"):
            case ["value", bytes(payload)]:
                return cls(payload)
            case ["deferred", bytes(deferred)]:
                return cls(deferred=deferred)
            case ["raised", str(module), str(name), str(text), str(where), bytes(stored), bool(final), bool(refused)]:
                return cls(failure=Failure(module, name, text, where, stored, final, refused))
        raise BadPayload(f"{short(data)} is not an outcome of a task")

    def result(self, payloads: Payloads, type_: Any = Any, description: str = "the result") -> Any:
        """Return the value of the run, or raise its exception.

        Args:
            payloads: Decodes the value.
            type_: The annotation that the value must match.
            description: Description of the value in errors.
        Raises:
            BadPayload: The value cannot be decoded here, or does not match the type.
            PickleRefused: The value is pickled, and pickles are not allowed.
            Exception: The exception of the task, or ``RemoteError``; its ``__cause__`` is a ``RemoteTraceback``.
        """
        if self.failure is not None:
            raise self.failure.exception()
        if self.deferred:
            raise BadPayload(f"{description} is not available yet")
        return payloads.decode(self.payload, type_, description)


def _pack_exception(error: BaseException) -> bytes:
    """Encode the arguments and the plain attributes of an exception. Return empty bytes if that is not possible."""
    try:
        parts = exception_data(error)
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
        return f"<its traceback cannot be created: {reason(broken)}>\n"


def _shorten(text: str, most: int) -> str:
    clean = text.encode("utf-8", "backslashreplace").decode()
    half = most // 2
    return clean if len(clean) <= most else f"{clean[:half]}\n... {len(clean) - most:,} characters ...\n{clean[-half:]}"


def _escape_lines(text: str) -> str:
    """Escape untrusted text so that it is safe to print on a terminal, but keep its line breaks."""
    return "\n".join(printable(line.replace("\t", "    ")) for line in text.split("\n"))
