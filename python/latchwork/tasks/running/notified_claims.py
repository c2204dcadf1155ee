"""A hungry node in the lines of its lanes, and what it does with what it is told there: claim it, or look.

Only the first in the line of a lane is told of an item, by a watch that has all of the lane. So what it is told may be
claimed at once, in one transaction, where a look would read index, items and claims first. A look is better when there
is more than the node has room for (then others are told soon, and shares keep nodes from wanting the same items), and
for what is not to be taken as a matter of course.

A node that has nothing to run stays where it is, and is told of the next item too: a call that ends at once costs no
place in the line, neither it nor others. While it runs something it leaves the next item to others.
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

#: Of more items than these none is told: a look is better.
MOST_TOLD = 20
#: A node that has others ahead of it in a line looks after so many seconds for each of them: what they are told of may
#: never be taken, if they are dead and nobody knows it yet.
BEHIND_S = 1.0
#: A node that runs something is so many seconds later not the first in the line any more.
STAY_S = 0.02


def worth_claiming(told: Sequence[QueueItem], lanes: Sequence[str], room: int) -> list[QueueItem]:
    """What to claim of the items that were told, without a look; nothing when a look is better. Pure.

    Args:
        told: all that was free in the lanes that told.
        lanes: where the node looks now, one after the other.
        room: how many it may claim.
    Returns:
        In the order in which a look would take them; all that was told, or nothing.
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
    """Seconds after which a node that found nothing looks again. Pure.

    Args:
        ahead: in each of its lines, how many are ahead of it.
        look_s: where nobody is; the most.
    """
    return min([look_s, *(BEHIND_S * each for each in ahead if each)])


class NotifiedClaims:
    """The lines that a node waits in, one for each lane. Safe to share between threads.

    Attributes:
        is_hungry: it has room, and has found nothing: it is in the lines. With the mutex of the bell.
        news: rung when that has changed.

    Args:
        backlog: whose lanes.
        clock: the node's.
        bell: of the node: rung when something was told. Its mutex is for all of this, too.
        stop: set when the node closes.
        accept: whether an item is one for the node.
        runs: whether the node runs something; called with the mutex of the bell.
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
