"""Encoding of values with their exact types: msgpack, with markers for types that msgpack lacks.

Plain values are rebuilt here: numbers, text, bytes, lists, dictionaries, tuples, sets, dates, decimals, UUIDs, and
exceptions whose class is already loaded. Objects (dataclasses, Structs, named tuples, enums) are decoded as
``DecodedObject``, and only ``validate_value``, which knows the annotation, creates instances of their classes. So no
class is looked up by stored bytes, and no stored code is run.

An exception is rebuilt without an import and without code of its class. The class must be loaded already, and be an
``Exception``. The instance is created by the built-in base class, and gets its attributes: no ``__init__`` of a program
runs. Classes that end a program (``SystemExit``) are not rebuilt. Nothing here touches the network.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from functools import cache
from typing import Any, NoReturn
from uuid import UUID

from msgspec import msgpack

from latchwork._base.text import short
from latchwork.tasks.errors import BadPayload, NotSerializable

#: Maximum nesting depth.
MAX_DEPTH = 64
_TUPLE, _SET, _FROZENSET, _BIG, _DATETIME, _DATE, _TIME, _TIMEDELTA = range(1, 9)
_DECIMAL, _UUID, _BYTEARRAY, _COMPLEX, _OBJECT, _ENUM, _PAIRS, _RAISED = range(9, 17)
_LEAVES = frozenset({type(None), bool, float, str, bytes})
_LEAST_INT, _MOST_INT = -(2**63), 2**64 - 1


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class DecodedObject:
    """A decoded object before its class is known: the name of the class, and the fields by name.

    An enum member has its value in the field ``value``.
    """

    name: str
    fields: dict[str, Any]
    is_enum: bool = False


def pack(value: object, description: str) -> bytes:
    """Encode a value as bytes.

    Args:
        value: The value.
        description: Description of the value in errors: ``argument 'day'``.
    Raises:
        NotSerializable: Decoding would not give an equal value of the same type.
    """
    return pack_and_detect_objects(value, description)[0]


def pack_and_detect_objects(value: object, description: str) -> tuple[bytes, bool]:
    """Encode a value as bytes, and detect whether any part of it will be decoded as a ``DecodedObject``.

    Args:
        value: The value.
        description: Description of the value in errors: ``argument 'day'``.
    Returns:
        The bytes, and whether the value contains such objects.
    Raises:
        NotSerializable: Decoding would not give an equal value of the same type.
    """
    try:
        kind = type(value)
        if kind in _LEAVES or (kind is int and _LEAST_INT <= value <= _MOST_INT):  # type: ignore[operator]
            return msgpack.encode(value), False
        packer = _Packer(description)
        return msgpack.encode(packer.to_msgpack(value, 0)), packer.holds_objects
    except UnicodeEncodeError:
        raise NotSerializable(f"{description} contains text with a lone surrogate, which cannot be encoded") from None


def pack_plain(value: list[Any], description: str) -> bytes:
    """Encode lists and string-keyed dictionaries of plain values. Unlike ``pack``, this does not check each element.

    Args:
        value: The value.
        description: Description of the value in errors.
    """
    try:
        return msgpack.encode(value)
    except UnicodeEncodeError:
        raise NotSerializable(f"{description} contains text with a lone surrogate, which cannot be encoded") from None


def unpack(data: bytes | memoryview, description: str) -> Any:
    """Decode a value from untrusted bytes. Objects in it become ``DecodedObject``.

    Args:
        data: The bytes.
        description: Description of the value in errors.
    Raises:
        BadPayload: The bytes are not a value in this format.
    """
    try:
        return _PLAIN.decode(data)
    except Exception:  # it holds markers, or is broken: the unpacker handles both
        return _Unpacker(description).value(data)


def _refuse_mark(_mark: int, _data: memoryview) -> NoReturn:
    raise ValueError


_PLAIN = msgpack.Decoder(ext_hook=_refuse_mark)


class _Packer:
    def __init__(self, description: str) -> None:
        self._what = description
        self.holds_objects = False
        self._ext = msgpack.Ext
        self._encode: Callable[[object], bytes] = msgpack.encode

    def to_msgpack(self, value: Any, depth: int) -> Any:
        """Convert a value, recursively, to types that msgpack supports.

        Args:
            value: The value.
            depth: Nesting depth of the value in the whole value.
        """
        kind = type(value)
        if kind in _LEAVES:
            return value
        if kind is int:
            return value if _LEAST_INT <= value <= _MOST_INT else self._marked(_BIG, _int_bytes(value))
        if depth >= MAX_DEPTH:
            raise NotSerializable(f"{self._what} is nested more than {MAX_DEPTH} deep, or contains itself")
        if kind is list:
            return [self.to_msgpack(each, depth + 1) for each in value]
        if kind is dict:
            return self._dict(value, depth)
        pack_it = _PACKERS.get(kind)
        return pack_it(self, value, depth) if pack_it is not None else self._object(value, kind, depth)

    def _dict(self, value: dict[Any, Any], depth: int) -> Any:
        if all(type(key) is str for key in value):
            return {key: self.to_msgpack(each, depth + 1) for key, each in value.items()}
        pairs = [part for pair in value.items() for part in pair]
        return self._many(_PAIRS, pairs, depth)

    def _many(self, mark: int, values: Iterable[Any], depth: int) -> Any:
        return self._marked(mark, self._encode([self.to_msgpack(each, depth + 1) for each in values]))

    def _marked(self, mark: int, data: bytes) -> Any:
        return self._ext(mark, data)

    def _text(self, mark: int, text: str) -> Any:
        return self._ext(mark, text.encode())

    def _moment(self, value: datetime | time, mark: int) -> Any:
        zone: Any = value.tzinfo
        if zone is None or type(zone) is timezone:
            name = ""
        elif _is_zone_info(zone) and zone.key in _zones():
            name = zone.key
        else:
            self._refuse(value, f"its time zone is a {type(zone).__name__}; use timezone or ZoneInfo")
        if type(zone) is timezone and zone.tzname(None) != timezone(zone.utcoffset(None)).tzname(None):
            self._refuse(value, "its time zone has a name of its own")
        text = value.replace(tzinfo=None).isoformat() if name else value.replace(fold=0).isoformat()
        return self._marked(mark, self._encode([text, name, value.fold]))

    def _object(self, value: Any, kind: type, depth: int) -> Any:
        self.holds_objects = True
        if isinstance(value, Enum):
            return self._marked(_ENUM, self._encode([kind.__qualname__, self.to_msgpack(value.value, depth + 1)]))
        if isinstance(value, BaseException):
            return self._raised(value, depth)
        fields = object_fields(value)
        if fields is None:
            self._refuse(value, "give plain values, dataclasses, msgspec Structs or enums; or PickleCodec()")
        packed = {name: self.to_msgpack(each, depth + 1) for name, each in fields.items()}
        return self._marked(_OBJECT, self._encode([kind.__qualname__, packed]))

    def _raised(self, value: BaseException, depth: int) -> Any:
        parts = exception_data(value)
        if rebuild_exception(parts) is None:
            self._refuse(value, "an exception of such a class cannot be made again")
        fields = [self.to_msgpack(each, depth + 1) for each in (parts.module, parts.name, parts.args, parts.state)]
        return self._marked(_RAISED, self._encode(fields))

    def _refuse(self, value: object, why: str) -> NoReturn:
        raise NotSerializable(f"{self._what} holds {short(value)}, a {type(value).__qualname__}: {why}")


_PACKERS: dict[type, Callable[[Any, Any, int], Any]] = {
    tuple: lambda self, value, depth: self._many(_TUPLE, value, depth),
    set: lambda self, value, depth: self._many(_SET, value, depth),
    frozenset: lambda self, value, depth: self._many(_FROZENSET, value, depth),
    bytearray: lambda self, value, _: self._marked(_BYTEARRAY, bytes(value)),
    complex: lambda self, value, _: self._marked(_COMPLEX, self._encode([value.real, value.imag])),
    Decimal: lambda self, value, _: self._text(_DECIMAL, str(value)),
    UUID: lambda self, value, _: self._marked(_UUID, value.bytes + self._encode(value.is_safe.value)),
    datetime: lambda self, value, _: self._moment(value, _DATETIME),
    date: lambda self, value, _: self._text(_DATE, value.isoformat()),
    time: lambda self, value, _: self._moment(value, _TIME),
    timedelta: lambda self, value, _: self._marked(
        _TIMEDELTA, self._encode([value.days, value.seconds, value.microseconds])
    ),
}


def object_fields(value: Any) -> dict[str, Any] | None:
    """Return the fields of a dataclass, a Struct or a named tuple, by name.

    Return None for objects of other classes, and for objects that have state outside their fields.
    """
    kind = type(value)
    if dataclasses.is_dataclass(kind):
        names = [each.name for each in dataclasses.fields(kind)]
    elif hasattr(kind, "__struct_fields__"):
        names = list(kind.__struct_fields__)
    elif isinstance(value, tuple) and hasattr(kind, "_fields"):
        names = list(kind._fields)
    else:
        return None
    if not all(hasattr(value, name) for name in names) or not _instance_attributes(value).keys() <= set(names):
        return None
    return {name: getattr(value, name) for name in names}


def _instance_attributes(value: object) -> dict[str, Any]:
    found = getattr(value, "__dict__", {})
    return found if isinstance(found, dict) else {}


class _Unpacker:
    def __init__(self, what: str) -> None:
        self._what = what
        self._depth = 0
        self._decode = msgpack.Decoder(ext_hook=self._marked).decode

    def value(self, data: bytes | memoryview) -> Any:
        try:
            return self._decode(data)
        except RecursionError:
            raise BadPayload(f"{self._what} is nested too deep") from None
        except Exception as error:
            raise BadPayload(f"{self._what} is not a valid payload: {short(str(error))}") from None

    def _marked(self, mark: int, data: memoryview) -> Any:
        make = _UNPACKERS.get(mark)
        if make is None:
            raise BadPayload(f"mark {mark} is unknown")
        if self._depth > MAX_DEPTH:
            raise BadPayload("it is nested too deep")
        self._depth += 1
        try:
            return make(self._decode, data)
        finally:
            self._depth -= 1


_Decode = Callable[[memoryview], Any]


def _decode_fields(decode: _Decode, data: memoryview, kinds: tuple[type, ...]) -> list[Any]:
    found = decode(data)
    if type(found) is not list or len(found) != len(kinds) or not all(map(isinstance, found, kinds)):
        raise BadPayload("a part of it has an unexpected structure")
    return found


def _many(decode: _Decode, data: memoryview) -> list[Any]:
    found = decode(data)
    if type(found) is not list:
        raise BadPayload("a part of it is not a list")
    return found


def _pairs(decode: _Decode, data: memoryview) -> dict[Any, Any]:
    flat = _many(decode, data)
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _moment(kind: type[datetime | time]) -> Callable[[_Decode, memoryview], Any]:
    def make(decode: _Decode, data: memoryview) -> datetime | time:
        text, zone, fold = _decode_fields(decode, data, (str, str, int))
        moment = kind.fromisoformat(text).replace(fold=fold)
        if not zone:
            return moment
        if zone not in _zones():
            raise BadPayload(f"no time zone {short(zone)} is known here; install tzdata")
        from zoneinfo import ZoneInfo  # rarely needed

        return moment.replace(tzinfo=ZoneInfo(zone))

    return make


@cache
def _zones() -> frozenset[str]:
    from zoneinfo import available_timezones  # rarely needed

    return frozenset(available_timezones())


def _is_zone_info(zone: Any) -> bool:
    """Return whether a time zone is a ``ZoneInfo``. If that module is not loaded, no object can be one, so it is not
    imported.
    """
    loaded = sys.modules.get("zoneinfo")
    return loaded is not None and type(zone) is loaded.ZoneInfo


def _object(decode: _Decode, data: memoryview) -> DecodedObject:
    name, fields = _decode_fields(decode, data, (str, dict))
    return DecodedObject(name, fields)


def _enum(decode: _Decode, data: memoryview) -> DecodedObject:
    name, value = _decode_fields(decode, data, (str, object))
    return DecodedObject(name, {"value": value}, is_enum=True)


def _raised(decode: _Decode, data: memoryview) -> BaseException:
    module, name, args, state = _decode_fields(decode, data, (str, str, tuple, dict))
    made = rebuild_exception(ExceptionData(module, name, args, state))
    if made is None:
        raise BadPayload(f"an exception of class {short(f'{module}:{name}')} cannot be created here")
    return made


def _uuid(decode: _Decode, data: memoryview) -> UUID:
    from uuid import SafeUUID  # rarely needed

    return UUID(bytes=bytes(data[:16]), is_safe=SafeUUID(decode(data[16:])))


def _int_bytes(value: int) -> bytes:
    return value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)


_UNPACKERS: dict[int, Callable[[_Decode, memoryview], Any]] = {
    _TUPLE: lambda decode, data: tuple(_many(decode, data)),
    _SET: lambda decode, data: set(_many(decode, data)),
    _FROZENSET: lambda decode, data: frozenset(_many(decode, data)),
    _BIG: lambda _, data: int.from_bytes(data, "big", signed=True),
    _DATETIME: _moment(datetime),
    _DATE: lambda _, data: date.fromisoformat(str(data, "utf-8")),
    _TIME: _moment(time),
    _TIMEDELTA: lambda decode, data: timedelta(*_decode_fields(decode, data, (int, int, int))),
    _DECIMAL: lambda _, data: Decimal(str(data, "utf-8")),
    _UUID: _uuid,
    _BYTEARRAY: lambda _, data: bytearray(data),
    _COMPLEX: lambda decode, data: complex(*_decode_fields(decode, data, (float, float))),
    _OBJECT: _object,
    _ENUM: _enum,
    _PAIRS: _pairs,
    _RAISED: _raised,
}


_MODULE_OF = type.__dict__["__module__"].__get__
_QUALNAME_OF = type.__dict__["__qualname__"].__get__


@dataclass(frozen=True, slots=True, eq=False)
class ExceptionData:
    """The stored data of an exception: the module and name of its class, its arguments and its attributes."""

    module: str
    name: str
    args: tuple[Any, ...]
    state: Mapping[str, Any]


def exception_data(error: BaseException) -> ExceptionData:
    """Return the data of an exception that is stored, such as its arguments and its attributes. Notes are among the
    attributes.
    """
    return ExceptionData(*module_and_name(type(error)), _constructor_args(error), dict(vars(error)))


def module_and_name(kind: type) -> tuple[str, str]:
    """Return the module and the qualified name of a class, even if its metaclass tries to return others."""
    module = _MODULE_OF(kind)
    return module if type(module) is str else "", _QUALNAME_OF(kind)


def _constructor_args(error: BaseException) -> tuple[Any, ...]:
    """Return the arguments with which the built-in base class of an exception can create an equal one.

    For an ``OSError``, the file names are added, which its ``args`` lack.
    """
    args: object = error.args
    given = args if type(args) is tuple else ()
    if isinstance(error, OSError) and error.filename is not None and len(given) == 2:
        second = () if error.filename2 is None else (None, error.filename2)
        return (*given, error.filename, *second)
    return given


def rebuild_exception(parts: ExceptionData) -> BaseException | None:
    """Rebuild an exception from its stored data. Return None if that is not possible in this process."""
    kind = find_loaded_class(parts.module, parts.name)
    if kind is None:
        return None
    base = next(each for each in kind.__mro__ if each.__module__ == "builtins")
    try:
        made: BaseException = base.__new__(kind, *parts.args)
        if type(made) is not kind:
            return None
        base.__init__(made, *parts.args)  # type: ignore[misc]
        made.__dict__.update(parts.state)
    except Exception:
        return None
    return made


def find_loaded_class(module: str, name: str) -> type[Exception] | None:
    """Find an exception class by module and name. Return None if the module is not loaded, or has no such class."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    good = isinstance(found, type) and issubclass(found, Exception)
    return found if good and module_and_name(found) == (module, name) else None
