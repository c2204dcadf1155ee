"""Schedules as data: drawn from a seed, written down, made smaller. Nothing here runs one.

Drawn evenly, not by hypothesis: of 200 plans that hypothesis drew two had a write that lands late, and 86 no fault.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from latchwork.testing.faults import Fault, FaultKind
from latchwork.testing.simulation import Simulation

#: Seconds of real time for each of the two stages of making a failing schedule smaller.
SHRINK_S = float(os.environ.get("LATCHWORK_SHRINK_S", "15"))

_SECONDS = (0.1, 0.5, 1.0, 1.9, 2.0, 2.1, 2.5, 5.0)
_CALL_KINDS: tuple[FaultKind, ...] = (
    "fail",
    "cut_before",
    "cut_after",
    "land_late",
    "drop",
    "slow_request",
    "slow_answer",
    "expire_session",
)
_OPS = ("create", "put", "delete", "commit", "get", "list", "children", "renew", "open_session", "close_session")


@dataclass(frozen=True)
class Trouble:
    """Something that happens to one actor.

    `freeze` (for `seconds`) and `kill` hit at a point of the run, wherever the actor's threads are; `expire`, `cut_off`
    (for `seconds`) and `cut_watches` happen so many virtual seconds after the start.
    """

    kind: str
    actor: int
    point: int = 0
    at_s: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True)
class Plan:
    """One schedule. Its repr can be pasted into `replay`."""

    actors: tuple[tuple[str, ...], ...]
    faults: tuple[tuple[int, Fault], ...] = ()
    troubles: tuple[Trouble, ...] = ()
    seed: int | None = None
    rate: float = 0.0
    #: How far reads that may be stale lag behind, for each actor; None for not at all.
    lags: tuple[float | None, ...] = ()
    decisions: Mapping[int, int] | None = None

    @property
    def expires_sessions(self) -> bool:
        """True if a third party ends sessions: then owners learn of it late, and only their fences keep them apart."""
        kinds = {fault.kind for _, fault in self.faults} | {trouble.kind for trouble in self.troubles}
        return bool(kinds & {"expire", "expire_session"})


#: Runs a plan: the error, if any, and the simulation with its decisions and its trace.
Attempt = Callable[[Plan], tuple[Exception | None, Simulation]]


def draw(seed: int, actions: list[str], actors: tuple[int, int]) -> Plan:
    """The schedule of this seed: each kind of trouble about as often as every other."""
    chance = random.Random(seed)
    count = chance.randint(*actors)
    return Plan(
        actors=tuple(tuple(chance.choices(actions, k=chance.randint(1, 3))) for _ in range(count)),
        faults=tuple((chance.randrange(count), _fault(chance)) for _ in range(chance.choice((0, 0, 1, 1, 2, 2, 3, 4)))),
        troubles=tuple(_trouble(chance, count) for _ in range(chance.choice((0, 0, 1, 1, 2)))),
        seed=seed,
        rate=chance.choice((0.0, 0.01, 0.05, 0.3)),
        lags=tuple(chance.choice((None, None, 0.0, 0.1, 1.0)) for _ in range(count)),
    )


def _fault(chance: random.Random) -> Fault:
    delay_s = chance.choice(_SECONDS)
    which = chance.random()
    if which < 0.15:
        return Fault("cut_watch", nth=chance.randint(1, 6), delay_s=delay_s)
    if which < 0.25:
        return Fault("slow_answer", op="event", nth=chance.randint(1, 6), delay_s=delay_s)
    kind = chance.choice(_CALL_KINDS)
    if chance.random() < 0.5:
        return Fault(kind, nth=chance.randint(1, 20), delay_s=delay_s)
    return Fault(kind, op=chance.choice(_OPS), nth=chance.randint(1, 3), delay_s=delay_s)


def _trouble(chance: random.Random, actors: int) -> Trouble:
    kind = chance.choice(("freeze", "freeze", "kill", "expire", "cut_off", "cut_watches"))
    whose, seconds = chance.randrange(actors), chance.choice(_SECONDS)
    if kind == "freeze":
        return Trouble(kind, whose, point=chance.randint(1, 4000), seconds=seconds)
    if kind == "kill":
        return Trouble(kind, whose, point=chance.randint(1, 4000))
    at_s = chance.choice((0.0, 0.3, 0.7, 1.0, 1.5, 2.0, 3.0))
    return Trouble(kind, whose, at_s=at_s, seconds=0.0 if kind == "expire" else seconds)


def minimize(plan: Plan, attempt: Attempt) -> tuple[Plan, Exception | None, Simulation]:
    """The same failure with explicit decisions instead of chance, and as little of everything as possible."""
    until = time.perf_counter() + SHRINK_S
    best, (error, sim) = plan, attempt(plan)
    smaller = iter(_simpler(best))
    while time.perf_counter() < until and (candidate := next(smaller, None)) is not None:
        outcome = attempt(candidate)
        if _same(outcome[0], error):
            best, (error, sim) = candidate, outcome
            smaller = iter(_simpler(best))
    explicit = replace(best, rate=0.0, decisions=sim.decisions)
    outcome = attempt(explicit)
    if not _same(outcome[0], error):
        return best, error, sim
    best, (error, sim) = explicit, outcome
    size = max(1, len(sim.decisions) // 2)
    until = time.perf_counter() + SHRINK_S
    while size and time.perf_counter() < until:
        for fewer in _fewer(best.decisions or {}, size):
            candidate = replace(best, decisions=fewer)
            outcome = attempt(candidate)
            if _same(outcome[0], error):
                best, (error, sim) = candidate, outcome
                break
            if time.perf_counter() > until:
                return best, error, sim
        else:
            size //= 2
    return best, error, sim


def _simpler(plan: Plan) -> Iterator[Plan]:
    """The plan with one thing less."""
    if plan.rate:
        yield replace(plan, rate=0.0)
    for number, lag_s in enumerate(plan.lags):
        if lag_s is not None:
            yield replace(plan, lags=(*plan.lags[:number], None, *plan.lags[number + 1 :]))
    for number in range(len(plan.troubles)):
        yield replace(plan, troubles=_without(plan.troubles, number))
    for number in range(len(plan.faults)):
        yield replace(plan, faults=_without(plan.faults, number))
    for number, actions in enumerate(plan.actors):
        if number == len(plan.actors) - 1 and number > 0:
            yield replace(plan, actors=plan.actors[:-1], faults=tuple(each for each in plan.faults if each[0] < number))
        for each in range(len(actions) if len(actions) > 1 else 0):
            fewer = _without(actions, each)
            yield replace(plan, actors=(*plan.actors[:number], fewer, *plan.actors[number + 1 :]))


def _without(items: tuple[Any, ...], number: int) -> tuple[Any, ...]:
    return items[:number] + items[number + 1 :]


def _same(error: Exception | None, other: Exception | None) -> bool:
    """Whether two runs failed in the same way, as far as one can tell."""
    kinds = [(type(each), type(each.__cause__)) if each is not None else None for each in (error, other)]
    return error is not None and kinds[0] == kinds[1]


def _fewer(decisions: Mapping[int, int], size: int) -> Iterator[dict[int, int]]:
    """The decisions without each run of so many, the last ones first."""
    points = sorted(decisions)
    for start in reversed(range(0, len(points), size)):
        dropped = set(points[start : start + size])
        yield {point: choice for point, choice in decisions.items() if point not in dropped}
