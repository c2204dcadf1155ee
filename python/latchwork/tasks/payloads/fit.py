"""Checks of values against annotations. Nothing is converted, except ``Parts``, which become objects.

An object is created only if an annotation of a function that is registered here names its class. Nothing here touches
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
from latchwork.tasks.payloads.values import Parts, fields_of

_UNIONS = (typing.Union, types.UnionType)
#: Abstract collection classes: each element is checked.
_ITERABLES = (list, set, frozenset, tuple, collections.abc.Collection, collections.abc.Iterable)


class Misfit(Exception):
    """A value does not fit an annotation. The message has the position, the expected type and the value."""

    def __init__(self, where: str, wanted: str, value: object) -> None:
        found = value.name if isinstance(value, Parts) else type(value).__qualname__
        shown = f"a {found}" if isinstance(value, Parts) else f"{short(value)}, a {found}"
        super().__init__(f"{where or 'it'} has to be {wanted}, and is {shown}")


def fit(value: Any, hint: Any, where: str = "") -> Any:
    """Return the value if it fits the annotation. ``Parts`` in it are replaced by objects.

    Args:
        value: a result of ``unpack``, or any value.
        hint: an annotation, resolved; ``Any`` accepts every value without ``Parts``.
        where: the position in an enclosing value.
    Raises:
        Misfit: it is of another type, or holds an object that the annotation does not name.
    """
    if type(value) is hint and hint in _PLAIN:
        return value
    hint, constraint = _bare(hint)
    if hint is Any or hint is object:
        return _whole(value, where)
    origin = typing.get_origin(hint)
    if origin in _UNIONS:
        return _one_of(value, typing.get_args(hint), hint, where)
    if origin is typing.Literal:
        return _literal(value, hint, where)
    made = _generic(value, origin, typing.get_args(hint), where) if origin else _of_class(value, hint, where)
    return _within(made, constraint, where)


_PLAIN = frozenset({bool, int, float, str, bytes})


def _bare(hint: Any) -> tuple[Any, Any]:
    """Return the annotation without names and bounds, and its bounds for msgspec if it has any."""
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


def _within(value: Any, constraint: Any, where: str) -> Any:
    """Check the bounds of msgspec (``Meta(ge=0)``) for plain values; other values are not checked."""
    if constraint is not None and type(value) in _PLAIN:
        try:
            convert(value, constraint)
        except ValidationError as error:
            raise Misfit(where, f"as annotated ({error})", value) from None
        except TypeError:  # other metadata, which is none of msgspec's
            pass
    return value


def _one_of(value: Any, hints: tuple[Any, ...], whole: Any, where: str) -> Any:
    for hint in hints:
        try:
            return fit(value, hint, where)
        except Misfit:
            continue
    raise Misfit(where, _shown(whole), value)


def _literal(value: Any, hint: Any, where: str) -> Any:
    for each in typing.get_args(hint):
        wanted = fit(value, type(each), where) if isinstance(value, Parts) and isinstance(each, Enum) else value
        if type(wanted) is type(each) and wanted == each:
            return wanted
    raise Misfit(where, _shown(hint), value)


def _generic(value: Any, origin: Any, args: tuple[Any, ...], where: str) -> Any:
    if not isinstance(origin, type):
        return _whole(value, where)
    if issubclass(origin, tuple) and isinstance(value, tuple):
        return _tuple(value, args, where)
    if isinstance(value, dict) and issubclass(dict, origin) and len(args) == 2:
        return _dict(value, args, where)
    if (
        isinstance(value, (list, set, frozenset, tuple))
        and isinstance(value, origin)
        and issubclass(origin, _ITERABLES)
    ):
        return _items(value, args[0], where)
    return _of_class(value, origin, where)


def _tuple(value: tuple[Any, ...], args: tuple[Any, ...], where: str) -> Any:
    if len(args) == 2 and args[1] is Ellipsis:
        return _items(value, args[0], where)
    wanted = () if args == ((),) else args
    if len(wanted) != len(value):
        raise Misfit(where, f"a tuple of {len(wanted)}", value)
    return _same_or(value, [fit(v, h, f"{where}[{n}]") for n, (v, h) in enumerate(zip(value, wanted, strict=True))])


def _items(value: Any, hint: Any, where: str) -> Any:
    bare = hint in _PLAIN if isinstance(hint, collections.abc.Hashable) else False
    if bare and all(type(each) is hint for each in value):
        return value
    return _same_or(value, [fit(each, hint, f"{where}[{number}]") for number, each in enumerate(value)])


def _same_or(value: Any, fitted: list[Any]) -> Any:
    """Return the original value if nothing in it was in parts."""
    if all(new is old for new, old in zip(fitted, value, strict=True)):
        return value
    return type(value)(fitted)


def _dict(value: dict[Any, Any], args: tuple[Any, ...], where: str) -> Any:
    keys = [fit(key, args[0], f"{where} key {short(key)}") for key in value]
    return {new: fit(value[old], args[1], f"{where}[{short(old)}]") for new, old in zip(keys, value, strict=True)}


def _of_class(value: Any, kind: Any, where: str) -> Any:
    if typing.is_typeddict(kind):
        return _typed_dict(value, kind, where)
    if not isinstance(kind, type):
        return _whole(value, where)
    if isinstance(value, Parts):
        return _made(value, kind, where)
    if not _is_instance(value, kind):
        raise Misfit(where, _shown(kind), value)
    return _whole(value, where) if type(value) in _BOXES else value


def _is_instance(value: object, kind: type) -> bool:
    if kind is float:
        return isinstance(value, (int, float))
    if kind is complex:
        return isinstance(value, (int, float, complex))
    try:
        return isinstance(value, kind)
    except TypeError:  # a Protocol that says nothing at run time
        return True


def _typed_dict(value: Any, kind: Any, where: str) -> Any:
    if type(value) is not dict:
        raise Misfit(where, _shown(kind), value)
    hints = hints_of(kind)
    missing = sorted(kind.__required_keys__ - value.keys())
    if missing:
        raise Misfit(where, f"a {kind.__name__} with {', '.join(missing)}", value)
    return {name: fit(each, _unrequired(hints.get(name, Any)), f"{where}[{name!r}]") for name, each in value.items()}


def _unrequired(hint: Any) -> Any:
    """``NotRequired[int]`` as ``int``."""
    return typing.get_args(hint)[0] if str(typing.get_origin(hint)).endswith("Required") else hint


def _made(parts: Parts, kind: type, where: str) -> Any:
    """Create the object of this class, if the parts are of one."""
    if parts.name != kind.__qualname__:
        raise Misfit(where, _shown(kind), parts)
    if issubclass(kind, Enum) is not parts.is_enum or not (parts.is_enum or _has_fields(kind)):
        raise Misfit(where, _shown(kind), parts)
    if parts.is_enum:
        return _member(parts, kind, where)
    hints = hints_of(kind)
    fields = {name: fit(each, hints.get(name, Any), f"{where}.{name}") for name, each in parts.fields.items()}
    try:
        return _make(kind, fields)
    except Exception as error:  # of a constructor of the annotated class
        raise Misfit(where, f"a {kind.__qualname__} ({type(error).__name__}: {short(str(error))})", parts) from error


def _has_fields(kind: Any) -> bool:
    """Return whether ``pack`` takes objects of this class apart. Objects of other classes are never created."""
    is_named_tuple = issubclass(kind, tuple) and hasattr(kind, "_fields")
    return dataclasses.is_dataclass(kind) or hasattr(kind, "__struct_fields__") or is_named_tuple


def _member(parts: Parts, kind: type, where: str) -> Any:
    try:
        return kind(fit(parts.fields.get("value"), Any, where))
    except (ValueError, TypeError, KeyError):
        raise Misfit(where, f"a member of {kind.__qualname__}", parts) from None


def _make(kind: Any, fields: dict[str, Any]) -> Any:
    return _dataclass(kind, fields) if dataclasses.is_dataclass(kind) else kind(**fields)


def _dataclass(kind: Any, fields: dict[str, Any]) -> Any:
    """Create an object without its ``__init__``, whose parameters may not be the fields. Call its ``__post_init__``."""
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
def hints_of(kind: Any) -> Mapping[str, Any]:
    """Return the annotations of a class; empty if they cannot be resolved."""
    try:
        return typing.get_type_hints(kind, include_extras=True)
    except Exception:
        return {}


_BOXES = frozenset({list, dict, tuple, set, frozenset})


def _whole(value: Any, where: str) -> Any:
    """Return the value, if it holds nothing in parts."""
    if isinstance(value, Parts):
        raise Misfit(where, f"annotated with the class {value.name}, so that it can be made", value)
    if type(value) in _BOXES:
        inside = [*value, *value.values()] if type(value) is dict else value
        for each in inside:
            if type(each) not in _PLAIN:
                _whole(each, where)
    return value


def same(one: Any, other: Any) -> bool:
    """Return whether two values are equal and of the same types, recursively. NaN equals NaN."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return _same_dict(one, other)
    if isinstance(one, (set, frozenset)):
        return one == other and sorted(map(_typed, one)) == sorted(map(_typed, other))
    if isinstance(one, Decimal):
        return bool(one.as_tuple() == other.as_tuple())  # digits count, and some of them cannot be compared
    if isinstance(one, BaseException):
        return same(one.args, other.args)
    fields = None if isinstance(one, Enum) else fields_of(one)
    if fields is not None:
        return same(fields, fields_of(other))
    return bool(one == other) or (one != one and other != other)  # noqa: PLR0124 - not a number


def _typed(value: object) -> tuple[str, str]:
    return type(value).__qualname__, repr(value)


def _same_dict(one: dict[Any, Any], other: dict[Any, Any]) -> bool:
    return len(one) == len(other) and all(map(same, one, other)) and all(map(same, one.values(), other.values()))


def _shown(hint: Any) -> str:
    name = hint.__qualname__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)
    return f"of type {name.replace('typing.', '')}"
