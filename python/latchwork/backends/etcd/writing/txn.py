"""A transaction as etcd receives it: its conditions, its operations, and the decoding of its answer.

The failure branch reads what was compared, so one round trip shows which check failed. A server adds up compares and
operations along each path of nested transactions and accepts 128. Further compares go into nested transactions side by
side, each of which overwrites a key that never exists, keeping its lease, if a compare fails: etcd then refuses the
whole transaction before it applies anything. The failed check is read separately.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from latchwork.backends.etcd import rpc_pb2 as pb
from latchwork.backends.etcd.connection import decode_answer
from latchwork.backends.etcd.layout import KeyRange, Keys, lease_of
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
    """A transaction that is ready to be sent under a guard.

    Attributes:
        conditions: All must hold.
        ops: Operations, one or two per public operation.
        decode: Returns the outcome, which is never None, for their responses and the revision.
        recall: Range requests (with revisions filled in) that show what the transaction at a revision did.
        decode_recall: Returns the outcome for the answers to ``recall`` and the revision.
        what: The action with its key, for messages.
        learned: Leases of keys as last seen, by raw key, for another try.
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

    def txn(self) -> Txn:
        """Return this transaction; the same method of ``Commit`` builds one."""
        return self

    def request(self, keys: Keys, slot: Slot) -> bytes:
        """Encode the request, guarded by a slot."""
        ops = [slot.write, *self.ops]
        if self.is_flat:
            return requests.transaction([slot.compare(), *self.compares()], ops, [slot.read, *self.reads()])
        parts = [requests.nested(ops), *_assert_compares(keys, self.compares())]
        return requests.transaction([slot.compare()], parts, [slot.read])

    def outcome(self, answer: bytes) -> tuple[int, Any] | None:
        """Decode the answer. Return the revision and the result, or None if the transaction was refused.

        Raises:
            ValueError: The answer is malformed.
        """
        response = decode_answer("Txn", answer)
        if not response.succeeded:
            return None
        answers = response.responses
        if not self.is_flat:
            answers = answers[0].response_txn.responses
        return response.header.revision, self.decode(answers[1:], response.header.revision)

    def failure(self, answers: Sequence[Any]) -> LatchworkError | None:
        """Return the error that the reads of the conditions show, or None. Also learn leases and counters from them."""
        failed: dict[Kind, list[Condition]] = {}
        for condition, answer in zip(self.conditions, answers, strict=True):
            found = answer.response_range.kvs
            if not condition.holds(found):
                failed.setdefault(condition.kind, []).append(condition)
                if condition.kind is Kind.OWNER:
                    self.learned[condition.key] = found[0].lease if found else 0
                elif condition.kind is Kind.COUNTER:
                    condition.subject = (found[0].mod_revision, int(found[0].value)) if found else (0, 0)
        return explain(failed, self.what)

    def compares(self) -> list[requests.Compare]:
        """Return the comparisons of the conditions."""
        return [condition.compare() for condition in self.conditions]

    def reads(self) -> list[requests.Operation]:
        """Return the reads whose answers ``failure`` evaluates."""
        return [condition.read() for condition in self.conditions]


def _assert_compares(keys: Keys, compares: list[requests.Compare]) -> list[requests.Operation]:
    """Return nested transactions that make the server refuse the whole one when a comparison fails."""
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
    """Return an operation that the server refuses together with the whole transaction, as long as a key is absent."""
    return {"request_put": {"key": absent, "ignore_lease": True}}


def tree_deletion(spans: Sequence[KeyRange], what: str) -> Txn:
    """Return the transaction that deletes all keys in some ranges. Its result is their number."""
    return Txn(
        [],
        [requests.delete(start, end) for start, end in spans],
        lambda answers, _: sum(answer.response_delete_range.deleted for answer in answers),
        lambda revision: [
            pb.RangeRequest(key=start, range_end=end, count_only=True, revision=revision - 1) for start, end in spans
        ],
        lambda answers, _: sum(answer.count for answer in answers),
        what,
        deleted_ranges=spans,
    )


def marker_creation(keys: Keys, session_id: str, value: bytes) -> Txn:
    """Return the transaction that creates the key of a session, which must not exist. Its result is the revision."""
    raw, lease = keys.session_key(session_id), lease_of(session_id)
    return Txn(
        [absence(Kind.SESSION, (raw, b""), session_id)],
        [requests.put(raw, value, lease)],
        lambda _, revision: revision,
        lambda _: [],
        lambda _, revision: revision,
        f"open session {session_id}",
    )


