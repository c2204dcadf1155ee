"""Sends write transactions. A slot key guards each of them, so that its outcome can be found out if the response is
lost.

A write without a response may still be applied. So ``recovery`` finds out its outcome before it is sent again or its
caller gets a result. Only this module and ``recovery`` handle failed writes. docs/design/etcd-writes.md describes the
states and the races.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import grpc

from latchwork.backends.etcd import errors as rpc_errors
from latchwork.backends.etcd import rpc_pb2 as pb
from latchwork.backends.etcd.connection import EtcdConnection, decode_response
from latchwork.backends.etcd.errors import CallOutcome
from latchwork.backends.etcd.layout import EtcdKeys
from latchwork.backends.etcd.reads import read_at_one_revision
from latchwork.backends.etcd.writing.compiler import EtcdCommit
from latchwork.backends.etcd.writing.deletions import delete_on_full_server, is_possible_on_full_server
from latchwork.backends.etcd.writing.recovery import WriteRecovery
from latchwork.backends.etcd.writing.slots import GuardSlots, Slot
from latchwork.backends.etcd.writing.txn import Txn
from latchwork.backends.futures import FutureGenerator, LightFuture, chain, reject, resolve, run_generator
from latchwork.backends.out_of_space import OutOfSpaceLog
from latchwork.errors import Closed, SessionLost, StoreFull, Unavailable

_log = logging.getLogger(__name__)


class _Write(LightFuture[Any]):
    """A transaction in flight, and the future of its result."""

    __slots__ = ("_writer", "asked", "deadline", "rebuild", "slot")

    def __init__(
        self, writer: EtcdWriter, asked: Txn | EtcdCommit, rebuild: Callable[[], Txn], slot: Slot, deadline: float
    ) -> None:
        super().__init__()
        self._writer = writer
        self.asked = asked
        self.rebuild = rebuild
        self.slot = slot
        self.deadline = deadline

    def answered(self, rpc: Any) -> None:
        """Handle the end of the first attempt. If it failed, let the writer continue."""
        try:
            found = self.asked.decode_outcome(rpc.result())
        except (grpc.RpcError, ValueError):
            found = None
        if found is not None:
            self.slot.revision, result = found
            self._writer.slots.return_slot(self.slot)
            self._writer.space.record_write()
            resolve(self, result)
        else:
            self._writer.continue_write(rpc, self)


class EtcdWriter:
    """Sends the write transactions of one store. Thread-safe.

    Attributes:
        slots: The keys that guard its writes.
        recovery: Finds out the outcome of writes whose responses were lost.
        space: Warns when the server's storage is full. Every write overwrites its slot key, except deletions on a full
            server.
    """

    def __init__(self, connection: EtcdConnection, keys: EtcdKeys) -> None:
        self._connection = connection
        self._keys = keys
        self.space = OutOfSpaceLog(f"etcd at {connection.hosts}")
        self.slots = GuardSlots(connection, keys)
        self.recovery = WriteRecovery(connection, keys, self.slots)
        #: One try gets this long, so that what became of it can be found out within the call timeout.
        self._send_s = connection.call_timeout_s * 0.6

    def write(
        self,
        txn: Txn | EtcdCommit,
        rebuild: Callable[[], Txn],
        deadline: float | None = None,
        *,
        in_caller_thread: bool = False,
    ) -> Future[Any]:
        """Send a transaction that is applied at most once, and return a future of its result.

        The future fails with the error of the transaction, with ``Unavailable`` if it was not applied and never will
        be, or with ``OutcomeUnknown`` if that could not be found out within the call timeout.

        Args:
            txn: The transaction.
            rebuild: Builds the transaction again for another attempt.
            deadline: Local clock time. None is the call timeout from now.
            in_caller_thread: Whether to send it in the calling thread.
        """
        connection = self._connection
        deadline = deadline or connection.clock.now() + connection.call_timeout_s
        slot = (
            self.slots.take_slot()
            if connection.healthy and not self.recovery.unresolved and not self.slots.closing
            else None
        )
        if slot is None:
            return run_generator(self._send_until_answered(txn.as_txn(), rebuild, deadline))
        try:
            request = txn.encode_request(self._keys, slot)
        except BaseException:
            self.slots.return_slot(slot)
            raise
        outcome = _Write(self, txn, rebuild, slot, deadline)
        try:
            rpc = connection.send(
                "Txn", request, connection.attempt_timeout_s(self._send_s), in_caller_thread=in_caller_thread
            )
            rpc.add_done_callback(outcome.answered)
        except Closed as error:
            reject(outcome, error)
            return outcome
        except BaseException:  # an interrupt during the call: the write may be applied later
            self.recovery.resolve_slot_later(slot)
            raise
        return outcome

    def continue_write(self, rpc: Any, write: _Write) -> None:
        """Continue a write after its first attempt has failed.

        Args:
            rpc: The failed gRPC call.
            write: The write.
        """
        chain(run_generator(self._second(rpc, write)), write)

    def _second(self, rpc: Any, write: _Write) -> FutureGenerator[Any]:
        result = yield from self._handle_answer(rpc, write.asked.as_txn(), write.slot, write.deadline)
        if result is None:
            result = yield from self._send_until_answered(write.rebuild(), write.rebuild, write.deadline)
        return result

    def raise_failed_check(self, txn: Txn, deadline: float) -> FutureGenerator[None]:
        """Read the keys that a transaction compares, and raise an error if a check fails.

        All keys are read at one revision, so several failed checks are reported together only if they failed at the
        same time.
        """
        answers = yield from read_at_one_revision(self._connection, txn.build_reads(), txn.what, deadline)
        error = txn.evaluate_reads(answers)
        if error is not None:
            raise error

    # Private.

    def _send_until_answered(self, txn: Txn, rebuild: Callable[[], Txn], deadline: float) -> FutureGenerator[Any]:
        """Send a transaction until the server has answered. It is sent again only if it was certainly not applied.
        Return its result.

        Args:
            txn: The transaction.
            rebuild: Builds the transaction again for another attempt.
            deadline: Local clock time.
        """
        while True:
            try:
                yield from self._ready_for(txn, deadline)
            except StoreFull as error:
                self.space.record_refusal(error)
                if self.recovery.unresolved or not is_possible_on_full_server(txn):
                    raise
                return (yield from delete_on_full_server(self._connection, txn, self.recovery, deadline))
            slot = self.slots.take_slot()
            if slot is None:
                continue
            left_s = min(self._send_s, max(deadline - self._connection.clock.now(), 0.01) * 0.6)
            rpc = self._connection.send("Txn", txn.encode_request(self._keys, slot), left_s)
            result = yield from self._handle_answer(rpc, txn, slot, deadline)
            if result is not None:
                return result
            txn = rebuild()

    def _ready_for(self, txn: Txn, deadline: float) -> FutureGenerator[None]:
        try:
            yield from self.recovery.wait_until_ready(deadline)
        except Unavailable as error:
            cause = error.__cause__ or error
            said = rpc_errors.get_message(cause) if isinstance(cause, grpc.RpcError) else str(error)
            message = f"could not {txn.what}: etcd did not answer in time ({said}); nothing was sent, try again"
            raise rpc_errors.with_cause(Unavailable(message), cause) from cause

    # What became of a try: its result, or None when it was not applied and may be sent again; else the error to tell.

    def _handle_answer(self, rpc: Any, txn: Txn, slot: Slot, deadline: float) -> FutureGenerator[Any]:
        try:
            answer = yield rpc
            found = txn.decode_outcome(answer)
        except grpc.RpcError as error:
            return (yield from self._handle_error(error, txn, slot, deadline))
        except ValueError as error:  # the answer cannot be read: it is as good as lost
            return (yield from self._resolve(error, txn, slot, deadline))
        self._connection.healthy = True
        if found is not None:
            slot.revision, result = found
            self.slots.return_slot(slot)
            self.space.record_write()
            return result
        self._handle_refusal(txn, slot, decode_response("Txn", answer).responses)
        self._require_time(txn, deadline)
        return None

    def _handle_refusal(self, txn: Txn, slot: Slot, answers: Any) -> None:
        """Handle a transaction that the server refused, so that it was not applied. Return normally if a retry may
        help.

        Raises:
            LatchworkError: The reason of the refusal, if a retry does not help.
        """
        kvs = answers[0].response_range.kvs
        if (kvs[0].mod_revision if kvs else 0) == slot.revision:
            self.slots.return_slot(slot)
        else:
            _log.warning("guard %s was changed by another client; using another one", slot.key.decode())
            self.slots.discard_lease(slot.lease)
        if txn.is_flat:
            error = txn.evaluate_reads(answers[1:])
            if error is not None:
                raise error

    def _handle_error(self, error: grpc.RpcError, txn: Txn, slot: Slot, deadline: float) -> FutureGenerator[Any]:
        effect = rpc_errors.classify_outcome(error)
        if effect is CallOutcome.UNKNOWN:
            self._connection.record_failure(error)
            return (yield from self._resolve(error, txn, slot, deadline))
        if rpc_errors.message_contains(error, "space exceeded"):
            return (yield from self._handle_full_server(error, txn, slot, deadline))
        self.slots.return_slot(slot)
        if effect is CallOutcome.NEVER_SENT:
            self._connection.record_failure(error)
            yield from self._connection.pause_before_retry(error, txn.what, deadline)
        elif effect is CallOutcome.STALE_TOKEN:
            self._require_time(txn, deadline, error)
            yield self._connection.refresh_token(deadline)
        elif rpc_errors.message_contains(error, "lease not found"):
            yield from self._find_lost_lease(error, txn, slot.lease, deadline)
        elif not txn.is_flat and rpc_errors.message_contains(error, "key not found"):
            self._require_time(txn, deadline)
            yield from self.raise_failed_check(
                txn, deadline
            )  # its compares were nested, so its answer could not name them
        else:
            raise rpc_errors.translate_error(error, txn.what) from error
        return None

    def _resolve(self, error: Exception, txn: Txn, slot: Slot, deadline: float) -> FutureGenerator[Any]:
        result = yield from self.recovery.determine_outcome(txn, slot, error, deadline)
        if result is None:
            self._require_time(txn, deadline, error)
        return result

    def _handle_full_server(self, error: grpc.RpcError, txn: Txn, slot: Slot, deadline: float) -> FutureGenerator[Any]:
        """Handle an error that says that the server's storage is full. The slot key shows whether the write was applied
        before. Return its result.
        """
        result = yield from self.recovery.determine_outcome(txn, slot, error, deadline, answered=True)
        full = rpc_errors.translate_error(error, txn.what)
        assert isinstance(full, StoreFull)
        self.space.record_refusal(full)
        if result is None:
            if not is_possible_on_full_server(txn):
                raise full from error
            result = yield from delete_on_full_server(self._connection, txn, self.recovery, deadline)
        return result

    def _find_lost_lease(self, error: grpc.RpcError, txn: Txn, lease: int, deadline: float) -> FutureGenerator[None]:
        """Handle an error that says that a lease has ended. If it is the lease of the slot keys, get a new one. If it
        is that of a session, raise an error.
        """
        answer = yield from self._connection.call(
            "LeaseKeepAlive", pb.LeaseKeepAliveRequest(ID=lease), txn.what, deadline
        )
        if answer.TTL > 0:
            raise SessionLost(f"could not {txn.what}: its session ended on the server; open a new session") from error
        self.slots.discard_lease(lease)
        self._require_time(txn, deadline)

    def _require_time(self, txn: Txn, deadline: float, error: BaseException | None = None) -> None:
        if self._connection.clock.now() >= deadline:
            raise Unavailable(
                f"could not {txn.what} in time because others wrote at the same time; try again"
            ) from error
