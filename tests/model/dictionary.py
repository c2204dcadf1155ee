"""The store contract as a dictionary: what every call must answer and leave behind, one after the other. Pure.

What a backend may choose (tokens, versions, suffixes) is taken from its answers, after they were found to keep the
rules.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from latchwork.types import Absent, At, Create, Delete, Entry, Op, Put

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from latchwork.types import Check


def ancestors(key: str) -> list[str]:
    """The keys above, the nearest first."""
    found = []
    while "/" in key:
        key = key.rpartition("/")[0]
        found.append(key)
    return found


def is_below(key: str, prefix: str) -> bool:
    return prefix == "" or key.startswith(f"{prefix}/")


def is_at_or_below(key: str, prefix: str) -> bool:
    return key == prefix or is_below(key, prefix)


@dataclass
class Dictionary:
    """The keys of one namespace.

    Attributes:
        entries: what is there.
        last: the greatest token that anybody was told.
        suffixes: the newest suffix handed out, by parent.
    """

    entries: dict[str, Entry] = field(default_factory=dict)
    last: int = 0
    suffixes: dict[str, str] = field(default_factory=dict)

    # Reading.

    def list(self, prefix: str, *, recursive: bool, limit: int | None, start_after: str | None) -> list[Entry]:
        found = [key for key in sorted(self.entries) if is_below(key, prefix)]
        if not recursive:
            start = len(prefix) + 1 if prefix else 0
            found = [key for key in found if "/" not in key[start:]]
        if start_after is not None:
            found = [key for key in found if key > start_after]
        return [self.entries[key] for key in found[:limit]]

    def children(self, prefix: str) -> list[str]:
        start = len(prefix) + 1 if prefix else 0
        return sorted({key[start:].partition("/")[0] for key in self.entries if is_below(key, prefix)})

    def at_and_below(self, prefix: str) -> dict[str, Entry]:
        return {key: entry for key, entry in self.entries.items() if prefix == "" or is_at_or_below(key, prefix)}

    # Deciding.

    def failed(self, checks: Iterable[Check], ops: Iterable[Op]) -> list[Check | Op]:
        """What a conflict may name."""
        failing: list[Check | Op] = [check for check in checks if not self._holds(check)]
        return failing + [op for op in ops if isinstance(op, Create) and op.key in self.entries]

    def _holds(self, check: Check) -> bool:
        entry = self.entries.get(check.key)
        if isinstance(check, At):
            return entry is not None and entry.version == check.version
        return (entry is None) == isinstance(check, Absent)

    def breaks_leaves(self, ops: Sequence[Op]) -> bool:
        """A session-bound key would not be a leaf."""
        owners = {key: entry.owner for key, entry in self.entries.items()}
        for op in ops:
            if isinstance(op, Delete):
                owners.pop(op.key, None)
            else:
                owners[op.key] = op.session.id if op.session is not None else owners.get(op.key)
        written = [op.key for op in ops if not isinstance(op, Delete)]
        return any(
            any(owners.get(above) is not None for above in ancestors(key))
            or (owners[key] is not None and any(is_below(other, key) for other in owners))
            for key in written
        )

    # Writing.

    def wrote(self, op: Put | Create, entry: Entry) -> None:
        """Take over what a write answered, if it may have."""
        before = self.entries.get(op.key)
        owner = op.session.id if op.session is not None else before.owner if before is not None else None
        assert (entry.key, entry.value, entry.owner) == (op.key, op.value, owner)
        assert entry.token > self.last
        if before is None:
            assert entry.created == entry.token
        else:
            assert entry.created == before.created
        assert before is None or entry.version != before.version
        self.entries[op.key] = entry

    def committed(self, ops: Sequence[Op], token: int, entries: Sequence[Entry], deleted: Sequence[str]) -> None:
        """Take over what a commit answered, if it may have."""
        there = [op.key for op in ops if isinstance(op, Delete) and op.key in self.entries]
        assert list(deleted) == there
        written = [op for op in ops if not isinstance(op, Delete)]
        assert [entry.key for entry in entries] == [op.key for op in written]
        for key in there:
            del self.entries[key]
        for op, entry in zip(written, entries, strict=True):
            assert entry.token == token
            self.wrote(op, entry)
        if there or written:
            assert token > self.last
            self.last = token
        else:
            assert token == 0

    def created_sequential(self, key: str, value: bytes, owner: str | None, entry: Entry) -> None:
        above, _, base = key.rpartition("/")
        suffix = entry.key[len(key) :]
        assert entry.key.startswith(key)
        assert suffix.isdigit()
        assert suffix > self.suffixes.get(above, "")
        assert len(suffix) == len(self.suffixes.get(above, suffix)), "a suffix of another width"
        assert (entry.value, entry.owner, entry.created) == (value, owner, entry.token)
        assert entry.token > self.last
        assert entry.key not in self.entries, base
        self.suffixes[above] = suffix
        self.last = entry.token
        self.entries[entry.key] = entry

    def removed(self, keys: Iterable[str]) -> None:
        for key in list(keys):
            del self.entries[key]

    def session_ended(self, session_id: str) -> None:
        self.removed([key for key, entry in self.entries.items() if entry.owner == session_id])
