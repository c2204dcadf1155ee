"""Codecs of arguments and results: plain values, or pickles if both sides allow them.

A payload begins with the tag of its codec, so that a reader recognizes the format before it decodes anything. Nothing
from a store is imported, evaluated or unpickled, unless the reader was given ``allow_pickle=True``. Nothing here
touches the network.
"""

from __future__ import annotations

import inspect
import io
import pickle
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple, Protocol

from latchwork._base.text import short
from latchwork.errors import BackendNotInstalled
from latchwork.tasks.errors import BadPayload, NotSerializable, PayloadTooLarge, PickleRefused
from latchwork.tasks.functions import Registered
from latchwork.tasks.payloads.fit import Misfit, fit, same
from latchwork.tasks.payloads.values import pack_plain, packed, unpack

#: Default maximum size of a payload in bytes.
MAX_PAYLOAD_BYTES = 64 * 1024 * 1024
#: Longer than any tag.
_MOST_TAG = 16


class Codec(Protocol):
    """Encodes values to bytes, and decodes them. Safe to share between threads.

    Attributes:
        tag: the prefix of its payloads, before a colon: up to 16 letters.
    """

    tag: bytes

    def encode(self, value: Any, what: str, type_: Any = Any) -> bytes:
        """Encode a value.

        Args:
            value: the value.
            what: its name in errors: ``argument 'day' of shop:report``.
            type_: the annotation that the reader will have.
        Raises:
            NotSerializable: decoding would not give an equal value of the same type.
        """
        ...

    def decode(self, data: bytes, type_: Any, what: str = "a payload") -> Any:
        """Decode a value from untrusted bytes.

        Raises:
            BadPayload: they cannot be used, or the value does not fit the type.
        """
        ...


class PlainCodec:
    """Encodes plain values, dataclasses, msgspec Structs, named tuples and enums, by msgpack. Runs no stored code.

    A decoded value is equal and of the same type. Encoding refuses any other value. An object of a class needs an
    annotation that names the class, on both sides. No class is looked up by a stored name, except exceptions that are
    already loaded.
    """

    tag = b"plain"

    def encode(self, value: Any, what: str, type_: Any = Any) -> bytes:
        """See ``Codec``. Needs the extra ``tasks``."""
        data, holds_objects = packed(value, what)
        try:
            back = fit(unpack(data, what) if holds_objects else value, type_)
        except (Misfit, BadPayload) as error:
            raise NotSerializable(f"{what}: {error}") from None
        if holds_objects and not same(value, back):
            raise NotSerializable(f"{what} is {short(value)}, and would come back as {short(back)}")
        return data

    def decode(self, data: bytes, type_: Any, what: str = "a payload") -> Any:
        """See ``Codec``."""
        try:
            return fit(unpack(data, what), type_)
        except Misfit as error:
            raise BadPayload(f"{what}: {error}") from None
        except RecursionError:
            raise BadPayload(f"{what} is nested too deep") from None


class PickleCodec:
    """Encodes every value that cloudpickle supports, functions and classes by value. Needs the extra ``pickle``.

    Anyone who can write to the store can run code where such payloads are read, so a reader refuses them without
    ``allow_pickle=True``. Annotations are checked as for ``PlainCodec``.

    Args:
        allow_pickle: whether this object may decode.
    """

    tag = b"pickle"

    def __init__(self, *, allow_pickle: bool = False) -> None:
        self._may_decode = allow_pickle

    def encode(self, value: Any, what: str, type_: Any = Any) -> bytes:
        """See ``Codec``."""
        try:
            fit(value, type_)
            return bytes(_cloudpickle().dumps(value))
        except Misfit as error:
            raise NotSerializable(f"{what}: {error}") from None
        except (pickle.PicklingError, TypeError, AttributeError, RecursionError, ValueError) as error:
            raise NotSerializable(f"{what} cannot be pickled: {error}") from error

    def decode(self, data: bytes, type_: Any, what: str = "a payload") -> Any:
        """See ``Codec``.

        Raises:
            PickleRefused: pickles are not allowed here.
            BadPayload: it is not a pickle that can be read here.
        """
        if not self._may_decode:
            raise PickleRefused(f"{what} is pickled, and pickles are not trusted here; see allow_pickle=True")
        try:
            return fit(pickle.Unpickler(io.BytesIO(data)).load(), type_)  # noqa: S301 - the program said so
        except Misfit as error:
            raise BadPayload(f"{what}: {error}") from None
        except Exception as error:
            raise BadPayload(f"{what} cannot be unpickled: {type(error).__name__}: {short(str(error))}") from error


