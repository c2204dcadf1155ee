"""Closes a store that was garbage collected before it was closed."""

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


class ClosableStore(Protocol):
    """The object that an owner closes: the shared state of a store."""

    url: str

    @property
    def is_closed(self) -> bool:
        """Whether ``close`` has completed without an error."""

    def close(self) -> None:
        """Close the connection and everything that uses it. May block."""


#: File and line of a call.
CodeLocation = tuple[str, int]


def find_caller_location() -> CodeLocation:
    """Return the file and line in the caller's code that called latchwork.

    If all code on the stack belongs to latchwork, return the position of the outermost call.
    """
    frame = sys._getframe(1)  # noqa: SLF001 - a traceback costs a hundred times as much
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).startswith("latchwork."):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


class CallbackHolder(Protocol[T_contra]):
    """An object that can keep its users' callbacks itself when the owner of the store is garbage collected."""

    def hold_callbacks(self, value: T_contra) -> None:
        """Keep a strong reference to the callbacks from now on, because the owner was garbage collected. May block."""


class StoreOwner:
    """An object that a store and all its namespaces refer to. When it is garbage collected, the store is closed.

    The shared state of the store and its threads must not refer to the owner. The owner refers to the users' callbacks,
    which may refer to the store, so that the garbage collector can find such cycles.
    """

    __slots__ = ("__weakref__", "_core", "_is_disabled", "_is_dropped", "_kept", "_origin", "_pid")

    def __init__(self, core: ClosableStore, created: CodeLocation) -> None:
        self._core = core
        self._origin = created
        self._pid = os.getpid()  # a fork hook may drop this before the hook that ForkGuard relies on
        self._is_disabled = False
        self._is_dropped = False
        self._kept: dict[CallbackHolder[Any], Any] = {}

    def keep(self, holder: CallbackHolder[T], value: T) -> bool:
        """Keep a strong reference to the callbacks of a holder, such as a watch or a session.

        Args:
            holder: The holder.
            value: Its callbacks.

        Returns:
            False if the owner was garbage collected meanwhile. Then nothing is kept.
        """
        self._kept[holder] = value
        if self._is_dropped:  # a weak reference revives an object that is being finalized
            self._kept.pop(holder, None)
        return not self._is_dropped

    def remove_callbacks(self, holder: CallbackHolder[Any]) -> None:
        """Remove the reference to the callbacks of a holder, such as a watch or a session."""
        self._kept.pop(holder, None)

    def disable_closing(self) -> None:
        """Do not close the store when this owner is garbage collected, because another store is responsible for
        that.
        """
        self._is_disabled = True

    def __del__(self) -> None:
        if sys.is_finalizing() or self._is_disabled or self._pid != os.getpid() or self._core.is_closed:
            return
        self._is_dropped = True
        call_after_finalizer(partial(_close, self._core, self._origin, self._kept), "latchwork-close")
        msg = f"store {self._core.url} was not closed, created at {self._origin[0]}:{self._origin[1]}"
        warnings.warn(msg, ResourceWarning, stacklevel=2, source=self)


#: A core's weak reference to its owner.
Owner = weakref.ref[StoreOwner]


def keep_with_owner(owner: Owner | None, holder: CallbackHolder[Any], value: T) -> Callable[[], T | None]:
    """Keep a value alive as long as a store's owner exists, without a reference from the store's threads to it.

    Args:
        owner: A weak reference to the owner. None keeps the value alive as long as the returned function.
        holder: Receives the value when the owner is garbage collected.
        value: The value, such as users' callbacks.
    Returns:
        A function that returns the value. It returns None after the owner was garbage collected and before
            ``hold_callbacks`` is called.
    """
    ownership = owner() if owner is not None else None
    if ownership is None or not ownership.keep(holder, value):
        return lambda: value
    return weakref.ref(value)


def remove_callbacks(owner: Owner | None, holder: CallbackHolder[Any]) -> None:
    """Remove the owner's reference to the callbacks of a holder, such as a watch or a session."""
    ownership = owner() if owner is not None else None
    if ownership is not None:
        ownership.remove_callbacks(holder)


def _close(core: ClosableStore, created: CodeLocation, kept: dict[CallbackHolder[Any], Any]) -> None:
    _log.warning("store %s was not closed, created at %s:%d; closing it", core.url, *created)
    try:
        for holder in list(kept):
            value = kept.pop(holder, None)
            if value is not None:
                holder.hold_callbacks(value)
        core.close()
    except Exception:
        _log.exception("store %s could not be closed", core.url)
