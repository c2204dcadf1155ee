"""Which units of work go into one transaction, and which of them a refusal is about. Pure.

Units of one transaction share no key that one of them writes, bind keys to one session at most, and ask nothing
contradictory: together they do what they would do one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from latchwork.errors import Conflict, LatchworkError
from latchwork.types import Check, Committed, Delete, Fence, Op, SessionAlive

#: A transaction has so many checks and so many writes at most: fewer than a store allows, for those of fences.
MOST_CHECKS = MOST_OPS = 90
#: And so many bytes.
MOST_BYTES = 900_000

Landed = Callable[[LatchworkError], bool]


@dataclass(eq=False, slots=True)
class Unit:
    """Checks and writes that belong together: all of them hold and land, or none.

    Attributes:
        checks, ops: what ``commit`` takes.
        landed: whether it got through, after an error that leaves this open.
        until: when to stop trying while the server cannot be reached, on the local clock.
        prefix: what goes before its keys; those in fences have it already.
        future: what its caller has.
        is_doubtful: it may have landed without our knowing.
        written: the keys that it writes, with the prefix.
        asked: what it asks about keys, by key, with the prefix.
        sessions: the sessions that it binds keys to.
        size: its bytes, about.
        weight: its checks, those in fences counted.
    """

    checks: tuple[Check, ...]
    ops: tuple[Op, ...]
    landed: Landed
    until: float = math.inf
    prefix: str = ""
    future: Future[Committed | None] = field(default_factory=Future)
    is_doubtful: bool = False
    written: frozenset[str] = field(init=False)
    asked: dict[str, Check] = field(init=False)
    sessions: frozenset[str] = field(init=False)
    size: int = field(init=False)
    weight: int = field(init=False)

    def __post_init__(self) -> None:
        self.written = frozenset(f"{self.prefix}{op.key}" for op in self.ops)
        self.asked = dict(_keyed(self.checks, self.prefix))
        bound = (op.session for op in self.ops if not isinstance(op, Delete))
        self.sessions = frozenset(session.id for session in bound if session is not None)
        values = sum(len(op.key) + (0 if isinstance(op, Delete) else len(op.value)) for op in self.ops)
        self.size = values + sum(2 * len(key) for key in self.asked)
        self.weight = sum(len(check.checks) if isinstance(check, Fence) else 1 for check in self.checks)


@dataclass(slots=True)
class _Batch:
    units: list[Unit] = field(default_factory=list)
    written: set[str] = field(default_factory=set)
    asked: dict[str, Check] = field(default_factory=dict)
    sessions: set[str] = field(default_factory=set)
    ops: int = 0
    weight: int = 0
    size: int = 0

    def has_room(self, unit: Unit) -> bool:
        fits = (
            self.weight + unit.weight <= MOST_CHECKS
            and self.ops + len(unit.ops) <= MOST_OPS
            and self.size + unit.size <= MOST_BYTES
        )
        return not self.units or (fits and len(self.sessions | unit.sessions) <= 1)

    def touches(self, unit: Unit) -> bool:
        """Whether one of the two writes what the other writes or asks about, or they contradict each other."""
        if not self.written.isdisjoint(unit.written) or not self.asked.keys().isdisjoint(unit.written):
            return True
        if not self.written.isdisjoint(unit.asked):
            return True
        return any(self.asked.get(key, check) != check for key, check in unit.asked.items())

    def add(self, unit: Unit) -> None:
        self.note(unit)
        self.units.append(unit)
        self.sessions |= unit.sessions
        self.ops += len(unit.ops)
        self.weight += unit.weight
        self.size += unit.size

    def note(self, unit: Unit) -> None:
        """It comes in this one or in a later one: what touches it comes no earlier."""
        self.written |= unit.written
        self.asked.update(unit.asked)


def gather(waiting: Sequence[Unit], most: int = MOST_OPS) -> list[Unit]:
    """The units that go into the next transaction: the first, and whatever goes with it, in order.

    None overtakes one that it touches.

    Args:
        waiting: units in the order in which they came; not empty.
        most: no more units than this.
    """
    batch, behind = _Batch(), _Batch()
    for unit in waiting:
        if len(batch.units) < most and batch.has_room(unit) and not batch.touches(unit) and not behind.touches(unit):
            batch.add(unit)
        else:
            behind.note(unit)
        if batch.ops >= MOST_OPS or len(batch.units) >= most:
            break
    return batch.units


def blamed(units: Sequence[Unit], error: Conflict) -> list[Unit]:
    """The units that a refusal is about: those that have a check or a write which did not hold.

    None, if it names nothing of theirs: each has to be asked alone then.
    """
    failed = list(error.failed)
    return [unit for unit in units if any(each in failed for each in (*unit.checks, *unit.ops))]


def checks_of(units: Iterable[Unit]) -> list[Check]:
    """The checks of all, each once, in order."""
    return list(dict.fromkeys(check for unit in units for check in unit.checks))


def _keyed(checks: Iterable[Check], prefix: str) -> Iterator[tuple[str, Check]]:
    for check in checks:
        if isinstance(check, Fence):
            yield from _keyed(check.checks, "")
        elif not isinstance(check, SessionAlive):
            yield f"{prefix}{check.key}", check
