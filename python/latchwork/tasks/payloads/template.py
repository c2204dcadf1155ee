"""Call templates: encoded arguments of a call, some of which are results of other tasks and are filled in later.

A stored template is a list: the tag of the codec, the positional arguments, and the arguments by name. Each argument is
encoded by the codec, or is the name of a placeholder, or a list or dictionary that contains such names. Filling a
template copies the bytes of results without decoding them. If a result does not match the annotation of its parameter,
the call fails, and the error names the argument. Nothing here touches the network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from latchwork._base.text import short
from latchwork.tasks.errors import BadPayload, NotSerializable
from latchwork.tasks.functions import RegisteredFunction
from latchwork.tasks.payloads.codec import Payloads, PlainCodec, parameter_names
from latchwork.tasks.payloads.values import pack, unpack

#: What an argument, or a part of one, is in a template.
_VALUE, _LATER, _LIST, _DICT = "value", "later", "list", "dict"
_WHAT = "a template of arguments"


@dataclass(frozen=True, slots=True)
class Placeholder:
    """A placeholder for a value that is filled in later, by name."""

    name: str


def find_placeholders(value: Any) -> Iterator[Placeholder]:
    """Yield the placeholders in a value, in order, including those inside lists, tuples and dictionaries."""
    if isinstance(value, Placeholder):
        yield value
    elif type(value) in (list, tuple):
        for each in value:
            yield from find_placeholders(each)
    elif type(value) is dict:
        for key, each in value.items():
            yield from find_placeholders(key)
            yield from find_placeholders(each)


def encode_template(
    payloads: Payloads, function: RegisteredFunction, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> bytes:
    """Encode the arguments of a call, which may contain placeholders.

    Args:
        payloads: Encodes the arguments.
        function: The function to call.
        args: Positional arguments.
        kwargs: Keyword arguments.
    Raises:
        TypeError: The function does not accept the arguments.
        NotSerializable: An argument cannot be stored, or has a placeholder in a tuple, a set, or as a key.
    """
    function.check_arguments(args, kwargs)

    def named(value: Any, name: str) -> list[Any]:
        return _encode_node(payloads, value, f"argument {name!r} of {function.name!r}", function.hints.get(name, Any))

    positional = [
        named(value, name) for value, name in zip(args, parameter_names(function.signature, len(args)), strict=True)
    ]
    return pack([payloads.codec.tag, positional, {name: named(each, name) for name, each in kwargs.items()}], _WHAT)


def _encode_node(payloads: Payloads, value: Any, what: str, hint: Any) -> list[Any]:
    if isinstance(value, Placeholder):
        return [_LATER, value.name]
    if next(find_placeholders(value), None) is None:
        return [_VALUE, payloads.codec.encode(value, what, hint)]
    if type(value) is list:
        return [_LIST, [_encode_node(payloads, each, f"{what}, [{n}]", Any) for n, each in enumerate(value)]]
    if type(value) is dict and all(type(key) is str for key in value):
        return [_DICT, {key: _encode_node(payloads, each, f"{what}, [{key!r}]", Any) for key, each in value.items()}]
    raise NotSerializable(
        f"{what} contains a result that is not available yet in a {type(value).__name__}; put it into a list"
    )


def fill_template(payloads: Payloads, template: bytes, results: Mapping[str, bytes], function: str) -> bytes:
    """Replace the placeholders of a template by results, and return the payload of the call.

    Args:
        payloads: Encodes and decodes values.
        template: The template, as untrusted bytes.
        results: Payloads of the results, by placeholder name.
        function: Name of the function, for error messages.
    Returns:
        A payload as ``Payloads.encode_call`` creates it.
    Raises:
        BadPayload: The template is invalid, or a result is missing or was encoded by another codec.
    """
    match unpack(template, _WHAT):
        case [bytes(tag), list(args), dict(kwargs)] if tag == payloads.codec.tag:
            pass
        case _:
            raise BadPayload(f"{_WHAT} of {function!r} cannot be used here: {short(template)}")

    def part(name: object) -> bytes:
        found = results.get(name) if isinstance(name, str) else None
        if found is None:
            raise BadPayload(f"{_WHAT} of {function!r} waits for {short(name)}, which has no result")
        head, colon, data = found.partition(b":")
        if not colon or head != tag:
            raise BadPayload(f"the result of {name!r} was stored with another codec than the arguments of {function!r}")
        return data

    join = _join_packed if tag == PlainCodec.tag else _join_with_codec(payloads)
    stored = [_fill_node(each, part, join, function) for each in args]
    named = {str(name): _fill_node(each, part, join, function) for name, each in kwargs.items()}
    return tag + b":" + pack([stored, named], f"the arguments of {function!r}")


_Join = Callable[["list[bytes] | dict[str, bytes]"], bytes]


def _fill_node(node: Any, part: Callable[[object], bytes], join: _Join, function: str) -> bytes:
    match node:
        case ["value", bytes(data)]:
            return data
        case ["later", name]:
            return part(name)
        case ["list", list(members)]:
            return join([_fill_node(each, part, join, function) for each in members])
        case ["dict", dict(members)] if all(type(key) is str for key in members):
            return join({key: _fill_node(each, part, join, function) for key, each in members.items()})
    raise BadPayload(f"{_WHAT} of {function!r} has an invalid part: {short(node)}")


def _join_packed(members: list[bytes] | dict[str, bytes]) -> bytes:
    """Join encoded elements into an encoded list or dictionary. The result has the same bytes as ``pack`` would
    produce.

    Args:
        members: The encoded elements, as a list or by key.
    """
    if isinstance(members, list):
        return _container_header(len(members), 0x90, 0xDC) + b"".join(members)
    return _container_header(len(members), 0x80, 0xDE) + b"".join(
        pack(key, _WHAT) + data for key, data in members.items()
    )


def _container_header(count: int, small: int, large: int) -> bytes:
    """Return the header of a msgpack array or map with ``count`` elements.

    Args:
        count: Number of elements.
        small: First byte of the header for up to 15 elements, without the count.
        large: First byte of the header for more elements.
    """
    if count < 16:
        return bytes([small | count])
    return (
        bytes([large]) + count.to_bytes(2, "big") if count < 65_536 else bytes([large + 1]) + count.to_bytes(4, "big")
    )


def _join_with_codec(payloads: Payloads) -> _Join:
    codec = payloads.codec

    def join(members: list[bytes] | dict[str, bytes]) -> bytes:
        if isinstance(members, list):
            return codec.encode([codec.decode(each, Any, _WHAT) for each in members], _WHAT, Any)
        return codec.encode({key: codec.decode(each, Any, _WHAT) for key, each in members.items()}, _WHAT, Any)

    return join
