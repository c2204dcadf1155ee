"""The leader and the candidates as the store knows them: read once, or followed."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from latchwork.errors import Closed
from latchwork.primitives.fair.tickets import Ticket, is_ticket
from latchwork.primitives.waiting.common import Closes, Patience
from latchwork.records import Record
from latchwork.store.steps import driven, steps_of
from latchwork.store.store import Store
from latchwork.store.watch import Batch, Watch


@dataclass(frozen=True, slots=True)
class Leader:
    """A campaign as the store knows it: the leader's, or that of a candidate who waits.

    Attributes:
        node_id: as the campaigner gave it; empty when its ticket cannot be read.
        value: what it announces; empty when that cannot be read.
        ticket: the key of its ticket: one per term.
        token: the fencing token it has, or will have, as leader.
        session_id: the session its ticket is bound to.
    """

    node_id: str
    value: bytes
    ticket: str
    token: int
    session_id: str | None

    @classmethod
    def of(cls, ticket: Ticket) -> Leader:
        """What a ticket says."""
        return cls(ticket.label, _read_value(ticket.body), ticket.key, ticket.token, ticket.session_id)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One candidate in the queue.

    Attributes:
        node_id: as the candidate gave it; empty when its ticket cannot be read.
        ticket: the key of its ticket.
        token: the fencing token it has, or will have, as leader.
        session_id: the session its ticket is bound to.
    """

    node_id: str
    ticket: str
    token: int
    session_id: str | None

    @classmethod
    def of(cls, ticket: Ticket) -> Candidate:
        """What a ticket says."""
        return cls(ticket.label, ticket.key, ticket.token, ticket.session_id)


class Observer(Closes):
    """Iterates over who leads, the current state first; ``with`` closes it. One reader; ``close`` from any thread.

    Each item is a ``Leader``, or None while nobody leads. States in between may be merged: the newest is always given.
    """

    def __init__(self, store: Store, name: str) -> None:
        self._clock = store.clock
        self._name = name
        self._tickets: dict[str, Leader] = {}
        self._told: Leader | None = None
        self._first = True
        self._watch: Watch = store.watch(name)

    def __iter__(self) -> Iterator[Leader | None]:
        return self

    def __next__(self) -> Leader | None:
        try:
            return self.next()
        except Closed:
            raise StopIteration from None

    @driven
    async def next(self, timeout_s: float | None = None) -> Leader | None:
        """The next leader or value.

        Args:
            timeout_s: seconds to wait; None waits for ever.
        Raises:
            WaitTimeout: nothing changed in that time.
            Closed: the observer or its store was closed.
            PermissionDenied: the account may not read here any more.
        """
        patience = Patience(self._clock, timeout_s)
        while True:
            self._fold(await steps_of(self._watch.next)(patience.left_s()))
            leader = min(self._tickets.values(), key=lambda each: (each.token, each.ticket), default=None)
            if self._first or leader != self._told:
                self._first, self._told = False, leader
                return leader

    def close(self) -> None:
        """Stop; whoever waits gets ``Closed``. Twice is fine."""
        self._watch.close()

    def _fold(self, batch: Batch) -> None:
        for change in batch:
            if change.entry is None or change.entry.owner is None:
                self._tickets.pop(change.key, None)
            elif is_ticket(change.key) and change.key.rpartition("/")[0] == self._name:  # not of a name below ours
                self._tickets[change.key] = Leader.of(Ticket.of(change.entry))


def _read_value(body: Mapping[str, object]) -> bytes:
    value = Record(body).text("value", "")
    try:
        return base64.b64decode(value) if body.get("encoding") == "base64" else value.encode()
    except ValueError:
        return b""  # as of a ticket that cannot be read
