"""Writes whose outcome is always found out: every write transaction rests on a guard key of its store.

A write that was cut off may still land. So each write compares and overwrites a *slot*, a key that belongs to this
store and to one write at a time. To find out what became of a write, overwrite its slot: if that succeeds, the write
had not landed and never will, because it compares a revision that is gone for good; if it fails, the slot's revision
is the write's. All slots hang on the writer's lease, which each write names too: once the lease has ended nothing late
can land, and nothing is left behind. docs/design/0004-etcd-writes.md has the states and the races.

    @w/<writer>/<slot>    "w" written by a write, "s" by settling one
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import grpc
from etcd3 import etcdrpc as pb

from latchwork.backends.etcd import errors as rpc_errors
from latchwork.backends.etcd import wire
from latchwork.backends.etcd.answers import as_message
from latchwork.backends.etcd.errors import Fate
from latchwork.backends.etcd.leases import grant
from latchwork.backends.etcd.ranges import as_operations, decoded, read_at_one_revision, read_ranges
from latchwork.backends.etcd.wire import Target
from latchwork.backends.etcd.writing.freeing import Deletion, can_do_without_space, delete_without_space
from latchwork.backends.futures import Outcome, Steps, chain, drive, reject, resolve
from latchwork.errors import (
    Closed,
    LatchworkError,
    OutcomeUnknown,
    PermissionDenied,
    QuotaExceeded,
    SessionLost,
    Unavailable,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from latchwork.backends.etcd.connection import Link
    from latchwork.backends.etcd.layout import Keys
    from latchwork.backends.etcd.writing.plan import Commit, Plan

_log = logging.getLogger(__name__)

WRITER_TTL_S = 60
_RENEW_EVERY_S = WRITER_TTL_S / 4
_PROBE_S = 0.5
_WRITTEN, _SETTLED = b"w", b"s"


class Slot:
    """A guard of one write at a time: where it is, and its revision as last known (0: not there yet).

    Attributes:
        write, read: the operations that overwrite and read it, encoded.
    """

    __slots__ = ("key", "lease", "read", "revision", "write")

    def __init__(self, key: bytes, lease: int) -> None:
        self.key = key
        self.lease = lease
        self.revision = 0
        self.write = wire.put(key, _WRITTEN, lease=lease)
        self.read = wire.read(key)

    def compare(self) -> bytes:
        """The compare that guards a transaction, encoded."""
        return wire.compare(Target.MOD, self.key, self.revision)

    def settling(self) -> bytes:
        """The transaction that keeps a write on this slot from landing, or shows that it has landed."""
        return wire.txn([self.compare()], [wire.put(self.key, _SETTLED, lease=self.lease)], [self.read])


class _Write(Outcome[Any]):
    """A transaction under way, and the future of what it did."""

    __slots__ = ("_asked", "_deadline", "_replan", "_slot", "_writer")

    def __init__(
        self, writer: Writer, asked: Plan | Commit, replan: Callable[[], Plan], slot: Slot, deadline: float
    ) -> None:
        super().__init__()
        self._writer = writer
        self._asked = asked
        self._replan = replan
        self._slot = slot
        self._deadline = deadline

    def answered(self, rpc: Any) -> None:
        """The first try has ended. Only the simple end is told here, every other one by the writer."""
        try:
            found = self._asked.outcome(rpc.result())
        except (grpc.RpcError, ValueError):
            found = None
        if found is not None:
            self._slot.revision, result = found
            self._writer.give_back(self._slot)
            resolve(self, result)
        else:
            chain(drive(self._writer.go_on(rpc, self._asked, self._replan, self._slot, self._deadline)), self)


class Writer:
    """Sends the write transactions of one store. Safe to share between threads.

    Attributes:
        unsettled: writes reported as unknown that may land yet; settled as soon as the server answers.
    """

    def __init__(self, link: Link, keys: Keys) -> None:
        self._link = link
        self._keys = keys
        self._lock = threading.Lock()
        self._lease = 0
        self._numbers = itertools.count()
        self._free: list[Slot] = []
        self.unsettled: list[Slot | Deletion] = []
        self._recovering: Future[None] | None = None
        self._closing = False
        timeout_s = link.call_timeout_s
        #: One try gets this long, so that what became of it can be found out within the call timeout.
        self._send_s = timeout_s * 0.6

    def write(
        self, asked: Plan | Commit, replan: Callable[[], Plan], deadline: float | None = None, *, now: bool = False
    ) -> Future[Any]:
        """Apply a transaction once, or say exactly why not; with ``now`` its first try is made in this thread.

        The future gives the plan's outcome. It fails with the plan's public error, with ``Unavailable`` (not applied,
        and never will be) or with ``OutcomeUnknown`` (nothing more could be found out within the call timeout).
        """
        link = self._link
        deadline = deadline or link.clock.now() + link.call_timeout_s
        slot = self._take() if link.healthy and not self.unsettled and not self._closing else None
        if slot is None:
            return drive(self._until_done(asked.plan(), replan, deadline))
        try:
            request = asked.request(self._keys, slot)
        except BaseException:
            self.give_back(slot)
            raise
        outcome = _Write(self, asked, replan, slot, deadline)
        try:
            rpc = link.send("Txn", request, link.attempt_s(self._send_s), now=now)
        except Closed as error:
            reject(outcome, error)
            return outcome
        except BaseException:  # an interrupt during the call: what was sent may land yet, nobody is told
            self._leave_unsettled(slot)
            raise
        rpc.add_done_callback(outcome.answered)
        return outcome

    def ready(self, deadline: float) -> Steps[None]:
        """Wait until the server answers, this writer has its lease, and no earlier write can land any more.

        Raises:
            Unavailable: not before the deadline.
        """
        while not self._lease or not self._link.healthy or self.unsettled:
            if self._closing:
                raise Closed("the store was closed; open a new one")
            try:
                yield self._recover()
            except Unavailable:
                if self._link.clock.now() + _PROBE_S >= deadline:
                    raise
                yield self._link.timer.after(0.05)

    def settled(self, deadline: float) -> Steps[None]:
        """Wait until no write that was reported as unknown can land any more.

        Raises:
            LatchworkError: not before the deadline.
        """
        while self.unsettled:
            try:
                yield from self.ready(deadline)
            except QuotaExceeded:  # a full server gives no lease to write with; to read there is no need of one
                if self.unsettled:
                    raise

    def close(self, deadline: float) -> Steps[None]:
        """Give up the lease: all slots go, and nothing that is still under way can land."""
        self._closing = True
        lease, self._lease = self._lease, 0
        if lease:
            try:
                yield from self._link.call("LeaseRevoke", pb.LeaseRevokeRequest(ID=lease), "close the store", deadline)
            except LatchworkError as error:
                _log.debug("writer %x could not be closed (%s); its guards go within %d s", lease, error, WRITER_TTL_S)

    # Sending.

    def _take(self) -> Slot | None:
        """A slot on the lease of this moment; None when there is no lease: it may have ended just now."""
        try:
            return self._free.pop()
        except IndexError:
            lease = self._lease
            return Slot(self._keys.slot(lease, next(self._numbers)), lease) if lease else None

    def give_back(self, slot: Slot) -> None:
        """Nothing is under way on this slot any more."""
        if slot.lease == self._lease:
            self._free.append(slot)

    def _until_done(self, plan: Plan, replan: Callable[[], Plan], deadline: float) -> Steps[Any]:
        """Send a transaction, again when it is known not to have been applied, until there is an answer."""
        while True:
            try:
                yield from self._ready_for(plan, deadline)
            except QuotaExceeded:
                if self.unsettled or not can_do_without_space(plan):
                    raise
                return (yield from delete_without_space(self._link, plan, self._leave_unsettled, deadline))
            slot = self._take()
            if slot is None:
                continue
            left_s = min(self._send_s, max(deadline - self._link.clock.now(), 0.01) * 0.6)
            rpc = self._link.send("Txn", plan.request(self._keys, slot), left_s)
            done, result = yield from self._judge(rpc, plan, slot, deadline)
            if done:
                return result
            plan = replan()

    def go_on(
        self, rpc: Any, asked: Plan | Commit, replan: Callable[[], Plan], slot: Slot, deadline: float
    ) -> Steps[Any]:
        """Go on with a transaction whose first try did not succeed."""
        done, result = yield from self._judge(rpc, asked.plan(), slot, deadline)
        if done:
            return result
        result = yield from self._until_done(replan(), replan, deadline)
        return result

    def _ready_for(self, plan: Plan, deadline: float) -> Steps[None]:
        try:
            yield from self.ready(deadline)
        except Unavailable as error:
            cause = error.__cause__ or error
            said = rpc_errors.details(cause) if isinstance(cause, grpc.RpcError) else str(error)
            raise rpc_errors.caused(
                Unavailable(
                    f"could not {plan.what}: etcd did not answer in time ({said}); nothing was sent, try again"
                ),
                cause,
            ) from cause

    def _judge(self, rpc: Any, plan: Plan, slot: Slot, deadline: float) -> Steps[tuple[bool, Any]]:
        """Whether a sent transaction is done, and its outcome; raises what the caller must hear."""
        try:
            answer = yield rpc
            found = plan.outcome(answer)
        except grpc.RpcError as error:
            result = yield from self._judge_error(error, plan, slot, deadline)
            return result
        except ValueError as error:  # the answer cannot be read: it is as good as lost
            result = yield from self._settle_outcome(error, plan, slot, deadline)
            return result
        self._link.healthy = True
        if found is not None:
            slot.revision, result = found
            self.give_back(slot)
            return True, result
        self._judge_refusal(plan, slot, as_message("Txn", answer).responses)
        self._require_time(plan, deadline)
        return False, None

    def _judge_refusal(self, plan: Plan, slot: Slot, answers: Any) -> None:
        """The failure branch was taken: nothing was applied. Raises the public reason, if there is one."""
        kvs = answers[0].response_range.kvs
        if (kvs[0].mod_revision if kvs else 0) == slot.revision:
            self.give_back(slot)
        else:
            _log.warning("guard %s was changed by somebody else; using another one", slot.key.decode())
            self._forget(slot.lease)
        if plan.is_flat:
            error = plan.failure(answers[1:])
            if error is not None:
                raise error

    def _judge_error(self, error: grpc.RpcError, plan: Plan, slot: Slot, deadline: float) -> Steps[tuple[bool, Any]]:
        fate = rpc_errors.fate(error)
        if fate is Fate.UNKNOWN:
            self._link.failed(error)
            result = yield from self._settle_outcome(error, plan, slot, deadline)
            return result
        if rpc_errors.says(error, "space exceeded"):
            result = yield from self._judge_full(error, plan, slot, deadline)
            return result
        self.give_back(slot)
        if fate is Fate.NEVER_SENT:
            self._link.failed(error)
            yield from self._link.pause(error, plan.what, deadline)
        elif fate is Fate.STALE_TOKEN:
            self._require_time(plan, deadline, error)
            yield self._link.refresh_token(deadline)
        elif rpc_errors.says(error, "lease not found"):
            yield from self._find_lost_lease(error, plan, slot.lease, deadline)
        elif not plan.is_flat and rpc_errors.says(error, "key not found"):
            yield from self._explain(plan, deadline)
        else:
            raise rpc_errors.translate(error, plan.what) from error
        return False, None

    def _explain(self, plan: Plan, deadline: float) -> Steps[None]:
        """A transaction with nested compares was refused: read what they compared, and raise the reason."""
        self._require_time(plan, deadline)
        answers = yield from read_at_one_revision(self._link, decoded(plan.reads()), plan.what, deadline)
        error = plan.failure(as_operations(answers))
        if error is not None:
            raise error

    def _find_lost_lease(self, error: grpc.RpcError, plan: Plan, lease: int, deadline: float) -> Steps[None]:
        """The transaction named a lease that has ended: its guard's, to be replaced, or a session's."""
        answer = yield from self._link.call("LeaseKeepAlive", pb.LeaseKeepAliveRequest(ID=lease), plan.what, deadline)
        if answer.TTL > 0:
            raise SessionLost(f"could not {plan.what}: its session ended on the server; open a new session") from error
        self._forget(lease)
        self._require_time(plan, deadline)

    def _require_time(self, plan: Plan, deadline: float, error: BaseException | None = None) -> None:
        if self._link.clock.now() >= deadline:
            raise Unavailable(f"could not {plan.what} in time, others wrote at the same time; try again") from error

    # Settling.

    def _settle_outcome(self, error: Exception, plan: Plan, slot: Slot, deadline: float) -> Steps[tuple[bool, Any]]:
        """Find out what became of a write that was cut off."""
        try:
            revision = yield from self._settle_until(slot, deadline)
        except _GuardGone as gone:
            raise self._unknown(plan, "its guard is gone, so it cannot land any more", error) from gone
        except LatchworkError:
            self._leave_unsettled(slot)
            raise self._unknown(plan, "it may land yet", error) from error
        self._link.healthy = True
        self.give_back(slot)
        if not revision:
            self._require_time(plan, deadline, error)
            return False, None
        try:
            result = yield from self._recall(plan, revision, deadline)
        except LatchworkError as failed:
            raise self._unknown(plan, f"it was applied at revision {revision}", failed) from failed
        return True, result

    def _judge_full(self, error: grpc.RpcError, plan: Plan, slot: Slot, deadline: float) -> Steps[tuple[bool, Any]]:
        """The server is out of space: it says so also after it has applied the write that filled it. The slot tells.

        The answer is final: it came after the write was applied, or instead of it.
        """
        try:
            revision = yield from self._written_at(slot, deadline)
        except _GuardGone as gone:
            raise self._unknown(plan, "its guard is gone, so it cannot land any more", error) from gone
        except LatchworkError:
            self._leave_unsettled(slot)
            raise self._unknown(plan, "the server is out of space", error) from error
        self.give_back(slot)
        if not revision:
            if not can_do_without_space(plan):
                raise rpc_errors.translate(error, plan.what) from error
            result = yield from delete_without_space(self._link, plan, self._leave_unsettled, deadline)
            return True, result
        try:
            result = yield from self._recall(plan, revision, deadline)
        except LatchworkError as failed:
            raise self._unknown(plan, f"it was applied at revision {revision}", failed) from failed
        return True, result

    def _written_at(self, slot: Slot, deadline: float) -> Steps[int]:
        """The revision of the slot's write if it has landed by now; 0 if it has not.

        Raises:
            _GuardGone: the slot was there and is not any more; nobody can tell what had landed.
        """
        found = yield from self._link.call("Range", pb.RangeRequest(key=slot.key), "settle a write", deadline)
        if not found.kvs and slot.revision:
            self._forget(slot.lease)
            raise _GuardGone
        revision = found.kvs[0].mod_revision if found.kvs else 0
        landed = revision > slot.revision and found.kvs[0].value == _WRITTEN
        slot.revision = revision or slot.revision
        return revision if landed else 0

    def _settle_until(self, slot: Slot, deadline: float) -> Steps[int]:
        """Settle a slot, trying again until the deadline or until the store is closed."""
        while True:
            left_s = deadline - self._link.clock.now()
            try:
                return (yield from self._settle(slot, min(1.0, max(left_s, 0.01))))
            except LatchworkError:
                if left_s <= 0.1 or self._link.closed or self._closing:
                    raise
                yield self._link.timer.after(0.05)

    def _settle(self, slot: Slot, timeout_s: float) -> Steps[int]:
        """Make sure that a slot's write cannot land any more; its revision, or 0 when it was not applied.

        Raises:
            Unavailable: the server gave no answer to rely on.
            _GuardGone: the slot is gone; nothing can land, and nobody can tell what had landed.
        """
        deadline = self._link.clock.now() + timeout_s
        try:
            response = yield from self._link.call("Txn", slot.settling(), "settle a write", deadline)
        except SessionLost as error:
            self._forget(slot.lease)
            raise _GuardGone from error
        except QuotaExceeded:
            revision = yield from self._written_at(slot, deadline)
            if not revision:
                yield from self._revoke(slot.lease, deadline)  # no put is taken that would keep it from landing
                raise _GuardGone from None
            return revision
        if response.succeeded:
            slot.revision = response.header.revision
            return 0
        kvs = response.responses[0].response_range.kvs
        if not kvs:
            self._forget(slot.lease)
            raise _GuardGone
        slot.revision = kvs[0].mod_revision
        return slot.revision if kvs[0].value == _WRITTEN else 0

    def _recall(self, plan: Plan, revision: int, deadline: float) -> Steps[Any]:
        """The outcome of a transaction that is known to have been applied at a revision."""
        found = yield read_ranges(self._link, plan.recall(revision), plan.what, deadline=deadline)
        return plan.decode_recall(found, revision)

    def _unknown(self, plan: Plan, state: str, error: BaseException) -> OutcomeUnknown:
        said = rpc_errors.details(error) if isinstance(error, grpc.RpcError) else str(error)
        ours = OutcomeUnknown(
            f"could not find out whether etcd did {plan.what} ({said}): {state}; "
            "read the key with this store, its answer will be final"
        )
        ours.__cause__ = error
        return ours

    def _revoke(self, lease: int, deadline: float) -> Steps[None]:
        """End a writer's lease, and with it whatever was sent under it and has not landed."""
        with contextlib.suppress(SessionLost):
            yield from self._link.call("LeaseRevoke", pb.LeaseRevokeRequest(ID=lease), "settle a write", deadline)
        self._forget(lease)

    def _leave_unsettled(self, write: Slot | Deletion) -> None:
        self._link.healthy = False
        with self._lock:
            self.unsettled.append(write)
        self._link.timer.call_later(_PROBE_S, self._settle_in_background)

    def _settle_in_background(self) -> None:
        if self.unsettled and not self._closing:
            self._recover()
            self._link.timer.call_later(_PROBE_S, self._settle_in_background)

    # Readiness.

    def _recover(self) -> Future[None]:
        """One try, shared by all who wait, to make the writer ready."""
        recovering: Future[None] = Future()
        with self._lock:
            if self._recovering is not None:
                return self._recovering
            self._recovering = recovering
        chain(drive(self._recover_once()), recovering)
        return recovering

    def _recover_once(self) -> Steps[None]:
        try:
            yield from self._become_ready(self._link.clock.now() + _PROBE_S)
        finally:
            with self._lock:
                self._recovering = None

    def _become_ready(self, deadline: float) -> Steps[None]:
        while self.unsettled:
            write = self.unsettled[0]
            if isinstance(write, Deletion):
                yield from write.settle(_PROBE_S)
            else:
                try:
                    yield from self._settle(write, _PROBE_S)
                    self.give_back(write)
                except _GuardGone:
                    pass
            with self._lock:
                self.unsettled.remove(write)
        if not self._lease and not self._closing:
            yield from self._open(deadline)
        if not self._link.healthy:
            probe = pb.RangeRequest(key=self._keys.slot(self._lease, 0), count_only=True)
            try:
                yield from self._link.call("Range", probe, "answer", deadline)
            except PermissionDenied:
                _log.debug("etcd answers, but this account may not read the store's guards")

    def _open(self, deadline: float) -> Steps[None]:
        """Take a lease of our own; never one that was used before, so that old guards mean nothing to it."""
        lease, _ = yield from grant(self._link, WRITER_TTL_S, "prepare for writing", deadline)
        with self._lock:
            self._free = []
            self._numbers = itertools.count()
            self._lease = lease
        self._link.timer.call_later(_RENEW_EVERY_S, lambda: self._keep(lease))

    def _keep(self, lease: int) -> None:
        if lease == self._lease and not self._closing:
            drive(self._renew(lease)).add_done_callback(lambda done: self._kept(lease, done))

    def _renew(self, lease: int) -> Steps[bool]:
        deadline = self._link.clock.now() + _RENEW_EVERY_S
        answer = yield from self._link.call("LeaseKeepAlive", pb.LeaseKeepAliveRequest(ID=lease), "renew", deadline)
        return bool(answer.TTL > 0)

    def _kept(self, lease: int, done: Future[bool]) -> None:
        if done.exception() is None and not done.result():
            self._forget(lease)
        else:
            self._link.timer.call_later(_RENEW_EVERY_S, lambda: self._keep(lease))

    def _forget(self, lease: int) -> None:
        """Write with a new lease from now on; what was sent under the old one is settled under the old one."""
        with self._lock:
            if self._lease == lease and lease:
                self._lease = 0
                self._free = []
                _log.info("writer %x has ended on the server; the next write opens another one", lease)


class _GuardGone(Exception):
    """A slot has vanished: the writer's lease ended, or somebody deleted it."""
