"""What a lock keeper does in the background, and what can be seen of it: its thread, its owners, its doubts.

The thread renews the current owner, follows the other owners and has chores done. Nothing here takes a lock.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from functools import partial

from latchwork.errors import Closed, LatchworkError, LockLost, Unavailable
from latchwork.interrupts import mutex
from latchwork.primitives.leased.inspect import LockSweeper
from latchwork.primitives.leased.owner import HeldLock, LockOwner, Renewals, SessionOfTheMoment
from latchwork.primitives.leased.protocol import (
    LEAST_TTL_S,
    OWNERS,
    InDoubt,
    OwnerRecord,
    raised_ttl_s,
)
from latchwork.primitives.leased.state import Holdings
from latchwork.primitives.leased.table import LockTable
from latchwork.primitives.leased.waits import LockWaits
from latchwork.primitives.waiting.common import Announcer, Identity, Starts, check_least, check_text
from latchwork.store.dispatch import Dispatcher
from latchwork.store.driving.background import Background
from latchwork.store.forks import ForkGuard, lost_by_fork
from latchwork.store.mirror import Mirror
from latchwork.store.observers import listen
from latchwork.store.steps import Pause, Signal, ending, run, steps_of, undone_if_interrupted
from latchwork.store.store import Store
from latchwork.types import Change

_log = logging.getLogger(__name__)

_CLOSE_TIMEOUT_S = 5.0


class KeeperThread(Starts):
    """The base of ``LockKeeper``, which takes locks and releases them. Safe to share between threads."""

    def __init__(
        self,
        store: Store,
        *,
        ttl_s: float = 10.0,
        owner_label: str = "",
        session: SessionOfTheMoment | None = None,
    ) -> None:
        self.ttl_s = raised_ttl_s(ttl_s, f"lock keeper {check_text(owner_label, 'owner_label')!r}")
        self._table = LockTable(store)
        self._store = self._table.store
        self._clock = store.clock
        self._sweeper = LockSweeper(self._table)
        self._state = Holdings(store.clock)
        self._home = ForkGuard("a lock keeper")
        identity = Identity()
        self._record = OwnerRecord(self.ttl_s, owner_label, identity.host, identity.pid)
        self._renewals = Renewals(self._table, self._record, session)
        self._dispatcher = Dispatcher(f"locks-{owner_label or identity.pid}", size=3)
        self._urgent = Announcer(self._dispatcher, "a lock keeper")
        self._relaxed = Announcer(self._dispatcher, "waits for locks")
        self._chores = self._dispatcher.lane(lambda: run(self._tidy()), "the chores of a lock keeper")
        self._next_chores = 0.0
        self._within_s = math.inf
        self._lost: dict[object, Callable[[tuple[str, ...]], None]] = {}
        self._prolong_failed: dict[object, Callable[[BaseException, float], None]] = {}
        self._wake = Signal()
        self._waits = LockWaits(self._table, self._state, self._wake)
        self._closing = Signal()
        self._stopping = Signal()
        self._ended = Signal()
        self._starting = mutex()
        self._background: Background | None = None
        self._runner: object = None  # an interrupt may leave a thread that was started and is not known
        self._mirror: Mirror | None = None

    def start(self) -> None:
        """Follow the other owners from now on. Twice is fine.

        Raises:
            Closed: the keeper was closed.
        """
        self._refuse_closed()
        if self._is_running():
            return
        with self._starting:
            if self._is_running():
                return
            mirror = self._mirror
            if mirror is None:
                mirror = self._mirror = self._store.mirror(OWNERS, wait=False)
                mirror.on_change(self._owners_changed)
            runner = self._runner = object()
            self._background = Background(partial(self._run, runner), f"latchwork-locks-{self._record.label}")
        if self._stopping.is_set():  # closed meanwhile, which may not have seen it
            mirror.close()

    def _is_running(self) -> bool:
        return self._background is not None

    def held(self) -> dict[str, HeldLock]:
        """The locks this keeper holds for certain, by name."""
        return {} if self._home.is_foreign else self._state.held()

    def holds(self, held: HeldLock) -> bool:
        """True if this very hold was not released; it may have run out."""
        return held.is_kept

    @property
    def owner_id(self) -> str | None:
        """The id of the owner that holds our locks, None before the first; another one after a loss. See ``adopt``."""
        owner = self._state.current
        return owner.id if owner is not None else None

    def remaining_s(self) -> float:
        """Seconds the locks are ours for certain if no further renewal succeeds; 0 without any. Does no I/O."""
        if self._home.is_foreign:
            return 0.0
        owner = self._state.current
        return owner.remaining_s() if owner is not None and owner.held else 0.0

    @property
    def lost(self) -> Signal:
        """Set when the locks held at this moment run out; ask again after that, for the next ones."""
        if self._home.is_foreign:
            return lost_by_fork()
        owner = self._state.current
        return owner.lost if owner is not None else Signal()

    def renew_within(self, seconds: float | None) -> None:
        """Renew as often as a TTL of so many seconds would need, from now on; None for as often as this TTL needs.

        For callers that have to know sooner than after a TTL that the server is out of reach. The TTL stays as it is.
        This does nothing after ``close``.
        """
        self._within_s = math.inf if seconds is None else check_least(seconds, "seconds", LEAST_TTL_S)
        self._wake.set()

    def on_lost(self, fn: Callable[[tuple[str, ...]], None]) -> Callable[[], None]:
        """Call ``fn(names)`` when locks run out or are taken over: what they protected must stop. Not on release.

        Returns:
            A function that ends it.
        """
        self._refuse_closed()
        return listen(self._lost, fn)

    def on_prolong_failed(self, fn: Callable[[BaseException, float], None]) -> Callable[[], None]:
        """Call ``fn(error, remaining_s)`` when a renewal fails or is not answered; the locks are ours that long.

        Returns:
            A function that ends it.
        """
        self._refuse_closed()
        return listen(self._prolong_failed, fn)

    def _refuse_closed(self) -> None:
        self._home.check()
        self._state.refuse_closed()

    def _end_thread(self) -> None:
        """Have the thread end, which deletes the keys of owners that hold nothing."""
        self._stopping.set()
        self._wake.set()

    async def _ended_thread(self) -> None:
        """Wait for the end of the thread."""
        background = self._background
        if background is None:
            self._dispatcher.close()
        elif not background.is_mine and await Pause(self._clock, self._ended, _CLOSE_TIMEOUT_S):
            await background

    @ending
    async def release_held(self, locks: Sequence[HeldLock]) -> None:
        """Give exactly these locks back; see ``release``. A lock taken again since is not meant."""
        self._home.check()
        found = [held for held in locks if held.is_kept]
        await self._release(found, [held.name for held in locks if held not in found])

    async def _release(self, found: Sequence[HeldLock], missing: list[str]) -> None:
        lost = [held.name for held in found if held.owner.is_over]
        gone = await self._give_back(found)
        failed = sorted({*lost, *gone, *missing})
        if failed:
            raise LockLost(
                f"{len(failed)} locks were not held any more when they were released ({', '.join(failed[:5])}); "
                f"what they protected may have been done by another as well"
            )

    # The thread

    async def _run(self, runner: object) -> None:
        while not self._stopping.is_set():
            if self._runner is not runner:
                return
            try:
                due = await self._step(self._clock.now())
            except Exception:  # renewing must go on, whatever went wrong once
                _log.exception("lock keeper %r: a step failed, the next one follows", self._record.label)
                due = self._clock.now() + self.ttl_s / 8
            await Pause(self._clock, self._wake, max(0.0, due - self._clock.now()))
            self._wake.clear()
        await self._renewals.part(self._state.current)
        await self._bury(also_current=True)
        self._waits.close()
        if self._mirror is not None:
            self._mirror.close()
        await self._urgent.settle(self._clock, 1.0)
        self._dispatcher.close()
        self._ended.set()

    async def _step(self, now: float) -> float:
        """Do what is due; returns when the next step is due, at the latest."""
        due = [now + self.ttl_s, self._waits.look_for_dead(), self._renew_current()]
        if now >= self._next_chores:
            self._next_chores = now + self.ttl_s / 4
            if await self._is_abandoned():
                self._stopping.set()
            self._chores.signal()
        return min(*due, self._next_chores)

    async def _is_abandoned(self) -> bool:
        """True if the store was closed and nothing is held: there is nothing left to do, ever."""
        if self._mirror is None or self._state.current is not None:
            return False
        try:
            await steps_of(self._mirror.wait_until)(lambda _mirror: False, timeout_s=0.0)
        except Closed:
            return True
        except LatchworkError:
            pass
        return False

    async def _tidy(self) -> None:
        """Delete owners that ended, settle doubtful writes, look for owners that went unseen, close idle watches."""
        await self._bury()
        for doubt in self._state.doubts:
            await self._settle(doubt)
        try:
            for owner in await self._table.gone(self._unwatched()):
                self._waits.owner_gone(owner)
        except LatchworkError as error:
            _log.info("owners that hold what is waited for could not be read: %s", error)
        self._waits.trim()

    async def _bury(self, *, also_current: bool = False) -> None:
        """Delete the keys of owners that ended and hold nothing; try those that fail again later."""
        for owner in self._state.to_bury(also_current=also_current):
            owner.follow_no_more()
            if await self._delete(owner.id, signed=owner.session is not None):
                self._state.buried(owner)

    async def _delete(self, owner_id: str, *, signed: bool = True) -> bool:
        try:
            await self._table.delete_owner(owner_id, signed=signed)
        except LatchworkError as error:
            _log.info("lock owner %s, which holds nothing any more, is not removed yet: %s", owner_id, error)
            return False
        return True

    async def _settle(self, doubt: InDoubt) -> None:
        ours = self._state.begin_settling(doubt, doubt)
        if ours is None:
            return
        try:
            await self._table.settle(doubt, ours)
            self._state.settled([doubt])
        except LatchworkError as error:
            _log.info("lock %r is not settled yet: %s", doubt.name, error)
        finally:
            self._done_with(doubt)

    async def _give_back(self, found: Sequence[HeldLock]) -> list[str]:
        """Free these locks on the server, now or later; returns the names that others have taken."""
        claimer = object()
        doubts = self._state.take_back(found, claimer)
        with undone_if_interrupted(self._chores.signal):  # at once; else they settle it after a quarter of a TTL
            try:
                for held in found:
                    held.end_work()
                gone = await self._table.free({held.name: held.entry for held in found})
            except LatchworkError as error:
                _log.warning("%d locks are not released yet: %s", len(found), error)
                return []
            else:
                self._state.settled(doubts)
                return gone
            finally:
                self._done_with(claimer)

    def end_soon(self) -> None:
        """Give back what is held, and end the thread, in the background."""
        held = self._state.close()
        self._closing.set()
        self._waits.close()
        self._let_go(held or ())
        self._end_thread()

    def _let_go(self, found: Sequence[HeldLock]) -> None:
        """Hold these locks no more, and free them in the background; some of it may be done already."""
        claimer = object()
        self._state.take_back([held for held in found if held.is_kept], claimer)
        for held in found:
            held.end_work()
        self._done_with(claimer)
        self._chores.signal()  # last: what they find busy they leave for a quarter of a TTL

    def _done_with(self, claimer: object) -> None:
        self._waits.poke(self._state.done_with(claimer))

    # The owner

    def _renew_current(self) -> float:
        """Lose, give up or renew the current owner if that is due; returns when the next of these is due."""
        self._lose_if_over()
        owner = self._state.current
        if owner is None or self._state.give_up(owner):
            return math.inf
        due = owner.step(self._within_s)
        if due is None:
            return 0.0  # it ran out just now
        if due[1]:
            self._failed(owner, Unavailable(f"no renewal was answered for {owner.silent_s():.2f} s"))
        return min(due[0], self._clock.now() + owner.remaining_s())

    def _renewed(self, owner: LockOwner, error: BaseException | None) -> None:
        """Take the answer; runs on a client library's thread."""
        if error is not None:
            self._failed(owner, error)
        self._wake.set()

    def _failed(self, owner: LockOwner, error: BaseException) -> None:
        if owner is not self._state.current:
            return  # given up or lost while the renewal was under way
        remaining_s = owner.remaining_s()
        _log.warning("lock owner %s: not renewed, %.2f s are left: %s", owner.id, remaining_s, error)
        self._urgent.post(*(partial(fn, error, remaining_s) for fn in list(self._prolong_failed.values())))
        if self._renewals.is_taken_over(owner, error):
            self._lose(owner, "another owner took it over")

    def _lose_if_over(self) -> None:
        owner = self._state.current
        if owner is not None and owner.is_over:
            self._lose(owner, "no renewal was confirmed in time")

    def _lose(self, owner: LockOwner, why: str) -> None:
        """Never renew this owner again, and tell work, listeners and waiters."""
        held = self._state.lose(owner)
        if held is None:
            return
        owner.lost.set()
        for each in held:
            each.end_work()
        names = tuple(sorted(each.name for each in held))
        _log.warning("lock owner %s is lost with %d locks: %s; their work must stop", owner.id, len(names), why)
        if names:
            self._urgent.post(*(partial(fn, names) for fn in list(self._lost.values())))
        self._waits.poke(names)

    # The other owners

    def _owners_changed(self, changes: Sequence[Change]) -> None:
        owner = self._state.current
        if owner is not None and Change(self._table.sign_key(owner.id), None) in changes:
            owner.lose_sign()
        for gone in self._table.note(changes):
            owner = self._state.current
            if owner is not None and owner.id == gone:
                self._lose(owner, "another owner took it over")
            self._waits.owner_gone(gone)
        if self._unwatched():
            self._chores.signal()
        self._wake.set()

    def _unwatched(self) -> list[str]:
        """Owners in the way that were read but are not in the mirror, which never tells that they are gone."""
        mirror = self._mirror
        if mirror is None:
            return []
        return [owner for owner in self._waits.blocking() if self._table.owner_key(owner) not in mirror]
