"""Writing: the loop around ``compile_plan``, sequential keys, whole trees, and the sweep of empty parents.

A commit is one multi and one round trip when what is remembered of its keys is still true; otherwise the states are
read and it is compiled again, until it goes through, a freshly read check fails, or the time is over.
"""

from __future__ import annotations

import logging
import random
from itertools import count
from typing import TYPE_CHECKING

from latchwork.backends.zookeeper import wire
from latchwork.backends.zookeeper.connection import Cut, EvidenceGone
from latchwork.backends.zookeeper.failures import code_error, cut_error, session_lost
from latchwork.backends.zookeeper.nodes import (
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
from latchwork.backends.zookeeper.plan import Known, NeedStates, Plan, compile_plan, entries_of
from latchwork.backends.zookeeper.wire import MULTI, MULTI_READ, NO_AUTH, NO_NODE, NODE_EXISTS, OK, Data, Reply
from latchwork.errors import LatchworkError, TransactionTooLarge, Unavailable
from latchwork.types import Absent, At, Committed, Delete, Entry, Op, SessionAlive, SimpleCheck

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from latchwork.backends.futures import Steps
    from latchwork.backends.zookeeper.connection import Connection
    from latchwork.backends.zookeeper.reads import Reader
    from latchwork.backends.zookeeper.ticker import Ticker

_log = logging.getLogger(__name__)

_EVIDENCE_BYTES = 256
_FINAL_CODES = frozenset({NO_AUTH, wire.EPHEMERAL_PARENT, wire.INVALID_ACL, wire.QUOTA_EXCEEDED})
_STALE_CODES = frozenset({NO_NODE, NODE_EXISTS, wire.BAD_VERSION, wire.NOT_EMPTY})
_REMEMBERED = 20_000
_BATCH = 100
_LONGEST_PAUSE_S = 0.05


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
        if version.gen == UNKNOWN or version.data == UNKNOWN:
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
        ticker: for backoff.
        on_emptied: told of parents that may have lost their last child; must not block.
    """

    def __init__(
        self,
        layout: Layout,
        acl: bytes,
        reader: Reader,
        ticker: Ticker,
        on_emptied: Callable[[Iterable[str]], None],
    ) -> None:
        self._layout = layout
        self._acl = acl
        self._reader = reader
        self._ticker = ticker
        self.memory = Memory()
        self._on_emptied = on_emptied

    # Transactions.

    def commit(
        self,
        connection: Connection,
        checks: Sequence[SimpleCheck],
        ops: Sequence[Op],
        deadline: float,
        session_id: str | None,
    ) -> Steps[Committed]:
        """One transaction, as ``Backend.commit``."""
        what = describe(checks, ops)
        known = self.memory.known(checks, ops)
        extra: frozenset[str] = frozenset()
        tidy = True
        for attempt in count():
            try:
                plan = compile_plan(self._layout, self._acl, checks, ops, known, session_id=session_id, tidy=tidy)
            except NeedStates as need:
                extra |= need.keys
                known = yield from self._fresh(connection, checks, ops, extra, deadline, what, attempt)
                continue
            if not plan.writes and not checks:
                return Committed(0)
            if _size(plan) > wire.MAX_PAYLOAD - _EVIDENCE_BYTES:
                yield from self._make_parents(connection, plan, deadline, what)
                known = Known({})
                continue
            gens = self._reader.gens()
            reply = yield from self._send(connection, plan, deadline, what, session_id)
            if reply is None:  # nothing happened, and nothing is known to have changed: the connection was lost
                continue
            result = wire.parse_multi(reply.body) if reply.body else wire.MultiReply([], reply.error)
            if reply.settled or (reply.error == OK and result.error == OK):
                return self._done(plan, result.results, reply.zxid, gens)
            tidy = self._judge(plan, result, connection, what, session_id, tidy=tidy)
            known = yield from self._fresh(connection, checks, ops, extra, deadline, what, attempt)
        raise AssertionError("unreachable")

    def _fresh(
        self,
        connection: Connection,
        checks: Sequence[SimpleCheck],
        ops: Sequence[Op],
        extra: frozenset[str],
        deadline: float,
        what: str,
        attempt: int,
    ) -> Steps[Known]:
        """Read the states of all keys; after some attempts, wait a little first."""
        if attempt >= 2:
            yield self._ticker.pause(random.uniform(0, min(_LONGEST_PAUSE_S, 0.001 * 2 ** min(attempt, 10))))
        if attempt and connection.is_late(deadline):
            raise Unavailable(f"{what}: others kept changing the same keys until the time was over; try again")
        keys = {each.key: None for each in (*checks, *ops) if not isinstance(each, SessionAlive)}
        keys.update(dict.fromkeys(extra))
        sessions = [each.session_id for each in checks if isinstance(each, SessionAlive)]
        while True:
            try:
                return (yield from self._reader.states(connection, list(keys), sessions, deadline))
            except Cut as cut:
                if connection.over or connection.is_late(deadline):
                    raise cut_error(cut, what=what, write=False, closed=True) from cut

    def _send(
        self, connection: Connection, plan: Plan, deadline: float, what: str, session_id: str | None
    ) -> Steps[Reply | None]:
        parts = [part.data for part in plan.parts]
        call = connection.write(parts, deadline) if plan.writes else connection.call(MULTI, wire.multi(parts), deadline)
        try:
            reply: Reply = yield call
        except Cut as cut:
            retry = not plan.writes and not connection.over and not connection.is_late(deadline)
            if retry:
                return None
            raise cut_error(cut, what=what, write=plan.writes, session_id=session_id, closed=True) from cut
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
        if plan.emptied:
            self._on_emptied(plan.emptied)
        return Committed(token, entries, tuple(plan.deleted))

    def _judge(
        self,
        plan: Plan,
        result: wire.MultiReply,
        connection: Connection,
        what: str,
        session_id: str | None,
        *,
        tidy: bool,
    ) -> bool:
        """Raise what reading again cannot help with; else whether to tidy in the next attempt."""
        if result.failed >= len(plan.parts) or result.failed < 0:
            if result.error == NO_NODE and result.failed >= 0:
                if session_id is not None:
                    raise session_lost(session_id, what)
                connection.evidence = None
                raise EvidenceGone
            if result.error in _FINAL_CODES:
                raise code_error(result.error, what=what, key="")
            if result.error == wire.SESSION_EXPIRED and session_id is not None:
                raise session_lost(session_id, what)
            return tidy
        part = plan.parts[result.failed]
        if part.role == "tidy" and result.error == NO_AUTH:
            return False
        if result.error not in _STALE_CODES:
            raise code_error(result.error, what=what, key=part.key)
        return tidy

    def _make_parents(self, connection: Connection, plan: Plan, deadline: float, what: str) -> Steps[None]:
        """Create the missing parents beforehand, where the multi would be too long with them."""
        parts = [part.data for part in plan.parts if part.role == "parent"]
        if not parts:
            raise TransactionTooLarge(
                f"{what}: {_size(plan)} bytes with all that ZooKeeper needs, and it takes at most {wire.MAX_PAYLOAD}; "
                "write in several transactions"
            )
        step = 2 * max(1, _BATCH // 2)
        for at in range(0, len(parts), step):
            try:
                reply: Reply = yield connection.call(MULTI, wire.multi(parts[at : at + step]), deadline)
            except Cut as cut:
                raise cut_error(cut, what=what, write=False, closed=True) from cut
            result = wire.parse_multi(reply.body)
            if result.error in _FINAL_CODES:
                raise code_error(result.error, what=what, key=plan.outcomes[0].key)

    # Sequential keys.

    def create_sequential(
        self, connection: Connection, key: str, value: bytes, deadline: float, session_id: str | None
    ) -> Steps[Entry]:
        """ZooKeeper's own counter, under a parent that is kept for ever because of its ``#keep``."""
        what = f"create {key!r} with a suffix"
        above = parent(key)
        flags = wire.SEQUENTIAL | (wire.PERSISTENT if session_id is None else wire.EPHEMERAL)
        ticket = wire.create(self._layout.path(key), encode(value, session_id), self._acl, flags)
        parts = [wire.check(self._layout.keep(above)), ticket] if above else [ticket]
        while not connection.is_late(deadline):
            gens = self._reader.gens()
            try:
                reply: Reply = yield connection.write(parts, deadline)
            except Cut as cut:
                raise cut_error(cut, what=what, write=True, session_id=session_id, closed=True) from cut
            result = wire.parse_multi(reply.body) if reply.body else wire.MultiReply([], reply.error)
            if reply.settled:
                name = yield from self._find_ticket(connection, key, reply.zxid, deadline, what)
            elif result.error == OK:
                name = str(result.results[len(parts) - 1]).rpartition("/")[2]
            else:
                yield from self._prepare_counter(connection, key, result, len(parts), deadline, what, session_id)
                continue
            made = f"{above}/{name}" if above else name
            version = Version(reply.zxid, 0, gens[bucket(made)], reply.zxid, session_id, born=False)
            entry = Entry(made, value, version, reply.zxid, reply.zxid, session_id)
            self.memory.note(entry)
            return entry
        raise Unavailable(f"{what}: the parent could not be prepared in time; nothing was changed, try again")

    def _prepare_counter(
        self,
        connection: Connection,
        key: str,
        result: wire.MultiReply,
        evidence: int,
        deadline: float,
        what: str,
        session_id: str | None,
    ) -> Steps[None]:
        if result.failed == evidence and result.error == NO_NODE:
            if session_id is not None:
                raise session_lost(session_id, what)
            connection.evidence = None
            raise EvidenceGone
        if result.error != NO_NODE:
            raise code_error(result.error, what=what, key=key)
        above = parent(key)
        parts: list[bytes] = []
        try:
            known = yield from self._reader.states(connection, [above], [], deadline)
            for each in reversed([above, *ancestors(above)]):
                if not known.nodes[each].exists:
                    path = self._layout.path(each)
                    parts += [wire.create(path, b"", self._acl), wire.set_data(path, b"", 0)]
            parts.append(wire.create(self._layout.keep(above), b"", self._acl))
            reply: Reply = yield connection.call(MULTI, wire.multi(parts), deadline)
        except Cut as cut:
            raise cut_error(cut, what=what, write=False, session_id=session_id, closed=True) from cut
        error = wire.parse_multi(reply.body).error if reply.body else reply.error
        if error in _FINAL_CODES:
            raise code_error(error, what=what, key=key)

    def _find_ticket(self, connection: Connection, key: str, token: int, deadline: float, what: str) -> Steps[str]:
        """The name that a create was given whose reply was lost: the child that this transaction created."""
        above = parent(key)
        try:
            names = yield from self._reader.names(connection, above, deadline)
            keys = [each for each in self._reader.below(above, names) if each.startswith(key)]
            entries = yield from self._reader.read_keys(connection, keys, self._reader.gens(), deadline)
        except Cut as cut:
            raise cut_error(cut, what=what, write=True) from cut
        for entry in entries:
            if entry is not None and entry.created == token:
                return entry.key.rpartition("/")[2]
        raise cut_error(Cut(sent=True, over=False), what=what, write=True)

    # Trees and leftovers.

    def delete_tree(self, connection: Connection, prefix: str, deadline: float) -> Steps[int]:
        """Delete what is there now, the deepest first, in transactions of some keys each."""
        what = f"delete tree {prefix!r}"
        try:
            gens = self._reader.gens()
            yield connection.confirm(deadline)
            entries = yield from self._reader.subtree(connection, prefix, deadline, gens)
            own = (yield from self._reader.read_keys(connection, [prefix], gens, deadline)) if prefix else []
        except Cut as cut:
            raise cut_error(cut, what=what, write=False, closed=True) from cut
        keys = [entry.key for entry in (*own, *entries) if entry is not None]
        for entry in (*own, *entries):
            self.memory.note(entry)
        keys.sort(reverse=True)
        deleted = 0
        for at in range(0, len(keys), _BATCH):
            ops = [Delete(key) for key in keys[at : at + _BATCH]]
            committed = yield from self.commit(connection, [], ops, deadline, None)
            deleted += len(committed.deleted)
        yield from self.sweep(connection, {above for key in keys for above in ancestors(key)}, deadline)
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

    def prepare(self, connection: Connection, path: str, deadline: float, what: str) -> Steps[int]:
        """Create an ephemeral znode that is the connection's evidence, and the root if it is missing; its zxid."""
        payload = wire.create(path, b"", self._acl, wire.EPHEMERAL)[9:]
        while not connection.is_late(deadline):
            try:
                reply: Reply = yield connection.call(wire.CREATE, payload, deadline)
            except Cut as cut:
                if connection.over or cut.over or not cut.sent:
                    raise cut_error(cut, what=what, write=False, closed=True) from cut
                continue  # the path is unique: if it is there already, it is ours
            if reply.error == NO_NODE:
                yield from self._make_root(connection, deadline, what)
                continue
            if reply.error not in {OK, NODE_EXISTS}:
                raise code_error(reply.error, what=what, key=self._layout.root)
            connection.evidence = path
            yield from self._learn_guards(connection, deadline, what)
            return reply.zxid
        raise Unavailable(f"{what}: the root {self._layout.root} could not be prepared in time; try again")

    def _make_root(self, connection: Connection, deadline: float, what: str) -> Steps[None]:
        try:
            for path in self._layout.root_parts():
                reply: Reply = yield connection.call(wire.CREATE, wire.create(path, b"", self._acl)[9:], deadline)
            if reply.error not in {OK, NODE_EXISTS}:
                # Above the root anything may be refused: it only matters that the root itself is there.
                there: Reply = yield connection.call(wire.EXISTS, wire.path_and_flag(self._layout.root), deadline)
                if there.error != OK:
                    raise code_error(reply.error, what=what, key=self._layout.root)
            parts = [wire.create(path, b"", self._acl) for path in (*self._layout.folders, *self._layout.guards)]
            reply = yield connection.call(MULTI, wire.multi(parts), deadline)
        except Cut as cut:
            raise cut_error(cut, what=what, write=False, closed=True) from cut
        error = wire.parse_multi(reply.body).error if reply.body else reply.error
        if error not in {OK, NODE_EXISTS}:
            raise code_error(error, what=what, key=self._layout.root)

    def _learn_guards(self, connection: Connection, deadline: float, what: str) -> Steps[None]:
        try:
            reply: Reply = yield connection.call(
                MULTI_READ, wire.multi([wire.read_data(path) for path in self._layout.guards]), deadline
            )
        except Cut as cut:
            raise cut_error(cut, what=what, write=False, closed=True) from cut
        for number, guard in enumerate(wire.parse_multi_read(reply.body)):
            if isinstance(guard, Data):
                self._reader.learn(number, guard.stat.version)


def describe(checks: Sequence[SimpleCheck], ops: Sequence[Op]) -> str:
    """What a message calls this transaction."""
    if len(ops) == 1:
        return f"{type(ops[0]).__name__.lower()} {ops[0].key!r}"
    if not ops:
        first = checks[0] if checks else None
        return f"check {first.key!r}" if isinstance(first, At | Absent) else "check"
    return f"transaction of {len(ops)} operations, the first on {ops[0].key!r}"


def _size(plan: Plan) -> int:
    return sum(len(part.data) for part in plan.parts)
