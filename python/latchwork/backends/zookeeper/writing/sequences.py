"""The creation of sequential and ordered keys, which ZooKeeper's own counter numbers.

The znode ``#keep`` prevents the removal of a parent of sequential keys.

ZooKeeper's counter has 31 bits, and names after its end would sort before all others. A million numbers before the end,
the first number after the end is written into ``#keep``. Clients that use the server's counter check that nothing was
written there. From then on they use the number in ``#keep``, one creator at a time. docs/design/zookeeper.md describes
the races.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Sequence

from latchwork.backends.futures import FutureGenerator
from latchwork.backends.key_syntax import SUFFIX_DIGITS, append_number
from latchwork.backends.zookeeper import wire
from latchwork.backends.zookeeper.errors import FINAL_CODES, NoReply
from latchwork.backends.zookeeper.layout import Version, build_child_keys, encode_data, get_bucket, get_parent
from latchwork.backends.zookeeper.loop import Request
from latchwork.backends.zookeeper.reads import ZooKeeperReader
from latchwork.backends.zookeeper.wire import (
    BAD_VERSION,
    GET_CHILDREN,
    NO_NODE,
    NODE_EXISTS,
    OK,
    Data,
    MultiReply,
    Reply,
)
from latchwork.backends.zookeeper.writing.compiler import MultiPlan
from latchwork.backends.zookeeper.writing.parents import find_missing_parents
from latchwork.backends.zookeeper.writing.states import VersionCache
from latchwork.backends.zookeeper.writing.write_task import WriteTask
from latchwork.errors import LatchworkError, Unavailable
from latchwork.types import Create, Entry, OrderedKey

#: The first number that the server's counter cannot give, and how long before it is counted on in ``#keep``.
FIRST_OF_OURS, MARGIN = 2**31, 2**20
#: ``#keep`` as it was created.
_UNTOUCHED = 0
_NUMBER = re.compile(r"-(-?\d{9,})\Z")


def create_sequential(
    reader: ZooKeeperReader, version_cache: VersionCache, task: WriteTask, key: str, value: bytes
) -> FutureGenerator[Entry]:
    """Create a key with the next number as its suffix. Return its entry.

    Args:
        reader: Reads the counter.
        version_cache: The known versions of keys.
        task: The call that writes.
        key: The key without the number.
        value: The value of the key.
    """
    above, layout = get_parent(key), reader.layout
    flags = wire.PERSISTENT if task.session_id is None else wire.EPHEMERAL
    data, keep = encode_data(value, task.session_id), layout.keep_path(above)
    by_server = [
        wire.encode_check(keep, _UNTOUCHED),
        layout.encode_create(layout.path(key), data, wire.SEQUENTIAL | flags),
    ]
    parts, made, taken = by_server, "", 0
    while not task.connection.has_passed(task.deadline):
        gens = reader.guard_versions()
        try:
            reply: Reply = yield task.connection.write(parts, task.deadline)
        except NoReply as no_reply:
            raise task.no_reply_error(no_reply, is_write=True) from no_reply
        result = wire.parse_multi(reply)
        if reply.resolved or result.error == OK:
            if parts is by_server:
                made = yield from _get_numbered_key(reader, task, key, reply, result)
            version_cache.record_sequence_parent(above)
            version = Version(reply.zxid, 0, gens[get_bucket(made)], reply.zxid, task.session_id, born=False)
            entry = Entry(made, value, version, reply.zxid, reply.zxid, task.session_id)
            version_cache.record(entry)
            return entry
        if result.failed == len(parts):
            task.require_write_counter(result)
        elif result.error == NO_NODE and parts is by_server:
            yield from _prepare_counter(reader, task, key, result)
        elif result.error == BAD_VERSION or (result.error == NODE_EXISTS and parts is not by_server):
            taken += result.error == NODE_EXISTS  # else the server's counter has ended, or another creator was faster
            number, version_of_keep = yield from _read_next_number(reader, task, above)
            made = append_number(key, number + taken)
            parts = [
                wire.encode_set_data(keep, b"%d" % (number + taken + 1), version_of_keep),
                layout.encode_create(layout.path(made), data, flags),
            ]
        else:
            raise task.refusal_error(result.error, key)
    raise Unavailable(f"{task.what}: the parent could not be prepared in time; nothing was changed, try again")


def _get_numbered_key(
    reader: ZooKeeperReader, task: WriteTask, key: str, reply: Reply, result: MultiReply
) -> FutureGenerator[str]:
    """Return the key that was created with a number of the server's counter.

    If that counter is nearly used up, make all clients use the number in ``#keep``.

    Args:
        reader: Has the paths of the root.
        task: The call that writes.
        key: The key without the number.
        reply: The reply to the transaction.
        result: The decoded reply.
    """
    above = get_parent(key)
    if reply.resolved:
        made: str = yield from _find_created(reader, task, key, reply.zxid)
    else:
        name = str(result.results[1]).rpartition("/")[2]
        made = f"{above}/{name}" if above else name
    if int(made[-SUFFIX_DIGITS:]) >= FIRST_OF_OURS - MARGIN:
        with contextlib.suppress(LatchworkError):  # the next one does it
            yield from task.send(
                [wire.encode_set_data(reader.layout.keep_path(above), b"%d" % FIRST_OF_OURS, _UNTOUCHED)]
            )
    return made


def _read_next_number(reader: ZooKeeperReader, task: WriteTask, parent_key: str) -> FutureGenerator[tuple[int, int]]:
    """Return the next number in the ``#keep`` of a parent, and the version of that znode."""
    try:
        context, barrier = reader.begin_read(task.connection, task.deadline)
        (found,) = yield from reader.read_data(context, [reader.layout.keep_path(parent_key)])
        yield barrier
    except NoReply as no_reply:
        raise task.no_reply_error(no_reply, is_write=False) from no_reply
    if not isinstance(found, Data):
        raise Unavailable(
            f"{task.what}: the counter of {parent_key!r} was deleted by another program; nothing was changed"
        )
    return max(FIRST_OF_OURS, int(found.data) if found.data.isdigit() else 0), found.stat.version


