"""The stored state of a barrier and its transitions, and functions that read the state without waiting.

A barrier has *phases* with the numbers 0, 1, 2 ...; each passes or is broken. A barrier has one phase per round, a
double barrier two: entering and leaving. After a broken phase the next one is the first of the next round. If each
phase has its own members, its first arrival also writes the *opening*: the record of the members that the phase
expects. Only ``barrier_state`` and ``build_arrivals`` do I/O.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from latchwork._base.decoding import Count, Decoder, Positive, Record, Seconds, Timestamp, Whole, encode
from latchwork.primitives.waiting.arguments import check_name
from latchwork.store.steps import ask
from latchwork.store.store import Store
from latchwork.types import Absent, At, Check, Entry, Op, Put

#: How many ended phases are remembered, for members that were away when they ended.
REMEMBERED = 16
#: The last segment of an arrival key begins with this.
_ARRIVED = "arrived-"
#: With more parties than this, only some members follow the arrivals; the others follow only the state.
MANY = 32


class PhaseResult(Struct, frozen=True, omit_defaults=True):
    """How a phase ended.

    Attributes:
        phase: The phase.
        broken: Why it was broken; "" if it passed.
        arrived: IDs of the members that had arrived, sorted.
        missing: IDs of the members that had not arrived, sorted.
        lacking: The number of members that had not arrived.
        parties: The number of expected members; 0 if the phase passed, or was broken before any member arrived.
    """

    phase: Whole
    broken: str = ""
    arrived: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    lacking: Whole = 0
    parties: Count = 0


class Opening(Record, frozen=True, omit_defaults=True):
    """The stored opening of a phase: its expected members. The first member that arrives at the phase writes it.

    Attributes:
        phase: The phase.
        parties: The number of expected members.
        names: The IDs of the expected members, sorted; empty if any may arrive.
        deadline_s: Timeout in seconds. Each member counts it from when it saw the phase open. None for no limit.
        at: Seconds since the epoch on the clock of the first member, for display. 0 if unknown.
        basis: As in ``Expected``.
    """

    phase: Count
    parties: Positive
    names: tuple[str, ...] = ()
    deadline_s: Seconds | None = None
    at: Timestamp = 0.0
    basis: Count = 0


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

    def open_phase(self, phase: int, deadline_s: float | None, now: float) -> Opening:
        """Return the record of these members that the first arrival at a phase stores.

        Args:
            phase: The phase.
            deadline_s: Timeout in seconds. None for no limit.
            now: Seconds since the epoch.
        """
        return Opening(phase, *normalize_parties(self.parties), deadline_s, now, self.basis)


class BarrierRecord(Record, frozen=True, omit_defaults=True):
    """The stored state of a barrier.

    Attributes:
        parties: The number of expected members; 0 if each phase has its own.
        names: The IDs of the expected members, sorted; empty if any may arrive.
        phase: The open phase.
        regulars: The members of the last phase that passed, sorted.
        ended: The last ended phases, oldest first.
        last_passed: The last phase that passed; -1 for none.
    """

    parties: Count
    names: tuple[str, ...] = ()
    phase: Count = 0
    regulars: tuple[str, ...] = ()
    ended: tuple[PhaseResult, ...] = ()
    last_passed: Whole = -1

    @classmethod
    def with_fixed_parties(cls, parties: int | Collection[str]) -> BarrierRecord:
        """Return the initial state of a barrier whose phases all expect the same members.

        Args:
            parties: The number of members, or their IDs.
        """
        return cls(*normalize_parties(parties))

    @classmethod
    def from_entry(cls, entry: Entry) -> BarrierRecord:
        """Decode the stored state of a barrier.

        Raises:
            BadRecord: It is not a barrier.
        """
        return _parsed(entry.value) or _RECORD.decode_entry(entry)

    def has_same_members(self, other: BarrierRecord) -> bool:
        """Return whether both states have the same fixed members, or both have none because each phase has its own."""
        return (self.parties, self.names) == (other.parties, other.names)

    def find_opening(self, stored: Entry | None) -> Opening | None:
        """Return the members that the current phase expects. None if each phase has its own and none has arrived yet.

        Args:
            stored: Entry of the stored opening, which may be that of an earlier phase. None if there is none.
        """
        if self.parties:
            return Opening(self.phase, self.parties, self.names)
        opening = None if stored is None else _OPENING.decode_entry(stored)
        return opening if opening is not None and opening.phase == self.phase else None

    def has_passed(self, phase: int) -> bool:
        """Return whether this phase or a later one has passed."""
        passed = (each.phase for each in self.ended if not each.broken)
        return max(self.last_passed, *passed, -1) >= phase

    def find_result(self, phase: int) -> PhaseResult | None:
        """Return how a phase ended. None if it is open, in the future, or ended too long ago."""
        return next((each for each in self.ended if each.phase == phase), None)

    def find_missing(self, arrived: Collection[str], names: tuple[str, ...] = ()) -> tuple[str, ...]:
        """Return the IDs of the members that have not arrived, sorted.

        If the phase expects no particular IDs, the members of the last phase that passed count as expected.

        Args:
            arrived: IDs of the members that have arrived.
            names: IDs of the expected members.
        """
        return tuple(sorted(set(names or self.regulars) - set(arrived)))

    def after_pass(self, arrived: Iterable[str]) -> BarrierRecord:
        """Return the state after all members have arrived at the current phase, so that it has passed.

        Args:
            arrived: IDs of the members that have arrived.
        """
        here = tuple(sorted(arrived))
        kept = here if self.parties or len(here) <= MANY else ()  # each waiting member reads the whole state
        return replace(self._after(self.phase + 1, PhaseResult(self.phase, "", kept), kept), last_passed=self.phase)

    def after_break(self, why: str, arrived: Collection[str], opening: Opening | None, *, cycle: int) -> BarrierRecord:
        """Return the state after the current phase was broken. The next phase is the first one of the next round.

        Args:
            why: The reason, for the waiting members.
            arrived: IDs of the members that have arrived.
            opening: The expected members. None if no member has arrived at a phase with its own members.
            cycle: The number of phases per round.
        """
        parties, names = (0, ()) if opening is None else (opening.parties, opening.names)
        end = PhaseResult(
            self.phase,
            why or "it was broken",
            tuple(sorted(arrived)),
            self.find_missing(arrived, names),
            max(0, parties - len(arrived)),
            parties,
        )
        return self._after((self.phase // cycle + 1) * cycle, end, self.regulars)

    def _after(self, phase: int, end: PhaseResult, regulars: tuple[str, ...]) -> BarrierRecord:
        older = (replace(each, arrived=()) for each in self.ended[-(REMEMBERED - 1) :])  # names only of the last
        return replace(self, phase=phase, regulars=regulars, ended=(*older, end))


class Arrival(Struct, frozen=True):
    """The stored arrival of a member.

    Attributes:
        phase: The phase at which it has arrived.
        follows: Whether it watches the arrivals of the others. Only stored if not all members do.
    """

    phase: Whole = -1
    follows: bool = False


_RECORD: Decoder[BarrierRecord] = Decoder(BarrierRecord, "a barrier", "use another name")


_OPENING: Decoder[Opening] = Decoder(Opening, "an opening of a barrier", "use another name")


_ARRIVAL: Decoder[Arrival] = Decoder(Arrival, "an arrival")


#: Each of many members of a process reads the same one.
_parsed = lru_cache(maxsize=128)(_RECORD.find)


def parse_arrival(entry: Entry) -> int:
    """Return the phase at which the member with this stored arrival has arrived. -1 if the record is invalid."""
    found = _ARRIVAL.find(entry.value)
    return -1 if found is None else found.phase


def is_arrival_watcher(entry: Entry) -> bool:
    """Return whether the member that wrote an arrival watches the arrivals of the others.

    Args:
        entry: The entry of the arrival.
    """
    found = _ARRIVAL.find(entry.value)
    return found is not None and found.follows


def encode_arrival(phase: int, about: Mapping[str, object]) -> bytes:
    """Return the bytes to store for an arrival at a phase.

    Args:
        phase: The phase.
        about: Further fields of the record, such as host and PID.
    """
    return encode({"phase": phase, **about})


@dataclass(frozen=True, slots=True)
class BarrierKeys:
    """The keys of a barrier.

    Attributes:
        name: The name of the barrier. All its keys are directly below it, so that one request lists them.
    """

    name: str

    @property
    def state_key(self) -> str:
        """The key of the state."""
        return f"{self.name}/barrier"

    @property
    def opening_key(self) -> str:
        """The key of the members that the newest phase expects, which its first arrival writes."""
        return f"{self.name}/opening"

    def arrival_key(self, member_id: str) -> str:
        """Return the key of the arrival of a member."""
        return f"{self.name}/{_ARRIVED}{member_id}"

    def find_member(self, key: str) -> str | None:
        """Return the ID of the member with this arrival key. None for any other key."""
        above, _, last = key.rpartition("/")
        return last.removeprefix(_ARRIVED) if above == self.name and last.startswith(_ARRIVED) else None


@dataclass(frozen=True, slots=True)
class BarrierSnapshot:
    """The state and the newest opening of a barrier as they were read.

    Attributes:
        keys: The keys of the barrier.
        state: The decoded state; the initial one if none is stored.
        entry: Entry of the state. None if none is stored.
        opened: Entry of the newest opening, which may be that of an earlier phase. None if there is none.
    """

    keys: BarrierKeys
    state: BarrierRecord
    entry: Entry | None = None
    opened: Entry | None = None

    @property
    def opening(self) -> Opening | None:
        """The members that the current phase expects. None if each phase has its own and none has arrived yet."""
        return self.state.find_opening(self.opened)

    @property
    def phase_open_check(self) -> Check:
        """A precondition for transactions: the current phase has not ended since this snapshot was read."""
        return Absent(self.keys.state_key) if self.entry is None else At(self.entry)

    @property
    def opening_unchanged_check(self) -> Check:
        """A precondition for transactions: no member has written another opening since this snapshot was read."""
        return Absent(self.keys.opening_key) if self.opened is None else At(self.opened)

    @property
    def oldest_counted_token(self) -> float:
        """The token of the oldest arrival at the current phase that can count: that of the opening.

        An arrival that was written before the opening may be that of a member that the opening does not expect. It does
        not count. Infinite without an opening, and 0 if all phases expect the same members.
        """
        if self.state.parties:
            return 0
        return math.inf if self.opened is None or self.opening is None else self.opened.token

    def counts(self, arrival: Entry) -> bool:
        """Return whether the member with this stored arrival has arrived at the current phase."""
        return parse_arrival(arrival) == self.state.phase and arrival.token >= self.oldest_counted_token

    @property
    def must_create_record(self) -> bool:
        """Whether the first arrival must create the record of the barrier, which contains its fixed members."""
        return self.entry is None and self.state.parties > 0

    def with_written_entries(self, written: Iterable[Entry | None]) -> BarrierSnapshot:
        """Return this snapshot with newer entries.

        Args:
            written: The entries that a transaction has written. Entries of other keys are ignored.
        """
        found = {entry.key: entry for entry in written if entry is not None}
        return BarrierSnapshot(
            self.keys,
            self.state,
            found.get(self.keys.state_key, self.entry),
            found.get(self.keys.opening_key, self.opened),
        )


def find_arrived(snapshot: BarrierSnapshot, entries: Iterable[Entry]) -> set[str]:
    """Return the IDs of the members that have arrived at the current phase.

    Args:
        snapshot: The state and opening of the barrier.
        entries: All entries directly below the name of the barrier, read with them.
    """
    oldest, phase = snapshot.oldest_counted_token, snapshot.state.phase
    found = ((snapshot.keys.find_member(each.key), each) for each in entries if each.token >= oldest)
    return {member for member, entry in found if member is not None and parse_arrival(entry) == phase}


def normalize_parties(parties: int | Collection[str]) -> tuple[int, tuple[str, ...]]:
    """Return the number of expected members and their IDs, sorted. The IDs are empty if only the number is given.

    Args:
        parties: The number of members, or their IDs.
    """
    return (parties, ()) if isinstance(parties, int) else (len(parties), tuple(sorted(parties)))


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
    keys = BarrierKeys(check_name(name, "barrier"))
    found = {entry.key: entry for entry in store.list(name)}
    entry, opened = found.get(keys.state_key), found.get(keys.opening_key)
    if entry is None and opened is None:
        return None
    state = BarrierRecord(0) if entry is None else BarrierRecord.from_entry(entry)
    snapshot = BarrierSnapshot(keys, state, entry, opened)
    here, opening = find_arrived(snapshot, found.values()), snapshot.opening
    last = state.ended[-1] if state.ended else None
    return BarrierState(
        state.phase,
        0 if opening is None else opening.parties,
        tuple(sorted(here)),
        () if opening is None else state.find_missing(here, opening.names),
        None if opening is None else opening.at or None,
        max([state.last_passed, *(each.phase for each in state.ended if not each.broken)]),
        last.broken if last is not None else "",
    )


async def build_arrivals(store: Store, names: Sequence[str], member_id: str) -> tuple[list[Check], list[Op]]:
    """Build the checks and operations of a transaction by which a member arrives at several barriers at once.

    A barrier is skipped if no member has arrived at its current generation yet, or if this member has. Another member
    may arrive first after this call. To notice it, let ``Expected.ops`` write a key that the transaction checks.

    Args:
        store: The store of the barriers.
        names: Names of the barriers.
        member_id: ID of the member.
    """
    checks: list[Check] = []
    ops: list[Op] = []
    every = [BarrierKeys(name) for name in names]
    wanted = [key for keys in every for key in (keys.state_key, keys.opening_key, keys.arrival_key(member_id))]
    found = iter(await ask(store.get_many, wanted) if wanted else [])
    for keys, entry, opened, mine in zip(every, found, found, found, strict=True):
        state = BarrierRecord(0) if entry is None else BarrierRecord.from_entry(entry)
        snapshot = BarrierSnapshot(keys, state, entry, opened)
        if snapshot.opening is None or (mine is not None and snapshot.counts(mine)):
            continue
        checks.append(snapshot.phase_open_check)
        ops.append(Put(keys.arrival_key(member_id), encode_arrival(state.phase, {})))
    return checks, ops
