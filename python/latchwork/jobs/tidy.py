"""What the last node to close removes: nothing is left in the store but what is kept on purpose.

Kept are settings, marks of nodes, the audit, and the progress of cron schedules. A node says ``leaving`` before it
looks whether others live, so of nodes that close at the same time the last one to say so sees that nobody stays. A node
that joins meanwhile bumps ``versions/worker`` before it writes anything else: then nothing more is removed.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from latchwork.errors import Conflict
from latchwork.jobs import keys
from latchwork.jobs.members import Member
from latchwork.jobs.packed_store import commit_all
from latchwork.primitives import forget_free_locks
from latchwork.types import Absent, At, Check, Delete

if TYPE_CHECKING:
    from latchwork.store import Store

log = logging.getLogger(__name__)

#: A close must not take for ever: what is more stays, and the next leader's sweeps take care of it.
_MOST_KEYS = 20_000


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
    left = [entry.key for prefix in (keys.WORKERS, keys.WORK_POOL) for entry in store.list(prefix, recursive=True)]
    if len(left) > _MOST_KEYS:
        log.info("node %s leaves %d keys of the cluster behind, too many to remove while it closes", node_id, len(left))
        return False
    try:
        commit_all(store, [*fences, unchanged], [Delete(key) for key in left])
        forget_free_locks(store, owners_prefix=keys.OWNERS, locks_prefix=keys.LOCKS, at_most=_MOST_KEYS)
        guards = [keys.GUARD_POOL, keys.GUARD_ASSIGNMENT, keys.GUARD_WORKER]
        store.commit([*fences, unchanged], [Delete(key) for key in guards])
    except Conflict as error:
        log.info("node %s stops tidying up, another one has come: %s", node_id, error)
        return False
    log.info("node %s was the last to leave: what the cluster kept in the store is removed", node_id)
    return True
