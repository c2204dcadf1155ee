"""Call templates: arguments of which some are filled in later, with results of other tasks.

A stored template is a list: the tag of the codec, the positional arguments, and the arguments by name. Each argument is
encoded by the codec, or is a placeholder name, or a list or dictionary that contains such names. Filling copies the
bytes of results without decoding them. A result that does not fit is detected when the call is made; the error names
the argument. Nothing here touches the network.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from latchwork._base.text import short
from latchwork.tasks.errors import BadPayload, NotSerializable
from latchwork.tasks.functions import Registered
from latchwork.tasks.payloads.codec import Payloads, PlainCodec
from latchwork.tasks.payloads.values import pack, unpack

#: What an argument, or a part of one, is in a template.
_VALUE, _LATER, _LIST, _DICT = "value", "later", "list", "dict"
_WHAT = "a template of arguments"


@dataclass(frozen=True, slots=True)
class Later:
    """A placeholder for a value that is filled in later, by name."""

    name: str


def laters(value: Any) -> Iterator[Later]:
    """Yield the placeholders in a value, also inside lists, tuples and dictionaries, in order."""
    if isinstance(value, Later):
        yield value
    elif type(value) in (list, tuple):
        for each in value:
            yield from laters(each)
    elif type(value) is dict:
        for key, each in value.items():
            yield from laters(key)
            yield from laters(each)


def encode_template(payloads: Payloads, of: Registered, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
    """Encode the arguments of a call, which may contain ``Later``.

    Raises:
        TypeError: the function does not accept the arguments.
        NotSerializable: an argument cannot be stored, or holds a ``Later`` in a tuple, a set, or as a key.
    """
    of.bind(args, kwargs)

    def named(value: Any, name: str) -> list[Any]:
        return _node(payloads, value, f"argument {name!r} of {of.name!r}", of.hints.get(name, Any))

    positional = [named(value, name) for value, name in zip(args, _names(of, len(args)), strict=True)]
    return pack([payloads.codec.tag, positional, {name: named(each, name) for name, each in kwargs.items()}], _WHAT)


def _names(of: Registered, count: int) -> list[str]:
    """Return the parameters of ``count`` positional arguments; the last is repeated if it is variadic."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [each.name for each in of.signature.parameters.values() if each.kind in kinds][:count]
    many = [each.name for each in of.signature.parameters.values() if each.kind is inspect.Parameter.VAR_POSITIONAL]
    return names + many * (count - len(names))


def _node(payloads: Payloads, value: Any, what: str, hint: Any) -> list[Any]:
    if isinstance(value, Later):
        return [_LATER, value.name]
    if next(laters(value), None) is None:
        return [_VALUE, payloads.codec.encode(value, what, hint)]
    if type(value) is list:
        return [_LIST, [_node(payloads, each, f"{what}, [{n}]", Any) for n, each in enumerate(value)]]
    if type(value) is dict and all(type(key) is str for key in value):
        return [_DICT, {key: _node(payloads, each, f"{what}, [{key!r}]", Any) for key, each in value.items()}]
    raise NotSerializable(f"{what} has a result that comes later in a {type(value).__name__}; put it into a list")


def fill_template(payloads: Payloads, template: bytes, results: Mapping[str, bytes], of: str) -> bytes:
    """Build the payload of the call, in the format of ``encode_call``.

    Args:
        payloads: decodes and encodes.
        template: untrusted bytes.
        results: payloads by placeholder name.
        of: the function, for messages.
    Raises:
        BadPayload: the template cannot be used, or a result is of another codec, or missing.
    """
    match unpack(template, _WHAT):
        case [bytes(tag), list(args), dict(kwargs)] if tag == payloads.codec.tag:
            pass
        case _:
            raise BadPayload(f"{_WHAT} of {of!r} cannot be used here: {short(template)}")

    def part(name: object) -> bytes:
        found = results.get(name) if isinstance(name, str) else None
        if found is None:
            raise BadPayload(f"{_WHAT} of {of!r} waits for {short(name)}, which has no result")
        head, colon, data = found.partition(b":")
        if not colon or head != tag:
            raise BadPayload(f"the result of {name!r} was stored by another codec than the arguments of {of!r}")
        return data

    join = _plain if tag == PlainCodec.tag else _by_codec(payloads)
    stored = [_filled(each, part, join, of) for each in args]
    named = {str(name): _filled(each, part, join, of) for name, each in kwargs.items()}
    return tag + b":" + pack([stored, named], f"the arguments of {of!r}")


_Join = Callable[["list[bytes] | dict[str, bytes]"], bytes]


def _filled(node: Any, part: Callable[[object], bytes], join: _Join, of: str) -> bytes:
    match node:
        case ["value", bytes(data)]:
            return data
        case ["later", name]:
            return part(name)
        case ["list", list(members)]:
            return join([_filled(each, part, join, of) for each in members])
        case ["dict", dict(members)] if all(type(key) is str for key in members):
            return join({key: _filled(each, part, join, of) for key, each in members.items()})
    raise BadPayload(f"{_WHAT} of {of!r} has a part that cannot be used: {short(node)}")


def _plain(members: list[bytes] | dict[str, bytes]) -> bytes:
    """Join packed members to a packed list or dictionary, as ``pack`` would encode it."""
    if isinstance(members, list):
        return _head(len(members), 0x90, 0xDC) + b"".join(members)
    return _head(len(members), 0x80, 0xDE) + b"".join(pack(key, _WHAT) + data for key, data in members.items())


def _head(count: int, small: int, large: int) -> bytes:
    """Return the header of an array or a map of msgpack."""
    if count < 16:
        return bytes([small | count])
    return (
        bytes([large]) + count.to_bytes(2, "big") if count < 65_536 else bytes([large + 1]) + count.to_bytes(4, "big")
    )


def _by_codec(payloads: Payloads) -> _Join:
    codec = payloads.codec

    def join(members: list[bytes] | dict[str, bytes]) -> bytes:
        if isinstance(members, list):
            return codec.encode([codec.decode(each, Any, _WHAT) for each in members], _WHAT, Any)
        return codec.encode({key: codec.decode(each, Any, _WHAT) for key, each in members.items()}, _WHAT, Any)

    return join
