"""The state of a barrier as it is stored, and what follows from it; and how it is seen without waiting in it.

A barrier counts *phases*: each one ends passed or broken. A plain barrier passes one phase per round, a double barrier
two: entering and leaving. After a broken phase the next is the first of the next round.

Only ``barrier_state`` touches the network.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from msgspec import Struct, field
from msgspec.structs import replace

from latchwork._base.decoding import Count, Decoder, Seconds, Timestamp, Whole, encode
from latchwork.primitives.waiting.common import check_name
from latchwork.store.steps import ask
from latchwork.store.store import Store
from latchwork.types import At, Check, Entry, Op, Put

#: How many ended phases are remembered, for members that were away when they ended.
REMEMBERED = 16
#: Of more parties than that only some follow the arrivals, the others the board alone; see ``crowd``.
MANY = 32


class Ended(Struct, frozen=True, omit_defaults=True):
    """How a phase ended.

    Attributes:
        phase: which.
        broken: why it was broken; empty when it passed.
        arrived: who had come, sorted.
        missing: who had not, sorted.
        lacking: how many had not.
        parties: how many had to come, where each phase has its own number; else 0.
    """

    phase: Whole
    broken: str = ""
    arrived: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    lacking: Whole = 0
    parties: Count = 0


@dataclass(frozen=True, slots=True)
class Expected:
    """Who has to come to one generation of a barrier, as its first member to arrive has found it.

    Attributes:
        parties: how many, or the ids of those that have to.
        checks: what must still hold when that is written down; else it is asked again.
        ops: written in the same transaction.
        basis: a number of the caller's that is stored with it; see ``Barrier.abort``.
    """

    parties: int | Collection[str]
    checks: Sequence[Check] = ()
    ops: Sequence[Op] = ()
    basis: int = 0


class Opening(Struct, frozen=True, omit_defaults=True):
    """What the first to arrive at a phase has written down, where each phase is opened.

    Attributes:
        deadline_s: seconds that each member counts from when it saw the phase open; None for ever.
        at: when, by the clock of that machine, in seconds since the epoch: for people.
        basis: as in ``Expected``.
    """

    deadline_s: Seconds | None = None
    at: Timestamp = 0.0
    basis: Count = 0


class Board(Struct, frozen=True, omit_defaults=True):
    """The state of a barrier.

    Attributes:
        parties: how many have to come; 0 while a phase is not opened.
        names: who has to come, sorted; empty when it may be anybody.
        phase: the phase that is open.
        regulars: who came to the last phase that passed, sorted.
        ended: the last ended phases, the oldest first.
        is_per_phase: whether each phase has its own number of parties: from its opening to its end.
        opening: how the open phase was opened; None while nobody has arrived at it, and where phases are not opened.
        last_passed: the last phase that passed, where phases are opened; -1 for none.
    """

    parties: Count
    names: tuple[str, ...] = ()
    phase: Count = 0
    regulars: tuple[str, ...] = ()
    ended: tuple[Ended, ...] = ()
    is_per_phase: bool = field(default=False, name="per_phase")
    opening: Opening | None = None
    last_passed: Whole = -1

    def __post_init__(self) -> None:
        if not self.is_per_phase and self.parties < 1:
            raise ValueError("a barrier has at least one party")

    @classmethod
    def expecting(cls, parties: int | Collection[str]) -> Board:
        """A new barrier for so many, or for these members."""
        if isinstance(parties, int):
            return cls(parties)
        return cls(len(parties), tuple(sorted(parties)))

    @classmethod
    def per_phase(cls) -> Board:
        """A new barrier whose phases are opened one by one."""
        return cls(0, is_per_phase=True)

    @classmethod
    def of(cls, entry: Entry) -> Board:
        """What is stored.

        Raises:
            BadRecord: it is no barrier.
        """
        return _parsed(entry.value) or _BOARD.decode_entry(entry)

    def to_bytes(self) -> bytes:
        """What to store."""
        return encode(self)

    def is_like(self, other: Board) -> bool:
        """True when both expect the same, or both have it told for each phase."""
        if self.is_per_phase or other.is_per_phase:
            return self.is_per_phase == other.is_per_phase
        return (self.parties, self.names) == (other.parties, other.names)

    @property
    def is_open(self) -> bool:
        """True when it is known who has to come to the open phase."""
        return not self.is_per_phase or self.opening is not None

    def opened(self, parties: int | Collection[str], opening: Opening) -> Board:
        """The state after the first has arrived at a phase, and has said who has to come."""
        told = Board.expecting(parties)
        return replace(self, parties=told.parties, names=told.names, opening=opening)

    def has_passed(self, phase: int) -> bool:
        """True once this phase, or a later one, has passed."""
        passed = (each.phase for each in self.ended if not each.broken)
        return max(self.last_passed, *passed, -1) >= phase

    def how_ended(self, phase: int) -> Ended | None:
        """How a phase ended; None when it is open, to come, or too long ago."""
        return next((each for each in self.ended if each.phase == phase), None)

    def is_complete(self, arrived: Collection[str]) -> bool:
        """True when everybody has come."""
        return self.is_open and len(arrived) >= self.parties

    def missing(self, arrived: Collection[str]) -> tuple[str, ...]:
        """Who has not come, sorted: of those that have to, or of those that came the last time."""
        expected = self.names or self.regulars
        return tuple(sorted(set(expected) - set(arrived)))

    def passed(self, arrived: Iterable[str]) -> Board:
        """The state after the open phase has passed."""
        here = tuple(sorted(arrived))
        kept = here if not self.is_per_phase or len(here) <= MANY else ()  # each who waits reads the whole board
        return replace(self._after(self.phase + 1, Ended(self.phase, "", kept), kept), last_passed=self.phase)

    def broken(self, why: str, arrived: Collection[str], cycle: int) -> Board:
        """The state after the open phase was broken: the next phase is the first of the next round."""
        end = Ended(
            self.phase,
            why or "it was broken",
            tuple(sorted(arrived)),
            self.missing(arrived),
            max(0, self.parties - len(arrived)),
            self.parties if self.is_per_phase else 0,
        )
        return self._after((self.phase // cycle + 1) * cycle, end, self.regulars)

    def _after(self, phase: int, end: Ended, regulars: tuple[str, ...]) -> Board:
        older = (replace(each, arrived=()) for each in self.ended[-(REMEMBERED - 1) :])  # names only of the last
        recent = (*older, end)
        after = replace(self, phase=phase, regulars=regulars, ended=recent)
        return replace(after, parties=0, names=(), opening=None) if self.is_per_phase else after


class Arrival(Struct, frozen=True):
    """What the key of a member at a barrier says.

    Attributes:
        phase: at which it has arrived.
        follows: whether it follows the others, where not all do.
    """

    phase: Whole = -1
    follows: bool = False


_BOARD: Decoder[Board] = Decoder(Board, "a barrier", "use another name")


_ARRIVAL: Decoder[Arrival] = Decoder(Arrival, "an arrival")


#: Each of many members of a process reads the same one.
_parsed = lru_cache(maxsize=128)(_BOARD.find)


def read_arrival(entry: Entry) -> tuple[str, int]:
    """Whose arrival it is, and at which phase; -1 when it cannot be read."""
    found = _ARRIVAL.find(entry.value)
    return entry.key.rpartition("/")[2], -1 if found is None else found.phase


def follows(entry: Entry) -> bool:
    """Whether the member of an arrival follows the others, where not all do."""
    found = _ARRIVAL.find(entry.value)
    return found is not None and found.follows


def write_arrival(phase: int, about: Mapping[str, object]) -> bytes:
    """The value of an arrival."""
    return encode({"phase": phase, **about})


def arrived_at(entries: Iterable[Entry], phase: int) -> set[str]:
    """The members that have arrived at a phase."""
    return {member for member, at in map(read_arrival, entries) if at == phase}


@dataclass(frozen=True, slots=True)
class BarrierState:
    """How a barrier stands.

    Attributes:
        generation: the open one; of a double barrier the open phase.
        parties: how many have to come; 0 while that is not known, because each generation says it anew.
        arrived: who has come, sorted.
        missing: who has not, sorted, where names are known: those that have to come, or came the last time.
        opened_at: when the first came, by the clock of its machine, in seconds since the epoch; None if not known.
        last_passed: the last generation that passed; -1 for none.
        last_broken: why the last generation was broken, if it was; else empty.
    """

    generation: int
    parties: int
    arrived: tuple[str, ...]
    missing: tuple[str, ...]
    opened_at: float | None
    last_passed: int
    last_broken: str


def barrier_state(store: Store, name: str) -> BarrierState | None:
    """How the barrier of a name stands; None when nobody has used it.

    Raises:
        BadRecord: something else is stored there.
    """
    entry = store.get(f"{check_name(name, 'barrier')}/board")
    if entry is None:
        return None
    board = Board.of(entry)
    here = arrived_at(store.list(f"{name}/arrived"), board.phase)
    last = board.ended[-1] if board.ended else None
    return BarrierState(
        board.phase,
        board.parties,
        tuple(sorted(here)),
        board.missing(here) if board.is_open else (),
        board.opening.at if board.opening is not None else None,
        max([board.last_passed, *(each.phase for each in board.ended if not each.broken)]),
        last.broken if last is not None else "",
    )


async def arrivals_at(store: Store, names: Sequence[str], member_id: str) -> tuple[list[Check], list[Op]]:
    """Return what a transaction has to check and write so that a member arrives at several barriers without waiting.

    Only barriers with an open generation in which the member has not arrived are part of it. A generation that is
    opened after this call is not covered: let ``Expected.ops`` write a key that the transaction checks.
    """
    checks: list[Check] = []
    ops: list[Op] = []
    arrivals = [f"{name}/arrived/{member_id}" for name in names]
    found = await ask(store.get_many, [*(f"{name}/board" for name in names), *arrivals]) if names else []
    for entry, mine, key in zip(found, found[len(names) :], arrivals, strict=False):
        board = None if entry is None else Board.of(entry)
        if board is None or not board.is_open or (mine is not None and read_arrival(mine)[1] == board.phase):
            continue
        checks.append(At(entry))
        ops.append(Put(key, write_arrival(board.phase, {})))
    return checks, ops
