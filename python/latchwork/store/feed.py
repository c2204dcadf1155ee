"""What a backend's watch reports, folded into one state per key. Nothing here touches the network.

The fold is pure: known state and event in, changes out. A key never moves backwards, and a new snapshot after a gap
becomes the difference to what was known.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from latchwork.backends.base import Broken, Current, Snapshot, WatchEvent
from latchwork.types import Change, Entry


@dataclass(slots=True)
class Tracker:
    """The last reported state of every key under one watch. One thread at a time.

    Attributes:
        known: the live keys.
        keep_values: False keeps only what is needed to compare.
        ready: True once the first snapshot came.
        as_of: local clock time at which the state was last known to be current.
    """

    keep_values: bool
    known: dict[str, Entry] = field(default_factory=dict)
    ready: bool = False
    as_of: float = float("-inf")

    def fold(self, event: WatchEvent) -> list[Change]:
        """Take the event in; what it changed, at most one change per key."""
        if isinstance(event, Broken):
            return []
        if event.as_of is not None:
            self.as_of = max(self.as_of, event.as_of)
        if isinstance(event, Current):
            return []
        if isinstance(event, Snapshot):
            self.ready = True
            return self._apply([*_missing(self.known, event.entries), *(Change(e.key, e) for e in event.entries)])
        return self._apply(event.changes)

    def _apply(self, changes: Iterable[Change]) -> list[Change]:
        return [change for change in changes if self._take(change)]

    def _take(self, change: Change) -> bool:
        before = self.known.get(change.key)
        entry = change.entry
        if entry is None:
            return self.known.pop(change.key, None) is not None
        if before is not None and (before.version == entry.version or entry.token < before.token):
            return False
        self.known[change.key] = entry if self.keep_values else replace(entry, value=b"")
        return True


def _missing(known: dict[str, Entry], entries: Iterable[Entry]) -> list[Change]:
    present = {entry.key for entry in entries}
    return [Change(key, None) for key in known if key not in present]