def _prepare_counter(reader: ZooKeeperReader, task: WriteTask, key: str, result: MultiReply) -> FutureGenerator[None]:
    """Create a parent of sequential keys and its permanent ``#keep`` znode. Safe if other clients do the same at
    once.
    """
    if result.error != NO_NODE:
        raise task.refusal_error(result.error, key)
    above, layout = get_parent(key), reader.layout
    parts: list[bytes] = []
    if above:
        for each in (yield from find_missing_parents(reader, task, above)):
            parts += layout.encode_create_parent(each)
    parts.append(layout.encode_create(layout.keep_path(above)))
    made = yield from task.send(parts)
    if made.error in FINAL_CODES:
        raise task.refusal_error(made.error, key)


def _find_created(reader: ZooKeeperReader, task: WriteTask, key: str, token: int) -> FutureGenerator[str]:
    """Return the key that was created by a request without a reply: the child with the transaction number ``token``."""
    above = get_parent(key)
    try:
        names = yield from reader.list_names(task.connection, above, task.deadline)
        keys = [each for each in build_child_keys(above, names) if each.startswith(key)]
        entries = yield from reader.read_keys(reader.make_context(task.connection, task.deadline), keys)
    except NoReply as no_reply:
        raise task.no_reply_error(NoReply(sent=True, has_ended=no_reply.has_ended), is_write=True) from no_reply
    for entry in entries:
        if entry is not None and entry.created == token:
            made: str = entry.key
            return made
    raise task.no_reply_error(NoReply(sent=True, has_ended=False), is_write=True)


