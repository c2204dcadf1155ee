"""Deletions on a server whose storage is full, which refuses every put, including that of a slot key (see ``slots``).

Here the deleted keys themselves are the guard: each is deleted only at the revision at which it was read. Revisions are
never reused, so the request may be repeated until it is answered. If it succeeds, no earlier attempt was applied. If it
fails and a key is as it was read, no attempt was applied. If a key has changed, no attempt can be applied any more.
docs/design/etcd-writes.md describes the states.
"""

from __future__ import annotations

from typing import Any

import grpc

from latchwork.backends.etcd import errors as rpc_errors
from latchwork.backends.etcd import rpc_pb2 as pb
from latchwork.backends.etcd.connection import EtcdConnection, decode_response, malformed_response_error
from latchwork.backends.etcd.errors import CallOutcome
from latchwork.backends.etcd.reads import read_separately
from latchwork.backends.etcd.writing import requests
from latchwork.backends.etcd.writing.recovery import WriteRecovery
from latchwork.backends.etcd.writing.txn import FLAT_LIMIT, ConditionKind, Txn
from latchwork.backends.futures import FutureGenerator
from latchwork.backends.outcomes import partial_deletion_error
from latchwork.errors import LatchworkError, OutcomeUnknown, Unavailable
from latchwork.types import At

_BATCH = 100
_TRY_S = 1.0


class Deletion:
    """A transaction that deletes keys only if they are as they were read. Sent by one thread at a time.

    Args:
        connection: The connection.
        txn: The transaction, whose conditions must hold, too.
        seen: The revision of each key as it was read. 0 for a key that does not exist.

    Attributes:
        may_land: Whether an attempt with an unknown outcome may still be applied.
    """

    def __init__(self, connection: EtcdConnection, txn: Txn, seen: dict[bytes, int]) -> None:
        self._connection = connection
        self._txn = txn
        self._seen = seen
        self.may_land = False
        compares = [requests.comparison("mod_revision", key, revision) for key, revision in seen.items()]
        # Deletes also what is not there: a server must not take it for a transaction of reads.
        deletes = [requests.delete_operation(key) for key in seen]
        reads = txn.build_reads() + [requests.read_without_value(key) for key in seen]
        self._request = requests.encode_transaction(txn.build_compares() + compares, deletes, reads)

    def run(self, deadline: float) -> FutureGenerator[Any]:
        """Send the deletion until it is answered. Return the answer, or None if the keys must be read again.

        Raises:
            LatchworkError: The error of the transaction. ``OutcomeUnknown`` if the outcome could not be found out.
        """
        while True:
            try:
                answer = yield from self._answer(deadline)
            except LatchworkError as error:
                if not self.may_land:
                    raise
                raise self._unknown("it may still be applied") from error
            if answer.succeeded:
                return answer
            if not self.may_land or (self._was_not_applied(answer) and self._is_outdated(answer)):
                reason = self._txn.evaluate_reads(answer.responses[: len(self._txn.conditions)])
                if reason is not None:
                    raise reason
                return None
            if not self._was_not_applied(answer):
                self.may_land = False
                raise self._unknown("it can no longer be applied")
            if self._connection.clock.now() >= deadline:
                raise self._unknown("it may still be applied")
            yield self._connection.timer.after(0.05)

    def resolve(self, timeout_s: float) -> FutureGenerator[None]:
        """Make sure that the deletion cannot be applied later, if necessary by applying it now.

        Raises:
            LatchworkError: There was no response, and the deletion may still be applied.
        """
        answer = yield from self._answer(self._connection.clock.now() + timeout_s)
        if not answer.succeeded and not self._is_outdated(answer):
            raise Unavailable(f"a delete may still be applied ({self._txn.what}); try again")

    # Private.

    def _answer(self, deadline: float) -> FutureGenerator[Any]:
        while True:
            left_s = max(deadline - self._connection.clock.now(), 0.01)
            try:
                answer = yield self._connection.send("Txn", self._request, min(left_s, _TRY_S))
                return decode_response("Txn", answer)
            except grpc.RpcError as error:
                yield from self._handle_answer(error, deadline)
            except ValueError as error:  # the answer cannot be read: it is as good as lost
                self.may_land = True
                raise malformed_response_error(self._txn.what, error) from error

    def _handle_answer(self, error: grpc.RpcError, deadline: float) -> FutureGenerator[None]:
        effect = rpc_errors.classify_outcome(error)
        if effect is CallOutcome.STALE_TOKEN and self._connection.clock.now() < deadline:
            yield self._connection.refresh_token(deadline)
            return
        if effect in {CallOutcome.REFUSED, CallOutcome.STALE_TOKEN}:
            raise rpc_errors.translate_error(error, self._txn.what) from error
        self._connection.record_failure(error)
        self.may_land = self.may_land or effect is CallOutcome.UNKNOWN
        yield from self._connection.pause_before_retry(error, self._txn.what, deadline)

    def _current_revisions(self, answer: Any) -> list[int]:
        """Return the current revisions of the keys, in the order of ``seen``."""
        reads = answer.responses[len(self._txn.conditions) :]
        return [read.response_range.kvs[0].mod_revision if read.response_range.kvs else 0 for read in reads]

    def _was_not_applied(self, answer: Any) -> bool:
        """Return whether the deletion was certainly not applied, because a key is unchanged or none existed."""
        now = zip(self._seen.values(), self._current_revisions(answer), strict=True)
        return not any(self._seen.values()) or any(before == after != 0 for before, after in now)

    def _is_outdated(self, answer: Any) -> bool:
        """Return whether a key has changed since it was read, so that the deletion can no longer be applied.

        Args:
            answer: The response that contains the current revisions of the keys.
        """
        now = zip(self._seen.values(), self._current_revisions(answer), strict=True)
        if not any(self._seen.values()) or any(before not in {0, after} for before, after in now):
            return True
        pairs = zip(self._txn.conditions, answer.responses, strict=False)
        return any(
            condition.kind is ConditionKind.CHECK
            and isinstance(condition.subject, At)
            and not condition.holds(read.response_range.kvs)
            for condition, read in pairs
        )

    def _unknown(self, state: str) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"could not find out whether etcd did {self._txn.what}: {state}; read the key with this store, its answer "
            "will be final"
        )


