"""Items that a waiting node is notified of: it claims them immediately, or looks at the queue.

Only the first waiter of a partition is notified of an item, by a watch of the whole partition. So the item can be
claimed directly, in one transaction. A look would first read the index, the items and the claims. A look is better for
items that need care, and if there are more items than the node can take: other nodes are notified soon, and shares keep
nodes from competing for the same items.

A node with nothing to run keeps its position among the waiters, and is notified of the next item, too. So a task that
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
from latchwork.store.steps import Pause, steps_of
from latchwork.tasks.running.worker_hooks import is_suspect

_log = logging.getLogger(__name__)

#: If more items than this are free, the node is notified of none of them: a look is better.
MOST_TOLD = 20
#: Seconds until a look, for each waiter ahead of the node: such a waiter may be dead, and not take the items that it is
#: notified of.
BEHIND_S = 1.0
#: Seconds for which a node that is running something remains the first waiter.
STAY_S = 0.02


def worth_claiming(told: Sequence[QueueItem], lanes: Sequence[str], room: int) -> list[QueueItem]:
    """Return the items to claim without a look; none if a look is better. Pure.

    Args:
        told: all free items of the partitions that reported some.
        lanes: the partitions in which the node looks now, in order.
        room: maximum number of items to claim.
    Returns:
        All of the items, in the order in which a look would take them, or none.
    """
    if len(told) > room:
        return []
    for item in told:
        if item.partition not in lanes or is_suspect(item):
            return []
    if len(told) == 1:
        return list(told)
    rank = {lane: number for number, lane in reversed(list(enumerate(lanes)))}
    return sorted(told, key=lambda item: (rank[item.partition], item.sort_key, item.id))


def look_within_s(ahead: Iterable[int], look_s: float) -> float:
    """Return the seconds after which a node that found nothing looks again. Pure.

    Args:
        ahead: the number of waiters ahead of it, for each of its lines.
        look_s: the seconds if no waiter is ahead; also the maximum.
    """
    return min([look_s, *(BEHIND_S * each for each in ahead if each)])


class NotifiedClaims:
    """The waits of a node, one for each partition, and the items that they report. Thread-safe.

    Attributes:
        is_hungry: the node has free capacity and has found nothing, so it waits. Guarded by the mutex of the notifier.
        news: rung when ``is_hungry`` has changed.

    Args:
        backlog: the queue.
        clock: the clock of the node.
        bell: the notifier of the node, rung for each notification. Its mutex guards this object, too.
        stop: set when the node closes.
        accept: returns whether the node wants an item.
        runs: returns whether the node is running something; called with the mutex held.
        node_id: the node, for messages.
    """

    def __init__(
        self,
        backlog: WorkQueue,
        clock: Clock,
        bell: Notifier,
        stop: Signal,
        *,
        accept: Callable[[QueueItem], bool],
        runs: Callable[[], bool],
        node_id: str,
    ) -> None:
        self._backlog = backlog
        self._clock = clock
        self._bell = bell
        self._stop = stop
        self._accept = accept
        self._runs = runs
        self._node_id = node_id
        self.news = Notifier(bell.mutex)
        self.is_hungry = False
        self._told: dict[str, list[QueueItem]] = {}
        self._first_in: set[str] = set()
        self._ahead: dict[str, int] = {}
        self._is_poked = False
        self._takes = True
        self._looks = self._last_found = self._asks_until = 0

    # With the mutex

    @property
    def has_told(self) -> bool:
        """Whether there was a notification or a ``poke`` since the last look."""
        return self._is_poked or bool(self._told)

    def told(self) -> list[QueueItem]:
        """Return and forget the items notified since the last look; none if a look is needed."""
        told = [] if self._is_poked else [item for items in self._told.values() for item in items]
        self._told, self._is_poked = {}, False
        return told

    def poke(self) -> None:
        """Make the next step a look, because of a change that no partition reports."""
        self._is_poked = True
        self._bell.notify_all()

    def look_s(self, most_s: float) -> float:
        """Return the seconds until the next look, at most ``most_s``."""
        return look_within_s(self._ahead.values(), most_s) if self._ahead else most_s

    def looked(self, found: int, *, is_hungry: bool) -> None:
        """Note the end of a look, or of a claim without a look."""
        self._looks += 1
        self._last_found = found
        self.is_hungry = is_hungry
        if is_hungry or self._looks <= self._asks_until:
            self.news.notify_all()

    def end(self) -> None:
        """Note that the node takes no more items."""
        self._takes = False
        self.news.notify_all()

    # The threads

    async def wait(self, lane: str) -> None:
        """Wait for items of one lane while the node is hungry, until it closes."""
        backoff = Backoff()
        while True:
            with self._bell.mutex:
                version, is_hungry = self.news.version, self.is_hungry
                if self._stop.is_set():  # checked with the version: a close after this version again
                    return
            if not is_hungry:
                self._leave(lane)
                await self.news.changed_since(version, self._clock, None)
                continue
            try:
                told = await self._wait_items(lane)
            except Closed:
                return
            except (LatchworkError, OSError) as error:
                _log.info("node %s cannot wait for lane %s, and will again: %s", self._node_id, lane, error)
                await Pause(self._clock, self._stop, backoff.next_s())
                continue
            if told is None:
                continue
            looks = self._note(lane, told)
            if self._is_running():
                self._leave(lane)
            if await self._has_looked(looks):
                backoff = Backoff()
            else:  # the free items are not for this node, or another node was faster
                self._leave(lane)
                await Pause(self._clock, self._stop, backoff.next_s())

    async def _wait_items(self, lane: str) -> list[QueueItem] | None:
        """Return new items of a partition; None if there are none yet, or the position was left to other waiters."""
        is_first, runs = lane in self._first_in, self._is_running()
        self._first_in.discard(lane)
        stay_s = STAY_S if is_first and runs else None
        told = await steps_of(self._backlog.wait_items)(
            lane,
            stay_s,
            limit=MOST_TOLD,
            accept=self._accept,
            stays=True,
            on_ahead=partial(self._line_up, lane),
        )
        self._first_in.add(lane)
        if told is None and self._is_running():
            self._leave(lane)
        return told

    def _line_up(self, lane: str, ahead: int) -> None:
        with self._bell.mutex:
            self._ahead[lane] = ahead
            if ahead:
                self._bell.notify_all()  # it looks sooner

    def _leave(self, lane: str) -> None:
        self._first_in.discard(lane)
        with self._bell.mutex:
            self._ahead.pop(lane, None)
        self._backlog.leave(lane)

    def _is_running(self) -> bool:
        with self._bell.mutex:
            return self._runs()

    def _note(self, lane: str, told: list[QueueItem]) -> int:
        """Note a notification, and return how many looks there were before it."""
        with self._bell.mutex:
            if told:
                self._told.setdefault(lane, []).extend(told)
                self._bell.notify_all()
            else:
                self.poke()
            return self._looks

    async def _has_looked(self, looks: int) -> bool:
        """Wait for the next look after look number ``looks``. Return whether it found something."""
        while True:
            with self._bell.mutex:
                if self._looks > looks or not self._takes or self._stop.is_set():
                    return self._last_found > 0
                self._asks_until = max(self._asks_until, looks + 1)
                version = self.news.version
            await self.news.changed_since(version, self._clock, None)
