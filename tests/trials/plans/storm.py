"""Plans while their workers are killed, frozen and cut off, and a referee of what came of it.

What has to hold: each task has one result, and it is right; each run was given the right arguments in the right order;
each plan completes, once; what was removed leaves nothing; and all of that soon after the last fault.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import latchwork
from latchwork.plans import Plans, PlanState, TaskState, WrongState
from latchwork.plans.records import PlanRecord
from patience import Deadline
from plans.work import KINDS, what_is_left
from trials.fault import frozen, held, refused
from trials.plans.node import BIG, FUNCTIONS, MODULUS, SESSION_TTL_S
from trials.remote import Remote
from trials.stage import Stage

ROOT = "plans-storm"
NODES = [f"w{number}" for number in range(4)]
DEPS = 10
#: A plan has to be over so many seconds after the last fault.
GRACE_S = 90.0


@dataclass
class Report:
    """What a storm did and what came of it."""

    backend: str
    seed: int
    seconds: float = 0.0
    plans: int = 0
    tasks: int = 0
    runs: int = 0
    faults: Counter = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def to_json(self):
        return {**vars(self), "seconds": round(self.seconds, 1), "faults": dict(sorted(self.faults.items()))}


@dataclass
class Made:
    """A plan, and what its tasks have to come to."""

    handle: object
    parts: dict[str, list[int]]
    values: dict[str, object]


class Storm:
    """A stage with workers on it, and plans for them. One thread only."""

    def __init__(self, backend, seed, folder, *, tasks=100):
        self.random = random.Random(seed)
        self.folder = Path(folder)
        self.stage = Stage(backend, self.folder)
        self.report = Report(backend, seed)
        self.events = []
        self.processes = {}
        self.restart_at = {}
        self.made = []
        self.completions = Counter()
        self._tasks = tasks
        self._states = {}
        self._open = contextlib.ExitStack()

    def __enter__(self):
        with contextlib.ExitStack() as opened:
            opened.enter_context(self.stage)
            self.stage.lay_ways(len(NODES))
            opened.callback(lambda: [process.kill() for process in self.processes.values()])
            self.store = opened.enter_context(latchwork.connect(self.stage.url(ROOT)))
            self.plans = Plans(self.store, functions=FUNCTIONS)
            mirror = opened.enter_context(self.store.mirror("@plans/default/plans"))
            mirror.on_change(lambda *_: self._see(mirror.snapshot()))
            for node in NODES:
                self.start_node(node)
            self._open = opened.pop_all()
        return self

    def __exit__(self, *_):
        self._open.close()

    def _see(self, plans):
        for key, entry in plans.items():
            state = PlanRecord.of(entry.value).state
            if state is PlanState.COMPLETED and self._states.get(key) is not state:
                self.completions[key.rpartition("/")[2]] += 1
            self._states[key] = state

    # Workers

    def start_node(self, node):
        self.processes[node] = Remote(
            "trials.plans.node:serve",
            self.stage.url(ROOT, NODES.index(node)),
            node,
            report=self.events.append,
            output=self.folder / f"{node}.log",
        )

    def look_after(self):
        for node in NODES:
            due = self.restart_at.get(node, 0.0)
            if not self.processes[node].is_alive and time.monotonic() >= due:
                self.processes[node].kill()
                self.start_node(node)

    def sleep(self, seconds):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.look_after()
            time.sleep(min(0.1, max(0.0, until - time.monotonic())))

    # Plans

    def make(self):
        """A plan of the kind whose turn it is: the shape of the stress, mixed, narrow, and one that is cancelled."""
        kind = len(self.made) % 4
        count = self._tasks if kind == 0 else self._tasks // 3
        options = {"max_parallel": 2} if kind == 2 else {"on_failure": "continue"} if kind == 1 else {}
        builder = self.plans.new(f"storm {len(self.made)}", **options)
        parts, values, refs = {}, {}, {}
        for number in range(count):
            deps = self.random.sample(sorted(refs), min(len(refs), DEPS if kind == 0 else 3))
            given = [values[name] for name in deps]
            fn = "step" if kind in (0, 2) else self.random.choice(["step", "flaky", "nested", "big"])
            name = f"n{number}"
            ref = builder.add(fn, number, [refs[each] for each in deps], name=name)
            parts[name] = given
            if fn == "big":
                head = (number + sum(given)) % 251
                parts[f"{name}-size"], values[f"{name}-size"] = [BIG, head], number
                refs[f"{name}-size"] = builder.add("size", number, ref, name=f"{name}-size")
            else:
                values[name], refs[name] = (number + sum(given)) % MODULUS, ref
        self._start(builder)
        self.made.append(Made(builder.handle, parts, values))
        self.report.plans += 1
        self.report.tasks += len(parts)
        return kind

    def _start(self, builder):
        self._surely(builder.start)

    def _surely(self, call):
        until = Deadline(GRACE_S)
        while True:
            try:
                call()
            except (latchwork.Unavailable, latchwork.OutcomeUnknown):
                if until.has_passed:
                    raise
                self.sleep(0.5)
            else:
                return

    def drive(self, made, seconds, *, cancels):
        """Wait for its end, and recover it when it ended otherwise; whether it completed."""
        until = Deadline(seconds)
        while not until.has_passed:
            self.look_after()
            with contextlib.suppress(WrongState, latchwork.Unavailable, latchwork.OutcomeUnknown):
                state = made.handle.state()
                if state is PlanState.COMPLETED:
                    return True
                if state in (PlanState.FAILED, PlanState.CANCELLED):
                    made.handle.recover()
                elif cancels and state is PlanState.READY and self.random.random() < 0.1:
                    made.handle.cancel()
                    cancels = False
            time.sleep(0.1)
        return False

    # Faults

    def strike(self):
        node = self.random.choice(NODES)
        if not self.processes[node].is_alive:
            return
        what = self.random.choice(["kill", "freeze", "kill", "cut", "silence"])
        if what in ("cut", "silence") and self.stage.ways is None:
            what = "freeze"
        self.report.faults[what] += 1
        if what == "kill":
            self.processes[node].kill()
            self.restart_at[node] = time.monotonic() + self.random.uniform(0.0, 1.0)
            return
        with self._blow(what, node):
            self._go_on(self.random.choice([0.3, 1.0, 1.6]) * SESSION_TTL_S)

    def _blow(self, what, node):
        if what == "freeze":
            return frozen(self.processes[node])
        links = self.stage.ways.links(NODES.index(node))
        return refused(self.stage.ways, links) if what == "cut" else held(self.stage.ways, links)

    def _go_on(self, seconds):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._look_at_plans()
            self.sleep(0.1)

    def _look_at_plans(self):
        """Keep some plans running; cancel one in four of them half-way; recover what ended otherwise."""
        left = [each for each in self.made if self._states.get(self._key(each)) is not PlanState.COMPLETED]
        if len(left) < 2:
            self.make()
        for each in left:
            state = self._states.get(self._key(each))
            with contextlib.suppress(WrongState, latchwork.Unavailable, latchwork.OutcomeUnknown):
                if state in (PlanState.FAILED, PlanState.CANCELLED):
                    each.handle.recover()
                elif state is PlanState.READY and self.made.index(each) % 4 == 3 and self.random.random() < 0.02:
                    each.handle.cancel()

    def _key(self, made):
        return f"@plans/default/plans/{made.handle.id}"

    # The whole of it

    def blow(self, seconds, progress=lambda _text: None):
        """Strike for so long, let all plans come to their end, judge, remove."""
        began = time.monotonic()
        while time.monotonic() < began + seconds:
            self._look_at_plans()
            self.strike()
            self._go_on(self.random.uniform(0.1, 1.0))
            took, faults = time.monotonic() - began, sum(self.report.faults.values())
            progress(f"{took:6.1f} s: {self.report.plans} plans, {faults} faults")
        for each in self.made:
            if not self.drive(each, GRACE_S, cancels=False):
                self._surely(lambda each=each: self._note_wedged(each))
        self.judge()
        self.remove()
        self.report.seconds = time.monotonic() - began
        return self.report

    def _note_wedged(self, made):
        self.report.violations.append(f"plan {made.handle.id} is wedged: {made.handle.status()}")

    def judge(self):
        wrong = self.report.violations
        known = {each.handle.id: each for each in self.made}
        for event in [each for each in list(self.events) if "task" in each]:
            self.report.runs += 1
            plan_id, _, task = event["task"].partition("~")
            made = known.get(plan_id)
            if made is not None and event["parts"] != made.parts[task]:
                wrong.append(f"{event['task']} was given {event['parts']}, not {made.parts[task]}")
        for each in self.made:
            if each.handle.state() is PlanState.COMPLETED:
                self._judge_plan(each)

    def _judge_plan(self, made):
        wrong, plan_id = self.report.violations, made.handle.id
        if self.completions[plan_id] > 1:
            wrong.append(f"plan {plan_id} completed {self.completions[plan_id]} times")
        if made.handle.status().tasks != {TaskState.DONE: len(made.parts)}:
            wrong.append(f"plan {plan_id} is complete, and its tasks are {made.handle.status().tasks}")
        for name, value in made.values.items():
            found = made.handle.result(name, 0)
            if found != value:
                wrong.append(f"{plan_id}~{name} has the result {found!r}, not {value!r}")
        for entry in self.store.list(f"@plans/default/results/{plan_id}"):
            if entry.token != entry.created:
                wrong.append(f"{entry.key} was written more than once")
        for prefix in ("in", "todo"):
            left = self.store.list(f"@plans/default/{prefix}/{plan_id}", recursive=True)
            wrong.extend(f"{entry.key} is left of a plan that completed" for entry in left)

    def remove(self):
        for each in self.made:
            self._surely(each.handle.remove)
        left, until = ["not looked yet"], Deadline(GRACE_S)
        while left and not until.has_passed:
            self.sleep(2.0)
            with contextlib.suppress(latchwork.Unavailable, latchwork.OutcomeUnknown):
                self.plans.sweep()
                before, left = left, self._left()
                until = Deadline(GRACE_S) if left != before else until
        self.report.violations.extend(f"{key} is left after removal" for key in left[:20])

    def _left(self):
        """The plans of which something is left: only names, since all of it takes long to read; at last the items."""
        left = [
            f"@plans/default/{kind}/{each}" for kind in KINDS for each in self.store.children(f"@plans/default/{kind}")
        ]
        return left or what_is_left(self.store)
