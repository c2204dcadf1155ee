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
from latchwork.tasks.functions import RegisteredFunction
from latchwork.tasks.payloads.validation import TypeMismatch, are_equal, validate_value
from latchwork.tasks.payloads.values import pack_and_detect_objects, pack_plain, unpack

#: Default maximum size of a payload in bytes.
MAX_PAYLOAD_BYTES = 64 * 1024 * 1024
#: Longer than any tag.
_MOST_TAG = 16


class Codec(Protocol):
    """Encodes values to bytes, and decodes them. Thread-safe.

    Attributes:
        tag: The prefix of its payloads before a colon: up to 16 letters.
    """

    tag: bytes

    def encode(self, value: Any, description: str, type_: Any = Any) -> bytes:
        """Encode a value.

        Args:
            value: The value.
            description: Description of the value in errors: ``argument 'day' of shop:report``.
            type_: The annotation that the decoding side will use.
        Raises:
            NotSerializable: Decoding would not give an equal value of the same type.
        """
        ...

    def decode(self, data: bytes, type_: Any, description: str = "a payload") -> Any:
        """Decode a value from untrusted bytes.

        Args:
            data: The bytes.
            type_: The annotation that the value must match.
            description: Description of the value in errors.
        Raises:
            BadPayload: The bytes cannot be decoded, or the value does not match the annotation.
        """
        ...


class PlainCodec:
    """Encodes plain values, dataclasses, msgspec Structs, named tuples and enums as msgpack. Runs no stored code.

    A decoded value is equal and of the same type. Encoding refuses any other value. An object of a class needs an
    annotation that names the class, on both sides. No class is looked up by a stored name, except exceptions that are
    already loaded.
    """

    tag = b"plain"

    def encode(self, value: Any, description: str, type_: Any = Any) -> bytes:
        """Encode a value as msgpack. Needs the extra ``tasks``.

        Args:
            value: The value.
            description: Description of the value in errors.
            type_: The annotation that the decoding side will use.
        Raises:
            NotSerializable: Decoding would not give an equal value of the same type.
        """
        data, holds_objects = pack_and_detect_objects(value, description)
        try:
            back = validate_value(unpack(data, description) if holds_objects else value, type_)
        except (TypeMismatch, BadPayload) as error:
            raise NotSerializable(f"{description}: {error}") from None
        if holds_objects and not are_equal(value, back):
            raise NotSerializable(f"{description} is {short(value)}, but would be read back as {short(back)}")
        return data

    def decode(self, data: bytes, type_: Any, description: str = "a payload") -> Any:
        """Decode a value from untrusted msgpack, and check it against an annotation.

        Args:
            data: The bytes.
            type_: The annotation that the value must match.
            description: Description of the value in errors.
        Raises:
            BadPayload: The bytes cannot be decoded, or the value does not match the annotation.
        """
        try:
            return validate_value(unpack(data, description), type_)
        except TypeMismatch as error:
            raise BadPayload(f"{description}: {error}") from None
        except RecursionError:
            raise BadPayload(f"{description} is nested too deep") from None


class PickleCodec:
    """Encodes every value that cloudpickle supports, including functions and classes. Needs the extra ``pickle``.

    Any client that can write to the store can run code where such payloads are decoded, so decoding needs
    ``allow_pickle=True``. Annotations are checked as for ``PlainCodec``.

    Args:
        allow_pickle: Whether this object may decode.
    """

    tag = b"pickle"

    def __init__(self, *, allow_pickle: bool = False) -> None:
        self._may_decode = allow_pickle

    def encode(self, value: Any, description: str, type_: Any = Any) -> bytes:
        """Pickle a value that matches its annotation.

        Args:
            value: The value.
            description: Description of the value in errors.
            type_: The annotation that the decoding side will use.
        Raises:
            NotSerializable: The value cannot be pickled, or does not match the annotation.
        """
        try:
            validate_value(value, type_)
            return bytes(_cloudpickle().dumps(value))
        except TypeMismatch as error:
            raise NotSerializable(f"{description}: {error}") from None
        except (pickle.PicklingError, TypeError, AttributeError, RecursionError, ValueError) as error:
            raise NotSerializable(f"{description} cannot be pickled: {error}") from error

    def decode(self, data: bytes, type_: Any, description: str = "a payload") -> Any:
        """Unpickle a value, and check it against an annotation.

        Args:
            data: The bytes.
            type_: The annotation that the value must match.
            description: Description of the value in errors.
        Raises:
            PickleRefused: Pickles are not allowed here.
            BadPayload: The bytes cannot be unpickled here, or the value does not match the annotation.
        """
        if not self._may_decode:
            raise PickleRefused(f"{description} is pickled, but pickles are not trusted here; see allow_pickle=True")
        try:
            return validate_value(pickle.Unpickler(io.BytesIO(data)).load(), type_)  # noqa: S301 - the program said so
        except TypeMismatch as error:
            raise BadPayload(f"{description}: {error}") from None
        except Exception as error:
            raise BadPayload(
                f"{description} cannot be unpickled: {type(error).__name__}: {short(str(error))}"
            ) from error


