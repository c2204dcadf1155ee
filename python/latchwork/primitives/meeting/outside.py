"""Barriers for those that do not wait in them: how one stands, and an arrival as a part of a transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from latchwork.primitives.meeting.phases import Board, arrived_at, read_arrival, write_arrival
from latchwork.primitives.waiting.common import check_name
from latchwork.store.steps import ask
from latchwork.store.store import Store
from latchwork.types import At, Check, Op, Put


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
