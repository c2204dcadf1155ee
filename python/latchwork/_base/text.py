"""Formatting of text, times and numbers for messages, log lines and screens.

Text from a store may contain anything. After ``printable`` it cannot move the cursor, fake a line or reverse the text.
Times have one format.
"""

from __future__ import annotations

import reprlib
from datetime import UTC, datetime, timedelta

#: The name of a class, whatever its metaclass does.
_NAME_OF = type.__dict__["__name__"].__get__
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 60
_SHORT.maxlevel = 3


def short(value: object) -> str:
    """Return a short text for a value, without control characters."""
    return _SHORT.repr(value[:60] if isinstance(value, (bytes, str)) else value)


def printable(text: str) -> str:
    """Escape the characters of a text that cannot be printed, such as control characters and surrogates."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def utc_text(wall_s: float) -> str:
    """Format a time in seconds since the epoch as ``2026-11-22T09:10:10Z``. Accepts any number."""
    try:
        moment = _EPOCH + timedelta(seconds=wall_s)
    except (OverflowError, ValueError):
        return "a time out of reach"
    return f"{moment.replace(tzinfo=None):%Y-%m-%dT%H:%M:%SZ}".rjust(20, "0")


def normalize_utc_text(text: str) -> str:
    """Convert a stored time to the format of ``utc_text``. A text that is not a time is returned unchanged."""
    try:
        found = datetime.fromisoformat(text)
        return utc_text((found - _EPOCH).total_seconds())
    except (ValueError, TypeError):
        return text


def counted(number: int, noun: str) -> str:
    """Return a number with its noun in singular or plural: ``1 item``, ``2 items``, ``1,000 items``."""
    return f"{number:,} {noun}" if abs(number) == 1 else f"{number:,} {noun}s"


def reason(error: BaseException) -> str:
    """Describe an error in one line, with its type and its message. Never raises an error."""
    text = " ".join(message(error).split())
    name = _NAME_OF(type(error))
    return printable(f"{name}: {text}" if text else f"{name}, without a message")


def message(error: BaseException) -> str:
    """Return the message of an error. If the error cannot be converted to text, return a text that says so."""
    try:
        return str(error)
    except BaseException as broken:
        return f"<its message cannot be created: {_NAME_OF(type(broken))}>"


def has_message(error: BaseException) -> bool:
    """Return whether an error can be converted to text with ``str`` and ``repr``."""
    try:
        str(error), repr(error)
    except BaseException:
        return False
    return True
