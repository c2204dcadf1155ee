"""Group commit: combines the checks and writes of many threads into one transaction.

A *unit* is one caller's checks and writes, which are committed all or none. While one transaction is being committed,
new units gather for the next. There is no delay: a single unit is committed alone. After a conflict, the units that
caused it fail, and the others are retried. After an unknown outcome, each unit is asked whether it was committed.

docs/design/tasks.md has the races.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from latchwork._base.event import Signal
from latchwork._base.user_code import call_user
from latchwork.backends.futures import LightFuture, reject, resolve
from latchwork.clock import Clock
from latchwork.errors import Closed, Conflict, LatchworkError, OutcomeUnknown, Unavailable
from latchwork.store import Backoff
from latchwork.store.driving.background import Background
from latchwork.store.driving.notifier import Notifier
from latchwork.store.forks import ForkGuard
from latchwork.store.steps import Pause, ask
from latchwork.types import Check, Committed, Delete, Exists, Fence, Op, Put, SessionAlive

if TYPE_CHECKING:
    from typing import Self

    from latchwork.store import Store

#: Seconds for which a unit is retried while the server cannot be reached.
TIMEOUT_S = 30.0
#: Maximum number of checks and of writes in a transaction. A store allows more; the rest is for checks of fences.
MOST_CHECKS = MOST_OPS = 90
#: Maximum number of bytes in a transaction.
MOST_BYTES = 900_000
CommitCheck = Callable[[LatchworkError], bool]


class GroupCommit:
    """Commits many small units of checks and writes, several units per transaction. Thread-safe.

    Construction does no I/O. A thread starts with the first unit.

    Args:
        store: The store, or a namespace of it. The caller closes it.
        label: Text for the name of the thread.
    """

    def __init__(self, store: Store, *, label: str = "") -> None:
        self._store = store
        self._clock: Clock = store.clock
        self._label = label
        self._prefix = _key_prefix(store)
        self._home = ForkGuard("this group commit")
        self._changed = Notifier()
        self._waiting: list[CommitUnit] = []
        self._in_flight: list[CommitUnit] = []
        self._thread: Background | None = None
        self._is_closed = False
        self._ends_at = math.inf
        self._hurry = Signal()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(
        self, checks: Sequence[Check], ops: Sequence[Op], was_committed: CommitCheck, *, timeout_s: float = TIMEOUT_S
    ) -> Future[Committed | None]:
        """Schedule a unit of checks and writes to be committed soon, all or none. Returns immediately.

        A committed unit must break one of its own checks, so that it cannot be committed twice. For example, it deletes
        the claim that it checks, or creates a key.

        Args:
            checks: Checks that must hold.
            ops: The writes.
            was_committed: Called with the error after a conflict of this unit or an unknown outcome. Returns whether
                the unit was committed nevertheless. It may read the store, and runs in the thread of this object. If it
                raises, the future gets that exception.
            timeout_s: Seconds to retry while the server cannot be reached.
        Returns:
            A future of the commit of the whole transaction. Do not cancel it. Its result is None if the unit was
            committed but the answer was lost. Its errors: ``Conflict``; an exception of ``was_committed``;
            ``Unavailable``, nothing was written; ``OutcomeUnknown``; ``Closed``; an error of the call. Callbacks run in
            the thread of this object and must be quick.
        Raises:
            Closed: This object was closed.
            ForkedProcess: It was created by the parent of this process.
        """
        if self._home.is_foreign:
            raise self._home.error()
        unit = CommitUnit(checks, ops, was_committed, self._clock.now() + timeout_s, self._prefix)
        with self._changed.mutex:
            if self._is_closed:
                raise Closed("this group commit was closed; create another one")
            self._waiting.append(unit)
            self._changed.notify_all()
            begins = self._thread is None
            if begins:
                self._thread = Background(self._run, f"latchwork-commits-{self._label}")
        return unit.future

    def close(self, timeout_s: float = 30.0) -> None:
        """Commit the submitted units, and stop the thread. Idempotent.

        Args:
            timeout_s: Seconds to wait. Units that are not committed then fail with their last error.
        """
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
                self._in_flight = self._take_batch()
                version, ends = self._changed.version, self._is_closed and not self._waiting and not self._in_flight
            if ends:
                return
            if not self._in_flight:
                await self._changed.wait_for_change(version, self._clock, None)
            elif await self._commit(self._in_flight):
                backoff = Backoff()
            else:
                await Pause(self._clock, self._hurry, backoff.next_s())

    def _take_batch(self) -> list[CommitUnit]:
        """Remove the units of the next transaction from the queue and return them."""
        if not self._waiting:
            return []
        units = select_next_batch(self._waiting)
        chosen = set(map(id, units))
        self._waiting = [unit for unit in self._waiting if id(unit) not in chosen]
        return units

    async def _commit(self, units: list[CommitUnit]) -> bool:
        """Try once to commit these units in one transaction. Return False if the server could not be reached."""
        try:
            done: Committed = await ask(self._store.commit, merge_checks(units), merge_ops(units))
        except Conflict as error:
            return await self._on_conflict(units, error)
        except OutcomeUnknown as error:
            for unit in units:
                unit.is_in_doubt = True
                await self._check_committed(unit, error)
            return False
        except Unavailable as error:
            self._requeue(units, error)
            return False
        except Exception as error:
            if len(units) > 1:
                await self._commit_separately(units)
            else:
                reject(units[0].future, _build_final_error(units[0], error))
        else:
            for unit in units:
                resolve(unit.future, done)
        return True

    async def _on_conflict(self, units: list[CommitUnit], error: Conflict) -> bool:
        guilty = find_conflicting_units(units, error) if len(units) > 1 else units
        if not guilty:
            await self._commit_separately(units)
            return True
        self._requeue([unit for unit in units if unit not in guilty], error)
        return all([await self._check_committed(unit, error) for unit in guilty])

    async def _commit_separately(self, units: list[CommitUnit]) -> None:
        """Commit each unit in its own transaction, so that a faulty unit does not fail the others."""
        for unit in units:
            await self._commit([unit])

    async def _check_committed(self, unit: CommitUnit, error: LatchworkError) -> bool:
        """Find out whether a unit was committed, and complete its future.

        Args:
            unit: The unit.
            error: Error of the commit.
        Returns:
            False if the unit was queued again for a retry.
        """
        try:
            has_committed = call_user(unit.was_committed, error)
        except (Unavailable, OutcomeUnknown) as trouble:
            unit.is_in_doubt = True
            self._requeue([unit], trouble)
            return False
        except Exception as trouble:  # its exception is the answer
            reject(unit.future, trouble)
            return True
        if has_committed:
            resolve(unit.future, None)
        elif isinstance(error, Conflict):
            reject(unit.future, error)
        else:
            self._requeue([unit], error)
        return has_committed or isinstance(error, Conflict)

    def _requeue(self, units: list[CommitUnit], error: LatchworkError) -> None:
        """Put units back at the front of the queue, in order. If the timeout of a unit has passed, it fails instead.

        Args:
            units: The units.
            error: Error of the last attempt.
        """
        now = self._clock.now()
        with self._changed.mutex:
            over = units if now >= self._ends_at else [unit for unit in units if unit.until <= now]
            self._waiting[:0] = [unit for unit in units if unit not in over]
        for unit in over:
            reject(unit.future, _build_final_error(unit, error))


def _build_final_error(unit: CommitUnit, error: Exception) -> Exception:
    """Build the error to report for a unit: ``OutcomeUnknown`` if an earlier attempt may have committed it.

    Args:
        unit: The unit.
        error: Error of the last attempt.
    """
    return OutcomeUnknown(str(error)) if unit.is_in_doubt else error


def _key_prefix(store: Store) -> str:
    """Return the prefix that a store adds to its keys."""
    (check,) = store.fence(0, Exists("x")).checks
    return check.key[:-1] if isinstance(check, Exists) else ""


class CommitUnit:
    """One caller's checks and writes, which are committed together, all or none.

    Attributes:
        checks, ops: The checks and the writes.
        was_committed: Returns whether the unit was committed, after an error that leaves this open.
        until: The time on the local clock at which retries end.
        prefix: The prefix that the store adds to keys. Keys in fences have it already.
        future: The future that the caller has.
        is_in_doubt: Whether the unit may have been committed although no answer arrived.
        written: The keys that it writes, with the prefix. The value is that of a ``Put`` that other units may share,
            else None.
        checked: Its checks by key, with the prefix.
        sessions: IDs of the sessions that it binds keys to.
        size: Its approximate size in bytes.
        weight: Number of its checks, including those in fences.
    """

    def __init__(
        self,
        checks: Sequence[Check],
        ops: Sequence[Op],
        was_committed: CommitCheck,
        until: float = math.inf,
        prefix: str = "",
    ) -> None:
        self.checks = tuple(checks)
        self.ops = tuple(ops)
        self.was_committed = was_committed
        self.until = until
        self.prefix = prefix
        self.future: Future[Committed | None] = LightFuture()
        self.is_in_doubt = False
        self.written: dict[str, bytes | None] = {}
        self.checked: dict[str, Check] = {}
        self.sessions: set[str] = set()
        self.size = self.weight = 0
        self._record_ops()
        self._record_checks()

    def _record_ops(self) -> None:
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

    def _record_checks(self) -> None:
        for check in self.checks:
            parts, prefix = (check.checks, "") if isinstance(check, Fence) else ((check,), self.prefix)
            self.weight += len(parts)
            for part in parts:
                if not isinstance(part, SessionAlive):
                    self.checked[f"{prefix}{part.key}"] = part
        self.size += 2 * sum(map(len, self.checked))


@dataclass(slots=True)
class _Batch:
    units: list[CommitUnit] = field(default_factory=list)
    written: dict[str, bytes | None] = field(default_factory=dict)
    checked: dict[str, Check] = field(default_factory=dict)
    sessions: set[str] = field(default_factory=set)
    weight: int = 0
    size: int = 0

    def has_space(self, unit: CommitUnit) -> bool:
        fits = (
            self.weight + unit.weight <= MOST_CHECKS
            and len(self.written) + len(unit.written) - len(self._both_write(unit)) <= MOST_OPS
            and self.size + unit.size <= MOST_BYTES
        )
        return not self.units or (fits and len(self.sessions | unit.sessions) <= 1)

    def conflicts_with(self, unit: CommitUnit) -> bool:
        """Return whether a unit cannot be in the same transaction as this batch.

        They conflict if one writes a key that the other writes or checks, or if their checks contradict each other.
        """
        for key in self._both_write(unit):
            if self.written[key] is None or self.written[key] != unit.written[key]:
                return True
        if not self.checked.keys().isdisjoint(unit.written):
            return True
        if not self.written.keys().isdisjoint(unit.checked):
            return True
        both_ask = self.checked.keys() & unit.checked.keys()
        return bool(both_ask) and any(self.checked[key] != unit.checked[key] for key in both_ask)

    def _both_write(self, unit: CommitUnit) -> set[str]:
        return self.written.keys() & unit.written.keys()

    def add(self, unit: CommitUnit) -> None:
        self.mark_left_out(unit)
        self.units.append(unit)
        self.sessions |= unit.sessions
        self.weight += unit.weight
        self.size += unit.size

    def mark_left_out(self, unit: CommitUnit) -> None:
        """Record the keys of a unit that is not part of this batch, so that later units that conflict with it are also
        left out.
        """
        differing = [key for key in self._both_write(unit) if self.written[key] != unit.written[key]]
        self.written.update(unit.written)
        self.written.update(dict.fromkeys(differing))
        self.checked.update(unit.checked)


def select_next_batch(waiting: Sequence[CommitUnit]) -> list[CommitUnit]:
    """Select the units of the next transaction: the first one, and all that can be combined with it, in order.

    No unit overtakes another unit that it conflicts with.

    Args:
        waiting: Units in order of arrival; not empty.
    """
    if len(waiting) == 1:
        return list(waiting)
    batch, behind = _Batch(), _Batch()
    for unit in waiting:
        if (
            len(batch.units) < MOST_OPS
            and batch.has_space(unit)
            and not batch.conflicts_with(unit)
            and not behind.conflicts_with(unit)
        ):
            batch.add(unit)
        else:
            behind.mark_left_out(unit)
        if len(batch.written) >= MOST_OPS or len(batch.units) >= MOST_OPS:
            break
    return batch.units


def find_conflicting_units(units: Sequence[CommitUnit], error: Conflict) -> list[CommitUnit]:
    """Find the units that caused a conflict, because one of their checks or writes failed.

    Args:
        units: The units of the transaction.
        error: The conflict.
    Returns:
        The units; empty if the error names none of them. Each unit must then be tried separately.
    """
    failed = list(error.failed)
    return [unit for unit in units if any(each in failed for each in (*unit.checks, *unit.ops))]


def merge_checks(units: Iterable[CommitUnit]) -> list[Check]:
    """Return the checks of all units without duplicates, in order."""
    return list(dict.fromkeys([check for unit in units for check in unit.checks]))


def merge_ops(units: Iterable[CommitUnit]) -> list[Op]:
    """Return the writes of all units, in order. A write that several units share is returned once, at its first
    position.
    """
    written: set[str] = set()
    found: list[Op] = []
    for unit in units:
        found += [op for op in unit.ops if f"{unit.prefix}{op.key}" not in written]
        written.update(unit.written)
    return found
