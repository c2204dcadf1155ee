"""Exceptions taken apart and made again, without importing a class and without running code of one.

A class is looked up among modules that are loaded already, and used only if it is an ``Exception``. Its instance is
made by the built-in class that it comes from, and gets its attributes: no ``__init__`` of a program runs. Classes that
end a program (``SystemExit``) are not made. Nothing here touches the network.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_MODULE_OF = type.__dict__["__module__"].__get__
_QUALNAME_OF = type.__dict__["__qualname__"].__get__


@dataclass(frozen=True, slots=True, eq=False)
class RaisedParts:
    """An exception in parts: its class by module and qualified name, its arguments, its attributes."""

    module: str
    name: str
    args: tuple[Any, ...]
    state: Mapping[str, Any]


def parts_of(error: BaseException) -> RaisedParts:
    """An exception taken apart; notes are attributes."""
    return RaisedParts(*names_of(type(error)), _args_of(error), dict(vars(error)))


def names_of(kind: type) -> tuple[str, str]:
    """Return the module and the qualified name of a class, whatever its metaclass does."""
    module = _MODULE_OF(kind)
    return module if type(module) is str else "", _QUALNAME_OF(kind)


def _args_of(error: BaseException) -> tuple[Any, ...]:
    """What its built-in class takes: ``args`` of an ``OSError`` lacks the files."""
    args: object = error.args
    given = args if type(args) is tuple else ()
    if isinstance(error, OSError) and error.filename is not None and len(given) == 2:
        second = () if error.filename2 is None else (None, error.filename2)
        return (*given, error.filename, *second)
    return given


def rebuilt(parts: RaisedParts) -> BaseException | None:
    """The exception made again; None if it cannot be made here."""
    kind = loaded_class(parts.module, parts.name)
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


def loaded_class(module: str, name: str) -> type[Exception] | None:
    """The exception class of that name in a module that is loaded; None if there is none."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    good = isinstance(found, type) and issubclass(found, Exception)
    return found if good and names_of(found) == (module, name) else None
