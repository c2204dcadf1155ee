"""The end of a store that its user forgot to close."""

from __future__ import annotations

import logging
import os
import sys
import warnings
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeVar

from latchwork.interrupts import call_after_finalizer

_log = logging.getLogger(__name__)

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


class Closable(Protocol):
    """What an owner closes: a core."""

    url: str

    @property
    def is_closed(self) -> bool:
        """True once ``close`` has ended without an error."""

    def close(self) -> None:
        """End everything; may block."""


#: File and line of a call.
Origin = tuple[str, int]


def origin() -> Origin:
    """Return where code outside of latchwork called; the outermost call if there is no such code."""
    frame = sys._getframe(1)  # noqa: SLF001 - a traceback costs a hundred times as much
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).startswith("latchwork."):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


class OwnedPart(Protocol[T_contra]):
    """A part of a core for which the owner of the core holds a value."""

    def take_back(self, value: T_contra) -> None:
        """Hold the value itself: the owner has been dropped. May block."""


class StoreOwner:
    """Held by a store and all its namespaces: when the last of them is dropped, the core is closed.

    Nothing that a core or its threads hold may hold this. It holds the callbacks of users, which may hold the store:
    so a store whose callbacks refer to it is garbage that the collector finds.
    """

    __slots__ = ("__weakref__", "_core", "_is_dropped", "_is_replaced", "_kept", "_origin", "_pid")

    def __init__(self, core: Closable, created: Origin) -> None:
        self._core = core
        self._origin = created
        self._pid = os.getpid()  # a hook of a fork may drop this before the hook that Home relies on
        self._is_replaced = False
        self._is_dropped = False
        self._kept: dict[OwnedPart[Any], Any] = {}

    def keep(self, part: OwnedPart[T], value: T) -> bool:
        """Hold the value for a part of the core; False if the owner has been dropped meanwhile, and does not."""
        self._kept[part] = value
        if self._is_dropped:  # a weak reference revives an object that is being finalized
            self._kept.pop(part, None)
        return not self._is_dropped

    def forget(self, part: OwnedPart[Any]) -> None:
        """Hold its value no longer."""
        self._kept.pop(part, None)

    def replace(self) -> None:
        """Leave the closing to another store, which has taken this one over."""
        self._is_replaced = True

    def __del__(self) -> None:
        if sys.is_finalizing() or self._is_replaced or self._pid != os.getpid() or self._core.is_closed:
            return
        self._is_dropped = True
        call_after_finalizer(partial(_close, self._core, self._origin, self._kept), "latchwork-close")
        msg = f"store {self._core.url} was not closed, created at {self._origin[0]}:{self._origin[1]}"
        warnings.warn(msg, ResourceWarning, stacklevel=2, source=self)


#: Refers to the owner of a core, for the core itself.
Owner = weakref.ref[StoreOwner]


def held_by(owner: Owner | None, part: OwnedPart[Any], value: T) -> Callable[[], T | None]:
    """Have the owner of a core hold a value for a part of the core; the value holds itself if there is no owner.

    Returns:
        A function that returns the value; None from the moment at which the owner is dropped until ``take_back``.
    """
    ownership = owner() if owner is not None else None
    if ownership is None or not ownership.keep(part, value):
        return lambda: value
    return weakref.ref(value)


def forget(owner: Owner | None, part: OwnedPart[Any]) -> None:
    """Have the owner hold nothing for the part."""
    ownership = owner() if owner is not None else None
    if ownership is not None:
        ownership.forget(part)


def _close(core: Closable, created: Origin, kept: dict[OwnedPart[Any], Any]) -> None:
    _log.warning("store %s was not closed, created at %s:%d; closing it", core.url, *created)
    try:
        for part in list(kept):
            value = kept.pop(part, None)
            if value is not None:
                part.take_back(value)
        core.close()
    except Exception:
        _log.exception("store %s could not be closed", core.url)
