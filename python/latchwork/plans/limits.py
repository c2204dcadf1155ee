"""Plans of which only so many tasks may run at a time: each running one has one of their places.

Keys:  <name>/running/<plan>/<number>   the path of the item that is taken; dies with the taker's session

A place is created in the transaction that claims, and deleted in the one that ends the claim: so there are never more
claims than places. Which are free is known from a mirror: one that is not free after all refuses the claim of that item
alone. A task that pauses before its next try has none.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from weakref import WeakKeyDictionary

from latchwork.clock import Clock
from latchwork.errors import BadRecord
from latchwork.interrupts import mutex
from latchwork.plans.keys import Keys
from latchwork.plans.plan_store import PlanStore
from latchwork.plans.records import PlanRecord
from latchwork.plans.states import TxnPart
from latchwork.primitives import QueueClaim
from latchwork.store import Mirror, Session
from latchwork.store.steps import ask
from latchwork.types import At, Create, Delete, Op

#: For so long a place that was just taken counts as taken before the mirror has it.
_NEW_S = 1.0


def is_limited(plan: bytes) -> bool:
    """Whether a plan has a limit; one that cannot be read has none."""
    try:
        return PlanRecord.of(plan).max_parallel is not None
    except BadRecord:
        return False


class ParallelLimiter:
    """The places of limited plans, as one worker sees them. Safe to share between threads.

    Args:
        keys: the plans' keys.
        taken: a mirror of all places.
        session: what our places die with.
        clock: of the store.
    """

    def __init__(self, keys: Keys, taken: Mirror, session: Session, clock: Clock) -> None:
        self._keys = keys
        self._taken = taken
        self._session = session
        self._clock = clock
        self._mutex = mutex()
        self._new: dict[str, float] = {}
        self._chosen: dict[str, str] = {}
        self._held: WeakKeyDictionary[QueueClaim, str] = WeakKeyDictionary()
        self._idle: set[str] = set()
        #: Has the worker look for items again.
        self.poke: Callable[[], object] = bool
        #: Whether an item was left alone since its plan had no plan_store.
        self.has_blocked_items = False

    def begin_scan(self) -> None:
        """What was chosen in the last look, and not taken, is free."""
        with self._mutex:
            for key in self._chosen.values():
                self._new.pop(key, None)
            self._chosen.clear()
            self.has_blocked_items = False

    def has_permit(self, plan_id: str, most: int) -> bool:
        """Whether a place of the plan seems to be free."""
        with self._mutex:
            before, self.has_blocked_items = (
                self.has_blocked_items,
                True,
            )  # before we look: a place that is given back now is heard of
            found = self._free(plan_id, most)
            self.has_blocked_items = before or not found
        return bool(found)

    def reserve(self, plan_id: str, most: int, path: str) -> list[Op]:
        """A place for an item, taken in the transaction that claims it."""
        with self._mutex:
            free = self._free(plan_id, most) or [self._keys.permit(plan_id, 0)]  # which refuses it
            key = random.choice(free)
            self._chosen[path] = key
            self._new[key] = self._clock.now() + _NEW_S
        return [Create(key, path.encode(), self._session)]

    def _free(self, plan_id: str, most: int) -> list[str]:
        now = self._clock.now()
        keys = [self._keys.permit(plan_id, number) for number in range(most)]
        return [key for key in keys if key not in self._taken and self._new.get(key, 0.0) <= now]

    def on_refused(self, path: str) -> bool:
        """An item was not claimed: its place is another's, or its plan has changed. Return whether it had chosen one.

        That place may have been given back already, and the mirror may never report it.
        """
        with self._mutex:
            key = self._chosen.pop(path, None)
            if key is None:
                return False
            self._new.pop(key, None)
            self.has_blocked_items = True
            return True

    def on_claimed(self, claim: QueueClaim) -> None:
        """It was claimed."""
        with self._mutex:
            key = self._chosen.pop(claim.item.path, None)
            if key is not None:
                self._held[claim] = key

    def release_ops(self, claim: QueueClaim) -> list[Op]:
        """What result_task the place of a claim back, for the transaction that ends the claim."""
        with self._mutex:
            key = self._held.get(claim)
        return [] if key is None else [Delete(key)]

    def on_claim_end(self, claim: QueueClaim) -> bool:
        """A claim is on_claim_end; whether it had a place that items were left alone for."""
        return self._freed(self._held.pop(claim, None))

    def on_released(self, claim: QueueClaim) -> None:
        """It went before the claim: the next end of that leaves it alone, since another may have it."""
        if self._freed(self._held.pop(claim, None)):
            self.poke()

    def _freed(self, key: str | None) -> bool:
        """Whether to look again: the mirror tells nothing of a place that came and went between two of its looks."""
        with self._mutex:
            return key is not None and self._new.pop(key, None) is not None and self.has_blocked_items

    async def release_orphans(self, plan_store: PlanStore, running: Collection[str]) -> None:
        """Delete places of ours plan_key claims are on_claim_end: of a claim plan_key answer was lost, and which was given up."""
        mine = {
            entry.key: entry
            for entry in self._taken.snapshot().values()
            if entry.owner == self._session.id and entry.value.decode("utf-8", "replace") not in running
        }
        for key in mine.keys() & self._idle:  # seen so twice: it is not being claimed now
            lane, _, rest = mine[key].value.decode("utf-8", "replace").partition("/")
            claims = await ask(plan_store.store.get, plan_store.claim_key(lane, rest))
            if claims is None:
                await plan_store.commit(TxnPart([At(mine[key])], [Delete(key)]))
        self._idle = set(mine)
