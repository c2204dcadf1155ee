"""The stored state of a barrier and its transitions, and functions that read the state without waiting.

A barrier has *phases* with the numbers 0, 1, 2 ...; each passes or is broken. A barrier has one phase per round, a
double barrier two: entering and leaving. After a broken phase the next one is the first of the next round. Only
``barrier_state`` and ``prepare_arrivals`` do I/O.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from msgspec import Struct, field
from msgspec.structs import replace

from latchwork._base.decoding import Count, Decoder, Record, Seconds, Timestamp, Whole, encode
from latchwork.primitives.waiting.common import check_name
from latchwork.store.steps import ask
from latchwork.store.store import Store
from latchwork.types import At, Check, Entry, Op, Put

#: How many ended phases are remembered, for members that were away when they ended.
REMEMBERED = 16
#: With more parties than this, only some members follow the arrivals; the others follow only the board.
MANY = 32


class PhaseResult(Struct, frozen=True, omit_defaults=True):
    """How a phase ended.

    Attributes:
        phase: The phase.
        broken: Why it was broken; "" if it passed.
        arrived: IDs of the members that had arrived, sorted.
        missing: IDs of the members that had not arrived, sorted.
        lacking: The number of members that had not arrived.
        parties: The number of expected members, if each phase has its own number; otherwise 0.
    """

    phase: Whole
    broken: str = ""
    arrived: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    lacking: Whole = 0
    parties: Count = 0


@dataclass(frozen=True, slots=True)
class Expected:
    """The members that one generation of a barrier expects. The first arrival at the generation decides them.

    Attributes:
        parties: The number of members, or the IDs of the members that must arrive.
        checks: Preconditions of the transaction that writes them. If one fails, they are determined again.
        ops: Operations in the same transaction.
        basis: A number of the caller that is stored with them; see ``Barrier.abort``.
    """

    parties: int | Collection[str]
    checks: Sequence[Check] = ()
    ops: Sequence[Op] = ()
    basis: int = 0


class Opening(Struct, frozen=True, omit_defaults=True):
    """The data that the first arrival at a phase stores, if each phase has its own members.

    Attributes:
        deadline_s: Timeout in seconds. Each member counts it from when it saw the phase open. None for no limit.
        at: Seconds since the epoch on the clock of the first member, for display.
        basis: As in ``Expected``.
    """

    deadline_s: Seconds | None = None
    at: Timestamp = 0.0
    basis: Count = 0


class BarrierRecord(Record, frozen=True, omit_defaults=True):
    """The stored state of a barrier.

    Attributes:
        parties: The number of expected members; 0 while a phase is not opened.
        names: The IDs of the expected members, sorted; empty if any may arrive.
        phase: The open phase.
        regulars: The members of the last phase that passed, sorted.
        ended: The last ended phases, oldest first.
        is_per_phase: Whether each phase has its own expected members.
        opening: How the open phase was opened. None before the first arrival, and if ``is_per_phase`` is False.
        last_passed: The last phase that passed; -1 for none.
    """

    parties: Count
    names: tuple[str, ...] = ()
    phase: Count = 0
    regulars: tuple[str, ...] = ()
    ended: tuple[PhaseResult, ...] = ()
    is_per_phase: bool = field(default=False, name="per_phase")
    opening: Opening | None = None
    last_passed: Whole = -1

    def __post_init__(self) -> None:
        if not self.is_per_phase and self.parties < 1:
            raise ValueError("a barrier has at least one party")

    @classmethod
    def for_parties(cls, parties: int | Collection[str]) -> BarrierRecord:
        """Return the initial state of a barrier that always expects the same members.

        Args:
            parties: The number of members, or their IDs.
        """
        if isinstance(parties, int):
            return cls(parties)
        return cls(len(parties), tuple(sorted(parties)))

    @classmethod
    def for_separate_phases(cls) -> BarrierRecord:
        """Return the initial state of a barrier that expects other members in each phase."""
        return cls(0, is_per_phase=True)

    @classmethod
    def from_entry(cls, entry: Entry) -> BarrierRecord:
        """Decode the stored state of a barrier.

        Raises:
            BadRecord: It is not a barrier.
        """
        return _parsed(entry.value) or _RECORD.decode_entry(entry)

    def expects_same_as(self, other: BarrierRecord) -> bool:
        """Return whether another state expects the same members, or whether both expect other members in each phase."""
        if self.is_per_phase or other.is_per_phase:
            return self.is_per_phase == other.is_per_phase
        return (self.parties, self.names) == (other.parties, other.names)

    @property
    def is_open(self) -> bool:
        """Whether the expected members of the open phase are known."""
        return not self.is_per_phase or self.opening is not None

    def after_opening(self, parties: int | Collection[str], opening: Opening) -> BarrierRecord:
        """Return the state after the first arrival at a phase has set the expected members.

        Args:
            parties: The number of members, or their IDs.
            opening: The data to store with them.
        """
        told = BarrierRecord.for_parties(parties)
        return replace(self, parties=told.parties, names=told.names, opening=opening)

    def has_passed(self, phase: int) -> bool:
        """Return whether this phase or a later one has passed."""
        passed = (each.phase for each in self.ended if not each.broken)
        return max(self.last_passed, *passed, -1) >= phase

    def find_result(self, phase: int) -> PhaseResult | None:
        """Return how a phase ended. None if it is open, in the future, or ended too long ago."""
        return next((each for each in self.ended if each.phase == phase), None)

    def is_complete(self, arrived: Collection[str]) -> bool:
        """Return whether all expected members have arrived, given the IDs of those that have."""
        return self.is_open and len(arrived) >= self.parties

    def find_missing(self, arrived: Collection[str]) -> tuple[str, ...]:
        """Return the IDs of the members that have not arrived, sorted.

        If the barrier expects no particular IDs, the members of the last phase that passed count as expected.
        """
        expected = self.names or self.regulars
        return tuple(sorted(set(expected) - set(arrived)))

    def after_passing(self, arrived: Iterable[str]) -> BarrierRecord:
        """Return the state after the open phase has passed.

        Args:
            arrived: IDs of the members that have arrived.
        """
        here = tuple(sorted(arrived))
        kept = here if not self.is_per_phase or len(here) <= MANY else ()  # each waiting member reads the whole board
        return replace(self._after(self.phase + 1, PhaseResult(self.phase, "", kept), kept), last_passed=self.phase)

    def after_breaking(self, why: str, arrived: Collection[str], cycle: int) -> BarrierRecord:
        """Return the state after the open phase was broken. The next phase is the first one of the next round.

        Args:
            why: The reason, for the waiting members.
            arrived: IDs of the members that have arrived.
            cycle: The number of phases per round.
        """
        end = PhaseResult(
            self.phase,
            why or "it was broken",
            tuple(sorted(arrived)),
            self.find_missing(arrived),
            max(0, self.parties - len(arrived)),
            self.parties if self.is_per_phase else 0,
        )
        return self._after((self.phase // cycle + 1) * cycle, end, self.regulars)

    def _after(self, phase: int, end: PhaseResult, regulars: tuple[str, ...]) -> BarrierRecord:
        older = (replace(each, arrived=()) for each in self.ended[-(REMEMBERED - 1) :])  # names only of the last
        recent = (*older, end)
        after = replace(self, phase=phase, regulars=regulars, ended=recent)
        return replace(after, parties=0, names=(), opening=None) if self.is_per_phase else after


class Arrival(Struct, frozen=True):
    """The stored arrival of a member.

    Attributes:
        phase: The phase at which it has arrived.
        follows: Whether it watches the arrivals of the others. Only stored if not all members do.
    """

    phase: Whole = -1
    follows: bool = False


_RECORD: Decoder[BarrierRecord] = Decoder(BarrierRecord, "a barrier", "use another name")


_ARRIVAL: Decoder[Arrival] = Decoder(Arrival, "an arrival")


#: Each of many members of a process reads the same one.
_parsed = lru_cache(maxsize=128)(_RECORD.find)


def parse_arrival(entry: Entry) -> tuple[str, int]:
    """Decode a member's stored arrival.

    Returns:
        The ID of the member, and the phase at which it has arrived, or -1 if the record is invalid.
    """
    found = _ARRIVAL.find(entry.value)
    return entry.key.rpartition("/")[2], -1 if found is None else found.phase


def watches_arrivals(entry: Entry) -> bool:
    """Return whether the member with this stored arrival watches the arrivals of the others."""
    found = _ARRIVAL.find(entry.value)
    return found is not None and found.follows


def encode_arrival(phase: int, about: Mapping[str, object]) -> bytes:
    """Return the bytes to store for an arrival at a phase.

    Args:
        phase: The phase.
        about: Further fields of the record, such as host and PID.
    """
    return encode({"phase": phase, **about})


def find_arrived(entries: Iterable[Entry], phase: int) -> set[str]:
    """Return the IDs of the members that have arrived at a phase.

    Args:
        entries: The stored arrivals.
        phase: The phase.
    """
    return {member for member, at in map(parse_arrival, entries) if at == phase}


@dataclass(frozen=True, slots=True)
class BarrierState:
    """The state of a barrier.

    Attributes:
        generation: The open generation; of a double barrier the open phase.
        parties: The number of expected members; 0 while it is unknown, because each generation sets it.
        arrived: The members that have arrived, sorted.
        missing: The missing members, sorted, if IDs are known: the expected ones, or those of the last time.
        opened_at: Seconds since the epoch of the first arrival on its machine's clock; None if unknown.
        last_passed: The last generation that passed; -1 for none.
        last_broken: Why the last generation was broken; empty if it was not.
    """

    generation: int
    parties: int
    arrived: tuple[str, ...]
    missing: tuple[str, ...]
    opened_at: float | None
    last_passed: int
    last_broken: str


def barrier_state(store: Store, name: str) -> BarrierState | None:
    """Read the state of a barrier without waiting. Return None if the barrier was never used.

    Raises:
        BadRecord: The key contains another kind of record.
    """
    entry = store.get(f"{check_name(name, 'barrier')}/board")
    if entry is None:
        return None
    board = BarrierRecord.from_entry(entry)
    here = find_arrived(store.list(f"{name}/arrived"), board.phase)
    last = board.ended[-1] if board.ended else None
    return BarrierState(
        board.phase,
        board.parties,
        tuple(sorted(here)),
        board.find_missing(here) if board.is_open else (),
        board.opening.at if board.opening is not None else None,
        max([board.last_passed, *(each.phase for each in board.ended if not each.broken)]),
        last.broken if last is not None else "",
    )


async def prepare_arrivals(store: Store, names: Sequence[str], member_id: str) -> tuple[list[Check], list[Op]]:
    """Build the checks and operations with which one transaction lets a member arrive at several barriers.

    Barriers without an open generation are left out, and barriers at which the member has already arrived. A generation
    may be opened after this call. To include it, let ``Expected.ops`` write a key that the transaction checks.

    Args:
        store: The store of the barriers.
        names: Names of the barriers.
        member_id: ID of the member.
    """
    checks: list[Check] = []
    ops: list[Op] = []
    arrivals = [f"{name}/arrived/{member_id}" for name in names]
    found = await ask(store.get_many, [*(f"{name}/board" for name in names), *arrivals]) if names else []
    for entry, mine, key in zip(found, found[len(names) :], arrivals, strict=False):
        board = None if entry is None else BarrierRecord.from_entry(entry)
        if board is None or not board.is_open or (mine is not None and parse_arrival(mine)[1] == board.phase):
            continue
        checks.append(At(entry))
        ops.append(Put(key, encode_arrival(board.phase, {})))
    return checks, ops
