"""Items that a waiting node is notified of: it claims them at once, or looks at the queue.

Only the first waiter in the line of a partition is notified of an item, by a watch of the whole partition. So the item
may be claimed at once, in one transaction. A look would read the index, the items and the claims first. A look is
better when there are more items than the node has room for (others are notified soon, and shares keep nodes from
wanting the same items), and for items that need care.

A node with nothing to run keeps its place in the line and is notified of the next item too: a task that ends at once
costs no place in the line. While the node runs something it leaves the next item to others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from latchwork.clock import Clock
from latchwork.errors import Closed, LatchworkError
from latchwork.primitives import QueueItem, WorkQueue
from latchwork.store import Backoff
from latchwork.store.driving.notifier import Notifier
from latchwork.store.steps import Pause, Signal, steps_of
from latchwork.tasks.running.worker_hooks import is_suspect

_log = logging.getLogger(__name__)

#: If more items are free, the node is notified of none of them: a look is better.
MOST_TOLD = 20
#: A node looks after so many seconds for each waiter ahead of it in a line: that waiter may be dead, and not take what
#: it is notified of.
BEHIND_S = 1.0
#: Seconds for which a node that runs something stays the first in a line.
STAY_S = 0.02


def worth_claiming(told: Sequence[QueueItem], lanes: Sequence[str], room: int) -> list[QueueItem]:
    """Return the items to claim without a look; none if a look is better. Pure.

    Args:
        told: all free items of the lanes that reported some.
        lanes: the lanes in which the node looks now, in order.
        room: how many items it may claim.
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
    """The lines that a node waits in, one for each lane, and the items that they report. Thread-safe.

    Attributes:
        is_hungry: the node has room and has found nothing, so it waits in the lines. Guarded by the bell's mutex.
        news: rung when ``is_hungry`` has changed.

    Args:
        backlog: the queue.
        clock: the clock of the node.
        bell: the notifier of the node, rung for each notification. Its mutex guards this object too.
        stop: set when the node closes.
        accept: whether the node wants an item.
        runs: whether the node runs something; called with the bell's mutex.
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
        """Whether something is free that the node was told of since the last look."""
        return self._is_poked or bool(self._told)

    def told(self) -> list[QueueItem]:
        """What was told since the last look, if a claim is worth trying; all of it is forgotten."""
        told = [] if self._is_poked else [item for items in self._told.values() for item in items]
        self._told, self._is_poked = {}, False
        return told

    def poke(self) -> None:
        """Something has changed that no lane tells: the next one is a look."""
        self._is_poked = True
        self._bell.ring()

    def look_s(self, most_s: float) -> float:
        """Seconds after which to look again, at most ``most_s``."""
        return look_within_s(self._ahead.values(), most_s) if self._ahead else most_s

    def looked(self, found: int, *, is_hungry: bool) -> None:
        """A look is over, or a claim without one."""
        self._looks += 1
        self._last_found = found
        self.is_hungry = is_hungry
        if is_hungry or self._looks <= self._asks_until:
            self.news.ring()

    def end(self) -> None:
        """The node takes nothing more."""
        self._takes = False
        self.news.ring()

    # The threads

    async def wait(self, lane: str) -> None:
        """Wait for items of one lane while the node is hungry, until it closes."""
        backoff = Backoff()
        while True:
            with self._bell.mutex:
                rings, is_hungry, looks = self.news.rings, self.is_hungry, self._looks
                if self._stop.is_set():  # looked at with the rings: a close in between is a ring more
                    return
            if not is_hungry:
                self._leave(lane)
                await self.news.rung(rings, self._clock, None)
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
            self._note(lane, told)
            if self._is_running():
                self._leave(lane)
            if await self._has_looked(looks):
                backoff = Backoff()
            else:  # what is free is not for us after all, or another was faster
                self._leave(lane)
                await Pause(self._clock, self._stop, backoff.next_s())

    async def _wait_items(self, lane: str) -> list[QueueItem] | None:
        """What is new in a lane; None when others were let go first, or there is nothing new yet."""
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
                self._bell.ring()  # it looks sooner

    def _leave(self, lane: str) -> None:
        self._first_in.discard(lane)
        with self._bell.mutex:
            self._ahead.pop(lane, None)
        self._backlog.leave(lane)

    def _is_running(self) -> bool:
        with self._bell.mutex:
            return self._runs()

    def _note(self, lane: str, told: list[QueueItem]) -> None:
        with self._bell.mutex:
            if told:
                self._told.setdefault(lane, []).extend(told)
                self._bell.ring()
            else:
                self.poke()

    async def _has_looked(self, looks: int) -> bool:
        """Wait for the look after that number; whether it found something."""
        while True:
            with self._bell.mutex:
                if self._looks > looks or not self._takes or self._stop.is_set():
                    return self._last_found > 0
                self._asks_until = max(self._asks_until, looks + 1)
                rings = self.news.rings
            await self.news.rung(rings, self._clock, None)
