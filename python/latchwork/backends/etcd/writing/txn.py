"""An etcd transaction: its conditions, its operations, and the decoding of its answer.

The failure branch reads the compared keys, so that one round trip shows which check failed. A server adds up the
comparisons and operations along each path of nested transactions and accepts 128. Further comparisons are put into
nested transactions. If one fails, it overwrites a key that never exists and keeps its lease: etcd then refuses the
whole transaction before it applies anything. The failed check is read separately.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from latchwork.backends.etcd import rpc_pb2 as pb
from latchwork.backends.etcd.connection import decode_response
from latchwork.backends.etcd.layout import EtcdKeys, KeyRange, lease_id_of_session
from latchwork.backends.etcd.writing import requests
from latchwork.backends.etcd.writing.slots import Slot
from latchwork.errors import Conflict, InvalidKey, LatchworkError, SessionLost
from latchwork.types import Absent, At, Create, SessionAlive

#: Compares in addition to the guard's, and reads of them, that fit next to each other below the server's limit.
FLAT_LIMIT = 120
#: Compares of one nested transaction when there are more.
NESTED_LIMIT = 100


@dataclass(slots=True)
class Txn:
    """A transaction that is ready to be sent with a slot as guard.

    Attributes:
        conditions: The conditions, all of which must hold.
        ops: The etcd operations, one or two per operation of the caller.
        decode: Converts their responses and the revision to the result, which is never None.
        recall: Returns the range requests that show what the transaction did at a revision.
        decode_recall: Converts the answers to ``recall`` and the revision to the result.
        what: Description of the call with its key, for messages.
        learned: The leases of keys that were read, by raw key, for another attempt.
        deleted_keys, deleted_ranges: One of them is set if the transaction only deletes.
    """

    conditions: list[Condition]
    ops: list[requests.Operation]
    decode: Callable[[Sequence[Any], int], Any]
    recall: Callable[[int], list[Any]]
    decode_recall: Callable[[Sequence[Any], int], Any]
    what: str
    learned: dict[bytes, int] = field(default_factory=dict)
    deleted_keys: list[bytes] | None = None
    deleted_ranges: Sequence[KeyRange] | None = None

    @property
    def is_flat(self) -> bool:
        """Whether the comparisons and operations fit into one transaction without nested ones."""
        return len(self.conditions) <= FLAT_LIMIT

    def as_txn(self) -> Txn:
        """Return this transaction. The same method of ``EtcdCommit`` builds one."""
        return self

    def encode_request(self, keys: EtcdKeys, slot: Slot) -> bytes:
        """Encode the request of the transaction with a slot as guard."""
        ops = [slot.write, *self.ops]
        if self.is_flat:
            return requests.encode_transaction(
                [slot.build_compare(), *self.build_compares()], ops, [slot.read, *self.build_reads()]
            )
        parts = [requests.nested_transaction(ops), *_assert_compares(keys, self.build_compares())]
        return requests.encode_transaction([slot.build_compare()], parts, [slot.read])

    def decode_outcome(self, answer: bytes) -> tuple[int, Any] | None:
        """Decode the response to the transaction.

        Returns:
            The revision and the result, or None if the transaction was refused.

        Raises:
            ValueError: The response is malformed.
        """
        response = decode_response("Txn", answer)
        if not response.succeeded:
            return None
        answers = response.responses
        if not self.is_flat:
            answers = answers[0].response_txn.responses
        return response.header.revision, self.decode(answers[1:], response.header.revision)

    def evaluate_reads(self, answers: Sequence[Any]) -> LatchworkError | None:
        """Evaluate the reads of the compared keys, after the server has refused the transaction.

        Keeps the leases and counters that were read, for the next attempt.

        Args:
            answers: The responses to ``build_reads``.
        Returns:
            The error for a condition that does not hold; None if the transaction may succeed when it is sent again.
        """
        failed: dict[ConditionKind, list[Condition]] = {}
        for condition, answer in zip(self.conditions, answers, strict=True):
            found = answer.response_range.kvs
            if not condition.holds(found):
                failed.setdefault(condition.kind, []).append(condition)
                if condition.kind is ConditionKind.OWNER:
                    self.learned[condition.key] = found[0].lease if found else 0
                elif condition.kind is ConditionKind.COUNTER:
                    condition.subject = (found[0].mod_revision, int(found[0].value)) if found else (0, 0)
        return explain_failed_conditions(failed, self.what)

    def build_compares(self) -> list[requests.Compare]:
        """Return the comparisons of the conditions."""
        return [condition.build_compare() for condition in self.conditions]

    def build_reads(self) -> list[requests.Operation]:
        """Return the reads of the compared keys. ``evaluate_reads`` evaluates their answers."""
        return [condition.build_read() for condition in self.conditions]


def _assert_compares(keys: EtcdKeys, compares: list[requests.Compare]) -> list[requests.Operation]:
    """Return nested transactions that make the server refuse the whole transaction if a comparison fails.

    Args:
        keys: Converts the keys of the store.
        compares: The comparisons.
    """
    return [
        {
            "request_txn": {
                "compare": compares[at : at + NESTED_LIMIT],
                "failure": [_refuse_unless_exists(keys.unused_key(at))],
            }
        }
        for at in range(0, len(compares), NESTED_LIMIT)
    ]


def _refuse_unless_exists(absent: bytes) -> requests.Operation:
    """Return an operation that makes the server refuse the whole transaction if this key does not exist."""
    return {"request_put": {"key": absent, "ignore_lease": True}}


def build_tree_deletion(ranges: Sequence[KeyRange], description: str) -> Txn:
    """Return the transaction that deletes all keys in some ranges. Its result is the number of deleted keys."""
    return Txn(
        [],
        [requests.delete_operation(start, end) for start, end in ranges],
        lambda answers, _: sum(answer.response_delete_range.deleted for answer in answers),
        lambda revision: [
            pb.RangeRequest(key=start, range_end=end, count_only=True, revision=revision - 1) for start, end in ranges
        ],
        lambda answers, _: sum(answer.count for answer in answers),
        description,
        deleted_ranges=ranges,
    )


def build_marker_creation(keys: EtcdKeys, session_id: str, value: bytes) -> Txn:
    """Return the transaction that creates the marker of a session, which must not exist. Its result is the revision."""
    raw, lease = keys.session_key(session_id), lease_id_of_session(session_id)
    return Txn(
        [absence_condition(ConditionKind.SESSION, (raw, b""), session_id)],
        [requests.put_operation(raw, value, lease)],
        lambda _, revision: revision,
        lambda _: [],
        lambda _, revision: revision,
        f"open session {session_id}",
    )


class CounterMoved(LatchworkError):
    """Another client took a sequential number meanwhile. Contains the current counter. Raised only inside the
    backend.
    """

    def __init__(self, revision: int, number: int) -> None:
        super().__init__(f"the counter is at {number}")
        self.revision = revision
        self.number = number


class ConditionKind(enum.Enum):
    """The meaning of a failed condition."""

    CHECK = "a public check: Conflict"
    SESSION = "the session of an operation: SessionLost"
    LEAF = "the leaf rule: InvalidKey"
    OWNER = "an assumption about the owner of a key: learn it and send again"
    COUNTER = "the counter of sequential keys: CounterMoved"


@dataclass(slots=True)
class Condition:
    """A condition on a key, or on every key in a range, which the server checks with a comparison.

    Attributes:
        kind: The meaning if it fails.
        target: What is compared: a revision of the key, or its lease. It is 0 if the key does not exist.
        key, end: The key, or with ``end`` the range from ``key`` to ``end``.
        operand: The number to compare with.
        subject: The subject of the error.
        greater: Whether the target must be greater than the operand, instead of equal.
    """

    kind: ConditionKind
    target: requests.Target
    key: bytes
    operand: int
    subject: Any
    end: bytes = b""
    greater: bool = False

    def build_compare(self) -> requests.Compare:
        """Build the etcd comparison that checks this condition."""
        return requests.comparison(self.target, self.key, self.operand, self.end, greater=self.greater)

    def build_read(self) -> requests.Operation:
        """Build the etcd read of the keys that ``holds`` needs."""
        return (
            requests.read_operation(self.key)
            if self.kind is ConditionKind.COUNTER
            else requests.read_without_value(self.key, self.end)
        )

    def holds(self, kvs: Any) -> bool:
        """Return whether the condition holds.

        Args:
            kvs: The keys that the read of this condition has returned.
        """
        found: int = getattr(kvs[0], self.target) if kvs else 0
        return found > self.operand if self.greater else found == self.operand


def unchanged_condition(raw_key: bytes, revision: int, check: At) -> Condition:
    """Return the condition that a key was not written or deleted after a revision."""
    return Condition(ConditionKind.CHECK, "mod_revision", raw_key, revision, check)


def absence_condition(kind: ConditionKind, key_range: KeyRange, subject: Any) -> Condition:
    """Return the condition that no key exists in a range. For a single key, the end of the range is empty.

    Args:
        kind: The meaning if it fails.
        key_range: The range.
        subject: The subject of the error.
    """
    return Condition(kind, "create_revision", key_range[0], 0, subject, end=key_range[1])


def existence_condition(kind: ConditionKind, raw_key: bytes, subject: Any) -> Condition:
    """Return the condition that a key exists."""
    return Condition(kind, "create_revision", raw_key, 0, subject, greater=True)


def ownership_condition(kind: ConditionKind, raw_key: bytes, lease: int, subject: Any) -> Condition:
    """Return the condition that a key is bound to a lease, or to none if ``lease`` is 0. A key that does not exist has
    none.
    """
    return Condition(kind, "lease", raw_key, lease, subject)


def counter_condition(raw_key: bytes, revision: int) -> Condition:
    """Return the condition that no sequential number was taken after a revision. Revision 0 means that none was ever
    taken.
    """
    return Condition(ConditionKind.COUNTER, "mod_revision", raw_key, revision, None)


def explain_failed_conditions(
    failed: Mapping[ConditionKind, list[Condition]], description: str
) -> LatchworkError | None:
    """Return the error for failed conditions. Return None if only assumptions of the backend were wrong, so that a
    retry helps.

    Args:
        failed: The failed conditions by meaning.
        description: A description of the call with its key.
    """
    for kind, make in _EXPLANATIONS.items():
        if kind in failed:
            return make(failed[kind], description)
    return None


def _session_lost(failed: list[Condition], description: str) -> LatchworkError:
    return SessionLost(f"could not {description}: session {failed[0].subject} ended on the server; open a new session")


def _conflict(failed: list[Condition], description: str) -> LatchworkError:
    subjects = [condition.subject for condition in failed]
    first = subjects[0]
    named = f"session {first.session_id}" if isinstance(first, SessionAlive) else repr(first.key)
    state = {At: "was written since", Create: "exists already", Absent: "exists"}.get(type(first), "is gone")
    more = f" and {len(subjects) - 1} more" if len(subjects) > 1 else ""
    return Conflict(f"could not {description}: {named} {state}{more}; read again and try again", subjects)


def _leaf_error(failed: list[Condition], description: str) -> LatchworkError:
    return InvalidKey(
        f"could not {description}: keys bound to a session have nothing below them, {failed[0].subject!r} would; "
        "use another key"
    )


def _counter_moved(failed: list[Condition], description: str) -> LatchworkError:
    del description
    revision, number = failed[0].subject
    return CounterMoved(revision, number)


_EXPLANATIONS: dict[ConditionKind, Callable[[list[Condition], str], LatchworkError]] = {
    ConditionKind.COUNTER: _counter_moved,
    ConditionKind.SESSION: _session_lost,
    ConditionKind.CHECK: _conflict,
    ConditionKind.LEAF: _leaf_error,
}
