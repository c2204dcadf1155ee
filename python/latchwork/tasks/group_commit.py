"""Group commit: combines checks and writes of many threads in one transaction, as many as have gathered.

While one transaction is being committed, new units gather for the next. There is no delay: a single unit is committed
alone. After a conflict, the units that caused it fail, and the others are retried. After an unknown outcome, each unit
is asked whether it was committed.

docs/design/tasks.md has the races.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from latchwork._base.event import Signal
from latchwork._base.user_code import call_user
from latchwork.backends.futures import reject, resolve
from latchwork.clock import Clock
from latchwork.errors import Closed, Conflict, LatchworkError, OutcomeUnknown, Unavailable, UserCodeFailed
from latchwork.store import Backoff
from latchwork.store.driving.background import Background
from latchwork.store.driving.notifier import Notifier
from latchwork.store.forks import ForkGuard
from latchwork.store.steps import Pause, ask
from latchwork.types import Check, Committed, Delete, Exists, Fence, Op, Put, SessionAlive

if TYPE_CHECKING:
    from typing import Self

    from latchwork.store import Store
_log = logging.getLogger(__name__)

#: Seconds for which a unit is retried while the server cannot be reached.
TIMEOUT_S = 30.0
#: Maximum number of checks and of writes in a transaction. A store allows more; the rest is for checks of fences.
MOST_CHECKS = MOST_OPS = 90
#: Maximum number of bytes in a transaction.
MOST_BYTES = 900_000
Landed = Callable[[LatchworkError], bool]


class GroupCommit:
    """Commits units, several in one transaction. Safe to share between threads.

    Construction does no I/O; a thread starts with the first unit.

    Args:
        store: the store, or a namespace of it. The caller closes it.
        label: the purpose, for the name of its thread.
        most: maximum number of units in one transaction.
    """

    def __init__(self, store: Store, *, label: str = "", most: int = MOST_OPS) -> None:
        if type(most) is not int or most < 1:
            raise ValueError(f"most must be a whole number from 1, not {most!r}")
        self._store = store
        self._clock: Clock = store.clock
        self._label = label
        self._most = most
        self._prefix = _prefix_of(store)
        self._home = ForkGuard("this group commit")
        self._changed = Notifier()
        self._waiting: list[Unit] = []
        self._flying: list[Unit] = []
        self._thread: Background | None = None
        self._is_closed = False
        self._ends_at = math.inf
        self._hurry = Signal()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(
        self, checks: Sequence[Check], ops: Sequence[Op], landed: Landed, *, timeout_s: float = TIMEOUT_S
    ) -> Future[Committed | None]:
        """Commit these checks and writes soon, all or none. Returns immediately.

        A committed unit must break one of its checks, so that it cannot be committed twice. For example, it deletes the
        claim that it checks, or creates a key.

        Args:
            checks: must hold.
            ops: the writes.
            landed: called with the error after a conflict of this unit or an unknown outcome. Returns whether it was
                committed nevertheless. May ask the store; an exception becomes the result of the future. Called in our
                thread.
            timeout_s: seconds to retry while the server cannot be reached.
        Returns:
            A future of the commit (that of the whole transaction), or of None if it was committed but the answer was
                lost. Its errors: ``Conflict``; an exception of ``landed``; ``Unavailable``, not written;
                ``OutcomeUnknown``; ``Closed``; an error of the call. Callbacks run in our thread and must be quick. A
                unit can be cancelled before it is sent.
        Raises:
            Closed: this was closed.
            ForkedProcess: it was made by the parent of this process.
        """
        if self._home.is_foreign:
            raise self._home.error()
        unit = Unit(checks, ops, landed, self._clock.now() + timeout_s, self._prefix)
        with self._changed.mutex:
            if self._is_closed:
                raise Closed("this group commit was closed; make another one")
            self._waiting.append(unit)
            self._changed.notify_all()
            begins = self._thread is None
            if begins:
                self._thread = Background(self._run, f"latchwork-commits-{self._label}")
        return unit.future

    def close(self, timeout_s: float = 30.0) -> None:
        """Commit submitted units, and wait up to ``timeout_s``; the rest fail with their last error. Idempotent."""
        if self._home.is_foreign:
            return
        with self._changed.mutex:
            self._is_closed = True
            self._ends_at = min(self._ends_at, self._clock.now() + timeout_s)  # for the current transaction, too
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and not thread.is_running_here:
            thread.block()

    # The thread

    async def _run(self) -> None:
        backoff = Backoff()
        while True:
            with self._changed.mutex:
                self._flying = self._taken()
                version, ends = self._changed.version, self._is_closed and not self._waiting and not self._flying
            if ends:
                return
            if not self._flying:
                await self._changed.changed_since(version, self._clock, None)
            elif await self._commit(self._flying):
                backoff = Backoff()
            else:
                await Pause(self._clock, self._hurry, backoff.next_s())

    def _taken(self) -> list[Unit]:
        """Return the next units, without cancelled ones."""
        if not self._waiting:
            return []
        units = gather(self._waiting, self._most)
        chosen = set(map(id, units))
        self._waiting = [unit for unit in self._waiting if id(unit) not in chosen]
        return [unit for unit in units if unit.future.running() or unit.future.set_running_or_notify_cancel()]

    async def _commit(self, units: list[Unit]) -> bool:
        """Try once to commit these units. Return False if the server could not be reached."""
        try:
            done: Committed = await ask(self._store.commit, checks_of(units), ops_of(units))
        except Conflict as error:
            return await self._refused(units, error)
        except OutcomeUnknown as error:
            await self._unknown(units, error)
            return False
        except Unavailable as error:
            self._again(units, error)
            return False
        except Exception as error:
            await self._wrong(units, error)
        else:
            for unit in units:
                _answer(unit, done)
        return True

    async def _refused(self, units: list[Unit], error: Conflict) -> bool:
        guilty = blamed(units, error) if len(units) > 1 else units
        if not guilty:
            await self._one_by_one(units)
            return True
        self._again([unit for unit in units if unit not in guilty], error)
        return all([await self._ask_landed(unit, error) for unit in guilty])

    async def _unknown(self, units: list[Unit], error: OutcomeUnknown) -> None:
        for unit in units:
            unit.is_doubtful = True
            await self._ask_landed(unit, error)

    async def _wrong(self, units: list[Unit], error: Exception) -> None:
        if len(units) > 1:
            await self._one_by_one(units)
        else:
            _fail(units[0], _certain(units[0], error))

    async def _one_by_one(self, units: list[Unit]) -> None:
        """Commit each unit alone, so that one that cannot be written does not fail the others."""
        for unit in units:
            await self._commit([unit])

    async def _ask_landed(self, unit: Unit, error: LatchworkError) -> bool:
        """Ask a unit whether it was committed, and resolve it. Return False if it was put back for a retry."""
        try:
            has_landed = call_user(unit.landed, error)
        except (Unavailable, OutcomeUnknown) as trouble:
            unit.is_doubtful = True
            self._again([unit], trouble)
            return False
        except Exception as trouble:  # its exception is the answer
            _fail(unit, trouble)
            return True
        if has_landed:
            _answer(unit, None)
        elif isinstance(error, Conflict):
            _fail(unit, error)
        else:
            self._again([unit], error)
        return has_landed or isinstance(error, Conflict)

    def _again(self, units: list[Unit], error: LatchworkError) -> None:
        """Put units back to the front, in order. Fail units whose time has run out."""
        now = self._clock.now()
        with self._changed.mutex:
            over = units if now >= self._ends_at else [unit for unit in units if unit.until <= now]
            self._waiting[:0] = [unit for unit in units if unit not in over]
        for unit in over:
            _fail(unit, _certain(unit, error))


def _certain(unit: Unit, error: Exception) -> Exception:
    """Return the error of a unit whose last attempt failed: ``OutcomeUnknown`` if an earlier one may have succeeded."""
    return OutcomeUnknown(str(error)) if unit.is_doubtful else error


def _prefix_of(store: Store) -> str:
    """Return the prefix of the store's keys in fences."""
    (check,) = store.fence(0, Exists("x")).checks
    return check.key[:-1] if isinstance(check, Exists) else ""


