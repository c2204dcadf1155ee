"""The commit of transactions: the loop around ``compile_plan``. Also deletions of whole trees, in several transactions.

A commit takes one multi and one round trip if the remembered states are current. Otherwise the states are read and the
transaction is compiled again, until it succeeds, a check fails with fresh states, or the deadline has passed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from itertools import count

from latchwork.backends.futures import FutureGenerator
from latchwork.backends.outcomes import partial_deletion_error
from latchwork.backends.timer import Timer
from latchwork.backends.zookeeper import wire
from latchwork.backends.zookeeper.errors import FINAL_CODES, NoReply, session_lost_error
from latchwork.backends.zookeeper.layout import ANY, UNKNOWN, get_parent, list_ancestors
from latchwork.backends.zookeeper.reads import Lister
from latchwork.backends.zookeeper.wire import MULTI, OK, Reply
from latchwork.backends.zookeeper.writing.compiler import (
    HasDescendants,
    KnownStates,
    MissingStates,
    MultiPlan,
    build_written_entries,
    compile_plan,
)
from latchwork.backends.zookeeper.writing.parents import (
    create_parents,
    remove_empty_parents,
    remove_empty_parents_below,
)
from latchwork.backends.zookeeper.writing.states import VersionCache, read_states
from latchwork.backends.zookeeper.writing.write_task import WriteTask
from latchwork.errors import LatchworkError, Unavailable
from latchwork.types import Committed, Delete, Op, SessionAlive, SimpleCheck

_COUNTER_BYTES = 256
#: Errors that a concurrent write of another client can cause: the states are read again.
_STALE_CODES = frozenset({wire.NO_NODE, wire.NODE_EXISTS, wire.BAD_VERSION, wire.NOT_EMPTY})
_BATCH = 100
_LONGEST_PAUSE_S = 0.05


class ZooKeeperWriter:
    """Commits transactions through any connection. Thread-safe.

    Args:
        on_emptied: Called with parents that may have no more children. Must not block.
    """

    def __init__(self, lister: Lister, timer: Timer, on_emptied: Callable[[Iterable[str]], None]) -> None:
        self._lister = lister
        self._reader = lister.reader
        self._timer = timer
        self.version_cache = VersionCache()
        self._on_emptied = on_emptied

    def commit(self, task: WriteTask, checks: Sequence[SimpleCheck], ops: Sequence[Op]) -> FutureGenerator[Committed]:
        """Commit a transaction and return its result.

        The ZooKeeper request is built from the known states of the keys. If they are outdated, the keys are read and
        the request is built again.
        """
        layout, session_id = self._reader.layout, task.session_id
        known = self.version_cache.get_known_states(checks, ops, task.connection)
        extra: frozenset[str] = frozenset()
        cleared = False
        for attempt in count():
            try:
                plan = compile_plan(layout, checks, ops, known, session_id=session_id)
            except MissingStates as need:
                extra |= need.keys
            except HasDescendants as found:
                cleared = yield from remove_empty_parents_below(self._lister, task, found, cleared=cleared)
            else:
                if not plan.writes and not checks:
                    return Committed(0)
                if plan.size > wire.MAX_PAYLOAD - _COUNTER_BYTES:
                    yield from create_parents(task, plan)
                    known = KnownStates({})
                    continue
                gens = self._reader.guard_versions()
                reply = yield from self._send(task, plan)
                if reply is None:  # it only checks, and the connection was lost
                    continue
                result = wire.parse_multi(reply)
                if result.error == OK:
                    return self._build_result(plan, result.results, reply.zxid, gens)
                self._raise_permanent_error(task, plan, result)
            known = yield from self._read_states(task, checks, ops, extra, attempt)
        raise AssertionError("unreachable")

    def _read_states(
        self, task: WriteTask, checks: Sequence[SimpleCheck], ops: Sequence[Op], extra: frozenset[str], attempt: int
    ) -> FutureGenerator[KnownStates]:
        """Read the states of all keys of a transaction. Pause first if there were several attempts.

        Args:
            task: The call that writes.
            checks: The checks.
            ops: The operations.
            extra: Additional keys to read.
            attempt: The number of the attempt.
        """
        if attempt >= 2:
            yield self._timer.after(random.uniform(0, min(_LONGEST_PAUSE_S, 0.001 * 2 ** min(attempt, 10))))
        if attempt and task.connection.has_passed(task.deadline):
            raise Unavailable(
                f"{task.what}: other clients kept changing the same keys for the whole timeout; try again"
            )
        keys = dict.fromkeys(each.key for each in (*checks, *ops) if not isinstance(each, SessionAlive))
        keys |= dict.fromkeys(extra)
        sessions = [each.session_id for each in checks if isinstance(each, SessionAlive)]
        while True:
            try:
                above = self.version_cache.list_parents(checks, ops, extra)
                known = yield from read_states(
                    self._reader, task.connection, list(keys), task.deadline, sessions=sessions, parent_keys=above
                )
            except NoReply as no_reply:
                if not task.may_retry():
                    raise task.no_reply_error(no_reply, is_write=False) from no_reply
                continue
            at_any = [self._reader.layout.guard_path(key) for key, node in known.nodes.items() if node.gen == ANY]
            if not at_any:
                self.version_cache.record_read_states(known, checks, ops)
                if attempt:  # after a wrong guess the call creates its parents itself
                    return known
                return self.version_cache.add_pending_parents(known, checks, ops, task.connection)
            yield from task.send(
                [wire.encode_set_data(guard, b"", ANY) for guard in dict.fromkeys(at_any)]
            )  # one further

    def _send(self, task: WriteTask, plan: MultiPlan) -> FutureGenerator[Reply | None]:
        parts = [part.data for part in plan.parts]
        connection = task.connection
        try:
            if plan.writes:
                return (yield from self._write(task, plan, parts))
            reply: Reply = yield connection.call(MULTI, wire.encode_multi(parts), task.deadline)
        except NoReply as no_reply:
            if not plan.writes and task.may_retry():
                return None
            raise task.no_reply_error(no_reply, is_write=plan.writes) from no_reply
        return reply

    def _write(self, task: WriteTask, plan: MultiPlan, parts: list[bytes]) -> FutureGenerator[Reply]:
        call = task.connection.write(parts, task.deadline)
        parents = self.version_cache.parents
        parents.record_sent(plan, task.connection)  # not before, so that dependent writes are sent later
        try:
            reply: Reply = yield call
        except BaseException:
            parents.record_ended(plan)
            raise
        return reply

    def _build_result(self, plan: MultiPlan, results: Sequence[object], token: int, gens: list[int]) -> Committed:
        now = dict(enumerate(gens))
        for number, index in plan.bumped.items():
            guard = results[index] if results else None
            now[number] = guard.version if isinstance(guard, wire.Stat) else UNKNOWN
            if isinstance(guard, wire.Stat):
                self._reader.record_guard_version(number, guard.version)
        if not plan.writes:
            return Committed(0)
        entries = build_written_entries(plan, results, token, now)
        self.version_cache.discard(plan.deleted)
        parents = self.version_cache.parents
        for entry in entries:
            self.version_cache.record(entry)
            parents.record_key_written(get_parent(entry.key))
        for above in plan.makes:
            parents.record_key_written(above)
        parents.record_ended(plan)  # by now they count as there
        emptied = plan.emptied - self.version_cache.kept
        if emptied:
            self._on_emptied(emptied)
        return Committed(token, entries, tuple(plan.deleted))

    def _raise_permanent_error(self, task: WriteTask, plan: MultiPlan, result: wire.MultiReply) -> None:
        """Raise an error if a transaction was refused for a reason that a retry with newer states cannot change."""
        self.version_cache.parents.record_ended(plan)
        if result.failed == len(plan.parts):
            task.require_write_counter(result)
        if result.failed < 0:  # the request as a whole was refused
            if result.error == wire.SESSION_EXPIRED and task.session_id is not None:
                raise session_lost_error(task.session_id, task.what)
            if result.error in FINAL_CODES:
                raise task.refusal_error(result.error, plan.parts[-1].key)
            return
        part = plan.parts[result.failed]
        if part.role == "probe" and result.error == wire.EPHEMERAL_PARENT:
            return  # nothing can be there, but that has to be guarded in another way
        conflict = plan.find_conflict(result.failed, result.error)
        if conflict is not None:
            raise conflict
        if result.error not in _STALE_CODES:
            raise task.refusal_error(result.error, part.key or plan.parts[-1].key)

    def delete_tree(self, task: WriteTask, prefix: str) -> FutureGenerator[int]:
        """Delete all keys at and below a prefix, the deepest first, in several transactions. Return their number.

        Keys that are created meanwhile may remain.
        """
        try:
            context, barrier = self._reader.begin_read(task.connection, task.deadline)
            asked = self._lister.send_subtree_requests(context, prefix)
            entries = yield from self._lister.read_subtree_with_root(context, prefix, asked)
            yield barrier
        except NoReply as no_reply:
            raise task.no_reply_error(no_reply, is_write=False) from no_reply
        for entry in entries:
            self.version_cache.record(entry)
        keys = sorted((entry.key for entry in entries), reverse=True)
        deleted = 0
        for at in range(0, len(keys), _BATCH):
            try:
                committed = yield from self.commit(task, [], [Delete(key) for key in keys[at : at + _BATCH]])
            except LatchworkError as error:
                if not deleted:
                    raise
                raise partial_deletion_error(task.what, deleted, len(keys), error) from error
            deleted += len(committed.deleted)
        above = {each for key in keys for each in list_ancestors(key)}
        yield from remove_empty_parents(self._reader, task.connection, above, task.deadline)
        return deleted
