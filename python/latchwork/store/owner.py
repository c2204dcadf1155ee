"""Closes a store that its user dropped without closing."""

from __future__ import annotations

import logging
import os
import sys
import warnings
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeVar

from latchwork._base.interrupts import call_after_finalizer

_log = logging.getLogger(__name__)

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


class Closable(Protocol):
    """The object that an owner closes: a core."""

    url: str

    @property
    def is_closed(self) -> bool:
        """True once ``close`` has completed without an error."""

    def close(self) -> None:
        """Close everything; may block."""


#: File and line of a call.
Origin = tuple[str, int]


def origin() -> Origin:
    """Return the file and line where code outside of latchwork called; the outermost call if there is no such code."""
    frame = sys._getframe(1)  # noqa: SLF001 - a traceback costs a hundred times as much
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).startswith("latchwork."):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


class OwnedPart(Protocol[T_contra]):
    """A part of a core that lets the core's owner hold a value for it."""

    def hold_callbacks(self, value: T_contra) -> None:
        """Hold the value from now on, because the owner was dropped. May block."""


class StoreOwner:
    """Held by a store and all its namespaces: when the last of them is dropped, the core is closed.

    A core and its threads must not hold a reference to the owner. The owner holds the users' callbacks, which may refer
    to the store, so that the garbage collector can find such cycles.
    """

    __slots__ = ("__weakref__", "_core", "_is_dropped", "_is_replaced", "_kept", "_origin", "_pid")

    def __init__(self, core: Closable, created: Origin) -> None:
        self._core = core
        self._origin = created
        self._pid = os.getpid()  # a fork hook may drop this before the hook that ForkGuard relies on
        self._is_replaced = False
        self._is_dropped = False
        self._kept: dict[OwnedPart[Any], Any] = {}

    def keep(self, part: OwnedPart[T], value: T) -> bool:
        """Hold a value for a part of the core; False, without holding it, if the owner has been dropped meanwhile."""
        self._kept[part] = value
        if self._is_dropped:  # a weak reference revives an object that is being finalized
            self._kept.pop(part, None)
        return not self._is_dropped

    def forget(self, part: OwnedPart[Any]) -> None:
        """Stop holding the part's value."""
        self._kept.pop(part, None)

    def replace(self) -> None:
        """Disable closing, because another store has taken this one over."""
        self._is_replaced = True

    def __del__(self) -> None:
        if sys.is_finalizing() or self._is_replaced or self._pid != os.getpid() or self._core.is_closed:
            return
        self._is_dropped = True
        call_after_finalizer(partial(_close, self._core, self._origin, self._kept), "latchwork-close")
        msg = f"store {self._core.url} was not closed, created at {self._origin[0]}:{self._origin[1]}"
        warnings.warn(msg, ResourceWarning, stacklevel=2, source=self)


#: A core's weak reference to its owner.
Owner = weakref.ref[StoreOwner]


def held_by(owner: Owner | None, part: OwnedPart[Any], value: T) -> Callable[[], T | None]:
    """Let a core's owner hold a value for a part of the core. Without an owner, the returned function holds it.

    Returns:
        A function that returns the value; None between the drop of the owner and ``hold_callbacks``.
    """
    ownership = owner() if owner is not None else None
    if ownership is None or not ownership.keep(part, value):
        return lambda: value
    return weakref.ref(value)


def forget(owner: Owner | None, part: OwnedPart[Any]) -> None:
    """Make the owner stop holding the part's value."""
    ownership = owner() if owner is not None else None
    if ownership is not None:
        ownership.forget(part)


def _close(core: Closable, created: Origin, kept: dict[OwnedPart[Any], Any]) -> None:
    _log.warning("store %s was not closed, created at %s:%d; closing it", core.url, *created)
    try:
        for part in list(kept):
            value = kept.pop(part, None)
            if value is not None:
                part.hold_callbacks(value)
        core.close()
    except Exception:
        _log.exception("store %s could not be closed", core.url)
