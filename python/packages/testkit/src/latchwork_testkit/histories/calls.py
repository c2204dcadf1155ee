"""The records of a history: one per call on a store, with its answer. They can be written as JSON. No I/O.

Each write is recorded as a commit. ``put``, ``create`` and ``delete`` are commits of one operation. Entries and ``At``
checks are identified by their token, which belongs to one write only. Each value is written once in a history, so a
value that is read identifies the call that wrote it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import NamedTuple

OK = "ok"  # applied, or read
CONFLICT = "conflict"  # not applied, for the checks that the answer names
REFUSED = "refused"  # not applied, and never will be
UNKNOWN = "unknown"  # applied, or not, or yet to be


class Seen(NamedTuple):
    """An entry as the store reported it."""

    key: str
    value: str
    token: int
    created: int


class Check(NamedTuple):
    """A check: ``at`` with the token of the entry, ``absent`` or ``exists``."""

    kind: str
    key: str
    token: int = 0


class Op(NamedTuple):
    """An operation: ``put``, ``create`` or ``delete``."""

    kind: str
    key: str
    value: str = ""


@dataclass(slots=True)
class Call:
    """One call.

    Attributes:
        number: Number that is unique in its history.
        client: Name of the caller. A client is one store, and makes one call at a time.
        kind: Name of the method.
        key: Key of a get.
        checks, ops: Checks and operations of a write.
        invoked: Start time in nanoseconds of the machine's monotonic clock.
        returned: End time. For an unknown outcome, the time from which the call can no longer take effect; None for
            never.
        outcome: ``ok``, ``conflict``, ``refused`` or ``unknown``. ``unknown`` until there is an answer.
        error: Error of the answer, for messages.
        token: Token of the commit; None if the answer does not contain it (``delete``), 0 if nothing was written.
        found: Answer of a get.
        written, deleted: Answer of a commit.
        failed: The checks and creations that a conflict names.
    """

    number: int
    client: str
    kind: str
    invoked: int
    key: str = ""
    checks: tuple[Check, ...] = ()
    ops: tuple[Op, ...] = ()
    returned: int | None = None
    outcome: str = UNKNOWN
    error: str = ""
    token: int | None = None
    found: Seen | None = None
    written: tuple[Seen, ...] = ()
    deleted: tuple[str, ...] = ()
    failed: tuple[Check | Op, ...] = ()

    @property
    def is_read(self) -> bool:
        """Whether the call is a read."""
        return self.kind == "get"

    @property
    def changes_nothing(self) -> bool:
        """Whether the call is known to have changed nothing."""
        if self.is_read or self.outcome in {CONFLICT, REFUSED}:
            return True
        return not self.ops or (self.outcome == OK and not self.written and not self.deleted)

    def describe(self) -> str:
        """Describe the call and its answer in one line."""
        if self.is_read:
            asked = f"get {self.key}"
        else:
            parts = [" ".join(str(part) for part in each if part) for each in (*self.checks, *self.ops)]
            asked = f"{self.kind} [{'; '.join(parts)}]"
        return f"{self.client}: {asked} -> {self._answer()}"

    def _answer(self) -> str:
        if self.outcome != OK:
            named = "; ".join(" ".join(str(part) for part in each if part) for each in self.failed)
            return " ".join(part for part in (self.outcome, named, self.error) if part)
        if self.is_read:
            return "nothing" if self.found is None else _describe(self.found)
        written = [_describe(each) for each in self.written] + [f"{key} deleted" for key in self.deleted]
        token = "" if self.token is None else f"token {self.token}: "
        return f"ok, {token}{', '.join(written) or 'nothing written'}"


def _describe(seen: Seen) -> str:
    return f"{seen.key}={seen.value} (token {seen.token}, created {seen.created})"


@dataclass
class History:
    """Calls between two points in time at which no call was in flight.

    Attributes:
        keys: The keys.
        start: Entry of each key at the beginning.
        after: Every token of the history is greater than this.
        calls: The calls.
    """

    keys: tuple[str, ...]
    start: dict[str, Seen | None]
    after: int
    calls: list[Call] = field(default_factory=list)

    def as_json(self) -> dict[str, object]:
        """Return the history as a document."""
        return asdict(self)


def history_from_json(data: dict) -> History:
    """Return the history of a document."""
    start = {key: None if seen is None else Seen(*seen) for key, seen in data["start"].items()}
    calls = [Call(**{name: _from_json(name, value) for name, value in each.items()}) for each in data["calls"]]
    return History(tuple(data["keys"]), start, data["after"], calls)


def _from_json(name: str, value: object) -> object:
    if name == "found":
        return None if value is None else Seen(*value)
    kinds = {"checks": _check, "ops": _op, "written": lambda each: Seen(*each), "deleted": str, "failed": _failed}
    return tuple(kinds[name](each) for each in value) if name in kinds else value


def _check(parts: list) -> Check:
    return Check(*parts)


def _op(parts: list) -> Op:
    return Op(*parts)


def _failed(parts: list) -> Check | Op:
    return Op(*parts) if parts[0] in {"put", "create", "delete"} else Check(*parts)