def _answer(unit: Unit, done: Committed | None) -> None:
    try:
        call_user(resolve, unit.future, done)  # a unit is answered once
    except UserCodeFailed:
        _log.exception("a callback of a group commit failed")


def _fail(unit: Unit, error: BaseException) -> None:
    try:
        call_user(reject, unit.future, error)
    except UserCodeFailed:
        _log.exception("a callback of a group commit failed")


class Unit:
    """Checks and writes that are committed together, all or none.

    Attributes:
        checks, ops: the arguments of ``commit``.
        landed: returns whether it was committed, after an error that leaves this open.
        until: when to stop retrying while the server cannot be reached, on the local clock.
        prefix: the prefix of its keys; keys in fences have it already.
        future: the future that the caller has.
        is_doubtful: it may have been committed without our knowledge.
        written: its written keys, with the prefix; values are the bytes of a ``Put`` that other units may share, or
            None.
        asked: its checks by key, with the prefix.
        sessions: the sessions that it binds keys to.
        size: its approximate size in bytes.
        weight: number of its checks, including checks in fences.
    """

    def __init__(
        self, checks: Sequence[Check], ops: Sequence[Op], landed: Landed, until: float = math.inf, prefix: str = ""
    ) -> None:
        self.checks = tuple(checks)
        self.ops = tuple(ops)
        self.landed = landed
        self.until = until
        self.prefix = prefix
        self.future: Future[Committed | None] = Future()
        self.is_doubtful = False
        self.written: dict[str, bytes | None] = {}
        self.asked: dict[str, Check] = {}
        self.sessions: set[str] = set()
        self.size = self.weight = 0
        self._note_ops()
        self._note_checks()

    def _note_ops(self) -> None:
        for op in self.ops:
            self.size += len(op.key)
            shared = None
            if not isinstance(op, Delete):
                self.size += len(op.value)
                if op.session is not None:
                    self.sessions.add(op.session.id)
                elif isinstance(op, Put):
                    shared = op.value
            self.written[f"{self.prefix}{op.key}"] = shared

    def _note_checks(self) -> None:
        for check in self.checks:
            parts, prefix = (check.checks, "") if isinstance(check, Fence) else ((check,), self.prefix)
            self.weight += len(parts)
            for part in parts:
                if not isinstance(part, SessionAlive):
                    self.asked[f"{prefix}{part.key}"] = part
        self.size += 2 * sum(map(len, self.asked))


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
        """Return whether one writes a key that the other writes or checks, or their checks contradict each other."""
        for key in self._both_write(unit):
            if self.written[key] is None or self.written[key] != unit.written[key]:
                return True
        if not self.asked.keys().isdisjoint(unit.written):
            return True
        if not self.written.keys().isdisjoint(unit.asked):
            return True
        both_ask = self.asked.keys() & unit.asked.keys()
        return bool(both_ask) and any(self.asked[key] != unit.asked[key] for key in both_ask)

    def _both_write(self, unit: Unit) -> set[str]:
        return self.written.keys() & unit.written.keys()

    def add(self, unit: Unit) -> None:
        self.note(unit)
        self.units.append(unit)
        self.sessions |= unit.sessions
        self.weight += unit.weight
        self.size += unit.size

    def note(self, unit: Unit) -> None:
        """Note a unit of this transaction or a later one: a unit that touches it must not be committed before it."""
        differing = [key for key in self._both_write(unit) if self.written[key] != unit.written[key]]
        self.written.update(unit.written)
        self.written.update(dict.fromkeys(differing))
        self.asked.update(unit.asked)


def gather(waiting: Sequence[Unit], most: int = MOST_OPS) -> list[Unit]:
    """Return the units of the next transaction: the first, and all that can be combined with it, in order.

    No unit overtakes another one that it touches.

    Args:
        waiting: units in the order of their arrival; not empty.
        most: maximum number of units.
    """
    if len(waiting) == 1:
        return list(waiting)
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
    """Return the units that caused a conflict, because one of their checks or writes did not hold.

    Empty if the error names none of theirs: then each has to be tried alone.
    """
    failed = list(error.failed)
    return [unit for unit in units if any(each in failed for each in (*unit.checks, *unit.ops))]


def checks_of(units: Iterable[Unit]) -> list[Check]:
    """Return the checks of all units, each once, in order."""
    return list(dict.fromkeys([check for unit in units for check in unit.checks]))


def ops_of(units: Iterable[Unit]) -> list[Op]:
    """Return the writes of all units, in order. A shared write appears once, where the first unit has it."""
    written: set[str] = set()
    found: list[Op] = []
    for unit in units:
        found += [op for op in unit.ops if f"{unit.prefix}{op.key}" not in written]
        written.update(unit.written)
    return found
