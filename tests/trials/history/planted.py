"""Stores with a fault built in, as a backend might have it: what the checker is there to catch.

Each wraps a real store. The faults are rare, and each answer by itself looks right.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

from latchwork import Store
from latchwork.types import At, Check, Committed, Entry, Op


class Planted:
    """A store as it is; subclasses spoil it."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


class StaleReads(Planted):
    """One read in fifty is answered by a replica that is some milliseconds behind."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._replica: dict[str, Entry | None] = {}

    def get(self, key: str) -> Entry | None:
        if key in self._replica and random.random() < 0.02:
            return self._replica[key]
        self._replica[key] = found = self.store.get(key)
        return found


class LostUpdates(Planted):
    """One commit in ten is checked first and written afterwards, as two requests."""

    def commit(self, checks: Sequence[Check], ops: Sequence[Op]) -> Committed:
        if random.random() < 0.9:
            return self.store.commit(checks, ops)
        self.store.commit(checks, [])
        time.sleep(0.002)
        return self.store.commit([], ops)


class RestartingVersions(Planted):
    """Versions count the writes since the creation, as ZooKeeper's do: a key created again has its old versions."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._first: set[int] = set()  # tokens of creations

    def get(self, key: str) -> Entry | None:
        found = self.store.get(key)
        return found if found is None else self._noted(found)

    def commit(self, checks: Sequence[Check], ops: Sequence[Op]) -> Committed:
        done = self.store.commit([self._fooled(each) if isinstance(each, At) else each for each in checks], ops)
        for entry in done.entries:
            self._noted(entry)
        return done

    def _fooled(self, check: At) -> At:
        """The check as that server makes it, of the count alone; here only where both counts are 0."""
        now = self.get(check.key)
        both_first = now is not None and {now.token, check.version.token} <= self._first
        return At(now) if both_first else check

    def _noted(self, entry: Entry) -> Entry:
        if entry.created == entry.token:
            self._first.add(entry.token)
        return entry
