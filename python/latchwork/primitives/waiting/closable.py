"""Base classes of objects that a ``with`` block starts and closes. No I/O."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, TypeVar

from latchwork.store.steps import blocking, call_library, shielded, undone_if_interrupted

if TYPE_CHECKING:
    from typing import Self

C = TypeVar("C", bound="Closable")
S = TypeVar("S", bound="Startable")


class Closable(ABC):
    """A base class of objects that a ``with`` block closes at its end."""

    def __enter__(self) -> Self:
        return self

    @shielded
    async def __exit__(self, *_: object) -> None:
        await call_library(self.close)

    @abstractmethod
    def close(self) -> object:
        """Close the object. Thread-safe and idempotent."""


class Startable(Closable):
    """A base class of objects that a ``with`` block starts, and closes at its end."""

    @blocking
    async def __enter__(self) -> Self:
        with undone_if_interrupted(self.close_in_background):
            await call_library(self.start)
        return self

    @abstractmethod
    def start(self) -> None:
        """Start the background work of the object. Idempotent."""

    def close_in_background(self) -> None:
        """Close the object in the background, without waiting. Called if ``start`` is interrupted."""
