"""One transaction as etcd gets it: what must hold, what it does, and how its answer is read. No network here.

The failure branch reads what was compared, so one round trip tells exactly which check failed. A server adds up
compares and operations along each path of nested transactions and takes 128. Beyond that the compares move into nested
transactions side by side, each of which overwrites a key that never exists, keeping its lease, when one of its compares
fails: etcd refuses the whole transaction for that before it applies anything. What failed is then read separately.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from latchwork._core import EtcdRequest
from latchwork.backends.etcd import rpc_pb2 as pb
from latchwork.backends.etcd.connection import as_message
from latchwork.backends.etcd.layout import KeyRange, Keys, lease_of
from latchwork.backends.etcd.writing.slots import Slot
from latchwork.errors import Conflict, InvalidKey, LatchworkError, SessionLost
from latchwork.types import Absent, At, Create, SessionAlive

#: Compares beside the guard's, and reads of them, that fit next to each other below the server's limit.
FLAT_LIMIT = 120
#: Compares of one nested transaction when there are more.
NESTED_LIMIT = 100
_Target = Literal["create", "mod", "lease"]
_FIELDS = {"create": "create_revision", "mod": "mod_revision", "lease": "lease"}


@dataclass(slots=True)
class Txn:
    """A transaction ready to be sent under a guard.

    Attributes:
        conditions: all must hold.
        ops: encoded request operations, one or two for each public operation.
        decode: from their responses and the revision to the outcome, which is never None.
        recall: range requests (with revisions filled in) that show afterwards what the transaction at a revision did.
        decode_recall: from the answers to ``recall`` and the revision to the outcome.
        what: the action with its key, for messages.
        learned: leases of keys as last seen, by raw key; used when the transaction is made again.
        deleted_keys, deleted_ranges: one of them, where all that it does is to delete these.
    """

    conditions: list[Condition]
    ops: list[bytes]
    decode: Callable[[Sequence[Any], int], Any]
    recall: Callable[[int], list[Any]]
    decode_recall: Callable[[Sequence[Any], int], Any]
    what: str
    learned: dict[bytes, int] = field(default_factory=dict)
    deleted_keys: list[bytes] | None = None
    deleted_ranges: Sequence[KeyRange] | None = None

    @property
    def is_flat(self) -> bool:
        """Whether compares and operations fit side by side."""
        return len(self.conditions) <= FLAT_LIMIT

    def txn(self) -> Txn:
        """Itself; see ``Commit``."""
        return self

    def request(self, keys: Keys, slot: Slot) -> bytes:
        """The encoded request under the guard of a slot."""
        compares, reads = self.compares(), self.reads()
        if self.is_flat:
            return EtcdRequest.txn([slot.compare(), *compares], [slot.write, *self.ops], [slot.read, *reads])
        body = EtcdRequest.txn([], [slot.write, *self.ops])
        parts = [EtcdRequest.nested(body), *_assertions(keys, compares)]
        return EtcdRequest.txn([slot.compare()], parts, [slot.read])

    def outcome(self, answer: bytes) -> tuple[int, Any] | None:
        """The revision of a transaction that was applied, and what it did; None for one that was refused.

        Raises:
            ValueError: the answer is malformed.
        """
        response = as_message("Txn", answer)
        if not response.succeeded:
            return None
        answers = response.responses
        if not self.is_flat:
            answers = answers[0].response_txn.responses
        return response.header.revision, self.decode(answers[1:], response.header.revision)

    def failure(self, answers: Sequence[Any]) -> LatchworkError | None:
        """The public error that the reads of the conditions show, if any; leases and counters seen are learned."""
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

    def compares(self) -> list[bytes]:
        """The compares of the conditions, encoded."""
        return [condition.compare() for condition in self.conditions]

    def reads(self) -> list[bytes]:
        """The reads that ``failure`` judges, encoded."""
        return [condition.read() for condition in self.conditions]


def _assertions(keys: Keys, compares: list[bytes]) -> list[bytes]:
    """Nested transactions that refuse the whole when a compare fails."""
    return [
        EtcdRequest.nested(
            EtcdRequest.txn(
                compares[start : start + NESTED_LIMIT],
                failure=[EtcdRequest.put(keys.absent(start), b"", ignore_lease=True)],
            )
        )
        for start in range(0, len(compares), NESTED_LIMIT)
    ]


def tree_deletion(spans: Sequence[KeyRange], what: str) -> Txn:
    """The deletion of all keys in some ranges: how many there were."""
    return Txn(
        [],
        [EtcdRequest.delete(start, end) for start, end in spans],
        lambda answers, _: sum(answer.response_delete_range.deleted for answer in answers),
        lambda revision: [
            pb.RangeRequest(key=start, range_end=end, count_only=True, revision=revision - 1) for start, end in spans
        ],
        lambda answers, _: sum(answer.count for answer in answers),
        what,
        deleted_ranges=spans,
    )


def marker_creation(keys: Keys, session_id: str, value: bytes) -> Txn:
    """The creation of a session's marker, which must not exist yet: its revision."""
    raw, lease = keys.marker(session_id), lease_of(session_id)
    return Txn(
        [absence(Kind.SESSION, (raw, b""), session_id)],
        [EtcdRequest.put(raw, value, lease)],
        lambda _, revision: revision,
        lambda _: [],
        lambda _, revision: revision,
        f"open session {session_id}",
    )


