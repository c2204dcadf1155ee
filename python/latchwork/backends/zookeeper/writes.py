"""Writing: the loop around ``compile_plan``, sequential keys, whole trees, and the sweep of empty parents.

A commit is one multi and one round trip when what is remembered of its keys is still true; otherwise the states are
read and it is compiled again, until it goes through, a freshly read check fails, or the time is over.
"""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

from latchwork.backends.outcomes import partly_deleted
from latchwork.backends.zookeeper import wire
from latchwork.backends.zookeeper.connection import Cut, EvidenceGone
from latchwork.backends.zookeeper.errors import code_error, cut_error, session_lost
from latchwork.backends.zookeeper.layout import (
    UNKNOWN,
    Layout,
    Version,
    Znode,
    ancestors,
    bucket,
    encode,
    known_key,
    parent,
)
from latchwork.backends.zookeeper.plan import HasDescendants, Known, NeedStates, Plan, compile_plan, entries_of
from latchwork.backends.zookeeper.wire import MULTI, MULTI_READ, NO_AUTH, NO_NODE, NODE_EXISTS, OK, Data, Reply
from latchwork.errors import InvalidKey, LatchworkError, TransactionTooLarge, Unavailable
from latchwork.types import At, Committed, Delete, Entry, Op, SessionAlive, SimpleCheck

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from latchwork.backends.futures import Steps
    from latchwork.backends.timer import Timer
    from latchwork.backends.zookeeper.connection import Connection
    from latchwork.backends.zookeeper.reads import Reader

_log = logging.getLogger(__name__)

_EVIDENCE_BYTES = 256
_MULTI_HEAD_BYTES = 9
_FINAL_CODES = frozenset({NO_AUTH, wire.EPHEMERAL_PARENT, wire.INVALID_ACL, wire.QUOTA_EXCEEDED})
_STALE_CODES = frozenset({NO_NODE, NODE_EXISTS, wire.BAD_VERSION, wire.NOT_EMPTY})
_REMEMBERED = 20_000
_BATCH = 100
_LONGEST_PAUSE_S = 0.05


@dataclass(frozen=True, slots=True)
class Task:
    """One call: through which connection, by when, for which session (None: none), and its name in messages."""

    connection: Connection
    deadline: float
    session_id: str | None
    what: str

    def error(self, cut: Cut, *, write: bool) -> LatchworkError:
        """What to tell the caller of a lost connection."""
        return cut_error(cut, what=self.what, write=write, session_id=self.session_id, closed=True)

    def may_retry(self) -> bool:
        """There is time, and somebody to ask."""
        return not self.connection.over and not self.connection.is_late(self.deadline)


class Memory:
    """The last version seen of a bounded number of keys; only a guess that saves a read. Safe to share."""

    def __init__(self) -> None:
        self._versions: dict[str, Version] = {}

    def note(self, entry: Entry | None) -> None:
        """Remember a version that a check can be built on."""
        if entry is None:
            return
        version = entry.version
        assert isinstance(version, Version)
        if UNKNOWN in {version.gen, version.data}:
            return
        if len(self._versions) >= _REMEMBERED:
            self._versions = {}
        self._versions[entry.key] = version

    def forget(self, keys: Iterable[str]) -> None:
        """These are gone."""
        for key in keys:
            self._versions.pop(key, None)

    def known(self, checks: Sequence[SimpleCheck], ops: Sequence[Op]) -> Known:
        """What may be guessed about the keys of a transaction; an ``At`` says itself what it saw."""
        nodes: dict[str, Znode] = {}
        versions = self._versions
        for each in (*checks, *ops):
            if not isinstance(each, SessionAlive):
                version = versions.get(each.key)
                if version is not None:
                    nodes[each.key] = known_key(version)
        for check in checks:
            if isinstance(check, At) and isinstance(check.version, Version):
                nodes[check.key] = known_key(check.version)
        return Known(nodes)


