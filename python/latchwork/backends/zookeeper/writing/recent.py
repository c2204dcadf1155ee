"""A bounded dictionary of guesses that keeps what is still asked for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

V = TypeVar("V")


class Recent(Generic[V]):
    """Values of keys that were written or asked for lately: at most ``most`` of them, and not fewer than half as many.

    Two generations: when the young one is full it becomes the old one, whose values are forgotten unless they are asked
    for. So what each transaction needs stays, however many keys go by. Safe to share: threads that meet may lose a
    value, or bring an older one back, and these are guesses.
    """

    def __init__(self, most: int) -> None:
        self._half = max(1, most // 2)
        self._young: dict[str, V] = {}
        self._old: dict[str, V] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def __contains__(self, key: str) -> bool:
        return self.get(key) is not None

    def get(self, key: str) -> V | None:
        """The value, which stays for longer by that; None when there is none."""
        value = self._young.get(key)
        if value is None:
            value = self._old.get(key)
            if value is not None:
                self.note(key, value)
        return value

    def note(self, key: str, value: V) -> None:
        """Keep a value."""
        if len(self._young) >= self._half:
            self._old, self._young = self._young, {}
        self._young[key] = value

    def forget(self, keys: Iterable[str]) -> None:
        """These are gone."""
        for key in keys:
            self._young.pop(key, None)
            self._old.pop(key, None)
