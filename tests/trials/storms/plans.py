"""Plans of four shapes, and the workers that run them.

What has to hold: each task has one result, and it is right; each run was given the right arguments in the right order;
each plan completes, once; what was removed leaves nothing; and all of that soon after the last fault.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import latchwork
from latchwork.plans import Plans, PlanState, TaskState, WrongState
from latchwork.plans.records import PlanRecord
from patience import Deadline
from plans.work import KINDS, what_is_left
from trials.storms.plans_node import BIG, FUNCTIONS, MODULUS, SESSION_TTL_S
from trials.storms.storm import Load, Storm

ROOT = "plans-storm"
DEPS = 10
#: A plan has to end within so many seconds after the last fault.
GRACE_S = 90.0
_UNREACHABLE = (latchwork.Unavailable, latchwork.OutcomeUnknown, latchwork.SessionLost)


@dataclass
class Made:
    """A plan, and what its tasks have to be given and to return."""

    handle: Any
    parts: dict[str, list[int]]
    values: dict[str, object]


class PlansLoad(Load):
    """Four workers. Two plans or more are running at a time, and one in four is canceled halfway."""

    nodes = tuple(f"w{number}" for number in range(4))
    ttl_s = SESSION_TTL_S

    def __init__(self, *, tasks: int = 100) -> None:
        self.made: list[Made] = []
        self.completions: Counter[str] = Counter()
        self._unstarted: tuple[Any, dict[str, list[int]], dict[str, object]] | None = None
        self._tasks = tasks
        self._states: dict[str, PlanState] = {}

    def open(self, opened: ExitStack) -> None:
        self.store = opened.enter_context(latchwork.connect(self.storm.url(ROOT)))
        self.plans = Plans(self.store, functions=FUNCTIONS)
        mirror = opened.enter_context(self.store.mirror("@plans/default/plans"))
        mirror.on_change(lambda *_: self._see(mirror.snapshot()))

    def _see(self, plans: Any) -> None:
        for key, entry in plans.items():
            state = PlanRecord.from_bytes(entry.value).state
            if state is PlanState.COMPLETED and self._states.get(key) is not state:
                self.completions[key.rpartition("/")[2]] += 1
            self._states[key] = state

    def process(self, node: str) -> tuple[Any, ...]:
        return "trials.storms.plans_node:serve", self.storm.url(ROOT, node), node

    def tend(self) -> None:
        """Keep some plans running, cancel one in four of them halfway, and recover what ended otherwise."""
        left = [each for each in self.made if self._state(each) is not PlanState.COMPLETED]
        if self._unstarted is None and len(left) < 2:
            self._unstarted = self._build()
        with contextlib.suppress(*_UNREACHABLE):  # the server may be down until the fault is over
            self._start()
        for each in left:
            state = self._state(each)
            with contextlib.suppress(WrongState, *_UNREACHABLE):
                if state in (PlanState.FAILED, PlanState.CANCELLED):
                    each.handle.recover()
                elif state is PlanState.READY and self.made.index(each) % 4 == 3 and self.storm.random.random() < 0.02:
                    each.handle.cancel()

    def _state(self, made: Made) -> PlanState | None:
        return self._states.get(f"@plans/default/plans/{made.handle.id}")

    def _build(self) -> tuple[Any, dict[str, list[int]], dict[str, object]]:
        """Build a plan of the kind whose turn it is: wide, mixed, narrow, and one that is canceled."""
        random, kind = self.storm.random, len(self.made) % 4
        count = self._tasks if kind == 0 else self._tasks // 3
        options = {"max_parallel": 2} if kind == 2 else {"on_failure": "continue"} if kind == 1 else {}
        builder = self.plans.new(f"storm {len(self.made)}", **options)
        parts, values, refs = {}, {}, {}
        for number in range(count):
            deps = random.sample(sorted(refs), min(len(refs), DEPS if kind == 0 else 3))
            given = [values[name] for name in deps]
            fn = "step" if kind in (0, 2) else random.choice(["step", "flaky", "nested", "big"])
            name = f"n{number}"
            ref = builder.add(fn, number, [refs[each] for each in deps], name=name)
            parts[name] = given
            if fn == "big":
                head = (number + sum(given)) % 251
                parts[f"{name}-size"], values[f"{name}-size"] = [BIG, head], number
                refs[f"{name}-size"] = builder.add("size", number, ref, name=f"{name}-size")
            else:
                values[name], refs[name] = (number + sum(given)) % MODULUS, ref
        return builder, parts, values

    def _start(self) -> None:
        """Start the plan that was built last, if it has not been started yet."""
        if self._unstarted is not None:
            builder, parts, values = self._unstarted
            self.made.append(Made(builder.start(), parts, values))
            self._unstarted = None

    def _retried(self, call: Callable[[], object]) -> None:
        """Make a call again until the store answers."""
        until = Deadline(GRACE_S)
        while True:
            try:
                call()
            except _UNREACHABLE:
                if until.has_passed:
                    raise
                self.storm.restart_ended()
                time.sleep(0.5)
            else:
                return

    def settle(self) -> None:
        self._retried(self._start)
        for each in self.made:
            if not self._drive(each):
                self._retried(lambda each=each: self._note_wedged(each))

    def _drive(self, made: Made) -> bool:
        """Wait for the end of a plan, recover it when it ended otherwise, and return whether it completed."""
        until = Deadline(GRACE_S)
        while not until.has_passed:
            self.storm.restart_ended()
            with contextlib.suppress(WrongState, *_UNREACHABLE):
                state = made.handle.state()
                if state is PlanState.COMPLETED:
                    return True
                if state in (PlanState.FAILED, PlanState.CANCELLED):
                    made.handle.recover()
            time.sleep(0.1)
        return False

    def _note_wedged(self, made: Made) -> None:
        self.storm.report.violations.append(f"plan {made.handle.id} is wedged: {made.handle.status()}")

    def remove(self) -> list[str]:
        """Remove every plan, and return what stays of them."""
        for each in self.made:
            self._retried(each.handle.remove)
        left, until = ["not looked yet"], Deadline(GRACE_S)
        while left and not until.has_passed:
            self.storm.sleep(2.0)
            with contextlib.suppress(*_UNREACHABLE):
                self.plans.sweep()
                before, left = left, self._left()
                until = Deadline(GRACE_S) if left != before else until
        return left

    def _left(self) -> list[str]:
        """Return the plans of which something is left: only names, since all of it takes long to read; then items."""
        left = [
            f"@plans/default/{kind}/{each}" for kind in KINDS for each in self.store.children(f"@plans/default/{kind}")
        ]
        return left or what_is_left(self.store)


def judge_plans(storm: Storm) -> tuple[list[str], dict[str, Any]]:
    """Judge the arguments of all runs, the results of all tasks, and what is left after removal."""
    load, wrong = storm.load, []
    known = {each.handle.id: each for each in load.made}
    runs = [each for each in storm.events if "task" in each]
    for event in runs:
        plan_id, _, task = event["task"].partition("~")
        made = known.get(plan_id)
        if made is not None and event["parts"] != made.parts[task]:
            wrong.append(f"{event['task']} was given {event['parts']}, not {made.parts[task]}")
    for each in load.made:
        if each.handle.state() is PlanState.COMPLETED:
            wrong.extend(_wrong_with(load, each))
    wrong.extend(f"{key} is left after removal" for key in load.remove()[:20])
    return wrong, {"plans": len(load.made), "tasks": sum(len(each.parts) for each in load.made), "runs": len(runs)}


def _wrong_with(load: PlansLoad, made: Made) -> list[str]:
    """Return what is wrong with a plan that completed."""
    wrong, plan_id = [], made.handle.id
    if load.completions[plan_id] > 1:
        wrong.append(f"plan {plan_id} completed {load.completions[plan_id]} times")
    if made.handle.status().tasks != {TaskState.DONE: len(made.parts)}:
        wrong.append(f"plan {plan_id} is complete, and its tasks are {made.handle.status().tasks}")
    for name, value in made.values.items():
        found = made.handle.result(name, 0)
        if found != value:
            wrong.append(f"{plan_id}~{name} has the result {found!r}, not {value!r}")
    results = load.store.list(f"@plans/default/results/{plan_id}")
    wrong.extend(f"{entry.key} was written more than once" for entry in results if entry.token != entry.created)
    for prefix in ("in", "todo"):
        left = load.store.list(f"@plans/default/{prefix}/{plan_id}", recursive=True)
        wrong.extend(f"{entry.key} is left of a plan that completed" for entry in left)
    return wrong
