"""Waiting of a node for new items. When the node is notified of an item, it claims the item directly, or searches the
queue.

Only the first waiter of a partition is notified of an item, by a watch of the whole partition. So the item can be
claimed directly, in one transaction. A search would first read the index, the items and the claims. A search is better
for items that may have killed their nodes, and if there are more items than the node can take: other nodes are notified
soon, and shards keep nodes from competing for the same items.

A node that searches the queue only because it has not done so for a while keeps its position among the waiters. It
claims new items meanwhile, so an item does not wait for the reads of the search.

A node with nothing to run keeps its position among the waiters, and is also notified of the next item. So a task that
ends fast does not cost the position. While the node is running something, it leaves the next item to other nodes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from latchwork._base.event import Signal
from latchwork.clock import Clock
from latchwork.errors import Closed, LatchworkError
from latchwork.primitives import QueueItem, WorkQueue
from latchwork.store import Backoff
from latchwork.store.driving.notifier import Notifier
from latchwork.store.steps import Pause, StepCoroutine, coroutine_of
from latchwork.tasks.running.worker_hooks import is_suspect

_log = logging.getLogger(__name__)

#: If more items than this are free, the node is notified of none of them: a look is better.
MAX_NOTIFIED = 20
#: Seconds until a look, for each waiter ahead of the node: such a waiter may be dead, and not take the items that it is
#: notified of.
BEHIND_S = 1.0
#: Seconds for which a node that is running something remains the first waiter.
STAY_S = 0.02


def select_direct_claims(notified: Sequence[QueueItem], partitions: Sequence[str], free_slots: int) -> list[QueueItem]:
    """Return the notified items if they should be claimed without a search of the queue; otherwise an empty list. Pure.

    Args:
        notified: All free items of the partitions that reported some.
        partitions: The partitions from which the node takes items now, in order.
        free_slots: Maximum number of items to claim.
    Returns:
        Either all notified items, in the order in which a search would find them, or none.
    """
    if len(notified) > free_slots:
        return []
    for item in notified:
        if item.partition not in partitions or is_suspect(item):
            return []
    if len(notified) == 1:
        return list(notified)
    rank = {partition: number for number, partition in reversed(list(enumerate(partitions)))}
    return sorted(notified, key=lambda item: (rank[item.partition], item.sort_key, item.id))


def compute_search_delay_s(ahead: Iterable[int], search_s: float) -> float:
    """Compute the seconds after which a node that found no items searches the queue again. Pure.

    Args:
        ahead: For each partition that the node waits for, the number of waiters ahead of it.
        search_s: The result if no waiter is ahead; also its maximum.
    """
    return min([search_s, *(BEHIND_S * each for each in ahead if each)])


class ItemNotifications:
    """Waits for items in each partition of a node, and collects the items of which the node is notified. Thread-safe.

    Attributes:
        is_waiting: Whether the node has free slots and has found nothing, so that it waits. Guarded by the mutex of the
            notifier.
        news: Notified when ``is_waiting`` has changed.

    Args:
        backlog: The queue.
        clock: The clock of the node.
        notifier: The notifier of the node, used for each notification. Its mutex also guards this object.
        stop: Set when the node closes.
        accept: Returns whether the node wants an item.
        runs: Returns whether the node is running a task; called with the mutex held.
        claim_during_search: Claims and runs items while the node searches the queue. Returns None if it has claimed
            any; all items if it has tried none; an empty list if the queue must be searched again.
        node_id: ID of the node, for messages.
    """

    def __init__(
        self,
        backlog: WorkQueue,
        clock: Clock,
        notifier: Notifier,
        stop: Signal,
        *,
        accept: Callable[[QueueItem], bool],
        runs: Callable[[], bool],
        claim_during_search: Callable[[list[QueueItem]], StepCoroutine[list[QueueItem] | None]],
        node_id: str,
    ) -> None:
        self._backlog = backlog
        self._clock = clock
        self._notifier = notifier
        self._stop = stop
        self._accept = accept
        self._runs = runs
        self._claim_during_search = claim_during_search
        self._node_id = node_id
        self.news = Notifier(notifier.mutex)
        self.is_waiting = False
        self._notified_items: dict[str, list[QueueItem]] = {}
        self._first_in: set[str] = set()
        self._ahead: dict[str, int] = {}
        self._is_poked = False
        self._takes = True
        self._searches = self._last_found = self._asks_until = 0

    # With the mutex

    @property
    def has_notification(self) -> bool:
        """Whether the node was notified of items, or a search was requested, since the last search of the queue."""
        return self._is_poked or bool(self._notified_items)

    def pop_notified(self) -> list[QueueItem]:
        """Remove and return the items of which the node was notified since the last search. Empty if the queue must be
        searched.
        """
        notified = [] if self._is_poked else [item for items in self._notified_items.values() for item in items]
        self._notified_items, self._is_poked = {}, False
        return notified

    def request_search(self) -> None:
        """Make the node search the queue next. Call it after changes of which the node is not notified."""
        self._is_poked = True
        self._notifier.notify_all()

    def get_search_delay_s(self, max_s: float) -> float:
        """Return the seconds until the node searches the queue again without a notification.

        Args:
            max_s: The maximum, which applies if no other node is ahead among the waiters.
        """
        return compute_search_delay_s(self._ahead.values(), max_s) if self._ahead else max_s

    def record_search(self, found: int, *, is_waiting: bool) -> None:
        """Record the result of a search of the queue, or of an attempt to claim items by notification.

        Args:
            found: Number of claimed items.
            is_waiting: Whether the node waits for notifications now.
        """
        self._searches += 1
        self._last_found = found
        self.is_waiting = is_waiting
        if is_waiting or self._searches <= self._asks_until:
            self.news.notify_all()

    def stop(self) -> None:
        """Record that the node takes no more items."""
        self._takes = False
        self.news.notify_all()

    # The threads

    async def wait_for_items(self, partition: str) -> None:
        """Wait for items of one partition whenever the node is idle, until the node closes."""
        backoff = Backoff()
        while True:
            with self._notifier.mutex:
                version, is_waiting = self.news.version, self.is_waiting
                if self._stop.is_set():  # checked with the version: a close after this version again
                    return
            if not is_waiting:
                self._leave(partition)
                await self.news.wait_for_change(version, self._clock, None)
                continue
            try:
                notified = await self._wait_for_new_items(partition)
                left = await self._claim_during_search(notified) if notified else notified
            except Closed:
                return
            except (LatchworkError, OSError) as error:
                _log.info("node %s cannot wait for partition %s, retrying: %s", self._node_id, partition, error)
                await Pause(self._clock, self._stop, backoff.next_s())
                continue
            if left is None:
                continue
            search_count = self._record_notification(partition, left)
            if self._is_running():
                self._leave(partition)
            if await self._wait_for_search(search_count):
                backoff = Backoff()
            else:  # the free items are not for this node, or another node was faster
                self._leave(partition)
                await Pause(self._clock, self._stop, backoff.next_s())

    async def _wait_for_new_items(self, partition: str) -> list[QueueItem] | None:
        """Wait for new items of a partition, and return them.

        Args:
            partition: The partition.
        Returns:
            The items; None if there are none yet, or if the node has given up its position among the waiters.
        """
        is_first, runs = partition in self._first_in, self._is_running()
        self._first_in.discard(partition)
        stay_s = STAY_S if is_first and runs else None
        notified = await coroutine_of(self._backlog.wait_items)(
            partition,
            stay_s,
            limit=MAX_NOTIFIED,
            accept=self._accept,
            keep_position=True,
            on_ahead=partial(self._record_position, partition),
        )
        self._first_in.add(partition)
        if notified is None and self._is_running():
            self._leave(partition)
        return notified

    def _record_position(self, partition: str, ahead: int) -> None:
        with self._notifier.mutex:
            self._ahead[partition] = ahead
            if ahead:
                self._notifier.notify_all()  # it looks sooner

    def _leave(self, partition: str) -> None:
        self._first_in.discard(partition)
        with self._notifier.mutex:
            self._ahead.pop(partition, None)
        self._backlog.leave(partition)

    def _is_running(self) -> bool:
        with self._notifier.mutex:
            return self._runs()

    def _record_notification(self, partition: str, notified: list[QueueItem]) -> int:
        """Record items of which the node was notified, or request a search of the queue.

        Args:
            partition: The partition.
            notified: The items. Empty if it is not known which items there are, so that the queue must be searched.
        Returns:
            The number of times that the node has searched the queue so far.
        """
        with self._notifier.mutex:
            if notified:
                self._notified_items.setdefault(partition, []).extend(notified)
                self._notifier.notify_all()
            else:
                self.request_search()
            return self._searches

    async def _wait_for_search(self, search_count: int) -> bool:
        """Wait until the node has searched the queue again.

        Args:
            search_count: Number of searches so far, from ``_record_notification``.
        Returns:
            Whether the last search found items.
        """
        while True:
            with self._notifier.mutex:
                if self._searches > search_count or not self._takes or self._stop.is_set():
                    return self._last_found > 0
                self._asks_until = max(self._asks_until, search_count + 1)
                version = self.news.version
            await self.news.wait_for_change(version, self._clock, None)
