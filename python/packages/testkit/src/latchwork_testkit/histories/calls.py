"""What the recorder writes down: one record per call on a store, with its answer, in a form that fits into JSON.

Every write is put down as a commit, ``put``, ``create`` and ``delete`` too: they are commits of one operation. Entries
are named by their token, which one write has and no other; ``At`` checks likewise. Each value is written once in a
history, so a value that is read names the call that wrote it.

Nothing here touches the network.
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
    """``at`` with the token of the entry, ``absent`` or ``exists``."""

    kind: str
    key: str
    token: int = 0


class Op(NamedTuple):
    """``put``, ``create`` or ``delete``."""

    kind: str
    key: str
    value: str = ""


@dataclass(slots=True)
class Call:
    """One call.

    Attributes:
        number: unique in its history.
        client: who called; one call at a time, a client is one store.
        kind: the method.
        key: of a get.
        invoked, returned: nanoseconds on the machine's monotonic clock; the latter of an unknown outcome: when it can
            take effect no more, None for never.
        outcome: see above; UNKNOWN until there is an answer.
        error: the answer's error, for people.
        token: of the commit; None when the answer does not tell (``delete``), 0 when nothing was written.
        found: answer of a get.
        written, deleted: answer of a commit.
        failed: what a conflict names, checks and creations.
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
        """It is known to have left everything as it was."""
        if self.is_read or self.outcome in {CONFLICT, REFUSED}:
            return True
        return not self.ops or (self.outcome == OK and not self.written and not self.deleted)

    def told(self) -> str:
        """One line for people."""
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
            return "nothing" if self.found is None else _told(self.found)
        written = [_told(each) for each in self.written] + [f"{key} deleted" for key in self.deleted]
        token = "" if self.token is None else f"token {self.token}: "
        return f"ok, {token}{', '.join(written) or 'nothing written'}"


def _told(seen: Seen) -> str:
    return f"{seen.key}={seen.value} (token {seen.token}, created {seen.created})"


@dataclass
class History:
    """Calls between two moments at which nothing was under way.

    Attributes:
        start: every key's entry at the beginning.
        after: every token of the history is greater than this.
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
