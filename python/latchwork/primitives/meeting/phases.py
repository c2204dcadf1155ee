"""The state of a barrier as it is stored, and what follows from it: pure functions, no I/O.

A barrier counts *phases*: each one ends passed or broken. A plain barrier passes one phase per round, a double barrier
two: entering and leaving. After a broken phase the next is the first of the next round.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace

from latchwork.errors import BadRecord
from latchwork.records import Record
from latchwork.types import Entry

#: How many ended phases are remembered, for members that were away when they ended.
REMEMBERED = 16


@dataclass(frozen=True, slots=True)
class Ended:
    """How a phase ended.

    Attributes:
        phase: which.
        broken: why it was broken; empty when it passed.
        arrived: who had come, sorted.
        missing: who had not, sorted.
        lacking: how many had not.
    """

    phase: int
    broken: str = ""
    arrived: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    lacking: int = 0


@dataclass(frozen=True, slots=True)
class Board:
    """The state of a barrier.

    Attributes:
        parties: how many have to come.
        names: who has to come, sorted; empty when it may be anybody.
        phase: the phase that is open.
        regulars: who came to the last phase that passed, sorted.
        ended: the last ended phases, the oldest first.
    """

    parties: int
    names: tuple[str, ...] = ()
    phase: int = 0
    regulars: tuple[str, ...] = ()
    ended: tuple[Ended, ...] = field(default=())

    @classmethod
    def expecting(cls, parties: int | Collection[str]) -> Board:
        """A new barrier for so many, or for these members."""
        if isinstance(parties, int):
            return cls(parties)
        return cls(len(parties), tuple(sorted(parties)))

    @classmethod
    def of(cls, entry: Entry) -> Board:
        """What is stored.

        Raises:
            BadRecord: it is no barrier.
        """
        try:
            body = Record.of(entry.value)
            ended = tuple(map(_ended, body.parts("ended")))
            parties, phase = body.whole("parties", least=1), body.whole("phase", least=0)
            return cls(parties, body.texts("names"), phase, body.texts("regulars"), ended)
        except BadRecord as error:
            told = f"key {entry.key!r} holds something else than a barrier ({error}); use another name"
            raise BadRecord(told) from None

    def to_bytes(self) -> bytes:
        """What to store."""
        return json.dumps(asdict(self)).encode()

    def is_like(self, other: Board) -> bool:
        """True when both expect the same."""
        return (self.parties, self.names) == (other.parties, other.names)

    def how_ended(self, phase: int) -> Ended | None:
        """How a phase ended; None when it is open, to come, or too long ago."""
        return next((each for each in self.ended if each.phase == phase), None)

    def is_complete(self, arrived: Collection[str]) -> bool:
        """True when everybody has come."""
        return len(arrived) >= self.parties

    def missing(self, arrived: Collection[str]) -> tuple[str, ...]:
        """Who has not come, sorted: of those that have to, or of those that came the last time."""
        expected = self.names or self.regulars
        return tuple(sorted(set(expected) - set(arrived)))

    def passed(self, arrived: Iterable[str]) -> Board:
        """The state after the open phase has passed."""
        here = tuple(sorted(arrived))
        return self._after(self.phase + 1, Ended(self.phase, "", here), here)

    def broken(self, why: str, arrived: Collection[str], cycle: int) -> Board:
        """The state after the open phase was broken: the next phase is the first of the next round."""
        end = Ended(
            self.phase,
            why or "it was broken",
            tuple(sorted(arrived)),
            self.missing(arrived),
            max(0, self.parties - len(arrived)),
        )
        return self._after((self.phase // cycle + 1) * cycle, end, self.regulars)

    def _after(self, phase: int, end: Ended, regulars: tuple[str, ...]) -> Board:
        older = (replace(each, arrived=()) for each in self.ended[-(REMEMBERED - 1) :])  # names only of the last
        recent = (*older, end)
        return replace(self, phase=phase, regulars=regulars, ended=recent)


def _ended(body: Record) -> Ended:
    phase, lacking = body.whole("phase"), body.whole("lacking")
    return Ended(phase, body.text("broken"), body.texts("arrived"), body.texts("missing"), lacking)


def read_arrival(entry: Entry) -> tuple[str, int]:
    """Whose arrival it is, and at which phase; -1 when it cannot be read."""
    member = entry.key.rpartition("/")[2]
    return member, Record.or_empty(entry.value).whole("phase", -1)


def write_arrival(phase: int, about: Mapping[str, object]) -> bytes:
    """The value of an arrival."""
    return json.dumps({"phase": phase, **about}).encode()


def arrived_at(entries: Iterable[Entry], phase: int) -> set[str]:
    """The members that have arrived at a phase."""
    return {member for member, at in map(read_arrival, entries) if at == phase}
