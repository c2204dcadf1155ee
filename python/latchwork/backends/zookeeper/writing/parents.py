"""Parents without a value: created before a transaction that would be too long with them, and removed when empty."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from latchwork.backends.futures import FutureGenerator
from latchwork.backends.zookeeper import wire
from latchwork.backends.zookeeper.connection import ZooKeeperConnection
from latchwork.backends.zookeeper.errors import FINAL_CODES, NoReply
from latchwork.backends.zookeeper.layout import UNKNOWN, Znode, ZnodeLayout, get_parent, list_ancestors
from latchwork.backends.zookeeper.reads import Lister, ZooKeeperReader
from latchwork.backends.zookeeper.wire import MULTI, OK
from latchwork.backends.zookeeper.writing.compiler import HasDescendants, MultiPlan
from latchwork.backends.zookeeper.writing.states import read_states
from latchwork.backends.zookeeper.writing.write_task import WriteTask
from latchwork.errors import InvalidKey, LatchworkError, TransactionTooLarge

_log = logging.getLogger(__name__)

_BATCH = 100


def create_parents(task: WriteTask, plan: MultiPlan) -> FutureGenerator[None]:
    """Create the missing parents of keys before a transaction that would be too long if it also created them."""
    parts = [part.data for part in plan.parts if part.role == "parent"]
    if not parts:
        raise TransactionTooLarge(
            f"{task.what}: {plan.size} bytes with all that ZooKeeper needs, and it takes at most "
            f"{wire.MAX_PAYLOAD}; write in several transactions"
        )
    for at in range(0, len(parts), _BATCH):
        result = yield from task.send(parts[at : at + _BATCH])
        if result.error in FINAL_CODES:
            raise task.refusal_error(result.error, plan.entries[0].key)


def find_missing_parents(reader: ZooKeeperReader, task: WriteTask, parent_key: str) -> FutureGenerator[list[str]]:
    """Return the znodes that do not exist among a parent key and the znodes above it, the topmost first."""
    ups = list_ancestors(parent_key)
    try:
        known = yield from read_states(reader, task.connection, [parent_key], task.deadline, parent_keys=ups)
    except NoReply as no_reply:
        raise task.no_reply_error(no_reply, is_write=False) from no_reply
    return [each for each in reversed([parent_key, *ups]) if not known.nodes[each].exists]


def remove_empty_parents_below(
    lister: Lister, task: WriteTask, error: HasDescendants, *, cleared: bool
) -> FutureGenerator[bool]:
    """Remove the empty parents below a key that is to be bound to a session.

    Args:
        lister: Lists the keys below the key.
        task: The call that writes.
        error: The error that names the key.
        cleared: Whether the previous call for this task found nothing to remove.

    Returns:
        True if there was nothing to remove.

    Raises:
        InvalidKey: There are keys or a permanent parent of sequential keys below the key.
    """
    try:
        names, childless = yield from lister.children(task.connection, error.key, task.deadline)
    except NoReply as no_reply:
        raise task.no_reply_error(no_reply, is_write=False) from no_reply
    if names:
        raise InvalidKey(str(error))
    if not childless and cleared:
        raise InvalidKey(
            f"{error.key!r} cannot be bound to a session: sequential keys were created below it, and on ZooKeeper "
            "their numbering stays there forever; bind another key"
        )
    yield from remove_empty_parents(lister.reader, task.connection, childless, task.deadline)
    return not childless


def remove_empty_parents(
    reader: ZooKeeperReader, connection: ZooKeeperConnection, keys: Iterable[str], deadline: float
) -> FutureGenerator[None]:
    """Remove those of the given parents that have no children, and then their own parents in the same way. Errors are
    ignored.
    """
    left = sorted(keys, key=len, reverse=True)
    while left:
        try:
            known = yield from read_states(reader, connection, left[:_BATCH], deadline)
            flying = []
            for key in left[:_BATCH]:
                node = known.nodes[key]
                is_known = UNKNOWN not in {node.gen, node.data}
                if node.exists and node.version is None and not node.children and not node.ephemeral and is_known:
                    removal = wire.encode_multi(_encode_removal(reader.layout, key, node))
                    flying.append((key, connection.call(MULTI, removal, deadline)))
            above = set()
            for key, call in flying:
                if wire.parse_multi((yield call)).error == OK:
                    above.add(get_parent(key))
        except (NoReply, LatchworkError) as error:
            _log.debug("empty parents were not removed: %s", error)
            return
        left = sorted({*left[_BATCH:], *above} - {""}, key=len, reverse=True)


def _encode_removal(layout: ZnodeLayout, key: str, node: Znode) -> list[bytes]:
    """Return the operations of a transaction that removes a parent. It fails if a key was created there meanwhile."""
    mark = [wire.encode_delete(layout.born_path(key))] if node.is_marked else []
    return [
        wire.encode_set_data(layout.guard_path(key), b"", node.gen),
        *mark,
        wire.encode_delete(layout.path(key), node.data),
    ]
