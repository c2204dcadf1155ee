"""The limit ``max_parallel`` of plans: each running task holds one of the plan's permits.

Keys:  <name>/running/<plan>/<number>   the path of the claimed item; bound to the worker's session

A permit is created in the transaction that claims an item, and deleted in the transaction that ends the claim. There
are therefore never more claims than permits. A mirror (a local copy that follows the store) shows which permits are
free. If it is outdated, the claim of that item is refused, with no other effect. A task that waits for its retry holds
no permit.
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
    """One worker's view of the permits of plans with ``max_parallel``. Thread-safe.

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

    def begin_search(self) -> None:
        """Begin a search of the queue. Give back the permits that the last search reserved for items not claimed."""
        with self._mutex:
            for key in self._chosen.values():
                self._new.pop(key, None)
            self._chosen.clear()
            self.has_blocked_items = False

    def has_free_permit(self, plan_id: str, max_parallel: int) -> bool:
        """Return whether the plan seems to have a free permit.

        Args:
            plan_id: ID of the plan.
            max_parallel: Number of permits of the plan.
        """
        with self._mutex:
            before, self.has_blocked_items = (
                self.has_blocked_items,
                True,
            )  # set before the search, so that a permit released now is noticed
            found = self._list_free_permits(plan_id, max_parallel)
            self.has_blocked_items = before or not found
        return bool(found)

    def reserve_permit(self, plan_id: str, max_parallel: int, item_path: str) -> list[Op]:
        """Reserve a permit for an item that is about to be claimed.

        Args:
            plan_id: ID of the plan.
            max_parallel: Number of permits of the plan.
            item_path: Path of the queue item.
        Returns:
            The write that takes the permit, for the transaction that claims the item.
        """
        with self._mutex:
            free = self._list_free_permits(plan_id, max_parallel) or [
                self._keys.permit_key(plan_id, 0)
            ]  # the claim will be refused
            key = random.choice(free)
            self._chosen[item_path] = key
            self._new[key] = self._clock.now() + _NEW_S
        return [Create(key, item_path.encode(), self._session)]

    def _list_free_permits(self, plan_id: str, max_parallel: int) -> list[str]:
        now = self._clock.now()
        keys = [self._keys.permit_key(plan_id, number) for number in range(max_parallel)]
        return [key for key in keys if key not in self._permits and self._new.get(key, 0.0) <= now]

    def on_claim_refused(self, item_path: str) -> bool:
        """Give back the permit that was reserved for an item whose claim was refused.

        Args:
            item_path: Path of the queue item.
        Returns:
            Whether to search the queue again: True if a permit was reserved. Another task may use the permit now, and
            the mirror does not report that.
        """
        with self._mutex:
            key = self._chosen.pop(item_path, None)
            if key is None:
                return False
            self._new.pop(key, None)
            self.has_blocked_items = True
            return True

    def assign_permit(self, claim: QueueClaim) -> None:
        """Assign the permit that was reserved for an item to the new claim of this item."""
        with self._mutex:
            key = self._chosen.pop(claim.item.path, None)
            if key is not None:
                self._held[claim] = key

    def build_release_ops(self, claim: QueueClaim) -> list[Op]:
        """Return the writes that release the permit of a claim, for the transaction that ends the claim.

        A permit allows one running task of a plan with ``max_parallel``. The list is empty if the claim has no permit.
        """
        with self._mutex:
            key = self._held.get(claim)
        return [] if key is None else [Delete(key)]

    def on_claim_ended(self, claim: QueueClaim) -> bool:
        """Forget the permit of a claim that has ended.

        Returns:
            Whether to search for items again that were skipped because their plan had no free permit.
        """
        return self._forget_permit(self._held.pop(claim, None))

    def on_permit_released_early(self, claim: QueueClaim) -> None:
        """Forget the permit of a claim that has deleted it early and continues without it.

        A task that waits for its retry has no permit, so that another task can run in the meantime.
        """
        if self._forget_permit(self._held.pop(claim, None)):
            self.request_search()

    def _forget_permit(self, key: str | None) -> bool:
        """Forget a permit that was deleted.

        Args:
            key: The key of the permit. None does nothing.
        Returns:
            Whether to search the queue again, because items were skipped for want of a permit. The mirror does not
            report a permit that was held only briefly.
        """
        with self._mutex:
            return key is not None and self._new.pop(key, None) is not None and self.has_blocked_items

    async def release_orphaned_permits(self, plan_store: PlanStore, claimed_paths: Collection[str]) -> None:
        """Delete permits of this worker that belong to no claim, for example after a lost answer.

        Args:
            plan_store: Access to the stored plans.
            claimed_paths: Paths of the queue items that this worker has claimed.
        """
        own = {
            entry.key: entry
            for entry in self._permits.snapshot().values()
            if entry.owner == self._session.id and entry.value.decode("utf-8", "replace") not in claimed_paths
        }
        for key in own.keys() & self._idle:  # seen twice, so no claim is in progress
            partition, sort_key, name = own[key].value.decode("utf-8", "replace").split("/", 2)
            item = await ask(plan_store.queue.find, partition, sort_key, name)
            if item is None or await ask(plan_store.queue.holder, item) is None:
                await plan_store.commit(TxnPart([At(own[key])], [Delete(key)]))
        self._idle = set(own)
