"""The limit ``max_parallel`` of plans: each running task holds one of the plan's permits.

Keys:  <name>/running/<plan>/<number>   the path of the claimed item; bound to the worker's session

A permit is created in the transaction that claims an item, and deleted in the one that ends the claim. There are
therefore never more claims than permits. A mirror shows which permits are free. If it is outdated, only the claim of
that item is refused. A task that pauses before a retry holds no permit.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from weakref import WeakKeyDictionary

from latchwork._base.interrupts import mutex
from latchwork.clock import Clock
from latchwork.plans.keys import Keys
from latchwork.plans.plan_store import PlanStore
from latchwork.plans.transitions import TxnPart
from latchwork.primitives import QueueClaim
from latchwork.store import Mirror, Session
from latchwork.store.steps import ask
from latchwork.types import At, Create, Delete, Op

#: Seconds for which a new permit counts as taken before the mirror shows it.
_NEW_S = 1.0


class ParallelLimiter:
    """The permits of plans with ``max_parallel``, as one worker knows them. Thread-safe.

    Args:
        keys: Keys of the plans.
        permits: Mirror of all permits that are in use.
        session: Session that this worker's permits are bound to.
        clock: Clock of the store.
    """

    def __init__(self, keys: Keys, permits: Mirror, session: Session, clock: Clock) -> None:
        self._keys = keys
        self._permits = permits
        self._session = session
        self._clock = clock
        self._mutex = mutex()
        self._new: dict[str, float] = {}
        self._chosen: dict[str, str] = {}
        self._held: WeakKeyDictionary[QueueClaim, str] = WeakKeyDictionary()
        self._idle: set[str] = set()
        #: Makes the worker search for items again.
        self.request_search: Callable[[], object] = bool
        #: Whether an item was skipped because its plan had no free permit.
        self.has_blocked_items = False

    def begin_scan(self) -> None:
        """Begin a new search for items. Permits that were reserved in the last search but not used are free again."""
        with self._mutex:
            for key in self._chosen.values():
                self._new.pop(key, None)
            self._chosen.clear()
            self.has_blocked_items = False

    def has_permit(self, plan_id: str, most: int) -> bool:
        """Return whether a permit of the plan seems to be free.

        Args:
            plan_id: ID of the plan.
            most: Its ``max_parallel``.
        """
        with self._mutex:
            before, self.has_blocked_items = (
                self.has_blocked_items,
                True,
            )  # set before the search, so that a permit released now is noticed
            found = self._free(plan_id, most)
            self.has_blocked_items = before or not found
        return bool(found)

    def reserve(self, plan_id: str, most: int, path: str) -> list[Op]:
        """Reserve a permit to run in parallel for an item. Return the write that takes the permit, for the transaction
        that claims the item.
        """
        with self._mutex:
            free = self._free(plan_id, most) or [self._keys.permit(plan_id, 0)]  # the claim will be refused
            key = random.choice(free)
            self._chosen[path] = key
            self._new[key] = self._clock.now() + _NEW_S
        return [Create(key, path.encode(), self._session)]

    def _free(self, plan_id: str, most: int) -> list[str]:
        now = self._clock.now()
        keys = [self._keys.permit(plan_id, number) for number in range(most)]
        return [key for key in keys if key not in self._permits and self._new.get(key, 0.0) <= now]

    def on_refused(self, path: str) -> bool:
        """Drop the reservation of an item whose claim was refused. Return whether the item had one.

        The permit may have been released already, and the mirror may never report that.
        """
        with self._mutex:
            key = self._chosen.pop(path, None)
            if key is None:
                return False
            self._new.pop(key, None)
            self.has_blocked_items = True
            return True

    def on_claimed(self, claim: QueueClaim) -> None:
        """Assign the reserved permit to the new claim."""
        with self._mutex:
            key = self._chosen.pop(claim.item.path, None)
            if key is not None:
                self._held[claim] = key

    def release_ops(self, claim: QueueClaim) -> list[Op]:
        """Return the write that gives back a claim's permit to run in parallel, for the transaction that ends the
        claim.
        """
        with self._mutex:
            key = self._held.get(claim)
        return [] if key is None else [Delete(key)]

    def on_claim_end(self, claim: QueueClaim) -> bool:
        """Forget the permit of an ended claim. Return whether to search for items that were skipped for lack of a
        permit.
        """
        return self._release_freed(self._held.pop(claim, None))

    def on_released(self, claim: QueueClaim) -> None:
        """Forget a permit that was released before its claim ends, because another worker may hold it by then."""
        if self._release_freed(self._held.pop(claim, None)):
            self.request_search()

    def _release_freed(self, key: str | None) -> bool:
        """Mark a permit as free. Return whether to search again, because the mirror may miss a permit that was held
        only briefly.
        """
        with self._mutex:
            return key is not None and self._new.pop(key, None) is not None and self.has_blocked_items

    async def release_orphans(self, plan_store: PlanStore, running: Collection[str]) -> None:
        """Delete permits of this worker that belong to no claim, for example after a lost answer.

        Args:
            plan_store: Where the plans are stored.
            running: Paths of the items that this worker has claimed.
        """
        mine = {
            entry.key: entry
            for entry in self._permits.snapshot().values()
            if entry.owner == self._session.id and entry.value.decode("utf-8", "replace") not in running
        }
        for key in mine.keys() & self._idle:  # seen twice, so no claim is in progress
            lane, sort_key, name = mine[key].value.decode("utf-8", "replace").split("/", 2)
            item = await ask(plan_store.queue.find, lane, sort_key, name)
            if item is None or await ask(plan_store.queue.holder, item) is None:
                await plan_store.commit(TxnPart([At(mine[key])], [Delete(key)]))
        self._idle = set(mine)