def create_ordered_key(
    reader: ZooKeeperReader, version_cache: VersionCache, task: WriteTask, key_prefix: str, op: Create
) -> FutureGenerator[OrderedKey]:
    """Create a key and read the older keys with the same key prefix. See ``Backend.create_ordered_key``.

    The names below the parent are requested directly after the creation, without waiting for the first reply.
    """
    key, layout = f"{op.key}-", reader.layout
    above = get_parent(key)
    flags = wire.SEQUENTIAL | (wire.PERSISTENT if task.session_id is None else wire.EPHEMERAL)
    create = layout.encode_create(layout.path(key), encode_data(op.value, task.session_id), flags)
    parents = version_cache.parents
    guessed = parents.find_missing_parent(key, task.connection)
    missing = [guessed] if guessed else []
    has_retried = False
    while not task.connection.has_passed(task.deadline):
        parts = [part for each in missing for part in layout.encode_create_parent(each)]
        gens = reader.guard_versions()
        names = Request(GET_CHILDREN, wire.encode_path_request(layout.path(above)), task.deadline)
        call, plan = task.connection.write([*parts, create], task.deadline, names), MultiPlan(makes=missing)
        parents.record_sent(plan, task.connection)
        try:
            reply: Reply = yield call
        except NoReply as no_reply:
            raise task.no_reply_error(no_reply, is_write=True) from no_reply
        finally:
            parents.record_ended(plan)
        result = wire.parse_multi(reply)
        if reply.resolved or result.error == OK:
            found = yield from _wait_for_names(reader, above, names)
            made = "" if reply.resolved else str(result.results[len(parts)]).rpartition("/")[2]
            made = made or (yield from _find_created_by_name(reader, task, key, found))
            for each in {above, *missing}:
                parents.record_key_written(each)
            key = f"{above}/{made}" if above else made
            version = Version(reply.zxid, 0, gens[get_bucket(key)], reply.zxid, task.session_id, born=False)
            entry = Entry(key, op.value, version, reply.zxid, reply.zxid, task.session_id)
            version_cache.record(entry)
            known = found is not None and made in found
            return OrderedKey(
                entry, find_older_names(made, key_prefix.rpartition("/")[2], found or ()) if known else None
            )
        if result.failed == len(parts) + 1:
            task.require_write_counter(result)
        elif result.error in {NO_NODE, NODE_EXISTS} and above:
            missing = yield from find_missing_parents(reader, task, above)
            if not has_retried:  # later the call creates its parents itself
                missing = [each for each in missing if not parents.is_being_created(each, task.connection)]
            has_retried = True
        else:
            raise task.refusal_error(result.error, key)
    raise Unavailable(f"{task.what}: the parent could not be prepared in time; nothing was changed, try again")


def find_older_names(own: str, name_prefix: str, names: Iterable[str]) -> tuple[str, ...]:
    """Return the names that begin with a prefix and have a smaller number than one name, the smallest first.

    Args:
        own: The name to compare with.
        name_prefix: The beginning of the names.
        names: All names below the parent.
    """
    own_number, found = _number(own), []
    for name in names:
        number = _number(name) if name.startswith(name_prefix) else None
        if number is not None and own_number is not None:
            distance = (number - own_number + 2**31) % 2**32 - 2**31
            if distance < 0:
                found.append((distance, name))
    return tuple(name for _, name in sorted(found))


def _number(name: str) -> int | None:
    found = _NUMBER.search(name)
    return None if found is None else int(found[1])


def _wait_for_names(reader: ZooKeeperReader, parent_key: str, request: Request) -> FutureGenerator[list[str] | None]:
    """Wait for the requested names. Return None if the connection was lost before the reply."""
    try:
        names: list[str] = yield from reader.receive_names(parent_key, request)
    except (NoReply, LatchworkError):
        return None
    return names


def _find_created_by_name(
    reader: ZooKeeperReader, task: WriteTask, key: str, names: Sequence[str] | None
) -> FutureGenerator[str]:
    """Return the key that was created by a request without a reply: the only key whose name contains its unique
    text.
    """
    beginning = key.rpartition("/")[2]
    try:
        names = names or (yield from reader.list_names(task.connection, get_parent(key), task.deadline))
    except NoReply as no_reply:
        raise task.no_reply_error(NoReply(sent=True, has_ended=no_reply.has_ended), is_write=True) from no_reply
    for name in names or ():
        if name.startswith(beginning):
            return name
    raise task.no_reply_error(NoReply(sent=True, has_ended=False), is_write=True)