class CounterMoved(LatchworkError):
    """Somebody else took a number: where the counter is now. Never reaches a caller."""

    def __init__(self, revision: int, number: int) -> None:
        super().__init__(f"the counter is at {number}")
        self.revision = revision
        self.number = number


class Kind(enum.Enum):
    """What a failed condition means."""

    CHECK = "a public check: Conflict"
    SESSION = "the session of an operation: SessionLost"
    LEAF = "the leaf rule: InvalidKey"
    OWNER = "an assumption about the owner of a key: learn it and send again"
    COUNTER = "the counter of sequential keys: CounterMoved"


@dataclass(slots=True)
class Condition:
    """One compare of a key, or of every key in a range.

    Attributes:
        kind: what it means when it does not hold.
        target: which of the key's revisions is compared, or its lease; each is 0 for a key that is not there.
        key, end: the key; with an end, the range that begins there.
        operand: what the target is compared with.
        subject: what the error is about.
        greater: the target is greater than the operand, not equal to it.
    """

    kind: Kind
    target: _Target
    key: bytes
    operand: int
    subject: Any
    end: bytes = b""
    greater: bool = False

    def compare(self) -> bytes:
        """The compare, encoded."""
        return EtcdRequest.compare(self.target, self.key, self.operand, self.end, greater=self.greater)

    def read(self) -> bytes:
        """The operation whose answer ``holds`` judges, encoded."""
        return EtcdRequest.read(self.key) if self.kind is Kind.COUNTER else EtcdRequest.peek(self.key, self.end)

    def holds(self, kvs: Any) -> bool:
        """Whether it held when its read found these keys."""
        found: int = getattr(kvs[0], _FIELDS[self.target]) if kvs else 0
        return found > self.operand if self.greater else found == self.operand


def unchanged(raw: bytes, revision: int, check: At) -> Condition:
    """The key was not written since the revision."""
    return Condition(Kind.CHECK, "mod", raw, revision, check)


def absence(kind: Kind, span: KeyRange, subject: Any) -> Condition:
    """Nothing exists in the range; of a single key the end is empty."""
    return Condition(kind, "create", span[0], 0, subject, end=span[1])


def existence(kind: Kind, raw: bytes, subject: Any) -> Condition:
    """The key exists."""
    return Condition(kind, "create", raw, 0, subject, greater=True)


def ownership(kind: Kind, raw: bytes, lease: int, subject: Any) -> Condition:
    """The key hangs on this lease; 0 for none, which holds for an absent key too."""
    return Condition(kind, "lease", raw, lease, subject)


def counter_at(raw: bytes, revision: int) -> Condition:
    """Nobody took a number since the revision, 0 for none ever. Its subject, once it failed: where the counter is."""
    return Condition(Kind.COUNTER, "mod", raw, revision, None)


def explain(failed: Mapping[Kind, list[Condition]], what: str) -> LatchworkError | None:
    """The public error for the conditions that did not hold; None when they were only assumptions of ours."""
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


def _not_leaf(failed: list[Condition], what: str) -> LatchworkError:
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
    Kind.LEAF: _not_leaf,
}
