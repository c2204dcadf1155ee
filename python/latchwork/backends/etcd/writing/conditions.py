"""Conditions of a transaction: one compare each, the read that tells whether it held, and what it means when not.

Nothing here touches the network.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from latchwork._core import EtcdRequest
from latchwork.backends.etcd.layout import KeyRange
from latchwork.errors import Conflict, InvalidKey, LatchworkError, SessionLost
from latchwork.types import Absent, At, Create, SessionAlive

_Target = Literal["create", "mod", "lease"]
_FIELDS = {"create": "create_revision", "mod": "mod_revision", "lease": "lease"}


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
