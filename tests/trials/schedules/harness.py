"""Primitives under random schedules: who runs when, which calls fail, who freezes, who dies.

A model is one class about one primitive: actions, which actors do in threads of their own, and what must hold. Each
schedule is one `Plan`, drawn from a seed and run in a `Simulation` on a `memory://` store, in virtual time: each actor
is a node with a `FaultyStore` of its own. The same plan gives the same run; one that fails is made small and printed.

To add a primitive, write `test_NAME.py` beside this file; rules for real plays, too, are in `judges/primitive`:

    class SemaphoreModel(Model):
        @action
        def hold(self, me):
            semaphore = Semaphore(me.store, "permits", 2)
            with me.ended(semaphore):                                   # closed in the end, whatever happens
                fence = me.patiently(lambda: semaphore.acquire(PATIENCE_S))   # a WaitTimeout is a waiter lost
                self.claims.add(me, lambda: semaphore.is_held)          # asked at each turn: at most `self.claims.most`
                self.writes.write(me, fence)                            # tokens of writes that succeed never fall
                me.pause()

        def finish(self, store):                                        # all actors have ended, sessions have run out
            assert store.list("permits") == []

    def test_semaphore_keeps_its_rules_under_random_schedules():
        check(SemaphoreModel)

An action may raise any `LatchworkError`: trouble is what schedules are made of. It must not wait without a limit.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable
from typing import Any

import latchwork
from latchwork.backends.embedded import backend as embedded
from latchwork.errors import Conflict, LatchworkError, WaitTimeout
from latchwork.testing.faults import Fault, FaultyStore
from latchwork.testing.simulation import Simulation
from latchwork.types import Put
from trials.judges.primitive import late_writes
from trials.schedules import by_loop
from trials.schedules.plans import Plan, Trouble, draw, minimize

SESSION_TTL_S = 2.0
LOCK_TTL_S = 2.0
#: Much longer than all that everybody may do in one schedule: whoever waits longer was forgotten.
PATIENCE_S = 200.0
#: Schedules of each model in `make test`; those by event loops have many more turns each.
DEFAULT_COUNT, COUNT_BY_LOOP = 40, 4
COUNT_VARIABLE = "LATCHWORK_SCHEDULES"

_names = itertools.count()
_ACTION = "__is_action__"


def action(method):
    """Marks a method of a model as something that actors do."""
    setattr(method, _ACTION, True)
    return method


class ModelBroken(AssertionError):
    """A rule of a model was broken."""


def refuse(found: list[str]) -> None:
    """What a rule of primitives has found breaks the model."""
    if found:
        raise ModelBroken("; ".join(found))


class Claims:
    """Who says that it owns the thing, by its own clock: never more than `most` at a time."""

    def __init__(self, most: int = 1) -> None:
        self.most = most
        self.are_judged = True
        self.seen = 0
        self._claims: list[tuple[str, Callable[[], bool]]] = []

    def add(self, me: Actor, is_owned: Callable[[], bool]) -> None:
        self._claims.append((me.name, is_owned))

    def now(self) -> list[tuple[str, bool]]:
        return [(name, is_owned()) for name, is_owned in self._claims]

    def look(self) -> None:
        owners = [name for name, is_owned in self.now() if is_owned]
        self.seen += bool(owners)
        if len(owners) > self.most and self.are_judged:
            raise ModelBroken(f"{' and '.join(owners)} own it at the same time")


class Writes:
    """Fenced writes: once a holder has written, no holder before it can write any more."""

    def __init__(self) -> None:
        self.done: list[tuple[int, int, str]] = []
        self.refused = 0

    def write(self, me: Actor, fence: latchwork.Fence) -> None:
        try:
            done = me.store.commit([fence], [Put("guarded", me.name.encode())])
        except Conflict:
            self.refused += 1
            raise
        self.done.append((done.token, fence.token, me.name))

    def judge(self) -> None:
        refuse(late_writes(self.done))


class Actor:
    """A node of the simulated cluster: a thread that does its actions one after the other, on a store of its own."""

    def __init__(
        self,
        sim: Simulation,
        name: str,
        url: str,
        faults: list[Fault],
        lag_s: float | None,
        end_here: Callable[[], None],
    ) -> None:
        self.sim = sim
        self.name = name
        self.is_done = False
        self.is_killed = False
        self._url = url
        self._faults = faults
        self._lag_s = lag_s
        self._end_here = end_here
        self.opened: FaultyStore | None = None
        self.errors: list[LatchworkError] = []

    @property
    def store(self) -> FaultyStore:
        assert self.opened is not None
        return self.opened

    def run(self, model: Model, actions: tuple[str, ...]) -> None:
        plain = latchwork.connect(self._url, session_ttl_s=SESSION_TTL_S, call_timeout_s=3.0)
        with FaultyStore(plain, self._faults, lag_s=self._lag_s) as self.opened:
            for name in actions:
                try:
                    getattr(model, name)(self)
                except LatchworkError as error:
                    self.errors.append(error)
        self._end_here()
        self.is_done = True

    def pause(self, seconds: float = 0.7) -> None:
        """Do something else for a while."""
        self.sim.sleep(seconds)

    def patiently(self, wait: Callable[[], Any]) -> Any:
        """Wait for what must come: a `WaitTimeout` means that this waiter was lost."""
        try:
            return wait()
        except WaitTimeout as error:
            raise ModelBroken(f"{self.name} was forgotten: {error}") from error

    @contextlib.contextmanager
    def ended(self, thing: Any):
        """Close a primitive in the end."""
        try:
            yield thing
        finally:
            thing.close()


class Model:
    """One primitive: actions, and what must hold. A new object for each schedule."""

    #: How many actors a schedule has, at least and at most.
    actors = (2, 4)
    #: Whether it uses what no event loop drives.
    is_about_threads = False

    def __init__(self) -> None:
        self.claims = Claims()
        self.writes = Writes()
        #: Of all actors; there from `setup` on.
        self.names: list[str] = []
        #: Whether any actor is frozen at some time: then what it has checked may be over when it goes on.
        self.freezes = False

    @classmethod
    def actions(cls) -> list[str]:
        return [name for name in dir(cls) if getattr(getattr(cls, name), _ACTION, False)]

    def setup(self, store: latchwork.Store) -> None:
        """Before the actors start; without trouble."""

    def look(self) -> None:
        """What must hold at each turn; must not wait."""
        self.claims.look()

    def finish(self, store: latchwork.Store) -> None:
        """What must hold after all actors have ended or died, and every session of theirs has run out."""


def simulation(plan: Plan) -> Simulation:
    """The simulation of a plan, not yet begun."""
    return Simulation(
        plan.seed,
        preempt_rate=plan.rate,
        decisions=plan.decisions,
        max_turns=200_000,
        max_time_s=20 * PATIENCE_S,
    )


def run(model_class: type[Model], plan: Plan, sim: Simulation | None = None) -> Simulation:
    """Run one schedule; raises what it finds."""
    url = f"memory://schedule-{next(_names)}"
    used = sim or simulation(plan)
    try:
        with used, by_loop.driving(used, model_class) as end_here, contextlib.ExitStack() as opened:
            opened.callback(end_here)
            plain = opened.enter_context(latchwork.connect(url, session_ttl_s=SESSION_TTL_S))
            _play(used, model_class(), plan, url, plain, end_here)
    finally:
        embedded._by_name.pop(url.removeprefix("memory://"), None)  # the killed have not left it
    return used


def _play(
    sim: Simulation, model: Model, plan: Plan, url: str, plain: latchwork.Store, end_here: Callable[[], None]
) -> None:
    model.claims.are_judged = not plan.expires_sessions
    model.freezes = any(trouble.kind == "freeze" for trouble in plan.troubles)
    model.names = list("abcdefgh"[: len(plan.actors)])
    model.setup(plain)
    lags = [*plan.lags, *[None] * len(plan.actors)]
    actors = [
        Actor(
            sim,
            model.names[number],
            url,
            [fault for whose, fault in plan.faults if whose == number],
            lags[number],
            end_here,
        )
        for number in range(len(plan.actors))
    ]
    sim.observe(model.look)
    for trouble in plan.troubles:
        _arrange(sim, trouble, actors[trouble.actor % len(actors)])
    for actor, actions in zip(actors, plan.actors, strict=True):
        sim.spawn(lambda actor=actor, actions=actions: actor.run(model, actions), name=actor.name, node=actor.name)
    while not all(actor.is_done or actor.is_killed for actor in actors):
        sim.sleep(0.5)
    sim.sleep(max(SESSION_TTL_S, LOCK_TTL_S) + 0.1)
    model.writes.judge()
    model.finish(plain)


def _arrange(sim: Simulation, trouble: Trouble, actor: Actor) -> None:
    def kill() -> None:
        actor.is_killed = True
        sim.kill(actor.name)

    def later() -> None:
        sim.sleep(trouble.at_s)
        store = actor.opened
        if store is None or actor.is_done or actor.is_killed:
            return
        with sim.node(actor.name):  # what this starts dies with the actor
            if trouble.kind == "expire":
                store.expire_sessions()
            elif trouble.kind == "cut_watches":
                store.cut_watches(silent_s=trouble.seconds)
            else:
                store.cut_off()
        if trouble.kind == "cut_off":
            sim.sleep(trouble.seconds)
            if not actor.is_killed:
                store.reconnect()

    if trouble.kind == "kill":
        sim.schedule_at(trouble.point, kill)
    elif trouble.kind == "freeze":
        sim.schedule_at(trouble.point, lambda: sim.freeze(actor.name, trouble.seconds))
    else:
        sim.spawn(later, name=f"trouble of {actor.name}", node="")


# Checking


def _default_count() -> int:
    return int(os.environ.get(COUNT_VARIABLE, COUNT_BY_LOOP if by_loop.is_on else DEFAULT_COUNT))


def check(
    model_class: type[Model],
    count: int | None = None,
    *,
    first_seed: int = 0,
    progress: Callable[[int], None] = lambda _done: None,
) -> None:
    """Run so many schedules of a model. The first that fails is told as small as it gets, with how to replay it."""
    wanted = count if count is not None else _default_count()
    for done in range(wanted):
        plan = draw(first_seed + done, model_class.actions(), model_class.actors)
        try:
            run(model_class, plan)
        except Exception as error:
            raise AssertionError(report(model_class, plan)) from error
        progress(done + 1)


def report(model_class: type[Model], plan: Plan) -> str:
    """The failing schedule, as small as it gets, and the last turns of it."""

    def attempt(candidate: Plan) -> tuple[Exception | None, Simulation]:
        sim = simulation(candidate)
        try:
            run(model_class, candidate, sim)
        except Exception as error:
            return error, sim
        return None, sim

    small, found, sim = minimize(plan, attempt)
    turns = "\n".join(str(turn) for turn in sim.trace[-40:])
    return (
        f"{model_class.__name__} is broken by the schedule of seed {plan.seed}: {found}\n"
        f"replay it with: replay({model_class.__name__}, {small!r})\nthe last turns:\n{turns}"
    )


def replay(model_class: type[Model], plan: Plan) -> Simulation:
    """Run one schedule again; raises what it finds."""
    return run(model_class, plan)
