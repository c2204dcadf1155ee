"""Which items a node takes: what its system says, but for those that it refused, and those that may kill it.

Nothing here touches the network.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from latchwork.clock import Clock
from latchwork.primitives import QueueItem
from latchwork.tasks.running.feeding import FeederHooks
from latchwork.types import Absent, Check, Op
from latchwork.user_code import call_user

_log = logging.getLogger(__name__)

#: Seconds for which an item that was refused here is left to others.
REFUSED_S = 10.0
#: An item that was taken so often, and came back by itself, may have killed its nodes. A node has one such at a time:
#: else those that were there with it would become dead letters together with it.
SUSPECT = 2
_MOST_REFUSED = 10_000


class Choosing:
    """The hooks of a system that say what to take, asked so that none of them can stop a node. Safe to share.

    Args:
        hooks: of the system.
        clock: the node's.
        node_id: the node, for messages.
    """

    def __init__(self, hooks: FeederHooks, clock: Clock, node_id: str) -> None:
        self._hooks = hooks
        self._clock = clock
        self._node_id = node_id
        self._refused: dict[str, float] = {}
        self._held = ""
        self._wanted = ""
        #: Whether to look again soon: an item was refused in this look, and nothing may report when it can be taken.
        self.looks_again = False

    def begin(self) -> None:
        """A look begins."""
        self._wanted = ""
        self.looks_again = False

    def accept(self, item: QueueItem) -> bool:
        """Whether to take an item."""
        until = self._refused.get(item.path)
        if until is not None:
            if until > self._clock.now():
                return False
            self._refused.pop(item.path, None)
        if is_suspect(item) and item.path != (self._held or self._wanted or item.path):
            return False
        try:
            return call_user(self._hooks.accept, item)
        except Exception:
            self._leave_broken(item)
            return False

    def extra(self, item: QueueItem) -> tuple[Sequence[Check], Sequence[Op]]:
        """Checks and writes of the transaction that takes it."""
        if is_suspect(item):
            self._wanted = item.path
        try:
            return call_user(self._hooks.extra, item)
        except Exception:
            self._leave_broken(item)
            return [Absent(item.key)], []  # it is there: so it is left out

    def told_refused(self, item: QueueItem) -> None:
        """Its extra checks did not hold."""
        try:
            self.looks_again |= call_user(self._hooks.refused, item)
        except Exception:
            self._leave_broken(item)

    def taken(self, item: QueueItem) -> None:
        """It was taken; so it says one attempt more."""
        if item.attempts > SUSPECT and not item.why:
            self._held = item.path

    def over(self, item: QueueItem) -> bool:
        """We do not have it any more; whether others may be taken now that were left because of it."""
        was_held = bool(self._held) and self._held == item.path
        if was_held:
            self._held = ""
        return was_held

    def leave_to_others(self, item: QueueItem) -> None:
        """Do not take it for a while."""
        now = self._clock.now()
        if len(self._refused) >= _MOST_REFUSED:
            self._refused = {path: until for path, until in self._refused.items() if until > now}
        self._refused[item.path] = now + REFUSED_S

    def _leave_broken(self, item: QueueItem) -> None:
        """A hook raised: one item must not keep a node from all others."""
        _log.exception("node %s leaves item %s alone for %g s", self._node_id, item.path, REFUSED_S)
        self.leave_to_others(item)


def is_suspect(item: QueueItem) -> bool:
    """Whether the nodes that had an item may have died of it."""
    return item.attempts >= SUSPECT and not item.why