class CounterMoved(LatchworkError):
    """Raised inside the backend when another client took a sequential number. Contains the counter."""

    def __init__(self, revision: int, number: int) -> None:
        super().__init__(f"the counter is at {number}")
        self.revision = revision
        self.number = number


class Kind(enum.Enum):
    """What it means if a condition fails."""

    CHECK = "a public check: Conflict"
    SESSION = "the session of an operation: SessionLost"
    LEAF = "the leaf rule: InvalidKey"
    OWNER = "an assumption about the owner of a key: learn it and send again"
    COUNTER = "the counter of sequential keys: CounterMoved"


@dataclass(slots=True)
class Condition:
    """A compare of a key, or of every key in a range.

    Attributes:
        kind: Its meaning when it fails.
        target: The compared revision of the key, or its lease; 0 for an absent key.
        key, end: The key; with an end, the range that begins there.
        operand: The value to compare with.
        subject: The subject of the error.
        greater: Whether the target must be greater than the operand instead of equal.
    """

    kind: Kind
    target: requests.Target
    key: bytes
    operand: int
    subject: Any
    end: bytes = b""
    greater: bool = False

    def compare(self) -> requests.Compare:
        """Return the comparison that the server evaluates."""
        return requests.compare(self.target, self.key, self.operand, self.end, greater=self.greater)

    def read(self) -> requests.Operation:
        """Return the read whose answer ``holds`` evaluates."""
        return requests.read(self.key) if self.kind is Kind.COUNTER else requests.peek(self.key, self.end)

    def holds(self, kvs: Any) -> bool:
        """Return whether the condition held, given the keys that its read has found."""
        found: int = getattr(kvs[0], self.target) if kvs else 0
        return found > self.operand if self.greater else found == self.operand


def unchanged(raw: bytes, revision: int, check: At) -> Condition:
    """Return the condition that a key was not written since a revision."""
    return Condition(Kind.CHECK, "mod_revision", raw, revision, check)


def absence(kind: Kind, span: KeyRange, subject: Any) -> Condition:
    """Return the condition that no key exists in a range. The end of a single key is empty."""
    return Condition(kind, "create_revision", span[0], 0, subject, end=span[1])


def existence(kind: Kind, raw: bytes, subject: Any) -> Condition:
    """Return the condition that a key exists."""
    return Condition(kind, "create_revision", raw, 0, subject, greater=True)


def ownership(kind: Kind, raw: bytes, lease: int, subject: Any) -> Condition:
    """Return the condition that a key is bound to this lease. 0 means to none, which is also true for an absent key."""
    return Condition(kind, "lease", raw, lease, subject)


def counter_at(raw: bytes, revision: int) -> Condition:
    """Return the condition that no sequential number was taken since a revision, or ever if that is 0."""
    return Condition(Kind.COUNTER, "mod_revision", raw, revision, None)


def explain(failed: Mapping[Kind, list[Condition]], what: str) -> LatchworkError | None:
    """Return the error for failed conditions. None if only assumptions of the backend failed, so that a retry helps."""
    for kind, make in _EXPLANATIONS.items():
        if kind in failed:
            return make(failed[kind], what)
    return None


def _session_lost(failed: list[Condition], what: str) -> LatchworkError:
    return SessionLost(f"could not {what}: session {failed[0].subject} ended on the server; open a new session")


def _conflict(failed: list[Condition], what: str) -> LatchworkError:
    subjects = [condition.subject for condition in failed]
    first = subjects[0]
    named = f"session {first.session_id}" if isinstance(first, SessionAlive) else repr(first.key)
    state = {At: "was written since", Create: "exists already", Absent: "exists"}.get(type(first), "is gone")
    more = f" and {len(subjects) - 1} more" if len(subjects) > 1 else ""
    return Conflict(f"could not {what}: {named} {state}{more}; read again and try again", subjects)


def _leaf_error(failed: list[Condition], what: str) -> LatchworkError:
    return InvalidKey(
        f"could not {what}: keys bound to a session have nothing below them, {failed[0].subject!r} would; "
        "use another key"
    )


def _counter_moved(failed: list[Condition], what: str) -> LatchworkError:
    del what
    revision, number = failed[0].subject
    return CounterMoved(revision, number)


_EXPLANATIONS: dict[Kind, Callable[[list[Condition], str], LatchworkError]] = {
    Kind.COUNTER: _counter_moved,
    Kind.SESSION: _session_lost,
    Kind.CHECK: _conflict,
    Kind.LEAF: _leaf_error,
}
