"""Validation of decoded values against annotations. Nothing is converted, except that decoded objects become instances.

An instance is created only if an annotation of a function that is registered here names its class. Nothing here touches
the network.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from decimal import Decimal
from enum import Enum
from functools import cache
from typing import Any

from msgspec import ValidationError, convert

from latchwork._base.text import short
from latchwork.tasks.payloads.values import DecodedObject, object_fields

_UNIONS = (typing.Union, types.UnionType)
#: Abstract collection classes: each element is checked.
_ITERABLES = (list, set, frozenset, tuple, collections.abc.Collection, collections.abc.Iterable)


class TypeMismatch(Exception):
    """A value does not match an annotation. The message has the position, the expected type and the value."""

    def __init__(self, where: str, wanted: str, value: object) -> None:
        found = value.name if isinstance(value, DecodedObject) else type(value).__qualname__
        shown = f"a {found}" if isinstance(value, DecodedObject) else f"{short(value)}, a {found}"
        super().__init__(f"{where or 'it'} has to be {wanted}, and is {shown}")


def validate_value(value: Any, hint: Any, where: str = "") -> Any:
    """Check that a value matches an annotation, and return it with each ``DecodedObject`` replaced by an instance of
    its class.

    Args:
        value: A result of ``unpack``, or any other value.
        hint: The resolved annotation. ``Any`` accepts every value without a ``DecodedObject``.
        where: Position in an enclosing value, for errors.
    Raises:
        TypeMismatch: The value has another type, or contains an object whose class the annotation does not name.
    """
    if type(value) is hint and hint in _PLAIN:
        return value
    hint, constraint = _strip_annotation(hint)
    if hint is Any or hint is object:
        return _require_no_objects(value, where)
    origin = typing.get_origin(hint)
    if origin in _UNIONS:
        return _validate_union(value, typing.get_args(hint), hint, where)
    if origin is typing.Literal:
        return _validate_literal(value, hint, where)
    made = (
        _validate_generic(value, origin, typing.get_args(hint), where)
        if origin
        else _validate_class(value, hint, where)
    )
    return _check_bounds(made, constraint, where)


_PLAIN = frozenset({bool, int, float, str, bytes})


def _strip_annotation(hint: Any) -> tuple[Any, Any]:
    """Split an annotation into its bare type and its bounds.

    Args:
        hint: The annotation, possibly with aliases and bounds.
    Returns:
        The bare type, and the bounds for msgspec or None.
    """
    constraint = None
    while True:
        if typing.get_origin(hint) is typing.Annotated:
            constraint = hint if constraint is None else constraint
            hint = typing.get_args(hint)[0]
        elif isinstance(hint, typing.NewType):
            hint = hint.__supertype__
        elif isinstance(hint, typing.TypeVar):
            hint = hint.__bound__ or (typing.Union[hint.__constraints__] if hint.__constraints__ else Any)  # noqa: UP007 - of a tuple
        elif hint is None:
            return type(None), constraint
        elif type(hint).__name__ == "TypeAliasType":
            hint = hint.__value__
        elif isinstance(hint, (str, typing.ForwardRef)):
            return Any, constraint
        else:
            return hint, constraint


def _check_bounds(value: Any, constraint: Any, where: str) -> Any:
    """Return a value if it is within bounds such as ``Meta(ge=0)``. Only plain values are checked.

    Args:
        value: The value.
        constraint: The bounds, as an annotation for msgspec.
        where: Position in an enclosing value, for errors.
    Raises:
        TypeMismatch: The value is out of bounds.
    """
    if constraint is not None and type(value) in _PLAIN:
        try:
            convert(value, constraint)
        except ValidationError as error:
            raise TypeMismatch(where, f"as annotated ({error})", value) from None
        except TypeError:  # other metadata, which is none of msgspec's
            pass
    return value


def _validate_union(value: Any, hints: tuple[Any, ...], whole: Any, where: str) -> Any:
    for hint in hints:
        try:
            return validate_value(value, hint, where)
        except TypeMismatch:
            continue
    raise TypeMismatch(where, _type_text(whole), value)


def _validate_literal(value: Any, hint: Any, where: str) -> Any:
    for each in typing.get_args(hint):
        wanted = (
            validate_value(value, type(each), where)
            if isinstance(value, DecodedObject) and isinstance(each, Enum)
            else value
        )
        if type(wanted) is type(each) and wanted == each:
            return wanted
    raise TypeMismatch(where, _type_text(hint), value)


def _validate_generic(value: Any, origin: Any, args: tuple[Any, ...], where: str) -> Any:
    if not isinstance(origin, type):
        return _require_no_objects(value, where)
    if issubclass(origin, tuple) and isinstance(value, tuple):
        return _validate_tuple(value, args, where)
    if isinstance(value, dict) and issubclass(dict, origin) and len(args) == 2:
        return _validate_dict(value, args, where)
    if (
        isinstance(value, (list, set, frozenset, tuple))
        and isinstance(value, origin)
        and issubclass(origin, _ITERABLES)
    ):
        return _validate_items(value, args[0], where)
    return _validate_class(value, origin, where)


def _validate_tuple(value: tuple[Any, ...], args: tuple[Any, ...], where: str) -> Any:
    if len(args) == 2 and args[1] is Ellipsis:
        return _validate_items(value, args[0], where)
    wanted = () if args == ((),) else args
    if len(wanted) != len(value):
        raise TypeMismatch(where, f"a tuple of {len(wanted)}", value)
    return _rebuild_if_changed(
        value, [validate_value(v, h, f"{where}[{n}]") for n, (v, h) in enumerate(zip(value, wanted, strict=True))]
    )


def _validate_items(value: Any, hint: Any, where: str) -> Any:
    bare = hint in _PLAIN if isinstance(hint, collections.abc.Hashable) else False
    if bare and all(type(each) is hint for each in value):
        return value
    return _rebuild_if_changed(
        value, [validate_value(each, hint, f"{where}[{number}]") for number, each in enumerate(value)]
    )


def _rebuild_if_changed(value: Any, elements: list[Any]) -> Any:
    """Return the original collection if no element was replaced; otherwise a new collection with the replaced elements.

    Args:
        value: The original collection.
        elements: Its elements, some of which may have been replaced.
    """
    if all(new is old for new, old in zip(elements, value, strict=True)):
        return value
    return type(value)(elements)


def _validate_dict(value: dict[Any, Any], args: tuple[Any, ...], where: str) -> Any:
    keys = [validate_value(key, args[0], f"{where} key {short(key)}") for key in value]
    return {
        new: validate_value(value[old], args[1], f"{where}[{short(old)}]") for new, old in zip(keys, value, strict=True)
    }


def _validate_class(value: Any, kind: Any, where: str) -> Any:
    if typing.is_typeddict(kind):
        return _validate_typed_dict(value, kind, where)
    if not isinstance(kind, type):
        return _require_no_objects(value, where)
    if isinstance(value, DecodedObject):
        return _build_object(value, kind, where)
    if not _is_instance(value, kind):
        raise TypeMismatch(where, _type_text(kind), value)
    return _require_no_objects(value, where) if type(value) in _BOXES else value


def _is_instance(value: object, kind: type) -> bool:
    if kind is float:
        return isinstance(value, (int, float))
    if kind is complex:
        return isinstance(value, (int, float, complex))
    try:
        return isinstance(value, kind)
    except TypeError:  # a Protocol that says nothing at run time
        return True


def _validate_typed_dict(value: Any, kind: Any, where: str) -> Any:
    if type(value) is not dict:
        raise TypeMismatch(where, _type_text(kind), value)
    hints = class_hints(kind)
    missing = sorted(kind.__required_keys__ - value.keys())
    if missing:
        raise TypeMismatch(where, f"a {kind.__name__} with {', '.join(missing)}", value)
    return {
        name: validate_value(each, _strip_required(hints.get(name, Any)), f"{where}[{name!r}]")
        for name, each in value.items()
    }


def _strip_required(hint: Any) -> Any:
    """Return ``int`` for ``NotRequired[int]`` or ``Required[int]``, and any other annotation unchanged."""
    return typing.get_args(hint)[0] if str(typing.get_origin(hint)).endswith("Required") else hint


def _build_object(parts: DecodedObject, kind: type, where: str) -> Any:
    """Create an instance of a class from a decoded object. The object must be of that class.

    Raises:
        TypeMismatch: It is of another class, or its fields do not match.
    """
    if parts.name != kind.__qualname__:
        raise TypeMismatch(where, _type_text(kind), parts)
    if issubclass(kind, Enum) is not parts.is_enum or not (parts.is_enum or _has_known_fields(kind)):
        raise TypeMismatch(where, _type_text(kind), parts)
    if parts.is_enum:
        return _find_enum_member(parts, kind, where)
    hints = class_hints(kind)
    fields = {
        name: validate_value(each, hints.get(name, Any), f"{where}.{name}") for name, each in parts.fields.items()
    }
    try:
        return _build_dataclass(kind, fields) if dataclasses.is_dataclass(kind) else kind(**fields)
    except Exception as error:  # of a constructor of the annotated class
        raise TypeMismatch(
            where, f"a {kind.__qualname__} ({type(error).__name__}: {short(str(error))})", parts
        ) from error


def _has_known_fields(kind: Any) -> bool:
    """Return whether objects of a class are stored by their fields. Instances of other classes are never created."""
    is_named_tuple = issubclass(kind, tuple) and hasattr(kind, "_fields")
    return dataclasses.is_dataclass(kind) or hasattr(kind, "__struct_fields__") or is_named_tuple


def _find_enum_member(parts: DecodedObject, kind: type, where: str) -> Any:
    try:
        return kind(validate_value(parts.fields.get("value"), Any, where))
    except (ValueError, TypeError, KeyError):
        raise TypeMismatch(where, f"a member of {kind.__qualname__}", parts) from None


def _build_dataclass(kind: Any, fields: dict[str, Any]) -> Any:
    """Create a dataclass instance without calling ``__init__``, because its parameters may differ from the fields.

    ``__post_init__`` is called if there is one.

    Args:
        kind: The class.
        fields: Values of the fields, by name.
    """
    known = {each.name for each in dataclasses.fields(kind)}
    if fields.keys() != known:
        raise TypeError(f"fields {sorted(fields.keys() ^ known)} are missing, or too many")
    made: Any = object.__new__(kind)
    for name, value in fields.items():
        object.__setattr__(made, name, value)
    after: Callable[[], object] | None = getattr(made, "__post_init__", None)
    if after is not None:
        after()
    return made


@cache
def class_hints(kind: Any) -> Mapping[str, Any]:
    """Return the resolved annotations of a class. Return an empty mapping if they cannot be resolved."""
    try:
        return typing.get_type_hints(kind, include_extras=True)
    except Exception:
        return {}


_BOXES = frozenset({list, dict, tuple, set, frozenset})


def _require_no_objects(value: Any, where: str) -> Any:
    """Return a value if it contains no ``DecodedObject`` at any depth.

    Args:
        value: The value.
        where: Position in an enclosing value, for errors.
    Raises:
        TypeMismatch: It contains one.
    """
    if isinstance(value, DecodedObject):
        raise TypeMismatch(where, f"annotated with the class {value.name}, so that it can be created", value)
    if type(value) in _BOXES:
        inside = [*value, *value.values()] if type(value) is dict else value
        for each in inside:
            if type(each) not in _PLAIN:
                _require_no_objects(each, where)
    return value


def are_equal(one: Any, other: Any) -> bool:
    """Return whether two values and all of their parts are equal and of the same types. NaN equals NaN."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(are_equal, one, other))
    if isinstance(one, dict):
        is_same_size = len(one) == len(other)
        return is_same_size and all(map(are_equal, one, other)) and all(map(are_equal, one.values(), other.values()))
    if isinstance(one, (set, frozenset)):
        return one == other and sorted(map(_type_and_repr, one)) == sorted(map(_type_and_repr, other))
    if isinstance(one, Decimal):
        return bool(one.as_tuple() == other.as_tuple())  # digits count, and some of them cannot be compared
    if isinstance(one, BaseException):
        return are_equal(one.args, other.args)
    fields = None if isinstance(one, Enum) else object_fields(one)
    if fields is not None:
        return are_equal(fields, object_fields(other))
    return bool(one == other) or (one != one and other != other)  # noqa: PLR0124 - not a number


def _type_and_repr(value: object) -> tuple[str, str]:
    return type(value).__qualname__, repr(value)


def _type_text(hint: Any) -> str:
    name = hint.__qualname__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)
    return f"of type {name.replace('typing.', '')}"
