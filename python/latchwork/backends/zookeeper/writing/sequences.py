"""Sequential keys: numbered by ZooKeeper's own counter, under a parent that its ``#keep`` keeps from being removed.

That counter has 31 bits, and the names behind its end would sort before all others. A million numbers before it, the
number behind the end is written into ``#keep``: whoever counts with the server checks that nothing was, and counts with
``#keep`` from then on, one creator at a time. docs/design/0005 has the races.
"""

from __future__ import annotations

import contextlib

from latchwork.backends.futures import Steps
from latchwork.backends.grammar import SUFFIX_DIGITS, numbered
from latchwork.backends.zookeeper import wire
from latchwork.backends.zookeeper.errors import FINAL_CODES, Cut
from latchwork.backends.zookeeper.layout import Version, below, bucket, encode, parent
from latchwork.backends.zookeeper.reads import Reader
from latchwork.backends.zookeeper.wire import BAD_VERSION, NO_NODE, NODE_EXISTS, OK, Data, MultiReply, Reply
from latchwork.backends.zookeeper.writing.parents import missing_parents
from latchwork.backends.zookeeper.writing.states import Memory
from latchwork.backends.zookeeper.writing.task import Task
from latchwork.errors import LatchworkError, Unavailable
from latchwork.types import Entry

#: The first number that the server's counter cannot give, and how long before it is counted on in ``#keep``.
FIRST_OF_OURS, MARGIN = 2**31, 2**20
#: ``#keep`` as it was created.
_UNTOUCHED = 0


def create_sequential(reader: Reader, memory: Memory, task: Task, key: str, value: bytes) -> Steps[Entry]:
    """Create the key with a number as suffix; the parent is prepared when it has no ``#keep`` yet."""
    above, layout = parent(key), reader.layout
    flags = wire.PERSISTENT if task.session_id is None else wire.EPHEMERAL
    data, keep = encode(value, task.session_id), layout.keep(above)
    by_server = [wire.check(keep, _UNTOUCHED), layout.create(layout.path(key), data, wire.SEQUENTIAL | flags)]
    parts, made, taken = by_server, "", 0
    while not task.connection.is_late(task.deadline):
        gens = reader.gens()
        try:
            reply: Reply = yield task.connection.write(parts, task.deadline)
        except Cut as cut:
            raise task.error(cut, write=True) from cut
        result = wire.parse_multi(reply)
        if reply.settled or result.error == OK:
            if parts is by_server:
                made = yield from _made_by_server(reader, task, key, reply, result)
            memory.note_kept(above)
            version = Version(reply.zxid, 0, gens[bucket(made)], reply.zxid, task.session_id, born=False)
            entry = Entry(made, value, version, reply.zxid, reply.zxid, task.session_id)
            memory.note(entry)
            return entry
        if result.failed == len(parts):
            task.judge_evidence(result)
        elif result.error == NO_NODE and parts is by_server:
            yield from _prepare_counter(reader, task, key, result)
        elif result.error == BAD_VERSION or (result.error == NODE_EXISTS and parts is not by_server):
            taken += result.error == NODE_EXISTS  # else the server's counter has ended, or another creator was faster
            number, version_of_keep = yield from _next(reader, task, above)
            made = numbered(key, number + taken)
            parts = [
                wire.set_data(keep, b"%d" % (number + taken + 1), version_of_keep),
                layout.create(layout.path(made), data, flags),
            ]
        else:
            raise task.refusal(result.error, key)
    raise Unavailable(f"{task.what}: the parent could not be prepared in time; nothing was changed, try again")


def _made_by_server(reader: Reader, task: Task, key: str, reply: Reply, result: MultiReply) -> Steps[str]:
    """The key that was created; ends the server's counting below its parent when it nears its end."""
    above = parent(key)
    if reply.settled:
        made: str = yield from _find_created(reader, task, key, reply.zxid)
    else:
        name = str(result.results[1]).rpartition("/")[2]
        made = f"{above}/{name}" if above else name
    if int(made[-SUFFIX_DIGITS:]) >= FIRST_OF_OURS - MARGIN:
        with contextlib.suppress(LatchworkError):  # the next one does it
            yield from task.send([wire.set_data(reader.layout.keep(above), b"%d" % FIRST_OF_OURS, _UNTOUCHED)])
    return made


def _next(reader: Reader, task: Task, above: str) -> Steps[tuple[int, int]]:
    """The next number below this parent, counted by us, and the version of the ``#keep`` that says so."""
    try:
        context = yield from reader.begin(task.connection, task.deadline)
        (found,) = yield from reader.read_data(context, [reader.layout.keep(above)])
    except Cut as cut:
        raise task.error(cut, write=False) from cut
    if not isinstance(found, Data):
        raise Unavailable(f"{task.what}: the counter of {above!r} was deleted by another program; nothing was changed")
    return max(FIRST_OF_OURS, int(found.data) if found.data.isdigit() else 0), found.stat.version


def _prepare_counter(reader: Reader, task: Task, key: str, result: MultiReply) -> Steps[None]:
    """Create the parent with its ``#keep``; others may do the same."""
    if result.error != NO_NODE:
        raise task.refusal(result.error, key)
    above, layout = parent(key), reader.layout
    parts: list[bytes] = []
    if above:
        for each in (yield from missing_parents(reader, task, above)):
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