class Writer:
    """Writes through any connection that has its evidence. Safe to share.

    Args:
        layout: of the root.
        acl: of created znodes, as bytes of a request.
        reader: reads states, keeps the guards' versions.
        timer: for backoff.
        on_emptied: told of parents that may have lost their last child; must not block.
    """

    def __init__(
        self,
        layout: Layout,
        acl: bytes,
        reader: Reader,
        timer: Timer,
        on_emptied: Callable[[Iterable[str]], None],
    ) -> None:
        self._layout = layout
        self._acl = acl
        self._reader = reader
        self._timer = timer
        self.memory = Memory()
        self._kept: set[str] = set()  # parents known to have a ``#keep``: never swept
        self._on_emptied = on_emptied

    # Transactions.

    def commit(self, task: Task, checks: Sequence[SimpleCheck], ops: Sequence[Op]) -> Steps[Committed]:
        """One transaction, as ``Backend.commit``."""
        session_id = task.session_id
        known = self.memory.known(checks, ops)
        extra: frozenset[str] = frozenset()
        tidy, clear = True, False
        for attempt in count():
            try:
                plan = compile_plan(self._layout, self._acl, checks, ops, known, session_id=session_id, tidy=tidy)
            except NeedStates as need:
                extra |= need.keys
                known = yield from self._fresh(task, _keys_of(checks, ops, extra), checks, attempt)
                continue
            except HasDescendants as found:
                clear = yield from self._clear_below(task, found, clear_already=clear)
                known = yield from self._fresh(task, _keys_of(checks, ops, extra), checks, attempt)
                continue
            if not plan.writes and not checks:
                return Committed(0)
            if _size(plan) > wire.MAX_PAYLOAD - _EVIDENCE_BYTES:
                yield from self._make_parents(task, plan)
                known = Known({})
                continue
            gens = self._reader.gens()
            reply = yield from self._send(task, plan)
            if reply is None:  # it only checks, and the connection was lost
                continue
            result = wire.parse_multi(reply.body) if reply.body else wire.MultiReply([], reply.error)
            if result.error == OK:
                return self._done(plan, result.results, reply.zxid, gens)
            if result.failed < len(plan.parts):
                tidy = self._judge(task, plan, result, tidy=tidy)
            else:
                self._judge_evidence(task, result)
            known = yield from self._fresh(task, _keys_of(checks, ops, extra), checks, attempt)
        raise AssertionError("unreachable")

    def _clear_below(self, task: Task, found: HasDescendants, *, clear_already: bool) -> Steps[bool]:
        """Remove empty implied parents below a key that is to be bound; True if there were none.

        Raises:
            InvalidKey: there are keys; or what is below stays for ever: it numbers sequential keys.
        """
        try:
            names, hollow = yield from self._reader.children(task.connection, found.key, task.deadline)
        except Cut as cut:
            raise task.error(cut, write=False) from cut
        if names:
            raise InvalidKey(str(found))
        if not hollow and clear_already:
            raise InvalidKey(
                f"{found.key!r} cannot be bound to a session: sequential keys were created below it, and on ZooKeeper "
                "their numbering stays there for ever; bind another key"
            )
        yield from self.sweep(task.connection, hollow, task.deadline)
        return not hollow

    def _fresh(self, task: Task, keys: Sequence[str], checks: Sequence[SimpleCheck], attempt: int) -> Steps[Known]:
        """Read the states of all keys; after some attempts, wait a little first."""
        if attempt >= 2:
            yield self._timer.after(random.uniform(0, min(_LONGEST_PAUSE_S, 0.001 * 2 ** min(attempt, 10))))
        if attempt and task.connection.is_late(task.deadline):
            raise Unavailable(f"{task.what}: others kept changing the same keys until the time was over; try again")
        sessions = [each.session_id for each in checks if isinstance(each, SessionAlive)]
        while True:
            try:
                return (yield from self._reader.states(task.connection, keys, sessions, task.deadline))
            except Cut as cut:
                if not task.may_retry():
                    raise task.error(cut, write=False) from cut

    def _send(self, task: Task, plan: Plan) -> Steps[Reply | None]:
        parts = [part.data for part in plan.parts]
        connection = task.connection
        try:
            if plan.writes:
                reply: Reply = yield connection.write(parts, task.deadline)
            else:
                reply = yield connection.call(MULTI, wire.multi(parts), task.deadline)
        except Cut as cut:
            if not plan.writes and task.may_retry():
                return None
            raise task.error(cut, write=plan.writes) from cut
        return reply

    def _done(self, plan: Plan, results: Sequence[object], token: int, gens: list[int]) -> Committed:
        now = dict(enumerate(gens))
        for number, index in plan.bumped.items():
            guard = results[index] if results else None
            now[number] = guard.version if isinstance(guard, wire.Stat) else UNKNOWN
            if isinstance(guard, wire.Stat):
                self._reader.learn(number, guard.version)
        if not plan.writes:
            return Committed(0)
        entries = entries_of(plan, results, token, now)
        self.memory.forget(plan.deleted)
        for entry in entries:
            self.memory.note(entry)
        emptied = plan.emptied - self._kept
        if emptied:
            self._on_emptied(emptied)
        return Committed(token, entries, tuple(plan.deleted))

    def _judge(self, task: Task, plan: Plan, result: wire.MultiReply, *, tidy: bool) -> bool:
        """Raise what reading again cannot help with; else whether to tidy in the next attempt."""
        if result.failed < 0:  # the request as a whole was refused
            if result.error == wire.SESSION_EXPIRED and task.session_id is not None:
                raise session_lost(task.session_id, task.what)
            if result.error in _FINAL_CODES:
                raise code_error(result.error, what=task.what, key=plan.parts[-1].key)
            return tidy
        part = plan.parts[result.failed]
        if part.role == "tidy" and result.error == NO_AUTH:
            return False
        if part.role == "probe" and result.error == wire.EPHEMERAL_PARENT:
            return tidy  # nothing can be there, but that has to be guarded in another way
        if result.error not in _STALE_CODES:
            raise code_error(result.error, what=task.what, key=part.key or plan.parts[-1].key)
        return tidy

    def _judge_evidence(self, task: Task, result: wire.MultiReply) -> None:
        """The multi failed at the evidence that was added to it."""
        if result.error != NO_NODE:
            raise code_error(result.error, what=task.what, key="@w")
        if task.session_id is not None:
            raise session_lost(task.session_id, task.what)
        task.connection.evidence = None
        raise EvidenceGone

    def _make_parents(self, task: Task, plan: Plan) -> Steps[None]:
        """Create the missing parents beforehand, where the multi would be too long with them."""
        parts = [part.data for part in plan.parts if part.role == "parent"]
        if not parts:
            raise TransactionTooLarge(
                f"{task.what}: {_size(plan)} bytes with all that ZooKeeper needs, and it takes at most "
                f"{wire.MAX_PAYLOAD}; write in several transactions"
            )
        for at in range(0, len(parts), _BATCH):
            try:
                reply: Reply = yield task.connection.call(MULTI, wire.multi(parts[at : at + _BATCH]), task.deadline)
            except Cut as cut:
                raise task.error(cut, write=False) from cut
            result = wire.parse_multi(reply.body)
            if result.error in _FINAL_CODES:
                raise code_error(result.error, what=task.what, key=plan.outcomes[0].key)

    # Sequential keys.

    def create_sequential(self, task: Task, key: str, value: bytes) -> Steps[Entry]:
        """ZooKeeper's own counter, under a parent that is kept for ever because of its ``#keep``."""
        above = parent(key)
        flags = wire.SEQUENTIAL | (wire.PERSISTENT if task.session_id is None else wire.EPHEMERAL)
        ticket = wire.create(self._layout.path(key), encode(value, task.session_id), self._acl, flags)
        parts = [wire.check(self._layout.keep(above)), ticket] if above else [ticket]
        while not task.connection.is_late(task.deadline):
            gens = self._reader.gens()
            try:
                reply: Reply = yield task.connection.write(parts, task.deadline)
            except Cut as cut:
                raise task.error(cut, write=True) from cut
            result = wire.parse_multi(reply.body) if reply.body else wire.MultiReply([], reply.error)
            if reply.settled:
                made = yield from self._find_ticket(task, key, reply.zxid)
            elif result.error == OK:
                self._note_kept(above)
                name = str(result.results[len(parts) - 1]).rpartition("/")[2]
                made = f"{above}/{name}" if above else name
            elif result.failed == len(parts):
                self._judge_evidence(task, result)
                continue
            else:
                yield from self._prepare_counter(task, key, result)
                continue
            version = Version(reply.zxid, 0, gens[bucket(made)], reply.zxid, task.session_id, born=False)
            entry = Entry(made, value, version, reply.zxid, reply.zxid, task.session_id)
            self.memory.note(entry)
            return entry
        raise Unavailable(f"{task.what}: the parent could not be prepared in time; nothing was changed, try again")

    def _note_kept(self, parent_key: str) -> None:
        """So that nobody looks whether it is empty each time a ticket of it is deleted."""
        if len(self._kept) >= _REMEMBERED:
            self._kept = set()
        self._kept.add(parent_key)

    def _prepare_counter(self, task: Task, key: str, result: wire.MultiReply) -> Steps[None]:
        """Create the parent with its ``#keep``; others may do the same."""
        if result.error != NO_NODE:
            raise code_error(result.error, what=task.what, key=key)
        above = parent(key)
        parts: list[bytes] = []
        try:
            known = yield from self._reader.states(task.connection, [above], [], task.deadline)
            for each in reversed([above, *ancestors(above)]):
                if not known.nodes[each].exists:
                    path = self._layout.path(each)
                    parts += [wire.create(path, b"", self._acl), wire.set_data(path, b"", 0)]
            parts.append(wire.create(self._layout.keep(above), b"", self._acl))
            reply: Reply = yield task.connection.call(MULTI, wire.multi(parts), task.deadline)
        except Cut as cut:
            raise task.error(cut, write=False) from cut
        error = wire.parse_multi(reply.body).error if reply.body else reply.error
        if error in _FINAL_CODES:
            raise code_error(error, what=task.what, key=key)

    def _find_ticket(self, task: Task, key: str, token: int) -> Steps[str]:
        """The key that a create made whose reply was lost: the child that this transaction created."""
        above = parent(key)
        try:
            names = yield from self._reader.names(task.connection, above, task.deadline)
            keys = [each for each in self._reader.below(above, names) if each.startswith(key)]
            entries = yield from self._reader.read_keys(task.connection, keys, self._reader.gens(), task.deadline)
        except Cut as cut:
            raise task.error(Cut(sent=True, over=cut.over), write=True) from cut
        for entry in entries:
            if entry is not None and entry.created == token:
                made: str = entry.key
                return made
        raise task.error(Cut(sent=True, over=False), write=True)

    # Trees and leftovers.

    def delete_tree(self, task: Task, prefix: str) -> Steps[int]:
        """Delete what is there now, the deepest first, in transactions of some keys each."""
        try:
            gens = self._reader.gens()
            yield task.connection.confirm(task.deadline)
            entries = yield from self._reader.subtree(task.connection, prefix, task.deadline, gens)
            if prefix:
                own = yield from self._reader.read_keys(task.connection, [prefix], gens, task.deadline)
                entries += [entry for entry in own if entry is not None]
        except Cut as cut:
            raise task.error(cut, write=False) from cut
        for entry in entries:
            self.memory.note(entry)
        keys = sorted((entry.key for entry in entries), reverse=True)
        deleted = 0
        for at in range(0, len(keys), _BATCH):
            try:
                committed = yield from self.commit(task, [], [Delete(key) for key in keys[at : at + _BATCH]])
            except LatchworkError as error:
                if not deleted:
                    raise
                raise partly_deleted(task.what, deleted, len(keys), error) from error
            deleted += len(committed.deleted)
        above = {each for key in keys for each in ancestors(key)}
        yield from self.sweep(task.connection, above, task.deadline)
        return deleted

    def sweep(self, connection: Connection, keys: Iterable[str], deadline: float) -> Steps[None]:
        """Remove those of these that are implied parents without children, and their parents likewise. Best effort."""
        left = sorted(keys, key=len, reverse=True)
        while left:
            try:
                known = yield from self._reader.states(connection, left[:_BATCH], [], deadline)
                flying = []
                for key in left[:_BATCH]:
                    node = known.nodes[key]
                    if node.exists and node.version is None and not node.children and not node.leaf:
                        flying.append((key, connection.call(MULTI, wire.multi(self._removal(key, node)), deadline)))
                above = set()
                for key, call in flying:
                    reply: Reply = yield call
                    if reply.body and wire.parse_multi(reply.body).error == OK:
                        above.add(parent(key))
            except (Cut, LatchworkError) as error:
                _log.debug("empty parents were not swept: %s", error)
                return
            left = sorted({*left[_BATCH:], *above} - {""}, key=len, reverse=True)

    def _removal(self, key: str, node: Znode) -> list[bytes]:
        """Guarded: a key that came to life at this path in the meantime has bumped the guard, or another version."""
        return [
            wire.set_data(self._layout.guard(key), b"", node.gen),
            wire.delete(self._layout.path(key), node.data),
        ]

    # Beginnings.

    def prepare(self, task: Task, path: str) -> Steps[int]:
        """Create an ephemeral znode that is the connection's evidence, and the root if it is missing; its zxid."""
        payload = wire.create(path, b"", self._acl, wire.EPHEMERAL)[_MULTI_HEAD_BYTES:]
        while not task.connection.is_late(task.deadline):
            try:
                reply: Reply = yield task.connection.call(wire.CREATE, payload, task.deadline)
                if reply.error == NO_NODE:
                    yield from self._make_root(task)
                    continue
                if reply.error not in {OK, NODE_EXISTS}:
                    raise code_error(reply.error, what=task.what, key=self._layout.root)
                yield from self._learn_guards(task)
            except Cut as cut:
                if cut.sent and not cut.over and task.may_retry():
                    continue  # the path is unique: if it is there already, it is ours
                raise task.error(cut, write=False) from cut
            task.connection.evidence = path
            return reply.zxid
        raise Unavailable(f"{task.what}: the root {self._layout.root} could not be prepared in time; try again")

    def _make_root(self, task: Task) -> Steps[None]:
        """Create what is missing of the root, its guards and its folders."""
        for path in self._layout.root_parts():
            payload = wire.create(path, b"", self._acl)[_MULTI_HEAD_BYTES:]
            reply: Reply = yield task.connection.call(wire.CREATE, payload, task.deadline)
        if reply.error not in {OK, NODE_EXISTS}:
            # Above the root anything may be refused: it only matters that the root itself is there.
            payload = wire.path_and_flag(self._layout.root)
            there: Reply = yield task.connection.call(wire.EXISTS, payload, task.deadline)
            if there.error != OK:
                raise code_error(reply.error, what=task.what, key=self._layout.root)
        parts = [wire.create(path, b"", self._acl) for path in (*self._layout.folders, *self._layout.guards)]
        reply = yield task.connection.call(MULTI, wire.multi(parts), task.deadline)
        error = wire.parse_multi(reply.body).error if reply.body else reply.error
        if error not in {OK, NODE_EXISTS}:
            raise code_error(error, what=task.what, key=self._layout.root)

    def _learn_guards(self, task: Task) -> Steps[None]:
        payload = wire.multi([wire.read_data(path) for path in self._layout.guards])
        reply: Reply = yield task.connection.call(MULTI_READ, payload, task.deadline)
        for number, guard in enumerate(wire.parse_multi_read(reply.body)):
            if isinstance(guard, Data):
                self._reader.learn(number, guard.stat.version)


def _size(plan: Plan) -> int:
    return sum(len(part.data) for part in plan.parts)


def _keys_of(checks: Sequence[SimpleCheck], ops: Sequence[Op], extra: Iterable[str]) -> list[str]:
    keys = {each.key: None for each in (*checks, *ops) if not isinstance(each, SessionAlive)}
    return list(keys | dict.fromkeys(extra))
