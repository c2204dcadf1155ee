"""Which losses of workers are told, by whom, and when."""

from __future__ import annotations

import logging
import time
from contextlib import suppress

from latchwork.errors import Conflict
from latchwork.primitives.waiting import delay_s
from latchwork.store.steps import ask
from latchwork.store.store import Store
from latchwork.types import Entry
from latchwork.workers import plans
from latchwork.workers.keys import RunKeys
from latchwork.workers.membership import standing_of
from latchwork.workers.observing.picture import Missing
from latchwork.workers.plans import Scene, head_or_none

_log = logging.getLogger(__name__)

#: Seconds after which somebody whose lease we have never seen is believed to have none.
_NEVER_SEEN_S = 0.5


class Losses:
    """Which losses are ours to tell, and when. Pure. One thread only."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def due(self, lost: list[Missing], rank: int, now: float) -> tuple[list[Entry], float | None]:
        """The losses that are due, and seconds until the next one is; None when there is none."""
        found = {f"{each.member.key} {each.member.version}": each for each in lost}
        self._since = {name: self._since.get(name, now) for name in found}
        at = {
            name: since + delay_s(rank) + (0.0 if found[name].had_one else _NEVER_SEEN_S)
            for name, since in self._since.items()
        }
        later = [moment - now for moment in at.values() if moment > now]
        return [found[name].member for name, moment in at.items() if moment <= now], min(later, default=None)


async def tell_loss(store: Store, keys: RunKeys, member: Entry) -> None:
    """Write that a worker is lost, unless that is not so, or somebody else has."""
    entry = await ask(store.get, keys.head)
    head = head_or_none(entry, keys.run)
    standing = await standing_of(store, keys)
    if entry is None or head is None or head.is_final or standing is None:
        return
    with suppress(Conflict):
        plan = plans.lost(Scene(keys, entry, time.time()), member, standing)
        await ask(store.commit, plan.checks, plan.ops)
        _log.warning("a worker of job %r is lost: %s", keys.job.job, member.key)
