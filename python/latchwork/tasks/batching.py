"""Which units of work go into one transaction, and which of them a refusal is about. Pure.

Units of one transaction share no key that one of them writes, bind keys to one session at most, and ask nothing
contradictory: together they do what they would do one after the other. Two that write the same bytes to a key which
neither asks about share that write: one after the other it would leave the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from latchwork.errors import Conflict, LatchworkError
from latchwork.types import Check, Committed, Delete, Fence, Op, Put, SessionAlive

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
        written: the keys that it writes, with the prefix: the bytes of a ``Put`` that others may share, or None.
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
    written: dict[str, bytes | None] = field(init=False)
    asked: dict[str, Check] = field(init=False)
    sessions: frozenset[str] = field(init=False)
    size: int = field(init=False)
    weight: int = field(init=False)

    def __post_init__(self) -> None:
        self.written = {f"{self.prefix}{op.key}": _shared_bytes(op) for op in self.ops}
        self.asked = dict(_keyed(self.checks, self.prefix))
        bound = (op.session for op in self.ops if not isinstance(op, Delete))
        self.sessions = frozenset(session.id for session in bound if session is not None)
        values = sum(len(op.key) + (0 if isinstance(op, Delete) else len(op.value)) for op in self.ops)
        self.size = values + sum(2 * len(key) for key in self.asked)
        self.weight = sum(len(check.checks) if isinstance(check, Fence) else 1 for check in self.checks)


@dataclass(slots=True)
class _Batch:
    units: list[Unit] = field(default_factory=list)
    written: dict[str, bytes | None] = field(default_factory=dict)
    asked: dict[str, Check] = field(default_factory=dict)
    sessions: set[str] = field(default_factory=set)
    weight: int = 0
    size: int = 0

    def has_room(self, unit: Unit) -> bool:
        fits = (
            self.weight + unit.weight <= MOST_CHECKS
            and len(self.written.keys() | unit.written.keys()) <= MOST_OPS
            and self.size + unit.size <= MOST_BYTES
        )
        return not self.units or (fits and len(self.sessions | unit.sessions) <= 1)

    def touches(self, unit: Unit) -> bool:
        """Whether one of the two writes what the other writes or asks about, or they contradict each other."""
        if any(self.written[key] is None or self.written[key] != unit.written[key] for key in self._both_write(unit)):
            return True
        if not self.asked.keys().isdisjoint(unit.written):
            return True
        if not self.written.keys().isdisjoint(unit.asked):
            return True
        return any(self.asked.get(key, check) != check for key, check in unit.asked.items())

    def _both_write(self, unit: Unit) -> set[str]:
        return self.written.keys() & unit.written.keys()

    def add(self, unit: Unit) -> None:
        self.note(unit)
        self.units.append(unit)
        self.sessions |= unit.sessions
        self.weight += unit.weight
        self.size += unit.size

    def note(self, unit: Unit) -> None:
        """It comes in this one or in a later one: what touches it comes no earlier."""
        differing = [key for key in self._both_write(unit) if self.written[key] != unit.written[key]]
        self.written.update(unit.written)
        self.written.update(dict.fromkeys(differing))
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
        if len(batch.written) >= MOST_OPS or len(batch.units) >= most:
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


def ops_of(units: Iterable[Unit]) -> list[Op]:
    """The writes of all, in order; one that several share stands where the first has it."""
    written: set[str] = set()
    found: list[Op] = []
    for unit in units:
        found += [op for op in unit.ops if f"{unit.prefix}{op.key}" not in written]
        written.update(unit.written)
    return found


def _shared_bytes(op: Op) -> bytes | None:
    """What a write leaves, if a second one leaves the same; None for all others."""
    return op.value if isinstance(op, Put) and op.session is None else None


def _keyed(checks: Iterable[Check], prefix: str) -> Iterator[tuple[str, Check]]:
    for check in checks:
        if isinstance(check, Fence):
            yield from _keyed(check.checks, "")
        elif not isinstance(check, SessionAlive):
            yield f"{prefix}{check.key}", check
