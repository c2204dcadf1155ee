"""What is known before a multi is compiled, the multi, and the entries that follow from its reply.

Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from latchwork.backends.zookeeper import wire
from latchwork.backends.zookeeper.layout import UNKNOWN, Version, Znode, bucket
from latchwork.errors import InvalidKey
from latchwork.types import Entry


class NeedStates(Exception):
    """What is known does not decide: read the states of all keys, and of these."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        super().__init__("states are needed")
        self.keys = frozenset(keys)


class HasDescendants(InvalidKey):
    """A key to be bound to a session has znodes below it; whether keys are among them has to be looked at."""

    def __init__(self, key: str) -> None:
        super().__init__(f"{key!r} has keys below it and cannot be bound to a session; session-bound keys are leaves")
        self.key = key


@dataclass(frozen=True, slots=True)
class Known:
    """What was seen before compiling.

    Attributes:
        nodes: by key; a key that is not in it was not looked at.
        gone: sessions among those checked whose marker is gone.
        fresh: all of it was read, linearizably, for this compilation.
    """

    nodes: Mapping[str, Znode]
    gone: frozenset[str] = frozenset()
    fresh: bool = False


class Part(NamedTuple):
    """One operation of the multi and whom to blame: ``role`` is guard, marker, check, probe, op or parent."""

    role: str
    key: str
    data: bytes


@dataclass(slots=True)
class PlannedEntry:
    """How the entry of one Put or Create follows from the reply.

    Attributes:
        key, value, owner: of the entry.
        at: index among the op parts of the setData whose stat tells the dataVersion; None: created, so 0.
        created: None: by this multi.
        born: the key has a ``#born`` node.
    """

    key: str
    value: bytes
    owner: str | None
    at: int | None = None
    created: int | None = None
    born: bool = False


@dataclass(slots=True)
class Plan:
    """A multi and what its success means.

    Attributes:
        parts: in the order of the multi, without the evidence.
        entries: of Put and Create, in the order of the operations.
        deleted: keys that Delete removes, in the order of the operations.
        writes: it changes keys; else it only checks.
        bumped: index of the setData on a bucket's guard, by bucket.
        emptied: implied parents that may be childless afterwards.
        makes: parents that it creates.
    """

    parts: list[Part] = field(default_factory=list)
    entries: list[PlannedEntry] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    writes: bool = False
    bumped: dict[int, int] = field(default_factory=dict)
    emptied: set[str] = field(default_factory=set)
    makes: list[str] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Bytes of the multi, nearly."""
        return sum(len(part.data) for part in self.parts)


def entries_of(plan: Plan, results: Sequence[object], token: int, gens: Mapping[int, int]) -> tuple[Entry, ...]:
    """The entries written, from the reply to the multi; without results (a settled write) versions lack the rest.

    ``token`` is the zxid of the multi, ``gens`` has the version of each bucket's guard, before or in this multi.
    """
    entries = []
    for planned in plan.entries:
        data, gen = 0, gens.get(bucket(planned.key), UNKNOWN)
        if planned.at is not None:
            stat = results[planned.at] if results else None
            data = stat.version if isinstance(stat, wire.Stat) else UNKNOWN
        created = token if planned.created is None else planned.created
        version = Version(token, data, gen, created, planned.owner, planned.born)
        entries.append(Entry(planned.key, planned.value, version, token, created, planned.owner))
    return tuple(entries)
