"""What a play of the contract has on record: calls, changes seen, sessions, and what is in the store at the end.

What clients write is unique: ``<client>:<number>``; of session-bound keys ``<client>:<number>:<session>``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from trials.record import Facts


@dataclass
class Call:
    """One call of a client.

    Attributes:
        began, ended: when; ``ended`` is None while it has not returned.
        outcome: OK, REFUSED (known not to be applied) or UNKNOWN.
        token: of the commit or of the entry read; 0 when there is none.
        value: written or read.
        session: id of the session that it was asked of.
        error: class name of what was raised.
        number: its own in the play.
    """

    client: str
    kind: str
    keys: tuple[str, ...]
    began: float
    value: str = ""
    session: str = ""
    ended: float | None = None
    outcome: str = ""
    token: int = 0
    error: str = ""
    number: str | None = None


@dataclass(frozen=True)
class Seen:
    """A change that a client's watch reported; ``value`` is None for a deletion."""

    client: str
    at: float
    key: str
    value: str | None
    token: int = 0
    owner: str | None = None


@dataclass(frozen=True)
class Mark:
    """A moment of a session: opened, lost, heard (its ``on_lost`` was called), closing, state:<name>."""

    client: str
    session: str
    what: str
    at: float


@dataclass(frozen=True)
class Settled:
    """After the trouble, a client's confirmed write, and what it then found of a write that had been unknown."""

    client: str
    key: str
    value: str
    token: int
    present: bool


@dataclass(frozen=True)
class Stored:
    """A key as the raw client reads it, when all is over."""

    key: str
    value: str
    token: int
    owner: str | None


@dataclass(frozen=True)
class Patience:
    """How late things may be.

    Attributes:
        reconnect_s: a client works again so soon after its servers can be reached.
        grace_s: a call may return so much later than its deadline, for want of a processor.
        slack_s: a mark may be made so much later than what it tells.
    """

    reconnect_s: float = 1.0
    grace_s: float = 0.5
    slack_s: float = 0.05


STRICT = Patience()


@dataclass
class Record:
    """Everything about one play.

    Attributes:
        began: before the trouble.
        reachable: client to the moment from which its servers could be reached again, by a raw client's word.
        mirrors: client to key to value, when all was quiet.
        state: the raw client's reading of everything, when all was quiet.
        exempt: clients whose sessions were revoked from outside, or that were frozen: others may see their keys vanish
            before they know.
        gone: clients that were killed.
        call_timeout_s: of every client.
        patience: with everybody.
        ttl_s: of every session.
        problems: what the fault itself found wrong.
        missed: how the fault did not land; the play says nothing then.
        spoilt: how the servers disagree among themselves, by a defect that their version is known for.
        read_at: when ``state`` began to be read.
    """

    call_timeout_s: float
    ttl_s: float
    patience: Patience = STRICT
    began: float = 0.0
    calls: list[Call] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    settled: list[Settled] = field(default_factory=list)
    reachable: dict[str, float] = field(default_factory=dict)
    mirrors: dict[str, dict[str, str]] = field(default_factory=dict)
    state: list[Stored] = field(default_factory=list)
    exempt: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    missed: str = ""
    spoilt: str = ""
    read_at: float = float("inf")


def record_of(facts: Facts, call_timeout_s: float, ttl_s: float, patience: Patience) -> Record:
    """One whose lists are those of the facts, and grow with them."""
    calls, seen, marks, settled = (facts.of(kind) for kind in (Call, Seen, Mark, Settled))
    return Record(call_timeout_s, ttl_s, patience, calls=calls, seen=seen, marks=marks, settled=settled)
