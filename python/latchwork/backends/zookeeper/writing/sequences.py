"""Sequential keys: numbered by ZooKeeper's own counter, under a parent that its ``#keep`` keeps from being removed."""

from __future__ import annotations

from latchwork.backends.futures import Steps
from latchwork.backends.zookeeper import wire
from latchwork.backends.zookeeper.errors import FINAL_CODES, Cut
from latchwork.backends.zookeeper.layout import Version, ancestors, below, bucket, encode, parent
from latchwork.backends.zookeeper.reads import Reader
from latchwork.backends.zookeeper.wire import NO_NODE, OK, MultiReply, Reply
from latchwork.backends.zookeeper.writing.states import Memory, read_states
from latchwork.backends.zookeeper.writing.task import Task
from latchwork.errors import Unavailable
from latchwork.types import Entry


def create_sequential(reader: Reader, memory: Memory, task: Task, key: str, value: bytes) -> Steps[Entry]:
    """Create the key with a number as suffix; the parent is prepared when it has no ``#keep`` yet."""
    above, layout = parent(key), reader.layout
    flags = wire.SEQUENTIAL | (wire.PERSISTENT if task.session_id is None else wire.EPHEMERAL)
    parts = [layout.create(layout.path(key), encode(value, task.session_id), flags)]
    if above:
        parts.insert(0, wire.check(layout.keep(above)))
    while not task.connection.is_late(task.deadline):
        gens = reader.gens()
        try:
            reply: Reply = yield task.connection.write(parts, task.deadline)
        except Cut as cut:
            raise task.error(cut, write=True) from cut
        result = wire.parse_multi(reply)
        if reply.settled:
            made = yield from _find_created(reader, task, key, reply.zxid)
        elif result.error == OK:
            memory.note_kept(above)
            name = str(result.results[len(parts) - 1]).rpartition("/")[2]
            made = f"{above}/{name}" if above else name
        elif result.failed == len(parts):
            task.judge_evidence(result)
            continue
        else:
            yield from _prepare_counter(reader, task, key, result)
            continue
        version = Version(reply.zxid, 0, gens[bucket(made)], reply.zxid, task.session_id, born=False)
        entry = Entry(made, value, version, reply.zxid, reply.zxid, task.session_id)
        memory.note(entry)
        return entry
    raise Unavailable(f"{task.what}: the parent could not be prepared in time; nothing was changed, try again")


def _prepare_counter(reader: Reader, task: Task, key: str, result: MultiReply) -> Steps[None]:
    """Create the parent with its ``#keep``; others may do the same."""
    if result.error != NO_NODE:
        raise task.refusal(result.error, key)
    above, layout = parent(key), reader.layout
    parts: list[bytes] = []
    try:
        known = yield from read_states(reader, task.connection, [above], task.deadline)
    except Cut as cut:
        raise task.error(cut, write=False) from cut
    for each in reversed([above, *ancestors(above)]):
        if not known.nodes[each].exists:
            parts += layout.create_parent(each)
    parts.append(layout.create(layout.keep(above)))
    made = yield from task.send(parts)
    if made.error in FINAL_CODES:
        raise task.refusal(made.error, key)


def _find_created(reader: Reader, task: Task, key: str, token: int) -> Steps[str]:
    """The key that a create made whose reply was lost: the child that this transaction created."""
    above = parent(key)
    try:
        names = yield from reader.names(task.connection, above, task.deadline)
        keys = [each for each in below(above, names) if each.startswith(key)]
        entries = yield from reader.read_keys(reader.context(task.connection, task.deadline), keys)
    except Cut as cut:
        raise task.error(Cut(sent=True, over=cut.over), write=True) from cut
    for entry in entries:
        if entry is not None and entry.created == token:
            made: str = entry.key
            return made
    raise task.error(Cut(sent=True, over=False), write=True)