def is_possible_on_full_server(txn: Txn) -> bool:
    """Return whether a server whose storage is full can execute a transaction, because it only deletes a few keys."""
    keys = txn.deleted_keys
    return txn.deleted_ranges is not None or (keys is not None and len(keys) + len(txn.conditions) <= FLAT_LIMIT)


def delete_on_full_server(
    connection: EtcdConnection, txn: Txn, recovery: WriteRecovery, deadline: float
) -> FutureGenerator[Any]:
    """Execute a transaction that only deletes, on a server whose storage is full. Return its result.

    Args:
        connection: The connection.
        txn: The transaction.
        recovery: Receives a deletion whose outcome is unknown.
        deadline: Local clock time.
    """
    if txn.deleted_ranges is not None:
        return (yield from _delete_ranges(connection, txn, recovery, deadline))
    assert txn.deleted_keys is not None
    while True:
        ranges = [pb.RangeRequest(key=key, keys_only=True) for key in txn.deleted_keys]
        answers = yield read_separately(connection, ranges, txn.what, deadline=deadline)
        found = [answer.kvs[0].mod_revision if answer.kvs else 0 for answer in answers]
        seen = dict(zip(txn.deleted_keys, found, strict=True))
        done = yield from _run(Deletion(connection, txn, seen), recovery, deadline)
        if done is not None:
            return txn.decode(done.responses, done.header.revision)
        if connection.clock.now() >= deadline:
            raise Unavailable(f"could not {txn.what} in time because others wrote at the same time; try again")


def _delete_ranges(
    connection: EtcdConnection, txn: Txn, recovery: WriteRecovery, deadline: float
) -> FutureGenerator[int]:
    """Delete the keys in ranges, a hundred at a time. Return the number of deleted keys."""
    deleted = found = 0
    assert txn.deleted_ranges is not None
    try:
        for start, end in txn.deleted_ranges:
            request = pb.RangeRequest(key=start, range_end=end, keys_only=True, limit=_BATCH)
            while (page := (yield from connection.call("Range", request, txn.what, deadline))).kvs:
                found = max(found, deleted + page.count)
                seen = {kv.key: kv.mod_revision for kv in page.kvs}
                done = yield from _run(Deletion(connection, txn, seen), recovery, deadline)
                deleted += sum(each.response_delete_range.deleted for each in done.responses) if done else 0
    except LatchworkError as error:
        if not deleted:
            raise
        raise partial_deletion_error(txn.what, deleted, found, error) from error
    return deleted


def _run(deletion: Deletion, recovery: WriteRecovery, deadline: float) -> FutureGenerator[Any]:
    try:
        return (yield from deletion.run(deadline))
    except OutcomeUnknown:
        if deletion.may_land:
            recovery.add_unresolved(deletion.resolve)
        raise
