"""Checks of the arguments of primitives, and of the thread that calls them. No I/O."""

from __future__ import annotations

import operator

from latchwork.errors import InvalidKey, LatchworkError
from latchwork.store.dispatch import is_in_callback
from latchwork.store.keys import is_segment, validate_name

#: Maximum number of characters of an invalid name in a message.
_SHOWN = 130


def check_name(name: str, kind: str) -> str:
    """Check the name of a primitive, and return it.

    Args:
        name: The name, one or more key segments.
        kind: Kind of the primitive, for messages: ``lock``.
    Raises:
        InvalidKey: The name is not a valid key.
    """
    try:
        return validate_name(name)
    except InvalidKey as error:
        raise InvalidKey(f"{kind} name {repr(name)[:_SHOWN]} cannot be used: {error}") from None


def check_node_id(node_id: str, kind: str) -> str:
    """Check the ID of a node, and return it. All characters are allowed, even ``/``.

    Args:
        node_id: The ID.
        kind: Kind of the primitive, for messages: ``latch``.
    Raises:
        InvalidKey: The ID is empty or not a string.
    """
    given: object = node_id
    if not isinstance(given, str) or not given:
        raise InvalidKey(f"{kind} node id {node_id!r} cannot be used: it must be text, and not empty")
    return node_id


def check_member(member_id: str, kind: str) -> str:
    """Check that an ID is valid as one key segment, and return it.

    Args:
        member_id: The ID.
        kind: Kind of the ID, for messages: ``member``.
    Raises:
        InvalidKey: The ID is not a valid key segment.
    """
    if is_segment(member_id):
        return member_id
    check_name(member_id, kind)
    if "/" in member_id:
        raise InvalidKey(f"{kind} name {member_id!r} cannot be used: it must not contain '/'")
    return member_id


def check_text(text: str, what: str) -> str:
    """Check that a value is a string, which may be empty, and return it.

    Args:
        text: The value.
        what: Name of the value, for messages.
    Raises:
        TypeError: It is not a string.
    """
    given: object = text
    if not isinstance(given, str):
        raise TypeError(f"{what} must be text, not {text!r}")
    return text


def check_bytes(value: bytes, what: str) -> bytes:
    """Check that a value is ``bytes``, and return it.

    Args:
        value: The value.
        what: Name of the value, for messages.
    Raises:
        TypeError: It is not ``bytes``.
    """
    given: object = value
    if not isinstance(given, bytes):
        raise TypeError(f"{what} must be bytes, not {type(given).__name__}; encode it first")
    return value


def check_minimum(value: float, what: str, minimum: float) -> float:
    """Check that a number is not below a minimum, and return it as a float.

    Args:
        value: The number.
        what: Name of the number, for messages.
        minimum: The minimum.
    Raises:
        ValueError: The number is too small, or not a number.
    """
    if not value >= minimum:
        raise ValueError(f"{what} must be at least {minimum:g}, not {value!r}")
    return float(value)


def check_integer(value: int, what: str) -> int:
    """Check that a value is an integer, and return it. Floats are refused, because storing may change them.

    Args:
        value: The value.
        what: Name of the value, for messages.
    Raises:
        TypeError: It is not an integer.
    """
    if isinstance(value, bool):
        raise TypeError(f"{what} must be a whole number, not {value!r}")
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{what} must be a whole number, not {value!r}") from None


def raise_if_in_callback(what: str, timeout_s: float | None) -> None:
    """Raise an error if the caller is about to wait inside a callback, because the callback could wait for itself.

    Args:
        what: Name of what the caller waits for, for messages.
        timeout_s: Timeout of the wait. 0, which means a single try, is allowed.
    Raises:
        LatchworkError: The caller is inside a callback.
    """
    if timeout_s != 0 and is_in_callback():
        raise LatchworkError(
            f"{what} must not be waited for in a callback, because others wait for the callback "
            "to end; use a thread, or timeout_s=0"
        )
