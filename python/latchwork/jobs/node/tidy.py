"""The last node to close removes everything from the store but what is kept on purpose.

Kept are settings, marks of nodes, the audit, the progress of cron schedules, how runs went, and runs that were asked
for. A node says ``leaving`` before it looks whether others live, so of nodes that close at the same time the last one
to say so sees that nobody stays. A node that joins meanwhile bumps ``versions/worker`` before it writes anything
else: then nothing more is removed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import islice

from latchwork.errors import Conflict
from latchwork.jobs.stored import keys
from latchwork.jobs.stored.members import Member
from latchwork.jobs.stored.packed_store import commit_all
from latchwork.primitives import forget_free_locks
from latchwork.store import Store
from latchwork.types import Absent, At, Check, Delete

log = logging.getLogger(__name__)

#: A close must not take for ever: what is left after that stays, and the next leader takes care of it.
_LONGEST_S = 60.0
_TOGETHER = 5_000


def tidy(store: Store, node_id: str, fences: list[Check]) -> bool:
    """Remove what is left when no other node stays; False, and nothing removed, when one does.

    Args:
        store: the cluster's.
        node_id: this node, which has said that it leaves, and does not manage any more.
        fences: what holds as long as it is this node's turn to write.
    Raises:
        LatchworkError: the store could not be used; what is left is left.
    """
    guard = store.get(keys.GUARD_WORKER)
    unchanged: Check = Absent(keys.GUARD_WORKER) if guard is None else At(guard)
    members = [Member.decode(entry.key.partition("/")[2], entry.value) for entry in store.list(keys.ALIVE)]
    if any(member.worker != node_id and member.state != "leaving" for member in members):
        return False
    until = store.clock.now() + _LONGEST_S
    try:
        if not _remove(store, [*fences, unchanged], until):
            log.info("node %s leaves some of what the cluster kept behind: it took too long to remove", node_id)
            return False
        guards = [keys.GUARD_POOL, keys.GUARD_ASSIGNMENT, keys.GUARD_WORKER]
        store.commit([*fences, unchanged], [Delete(key) for key in guards])
    except Conflict as error:
        log.info("node %s stops tidying up, another one has come: %s", node_id, error)
        return False
    log.info("node %s was the last to leave: what the cluster kept in the store is removed", node_id)
    return True


def _remove(store: Store, checks: list[Check], until: float) -> bool:
    """Remove shares, pools and free locks, some at a time; False when the time was over before the end."""
    left = _keys(store)
    while some := list(islice(left, _TOGETHER)):
        if store.clock.now() >= until:
            return False
        commit_all(store, checks, [Delete(key) for key in some])
    for job in store.children(keys.LOCKS):
        if store.clock.now() >= until:
            return False
        forget_free_locks(store, below=job)
    return True


def _keys(store: Store) -> Iterator[str]:
    """All keys of shares and pools, heads before their chunks; no listing is larger than one worker's, or one pool."""
    for prefix in (keys.WORKERS, keys.WORK_POOL):
        for name in store.children(prefix):
            yield f"{prefix}/{name}"
            yield from (entry.key for entry in store.list(f"{prefix}/{name}", recursive=True))