class Arguments(NamedTuple):
    """The arguments of a call."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Payloads:
    """Encodes by one codec, and decodes all allowed ones, for a submitter or a node. Safe to share between threads.

    Args:
        codec: the codec to encode with.
        allow_pickle: whether to decode pickled payloads: anyone who can write to the store can then run code here.
        max_payload_bytes: longer payloads are refused before they are decoded.
    """

    def __init__(
        self, codec: Codec | None = None, *, allow_pickle: bool = False, max_payload_bytes: int = MAX_PAYLOAD_BYTES
    ) -> None:
        self.codec: Codec = PlainCodec() if codec is None else codec
        if not self.codec.tag.isalnum() or len(self.codec.tag) > _MOST_TAG:
            raise ValueError(f"the tag of a codec must be up to {_MOST_TAG} letters, not {self.codec.tag!r}")
        self.max_payload_bytes = max_payload_bytes
        self.allow_pickle = allow_pickle
        readers: list[Codec] = [self.codec, PlainCodec(), PickleCodec(allow_pickle=allow_pickle)]
        self._readers: dict[bytes, Codec] = {each.tag: each for each in readers}

    def encode(self, value: Any, what: str, type_: Any = Any, *, like: bytes = b"") -> bytes:
        """Encode a value as a payload.

        Args:
            value: the value.
            what: its name in errors.
            type_: its annotation.
            like: a payload whose codec is used instead of ours: that of the call that is answered.
        Raises:
            NotSerializable: see ``Codec.encode``.
            PayloadTooLarge: it is too long.
        """
        codec = self._reader(like, what) if like else self.codec
        return self._sealed(codec, codec.encode(value, what, type_), what)

    def decode(self, payload: bytes, type_: Any, what: str) -> Any:
        """Decode a value from an untrusted payload.

        Raises:
            BadPayload: it is not a payload, does not fit the type, or is too long.
            PickleRefused: it is pickled.
        """
        return self._reader(payload, what).decode(payload.partition(b":")[2], type_, what)

    def encode_call(self, of: Registered, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """Encode the arguments of a call of a registered function.

        Raises:
            TypeError: the function does not accept the arguments.
            NotSerializable: an argument cannot be stored; the message names it.
            PayloadTooLarge: they are too long.
        """
        of.bind(args, kwargs)
        stored = [self.codec.encode(value, what, hint) for value, what, hint in _named(of, args, kwargs)]
        frame = pack_plain([stored[: len(args)], dict(zip(kwargs, stored[len(args) :], strict=True))], "a call")
        return self._sealed(self.codec, frame, f"the arguments of {of.name!r}")

    def decode_call(self, of: Registered, payload: bytes) -> Arguments:
        """Decode the arguments of a call, and check each against its annotation.

        Raises:
            BadPayload: they cannot be used, or do not fit the function registered here; the message names the argument.
        """
        what = f"the arguments of {of.name!r}"
        codec = self._reader(payload, what)
        if codec.tag == PickleCodec.tag and not self.allow_pickle:
            codec.decode(b"", Any, what)
        args, kwargs = _framed(unpack(payload.partition(b":")[2], what), what)
        try:
            of.bind(args, kwargs)
        except TypeError as error:
            raise BadPayload(f"{error}; another version of it was called") from None
        made = [codec.decode(data, hint, name) for data, name, hint in _named(of, args, kwargs)]
        return Arguments(tuple(made[: len(args)]), dict(zip(kwargs, made[len(args) :], strict=True)))

    def _reader(self, payload: bytes, what: str) -> Codec:
        if len(payload) > self.max_payload_bytes:
            raise BadPayload(f"{what} has {len(payload):,} bytes, and at most {self.max_payload_bytes:,} are read here")
        tag, colon, _ = payload[: _MOST_TAG + 1].partition(b":")
        codec = self._readers.get(bytes(tag)) if colon else None
        if codec is None:
            known = ", ".join(sorted(each.decode() for each in self._readers))
            raise BadPayload(f"{what} is of no codec that is known here ({known}): {short(payload)}")
        return codec

    def _sealed(self, codec: Codec, data: bytes, what: str) -> bytes:
        if len(data) + _MOST_TAG > self.max_payload_bytes:
            raise PayloadTooLarge(
                f"{what} takes {len(data):,} bytes, and at most {self.max_payload_bytes:,} are stored; "
                "put it elsewhere, and pass its address"
            )
        return codec.tag + b":" + data


_BYTES, _TEXT = frozenset({bytes}), frozenset({str})


def _framed(found: Any, what: str) -> tuple[tuple[bytes, ...], dict[str, bytes]]:
    match found:
        case [list(args), dict(kwargs)]:
            if {*map(type, args), *map(type, kwargs.values())} <= _BYTES and set(map(type, kwargs)) <= _TEXT:
                return tuple(args), kwargs
    raise BadPayload(f"{what} are no arguments that can be used")


def _named(of: Registered, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[tuple[Any, str, Any]]:
    """Return each argument with its name in errors and its annotation."""
    if not kwargs and of.positional is not None:
        hints = of.hints
        return [
            (value, f"argument {name!r} of {of.name!r}", hints.get(name, Any))
            for value, name in zip(args, of.positional[0], strict=False)
        ]
    names = _positions(of.signature, len(args))
    given = [*zip(args, names, strict=True), *((value, name) for name, value in kwargs.items())]
    hint_of = _hint_by_name(of)
    return [(value, f"argument {name!r} of {of.name!r}", hint_of(name)) for value, name in given]


def _positions(signature: inspect.Signature, count: int) -> list[str]:
    """Return the parameters of ``count`` positional arguments; the last is repeated if it is variadic."""
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [each.name for each in signature.parameters.values() if each.kind in places][:count]
    many = [each.name for each in signature.parameters.values() if each.kind is inspect.Parameter.VAR_POSITIONAL]
    return names + many * (count - len(names))


def _hint_by_name(of: Registered) -> Callable[[str], Any]:
    rest = [each.name for each in of.signature.parameters.values() if each.kind is inspect.Parameter.VAR_KEYWORD]
    others = of.hints.get(rest[0], Any) if rest else Any
    known = of.signature.parameters

    def hint(name: str) -> Any:
        return of.hints.get(name, Any) if name in known and name not in rest else others

    return hint


@cache
def _cloudpickle() -> Any:
    try:
        return import_module("cloudpickle")
    except ImportError as error:
        raise BackendNotInstalled(
            'pickled functions need the package cloudpickle; install it with pip install "latchwork[pickle]"'
        ) from error
