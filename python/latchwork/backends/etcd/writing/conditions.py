"""Conditions of a transaction: one compare each, the read that tells whether it held, and what it means when not.

Nothing here touches the network. The ``holds`` of a condition judges the keys that its read found.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from latchwork.backends.etcd import wire
from latchwork.backends.etcd.wire import Target
from latchwork.errors import Conflict, InvalidKey, LatchworkError, SessionLost
from latchwork.types import Absent, At, Create, SessionAlive

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from latchwork.backends.etcd.layout import KeyRange


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
    """One compare, with the read that tells afterwards whether it held; both encoded."""

    kind: Kind
    compare: bytes
    read: bytes
    holds: Callable[[Any], bool]
    subject: Any


def unchanged(raw: bytes, revision: int, check: At) -> Condition:
    """The key was not written since the revision."""
    compare = wire.compare(Target.MOD, raw, revision)
    return Condition(
        Kind.CHECK, compare, wire.peek(raw), lambda kvs: bool(kvs) and kvs[0].mod_revision == revision, check
    )


def absence(kind: Kind, span: KeyRange, subject: Any) -> Condition:
    """Nothing exists in the range; of a single key the end is empty."""
    compare = wire.compare(Target.CREATE, span[0], 0, end=span[1])
    return Condition(kind, compare, wire.peek(*span), _is_empty, subject)


def existence(kind: Kind, raw: bytes, subject: Any) -> Condition:
    """The key exists."""
    compare = wire.compare(Target.CREATE, raw, 0, greater=True)
    return Condition(kind, compare, wire.peek(raw), bool, subject)


def ownership(kind: Kind, raw: bytes, lease: int, subject: Any) -> Condition:
    """The key hangs on this lease; 0 for none, which holds for an absent key too."""
    compare = wire.compare(Target.LEASE, raw, lease)
    return Condition(kind, compare, wire.peek(raw), lambda kvs: (kvs[0].lease if kvs else 0) == lease, subject)


def counter_at(raw: bytes, revision: int) -> Condition:
    """Nobody took a number since the revision; 0 for none ever."""
    seen = [0, 0]

    def holds(kvs: Any) -> bool:
        seen[:] = (kvs[0].mod_revision, int(kvs[0].value)) if kvs else (0, 0)
        return seen[0] == revision

    return Condition(Kind.COUNTER, wire.compare(Target.MOD, raw, revision), wire.read(raw), holds, seen)


def explain(failed: Mapping[Kind, list[Condition]], what: str) -> LatchworkError | None:
    """The public error for the conditions that did not hold; None when they were only assumptions of ours."""
    for kind, make in _EXPLANATIONS.items():
        if kind in failed:
            return make(failed[kind], what)
    return None


def _is_empty(kvs: Any) -> bool:
    return not kvs


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