class Arguments(NamedTuple):
    """The positional and keyword arguments of a call."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Payloads:
    """Encodes payloads with one codec, and decodes payloads of all allowed codecs. Thread-safe.

    Args:
        codec: The codec to encode with; None uses ``PlainCodec``.
        allow_pickle: Whether to decode pickled payloads. Any client that can write to the store can then run code here.
        max_payload_bytes: The largest payload that is encoded or decoded.
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

    def encode(self, value: Any, description: str, type_: Any = Any, *, like: bytes = b"") -> bytes:
        """Encode a value as a payload.

        Args:
            value: The value.
            description: Description of the value in errors.
            type_: Its annotation.
            like: A payload whose codec is used instead of the default codec. A result uses the codec of its call.
        Raises:
            NotSerializable: Decoding would not give an equal value of the same type.
            PayloadTooLarge: The payload would be too large.
        """
        codec = self._codec_for(like, description) if like else self.codec
        return self._add_tag(codec, codec.encode(value, description, type_), description)

    def decode(self, payload: bytes, type_: Any, description: str) -> Any:
        """Decode a value from an untrusted payload.

        Args:
            payload: The payload.
            type_: The annotation that the value must match.
            description: Description of the value in errors.
        Raises:
            BadPayload: It is not a payload, does not match the annotation, or is too large.
            PickleRefused: It is pickled, and pickles are not allowed.
        """
        return self._codec_for(payload, description).decode(payload.partition(b":")[2], type_, description)

    def encode_call(self, function: RegisteredFunction, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """Encode the arguments of a call of a registered function.

        Raises:
            TypeError: The function does not accept the arguments.
            NotSerializable: An argument cannot be stored. The message names it.
            PayloadTooLarge: The arguments are too large.
        """
        function.check_arguments(args, kwargs)
        stored = [
            self.codec.encode(value, what, hint) for value, what, hint in _describe_arguments(function, args, kwargs)
        ]
        frame = pack_plain([stored[: len(args)], dict(zip(kwargs, stored[len(args) :], strict=True))], "a call")
        return self._add_tag(self.codec, frame, f"the arguments of {function.name!r}")

    def decode_call(self, function: RegisteredFunction, payload: bytes) -> Arguments:
        """Decode the arguments of a call, and check each against its annotation.

        Raises:
            BadPayload: They cannot be decoded, or do not match the function registered here. The message names the
                argument.
        """
        what = f"the arguments of {function.name!r}"
        codec = self._codec_for(payload, what)
        if codec.tag == PickleCodec.tag and not self.allow_pickle:
            codec.decode(b"", Any, what)
        args, kwargs = _check_frame(unpack(payload.partition(b":")[2], what), what)
        try:
            function.check_arguments(args, kwargs)
        except TypeError as error:
            raise BadPayload(f"{error}; the caller has another version of it") from None
        made = [codec.decode(data, hint, name) for data, name, hint in _describe_arguments(function, args, kwargs)]
        return Arguments(tuple(made[: len(args)]), dict(zip(kwargs, made[len(args) :], strict=True)))

    def _codec_for(self, payload: bytes, description: str) -> Codec:
        if len(payload) > self.max_payload_bytes:
            raise BadPayload(
                f"{description} has {len(payload):,} bytes, and at most {self.max_payload_bytes:,} are read here"
            )
        tag, colon, _ = payload[: _MOST_TAG + 1].partition(b":")
        codec = self._readers.get(bytes(tag)) if colon else None
        if codec is None:
            known = ", ".join(sorted(each.decode() for each in self._readers))
            raise BadPayload(f"{description} has an unknown codec (known: {known}): {short(payload)}")
        return codec

    def _add_tag(self, codec: Codec, data: bytes, description: str) -> bytes:
        if len(data) + _MOST_TAG > self.max_payload_bytes:
            raise PayloadTooLarge(
                f"{description} takes {len(data):,} bytes, and at most {self.max_payload_bytes:,} are stored; "
                "store it elsewhere and pass its address"
            )
        return codec.tag + b":" + data


_BYTES, _TEXT = frozenset({bytes}), frozenset({str})


def _check_frame(found: Any, description: str) -> tuple[tuple[bytes, ...], dict[str, bytes]]:
    match found:
        case [list(args), dict(kwargs)]:
            if {*map(type, args), *map(type, kwargs.values())} <= _BYTES and set(map(type, kwargs)) <= _TEXT:
                return tuple(args), kwargs
    raise BadPayload(f"{description} are not valid arguments")


def _describe_arguments(
    function: RegisteredFunction, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> list[tuple[Any, str, Any]]:
    """Return for each argument its value, its description for error messages, and its annotation."""
    if not kwargs and function.positional_parameters is not None:
        hints = function.hints
        return [
            (value, f"argument {name!r} of {function.name!r}", hints.get(name, Any))
            for value, name in zip(args, function.positional_parameters[0], strict=False)
        ]
    names = parameter_names(function.signature, len(args))
    given = [*zip(args, names, strict=True), *((value, name) for name, value in kwargs.items())]
    hint_of = _hint_by_name(function)
    return [(value, f"argument {name!r} of {function.name!r}", hint_of(name)) for value, name in given]


def parameter_names(signature: inspect.Signature, count: int) -> list[str]:
    """Return the names of the parameters that the first ``count`` positional arguments fill.

    The name of a variadic parameter (``*args``) is repeated for each of its arguments.
    """
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [each.name for each in signature.parameters.values() if each.kind in places][:count]
    many = [each.name for each in signature.parameters.values() if each.kind is inspect.Parameter.VAR_POSITIONAL]
    return names + many * (count - len(names))


def _hint_by_name(function: RegisteredFunction) -> Callable[[str], Any]:
    rest = [each.name for each in function.signature.parameters.values() if each.kind is inspect.Parameter.VAR_KEYWORD]
    others = function.hints.get(rest[0], Any) if rest else Any
    known = function.signature.parameters

    def hint(name: str) -> Any:
        return function.hints.get(name, Any) if name in known and name not in rest else others

    return hint


@cache
def _cloudpickle() -> Any:
    try:
        return import_module("cloudpickle")
    except ImportError as error:
        raise BackendNotInstalled(
            'pickled functions need the package cloudpickle; run: pip install "latchwork[pickle]"'
        ) from error
