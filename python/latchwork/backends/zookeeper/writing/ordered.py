"""Keys that know the older ones of their kind: the server appends its own counter of the parent to their names.

A parent without children may be removed, and its counter begins again when it is made again. That does no harm: all
keys of a kind that are there at one moment are children of one incarnation of their parent, whose counter grows with
each of them. The counter has 32 bits and comes round to negative numbers, so two numbers are compared by the sign of
their difference. docs/design/0005 has the races.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from latchwork.backends.futures import Steps
from latchwork.backends.zookeeper import wire
from latchwork.backends.zookeeper.calls import Call
from latchwork.backends.zookeeper.errors import Cut
from latchwork.backends.zookeeper.layout import Version, bucket, encode, parent
from latchwork.backends.zookeeper.reads import Reader
from latchwork.backends.zookeeper.wire import GET_CHILDREN, NO_NODE, NODE_EXISTS, OK, Reply
from latchwork.backends.zookeeper.writing.parents import missing_parents
from latchwork.backends.zookeeper.writing.states import Memory
from latchwork.backends.zookeeper.writing.task import Task
from latchwork.errors import LatchworkError, Unavailable
from latchwork.types import Create, Entry, Ordered

_NUMBER = re.compile(r"-(-?\d{9,})\Z")


def create_ordered(reader: Reader, memory: Memory, task: Task, stem: str, op: Create) -> Steps[Ordered]:
    """Create a key, and ask for the names below its parent right behind it: one round trip, and missing parents."""
    key, layout = f"{op.key}-", reader.layout
    above = parent(key)
    flags = wire.SEQUENTIAL | (wire.PERSISTENT if task.session_id is None else wire.EPHEMERAL)
    create = layout.create(layout.path(key), encode(op.value, task.session_id), flags)
    guessed = memory.parents.missing(key, task.connection)
    missing = [guessed] if guessed else []
    while not task.connection.is_late(task.deadline):
        parts = [part for each in missing for part in layout.create_parent(each)]
        gens = reader.gens()
        names = Call(GET_CHILDREN, wire.path_and_flag(layout.path(above)), task.deadline)
        try:
            reply: Reply = yield task.connection.write([*parts, create], task.deadline, names)
        except Cut as cut:
            raise task.error(cut, write=True) from cut
        result = wire.parse_multi(reply)
        if reply.settled or result.error == OK:
            found = yield from _names(reader, above, names)
            made = "" if reply.settled else str(result.results[len(parts)]).rpartition("/")[2]
            made = made or (yield from _find(reader, task, key, found))
            for each in {above, *missing}:
                memory.parents.made(each)
            key = f"{above}/{made}" if above else made
            version = Version(reply.zxid, 0, gens[bucket(key)], reply.zxid, task.session_id, born=False)
            entry = Entry(key, op.value, version, reply.zxid, reply.zxid, task.session_id)
            memory.note(entry)
            known = found is not None and made in found
            return Ordered(entry, older(made, stem.rpartition("/")[2], found or ()) if known else None)
        if result.failed == len(parts) + 1:
            task.judge_evidence(result)
        elif result.error in {NO_NODE, NODE_EXISTS} and above:
            missing = yield from missing_parents(reader, task, above)
        else:
            raise task.refusal(result.error, key)
    raise Unavailable(f"{task.what}: the parent could not be prepared in time; nothing was changed, try again")


def older(own: str, stem: str, names: Iterable[str]) -> tuple[str, ...]:
    """The names of the same kind with smaller numbers than our own, the smallest first. Pure."""
    ours, found = _number(own), []
    for name in names:
        number = _number(name) if name.startswith(stem) else None
        if number is not None and ours is not None:
            distance = (number - ours + 2**31) % 2**32 - 2**31
            if distance < 0:
                found.append((distance, name))
    return tuple(name for _, name in sorted(found))


def _number(name: str) -> int | None:
    found = _NUMBER.search(name)
    return None if found is None else int(found[1])


def _names(reader: Reader, above: str, asked: Call) -> Steps[list[str] | None]:
    """The answer to the request for the names; None if the connection was lost before it."""
    try:
        names: list[str] = yield from reader.names_of(above, asked)
    except (Cut, LatchworkError):
        return None
    return names


def _find(reader: Reader, task: Task, key: str, names: Sequence[str] | None) -> Steps[str]:
    """The name of the key that a create made whose reply was lost: the only one that begins as it was asked for."""
    beginning = key.rpartition("/")[2]
    try:
        names = names or (yield from reader.names(task.connection, parent(key), task.deadline))
    except Cut as cut:
        raise task.error(Cut(sent=True, over=cut.over), write=True) from cut
    for name in names or ():
        if name.startswith(beginning):
            return name
    raise task.error(Cut(sent=True, over=False), write=True)
