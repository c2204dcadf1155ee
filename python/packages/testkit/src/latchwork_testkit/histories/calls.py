"""The record of a history: each call on a store, with its answer and its times. Records can be written as JSON. No I/O.

Each write is recorded as a commit. ``put``, ``create`` and ``delete`` are commits of one operation. A token belongs to
one write only, so entries and ``At`` checks are recorded by their token. Each value is written once in a history, so a
value that is read shows which call wrote it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import NamedTuple

OK = "ok"  # applied, or read
CONFLICT = "conflict"  # not applied, for the checks that the answer names
REFUSED = "refused"  # not applied, and never will be
UNKNOWN = "unknown"  # applied, or not, or yet to be


class ReportedEntry(NamedTuple):
    """An entry as a call of the store reported it."""

    key: str
    value: str
    token: int
    created: int


class Check(NamedTuple):
    """A check of a commit: ``at`` with the token of the entry, ``absent`` or ``exists``."""

    kind: str
    key: str
    token: int = 0


class Operation(NamedTuple):
    """A write operation: ``put``, ``create`` or ``delete``."""

    kind: str
    key: str
    value: str = ""


@dataclass(slots=True)
class Call:
    """A recorded call.

    Attributes:
        number: Number of the call, unique in its history.
        client: Name of the client. A client is one store, and makes one call at a time.
        kind: Name of the method.
        key: Key of a get.
        checks, ops: Checks and operations of a write.
        invoked: Time at which the call began, in nanoseconds of the machine's monotonic clock.
        returned: Time at which the call ended. For an unknown outcome, the time from which the call can no longer take
            effect, or None if there is no such time.
        outcome: ``ok``, ``conflict``, ``refused`` or ``unknown``. It is ``unknown`` until there is an answer.
        error: Name of the error that was raised, for messages.
        token: Token of the commit. None if the answer does not contain it (``delete``), 0 if nothing was written.
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
    ops: tuple[Operation, ...] = ()
    returned: int | None = None
    outcome: str = UNKNOWN
    error: str = ""
    token: int | None = None
    found: ReportedEntry | None = None
    written: tuple[ReportedEntry, ...] = ()
    deleted: tuple[str, ...] = ()
    failed: tuple[Check | Operation, ...] = ()

    @property
    def is_read(self) -> bool:
        """Whether the call is a read."""
        return self.kind == "get"

    @property
    def changes_nothing(self) -> bool:
        """Whether it is certain that the call did not change the store."""
        if self.is_read or self.outcome in {CONFLICT, REFUSED}:
            return True
        return not self.ops or (self.outcome == OK and not self.written and not self.deleted)

    def describe(self) -> str:
        """Format the call and its response as one line of text."""
        if self.is_read:
            request = f"get {self.key}"
        else:
            parts = [" ".join(str(part) for part in each if part) for each in (*self.checks, *self.ops)]
            request = f"{self.kind} [{'; '.join(parts)}]"
        return f"{self.client}: {request} -> {self._describe_answer()}"

    def _describe_answer(self) -> str:
        if self.outcome != OK:
            named = "; ".join(" ".join(str(part) for part in each if part) for each in self.failed)
            return " ".join(part for part in (self.outcome, named, self.error) if part)
        if self.is_read:
            return "nothing" if self.found is None else _describe_entry(self.found)
        written = [_describe_entry(each) for each in self.written] + [f"{key} deleted" for key in self.deleted]
        token = "" if self.token is None else f"token {self.token}: "
        return f"ok, {token}{', '.join(written) or 'nothing written'}"


def _describe_entry(seen: ReportedEntry) -> str:
    return f"{seen.key}={seen.value} (token {seen.token}, created {seen.created})"


@dataclass
class History:
    """The calls between two points in time at which no call was in flight.

    Attributes:
        keys: All keys that the calls use.
        start: Entry of each key at the beginning.
        after: A token before the history. Every token in it is greater.
        calls: The calls.
    """

    keys: tuple[str, ...]
    start: dict[str, ReportedEntry | None]
    after: int
    calls: list[Call] = field(default_factory=list)

    def as_json(self) -> dict[str, object]:
        """Return the history as a dictionary for JSON. `history_from_json` reads it."""
        return asdict(self)


def history_from_json(data: dict) -> History:
    """Convert the dictionary from `History.as_json` to a history."""
    start = {key: None if seen is None else ReportedEntry(*seen) for key, seen in data["start"].items()}
    calls = [Call(**{name: _from_json(name, value) for name, value in each.items()}) for each in data["calls"]]
    return History(tuple(data["keys"]), start, data["after"], calls)


def _from_json(name: str, value: object) -> object:
    if name == "found":
        return None if value is None else ReportedEntry(*value)
    kinds = {
        "checks": _check,
        "ops": _op,
        "written": lambda each: ReportedEntry(*each),
        "deleted": str,
        "failed": _failed,
    }
    return tuple(kinds[name](each) for each in value) if name in kinds else value


def _check(parts: list) -> Check:
    return Check(*parts)


def _op(parts: list) -> Operation:
    return Operation(*parts)


def _failed(parts: list) -> Check | Operation:
    return Operation(*parts) if parts[0] in {"put", "create", "delete"} else Check(*parts)
