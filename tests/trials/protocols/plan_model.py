"""The protocol of `latchwork.plans`, without its code: tasks, edges, failures, cancel, recover, tasks added meanwhile.

Keys, shorter than in the store:

    plan            (state, turn, failed)       t/<i>       (state, deps, succ, attempts)
    todo/<i>        i has not ended             res/<i>     its value
    adds            bumped by each added task   items, claims/<i> or <@control.turn>

Rules that the judges know: a task's result is written once and stands; a task runs when all it depends on is done;
nothing is claimed while the plan is not READY; a plan ends when every task has ended, and says so truly; and it ends.

`MUTANTS` are the design's fences, each left out: every one has to fail (`test_plan_model.py`). Two checks are kept that
no run of thousands was seen to need, since At of the task and the wait for old claims come before them: that of the
plan in a skip, and that of the plan in a reset. For the same reason the plan could be read after what has ended: a task
that waits again after a recover was rewritten.
"""

from __future__ import annotations

from collections import Counter

from trials.protocols.simulator import TROUBLE, Conflict, Simulation, Unknown

LIVE = ("WAITING", "READY")
ENDED = ("COMPLETED", "FAILED", "CANCELLED")
LOST = ("FAILED", "SKIPPED", "CANCELLED")
MOST_ATTEMPTS = 2
MOST_TURNS = 30_000
#: Trouble comes as often as a run was drawn to have, until then: what goes on for longer has to come to an end.
TROUBLE_ENDS = 6_000
FEW = (0.002, 0.002, 0.01, 0.002)

#: What is left out, and what that breaks.
MUTANTS = {
    "finish is not fenced by the claim": "a task cancelled meanwhile is done after all",
    "an added task does not bump adds": "the plan completes around it",
    "an added task does not check what it depends on": "its dependency ends unseen",
    "the item goes with the finish": "nobody looks at what the last one left",
    "nobody looks after a finish": "two that finish at once each leave it to the other",
    "a conflict ends the look": "an added task rewrote the successor",
    "two may finish": "a result is written twice",
    "a claim does not check the plan": "a task starts after the plan was cancelled",
    "only sinks look whether the plan is complete": "skipped successors leave nobody to look",
    "a second skip stops at what is skipped": "the rest of the cone waits for ever",
    "recover is ready at once": "a task ends before its edge appears",
    "a cancelled task may have a claim": "it runs and is cancelled",
    "a quick end does not check its own task": "an added task's link is written over",
    "a quick end does not check what else a successor waits for": "two leave it to each other",
    "a quick end does not check that a task is left": "the last two leave the end of the plan to each other",
    "what becomes ready does not check the plan": "what has ended may have failed meanwhile",
    "what has ended is done though a task has failed": "a task runs without a result that it needs",
    "tasks become ready while the plan recovers": "what is lost yet counts as done",
    "a quick end does not check the successor that it makes ready": "an added task's link is written over",
    "what is taken along by a lost answer is forgotten": "it is claimed, and nobody runs it",
    "what is taken along has no item": "its taker dies, and nobody hears of it",
    "what is taken along is not checked to be as it was": "a task that is ready, or cancelled, is made ready again",
    "what was alive before a finish counts behind it": "the last two leave the end of the plan to each other",
}


class PlanModel:
    """One plan and everybody around it."""

    def __init__(self, seed, mutant=""):
        self.mutant = mutant
        self.simulation = Simulation(seed)
        self.random = self.simulation.random
        self.simulation.trouble = self.random.choice((TROUBLE, (0.03, 0.05, 0.03, 0.02), (0.01, 0.03, 0.05, 0.1)))
        self.store = self.simulation.store
        self.store.after_commit.append(self._judge_commit)
        small = self.random.random() < 0.5
        count = self.random.randint(1, 4) if small else self.random.randint(3, 12)
        self.tasks = {i: sorted(self.random.sample(range(i), min(i, self.random.randint(0, 3)))) for i in range(count)}
        self.policy = self.random.choice(("stop", "continue"))
        self.adds_left = self.random.randint(0, 4)
        self.adds_at_the_end = self.random.random() < 0.5
        self.failures_left = self.random.choice((0, 0, 2, 6))
        self.cancels_left = self.random.choice((0, 0, 1, 3))
        self.takes_along = seed % 2 == 1
        self.leaves_the_end = seed % 4 < 2
        self.results = Counter()
        self.runs = 0

    def run(self):
        """The calls of functions beyond those needed.

        Raises:
            AssertionError: a rule was broken, or the plan never ended.
        """
        spawn = self.simulation.spawn
        for name, protocol in (("builder", self.build), ("adder", self.add), ("operator", self.operate)):
            spawn(name, protocol, immortal=True)
        for _ in range(3):
            spawn("worker", self.work)

        def replace_the_dead(turn):
            if turn == TROUBLE_ENDS:
                self.simulation.trouble = FEW
            if turn % 20 == 0 and self.simulation.living() < 5:
                spawn("worker", self.work)

        assert self.simulation.run(self._is_completed, MOST_TURNS, replace_the_dead), ("never ended", self._picture())
        self.simulation.trouble = (0, 0, 0, 0)
        drained = self.simulation.run(lambda: not self.store.children("items"), 5_000, replace_the_dead)
        assert drained, ("items left", self._picture())
        assert all(self.results[i] == 1 for i in self.tasks), ("results", self.results)
        return self.runs - len(self.tasks)

    # Judges.

    def _judge_commit(self, before, ops):
        for kind, key, *value in ops:
            if kind == "delete":
                continue
            name = key.split("/")[-1]
            if key.startswith("res/"):
                self.results[int(name)] += 1
                assert self.results[int(name)] == 1, ("a result is written twice", key)
            elif key.startswith("t/"):
                self._judge_task(name, before[key], value[0])
            elif key == "plan":
                self._judge_plan(value[0])
            elif key.startswith("claims/") and name.isdigit():
                assert self.store.get("plan")[0][0] == "READY", ("claimed in a plan that is not READY", key)

    def _judge_task(self, name, before, now):
        if before is None:
            return
        was, state = before[0][0], now[0]
        done = all(self.store.get(f"res/{d}") is not None for d in now[1])
        assert state != "READY" or done, ("ready before what it depends on is done", name, now)
        assert was != "DONE" or state == "DONE", ("what is done is undone", before, now)
        plan = self.store.get("plan")[0]
        assert was == state or plan[0] not in ENDED, ("a task changes after the end", before, now, plan)
        assert state != "CANCELLED" or name not in self.store.children("claims"), ("cancelled while it runs", name)

    def _judge_plan(self, plan):
        if plan[0] not in ENDED:
            return
        states = {entry[0][0] for _, entry in self.store.list("t")}
        assert not self.store.children("todo"), ("ended too early", plan, states)
        assert not states & set(LIVE), ("ended with live tasks", plan, states)
        assert plan[0] != "COMPLETED" or states <= {"DONE"}, ("completed without all", states)
        assert plan[0] != "FAILED" or "FAILED" in states, ("failed without a failure", states)

    def _is_completed(self):
        plan = self.store.get("plan")
        return plan is not None and plan[0][0] == "COMPLETED"

    def _picture(self):
        return {key: entry[0] for key, entry in sorted(self.store.entries.items())}

    # Who builds, adds, cancels and recovers.

    def build(self, _session):
        succ = {i: tuple(j for j in self.tasks if i in self.tasks[j]) for i in self.tasks}
        tasks = list(self.tasks.items())
        for i, deps in tasks:
            ops = [("put", f"t/{i}", ("WAITING", tuple(deps), succ[i], 0)), ("put", f"todo/{i}", "")]
            self.store.commit([], ops)
            yield ("pause",)
        self.store.commit([], [("put", "plan", ("READY", 0, 0)), ("create", "items/@start.0", 0)])

    def add(self, _session):  # noqa: C901 - one transaction after the other, with what mutants leave out
        while self.adds_left:
            yield ("pause",)
            plan = yield ("get", "plan")
            if plan is None or plan[0][0] != "READY":
                if plan is not None and plan[0][0] == "COMPLETED":
                    return
                continue
            if self.adds_at_the_end and len(self.store.children("todo")) > 1:
                continue
            i = max(self.tasks) + 1
            deps = sorted(self.random.sample(sorted(self.tasks), min(len(self.tasks), self.random.randint(0, 3))))
            checks, ops, states = [("at", "plan", plan[1])], [], []
            adds = yield ("get", "adds")
            for d in deps:
                entry = yield ("get", f"t/{d}")
                state, its_deps, succ, attempts = entry[0]
                states.append(state)
                if state != "DONE":
                    if self.mutant != "an added task does not check what it depends on":
                        checks.append(("at", f"t/{d}", entry[1]))
                    ops.append(("put", f"t/{d}", (state, its_deps, (*succ, i), attempts)))
            lost = any(state in LOST for state in states)
            state = "SKIPPED" if lost else "WAITING" if any(each in LIVE for each in states) else "READY"
            ops.append(("create", f"t/{i}", (state, tuple(deps), (), 0)))
            if self.mutant != "an added task does not bump adds":
                ops.append(("put", "adds", (adds[0] if adds else 0) + 1))
            if not lost:
                ops.append(("put", f"todo/{i}", ""))
            if state == "READY":
                ops.append(("create", f"items/{i}", 0))
            if (yield from self._try(checks, ops, lambda i=i: self.store.get(f"t/{i}") is not None)):
                self.tasks[i] = deps
                self.adds_left -= 1

    def operate(self, _session):
        """Cancel now and then, recover whatever did not complete."""
        while True:
            yield ("pause",)
            plan = yield ("get", "plan")
            if plan is None:
                continue
            state, turn, _ = plan[0]
            checks = [("at", "plan", plan[1])]
            if state == "READY" and self.cancels_left and self.random.random() < 0.03:
                self.cancels_left -= 1
                ops = [("put", "plan", ("CANCELLING:CANCELLED", turn + 1, 0)), self._control("cancel", turn + 1)]
                yield from self._try(checks, ops, lambda: True)
            elif state in ("FAILED", "CANCELLED"):
                first = "READY" if self.mutant == "recover is ready at once" else "RECOVERING"
                ops = [("put", "plan", (first, turn + 1, 0)), self._control("recover", turn + 1)]
                yield from self._try(checks, ops, lambda: True)

    def _control(self, what, turn):
        return ("create", f"items/@{what}.{turn}", 0)

    def _try(self, checks, ops, landed):
        """Whether it was committed, as the store settles it: what may land late has landed, or never will."""
        try:
            yield ("commit", checks, ops)
        except Conflict:
            return False
        except Unknown:
            yield ("pause",)  # whatever was on its way lands with the sender's next call
            return landed()
        return True

    # Workers.

    def work(self, session):
        while session in self.store.alive:
            claims = self.store.list("claims")
            forgotten = [key for key, entry in claims if entry[2] == session and "@" not in key]
            assert not (forgotten and self.takes_along), ("claimed, and nobody runs it", forgotten)
            items = yield ("list", "items")
            claimed = yield ("children", "claims")
            free = [(key[len("items/") :], entry) for key, entry in items if key[len("items/") :] not in claimed]
            if not free:
                yield ("pause",)
                continue
            name, item = self.random.choice(free)
            plan = yield ("get", "plan")
            if name.startswith("@"):
                claim = yield from self._claim(session, name, item, [])
                if claim is not None:
                    yield from self._control_item(session, name, claim)
            elif plan[0][0] in ENDED:  # nobody needs it any more
                checks = [("at", "plan", plan[1]), ("at", f"items/{name}", item[1]), ("absent", f"claims/{name}")]
                yield from self._try(checks, [("delete", f"items/{name}")], lambda: True)
            elif plan[0][0] == "READY":
                checks = [] if self.mutant == "a claim does not check the plan" else [("at", "plan", plan[1])]
                claim = yield from self._claim(session, name, item, checks)
                if claim is not None:
                    yield from self._task_item(session, int(name), claim, plan[0][1])
            else:
                yield ("pause",)

    def _claim(self, session, name, item, checks):
        ops = [("put", f"items/{name}", item[0] + 1), ("create", f"claims/{name}", session, session)]
        try:
            return (yield ("commit", [("at", f"items/{name}", item[1]), *checks], ops))
        except Conflict:
            return None
        except Unknown:
            yield ("pause",)
            claim = yield ("get", f"claims/{name}")
            return claim[1] if claim is not None and claim[0] == session else None

    def _fence(self, session, name, claim):
        return [("at", f"claims/{name}", claim), ("session", session)]

    def _holds(self, name, claim):
        entry = yield ("get", f"claims/{name}")
        return entry is not None and entry[1] == claim

    def _acknowledge(self, session, name, claim):
        ops = [("delete", f"items/{name}"), ("delete", f"claims/{name}")]
        while True:
            try:
                yield ("commit", self._fence(session, name, claim), ops)
            except Unknown:
                continue
            except Conflict:
                pass
            return

    def _task_item(self, session, i, claim, turn):  # noqa: C901 - one transaction after the other, with what mutants leave out
        fence = self._fence(session, i, claim)
        entry = yield ("get", f"t/{i}")
        state, deps, _, attempts = entry[0]
        along = []
        before = self.store.children("todo") if self.mutant == "what was alive before a finish counts behind it" else []
        if state == "READY":
            for d in deps:
                assert self.store.get(f"res/{d}") is not None, ("runs before what it depends on", i, d)
            self.runs += 1
            for _ in range(self.random.randint(0, 5)):
                yield ("pause",)
            if self.failures_left and self.random.random() < 0.3:
                self.failures_left -= 1
                if attempts + 1 < MOST_ATTEMPTS:
                    yield from self._release(fence, i, entry)
                    return
                if not (yield from self._fail(fence, i)):
                    return
            else:
                outcome, along = yield from self._finish(session, fence, i, entry)
                if outcome != "look":
                    yield from self._run_along(session, along, turn)
                    return
        entry = yield ("get", f"t/{i}")
        if entry[0][0] == "DONE" and self.mutant != "nobody looks after a finish":
            along, living = yield from self._propagate(entry[0][2], session)
            living = living or len(before) > 1
            sinks_only = self.mutant == "only sinks look whether the plan is complete"
            if not (entry[0][2] and sinks_only) and not (living and self.leaves_the_end):
                yield from self._complete()
        elif entry[0][0] == "FAILED" and not (yield from self._skip(fence, i, claim, turn)):
            return
        yield from self._acknowledge(session, i, claim)
        yield from self._run_along(session, along, turn)

    # What an end makes ready, and its worker has at once.

    def _along(self, session, j, entry):
        """Writes that make a task ready, and ours: with it the plan is checked, as where it is claimed."""
        if session is None or not self.takes_along:
            return self._made_ready(j, entry), []
        plan = yield ("get", "plan")
        if plan[0][0] != "READY" or self.random.random() < 0.5:
            return self._made_ready(j, entry), []
        ops = [("put", f"t/{j}", ("READY", *entry[0][1:])), ("create", f"claims/{j}", session, session)]
        if self.mutant != "what is taken along has no item":
            ops.append(("create", f"items/{j}", 1))
        return ops, [j]

    def _run_along(self, session, along, turn):
        """Run what was taken along, whether its answer came or not: what may land late has landed, or never will."""
        for j in along:
            claim = yield ("get", f"claims/{j}")
            if claim is not None and claim[0] == session:
                yield from self._task_item(session, j, claim[1], turn)

    def _release(self, fence, i, entry):
        state, deps, succ, attempts = entry[0]
        checks = [*fence, ("at", f"t/{i}", entry[1])]
        ops = [("put", f"t/{i}", (state, deps, succ, attempts + 1)), ("delete", f"claims/{i}")]
        if not self.takes_along:  # a claim of unknown outcome may stay as long as its session
            if not (yield from self._try(checks, ops, lambda: True)):
                yield from self._try(fence, [("delete", f"claims/{i}")], lambda: True)
            return
        while True:
            try:
                yield ("commit", checks, ops)
            except Unknown:
                continue
            except Conflict:
                if len(checks) > len(fence):
                    checks, ops = fence, ops[1:]  # it was rewritten: this try does not count
                    continue
            return

    def _finish(self, session, fence, i, entry):
        """Look: done, successors are to be looked at; else the claim is over. And what was taken along."""
        quick = yield from self._pass_on(session, fence, i, entry)
        if quick is not None:
            return quick
        fenced = self.mutant not in ("finish is not fenced by the claim", "two may finish")
        while True:
            entry = yield ("get", f"t/{i}")
            state, *_ = entry[0]
            if state == "DONE" and self.mutant != "two may finish":
                return "look", []
            checks = list(fence) if fenced else []
            if self.mutant != "two may finish":
                checks.append(("at", f"t/{i}", entry[1]))
            ops = self._done(session, i, entry)
            over = self.mutant == "the item goes with the finish"
            if over:
                ops += [("delete", f"items/{i}"), ("delete", f"claims/{i}")]
            try:
                yield ("commit", checks, ops)
            except Conflict:
                if fenced and not (yield from self._holds(i, fence[0][2])):
                    return "lost", []
            except Unknown:
                pass
            else:
                return "over" if over else "look", []

    def _done(self, session, i, entry):
        done = ("put", f"t/{i}", ("DONE", *entry[0][1:]))
        return [done, ("put", f"res/{i}", session), ("delete", f"todo/{i}")]

    def _pass_on(self, session, fence, i, entry):  # noqa: C901, PLR0912 - one transaction, with what mutants leave out
        """An end that knows of a later one takes its item along. None: it is none, or was refused."""
        succ = entry[0][2]
        unfenced = self.mutant == "finish is not fenced by the claim"
        checks = [] if unfenced else list(fence)
        if self.mutant != "a quick end does not check its own task":
            checks.append(("at", f"t/{i}", entry[1]))
        ops, ready, behind, along = self._done(session, i, entry), False, False, []
        for j in succ:
            other = yield ("get", f"t/{j}")
            if other[0][0] != "WAITING":
                continue
            seen, left = yield from self._waits_for(other[0][1], i)
            if left:
                behind = True
                if self.mutant != "a quick end does not check what else a successor waits for":
                    checks.append(("exists", f"todo/{self.random.choice(left)}"))
            else:
                if not self._is_clean(seen):
                    return None
                ready = True
                if self.mutant != "a quick end does not check the successor that it makes ready":
                    checks.append(("at", f"t/{j}", other[1]))
                writes, taken = yield from self._along(session, j, other)
                checks, along = [*checks, *self._plan_check(seen)], along + taken
                ops += writes
        if not ready and not behind:
            others = [each for each in (yield ("children", "todo")) if each != str(i)]
            if not others:
                return None
            if self.mutant != "a quick end does not check that a task is left":
                checks.append(("exists", f"todo/{self.random.choice(others)}"))
        ops += [("delete", f"items/{i}"), ("delete", f"claims/{i}")]
        while True:
            try:
                yield ("commit", checks, ops)
            except Conflict:
                if not unfenced and not (yield from self._holds(i, fence[0][2])):
                    forgets = self.mutant == "what is taken along by a lost answer is forgotten"
                    return "over", [] if forgets else along
                return None
            except Unknown:
                continue
            return "over", along

    def _waits_for(self, deps, but=None):
        """The plan, read first; and which of these have not ended."""
        seen = yield ("get", "plan")
        todo = yield ("children", "todo")
        return seen, [d for d in deps if str(d) in todo and d != but]

    def _is_clean(self, seen):
        """Whether all that has ended is done, as long as the plan is as it was seen."""
        state, _, failed = seen[0]
        if self.mutant == "tasks become ready while the plan recovers":
            return not failed
        return state == "READY" and (not failed or self.mutant == "what has ended is done though a task has failed")

    def _plan_check(self, seen):
        return [] if self.mutant == "what becomes ready does not check the plan" else [("at", "plan", seen[1])]

    def _made_ready(self, j, entry):
        return [("put", f"t/{j}", ("READY", *entry[0][1:])), ("create", f"items/{j}", 0)]

    def _propagate(self, succ, session=None):  # noqa: C901 - one transaction, with what mutants leave out
        """Readiness never becomes false again, so this needs no fence. What was taken along by this session.

        And whether a task was seen that has not ended yet: its end is to come, and looks whether it was the last.
        """
        along, living = [], False
        for j in succ:
            while True:
                entry = yield ("get", f"t/{j}")
                seen, left = yield from self._waits_for(entry[0][1])
                living = living or bool(left)
                if entry[0][0] != "WAITING" or left:
                    break
                if not self._is_clean(seen) and not (yield from self._are_done(seen, entry[0][1])):
                    break
                ops, taken = yield from self._along(session, j, entry)
                checks = self._plan_check(seen)
                if not taken or self.mutant != "what is taken along is not checked to be as it was":
                    checks.append(("at", f"t/{j}", entry[1]))
                try:
                    yield ("commit", checks, ops)
                except Conflict:
                    if self.mutant == "a conflict ends the look":
                        break
                except Unknown:
                    if self.mutant != "what is taken along by a lost answer is forgotten":
                        along += taken
                else:
                    along += taken
                    break
        return along, living

    def _are_done(self, seen, deps):
        """Whether these are done, by their own records, in a plan that runs."""
        if seen[0][0] != "READY":
            return False
        for d in deps:
            other = yield ("get", f"t/{d}")
            if other[0][0] != "DONE":
                return False
        return True

    def _complete(self):
        while True:
            plan = yield ("get", "plan")
            state, turn, failed = plan[0]
            if state != "READY":
                return
            adds = yield ("get", "adds")
            if (yield ("children", "todo")):
                return
            guard = ("absent", "adds") if adds is None else ("at", "adds", adds[1])
            end = ("FAILED" if failed else "COMPLETED", turn, failed)
            try:
                yield ("commit", [("at", "plan", plan[1]), guard], [("put", "plan", end)])
            except (Conflict, Unknown):
                continue
            return

    # Failures.

    def _fail(self, fence, i):
        """False: the claim is over."""
        while True:
            plan = yield ("get", "plan")
            entry = yield ("get", f"t/{i}")
            if entry[0][0] == "FAILED":
                return True
            state, turn, failed = plan[0]
            ops = [("put", f"t/{i}", ("FAILED", *entry[0][1:])), ("delete", f"todo/{i}")]
            if self.policy == "stop" and state == "READY":
                ops += [("put", "plan", ("CANCELLING:FAILED", turn + 1, failed + 1)), self._control("cancel", turn + 1)]
            else:
                ops.append(("put", "plan", (state, turn, failed + 1)))
            try:
                yield ("commit", [*fence, ("at", f"t/{i}", entry[1]), ("at", "plan", plan[1])], ops)
            except Conflict:
                if not (yield from self._holds(i, fence[0][2])):
                    return False
            except Unknown:
                pass
            else:
                return True

    def _skip(self, fence, i, claim, turn):
        """Skip all that can never run now. False: the claim, or the plan's turn, is over."""
        entry = yield ("get", f"t/{i}")
        left, seen = list(entry[0][2]), {i}
        while left:
            j = left.pop(0)
            if j in seen:
                continue
            while True:
                plan = yield ("get", "plan")
                entry = yield ("get", f"t/{j}")
                state, deps, succ, attempts = entry[0]
                if state != "WAITING":
                    through = self.mutant != "a second skip stops at what is skipped"
                    left += succ if through and state in LOST else ()
                    break
                if plan[0][1] != turn:
                    break
                checks = [*fence, ("at", f"t/{j}", entry[1]), ("at", "plan", plan[1])]
                ops = [("put", f"t/{j}", ("SKIPPED", deps, succ, attempts)), ("delete", f"todo/{j}")]
                try:
                    yield ("commit", checks, ops)
                except Conflict:
                    if not (yield from self._holds(i, claim)):
                        return False
                except Unknown:
                    pass
                else:
                    left += succ
                    break
            seen.add(j)
        yield from self._complete()
        return True

    # Control.

    def _control_item(self, session, name, claim):
        fence = self._fence(session, name, claim)
        what, _, turn = name[1:].partition(".")
        plan = yield ("get", "plan")
        ours = not turn or plan[0][1] == int(turn)
        over = True
        if what == "cancel" and plan[0][0].startswith("CANCELLING") and ours:
            over = yield from self._cancel(fence, plan[0][1])
        elif what == "recover" and ours:
            over = yield from self._recover(fence, plan[0][1])
        elif what == "start" and plan[0][0] == "READY":
            yield from self._kick()
        if over:
            yield from self._acknowledge(session, name, claim)

    def _kick(self):
        tasks = yield ("list", "t")
        yield from self._propagate([int(key[2:]) for key, _ in tasks])
        yield from self._complete()

    def _cancel(self, fence, turn):
        while True:
            plan = yield ("get", "plan")
            if plan[0][1] != turn or not plan[0][0].startswith("CANCELLING"):
                return True
            checks = [*fence, ("at", "plan", plan[1])]
            todo = yield ("children", "todo")
            if not todo:
                ops = [("put", "plan", (plan[0][0].partition(":")[2], turn, plan[0][2]))]
            else:
                i = self.random.choice(todo)
                entry = yield ("get", f"t/{i}")
                if entry[0][0] not in LIVE:
                    continue
                checks.append(("at", f"t/{i}", entry[1]))
                ops = [("put", f"t/{i}", ("CANCELLED", *entry[0][1:])), ("delete", f"todo/{i}")]
                item = yield ("get", f"items/{i}")
                if entry[0][0] == "READY":
                    claimed = yield ("get", f"claims/{i}")
                    if item is None or (claimed is not None and self.mutant != "a cancelled task may have a claim"):
                        yield ("pause",)
                        continue
                    ops.append(("delete", f"items/{i}"))
                    if self.mutant != "a cancelled task may have a claim":
                        checks += [("at", f"items/{i}", item[1]), ("absent", f"claims/{i}")]
            try:
                yield ("commit", checks, ops)
            except (Conflict, Unknown):
                if not (yield from self._holds(fence[0][1].partition("/")[2], fence[0][2])):
                    return False

    def _recover(self, fence, turn):
        plan = yield ("get", "plan")
        at_once = self.mutant == "recover is ready at once"
        if plan[0][0] == "RECOVERING" or at_once:
            tasks = yield ("list", "t")
            for key, _ in self.random.sample(tasks, len(tasks)):
                if not (yield from self._reset(fence, key[2:], turn)):
                    return False
            while True:
                plan = yield ("get", "plan")
                if plan[0][1] != turn or (plan[0][0] == "READY"):
                    break
                try:
                    yield ("commit", [*fence, ("at", "plan", plan[1])], [("put", "plan", ("READY", turn, 0))])
                except (Conflict, Unknown):
                    if not (yield from self._holds(fence[0][1].partition("/")[2], fence[0][2])):
                        return False
        plan = yield ("get", "plan")
        if plan[0][:2] == ("READY", turn):
            yield from self._kick()
        return True

    def _reset(self, fence, i, turn):
        """Make one task wait again; False: the claim, or the plan's turn, is over."""
        while True:
            plan = yield ("get", "plan")
            entry = yield ("get", f"t/{i}")
            state, deps, succ, _ = entry[0]
            if state not in LOST:
                return True
            if plan[0][:2] != ("RECOVERING", turn) and self.mutant != "recover is ready at once":
                return False
            checks = [*fence, ("at", "plan", plan[1]), ("at", f"t/{i}", entry[1])]
            ops = [("put", f"t/{i}", ("WAITING", deps, succ, 0)), ("put", f"todo/{i}", "")]
            item = yield ("get", f"items/{i}")
            if (yield ("get", f"claims/{i}")) is not None:
                yield ("pause",)
                continue
            unchanged = ("absent", f"items/{i}") if item is None else ("at", f"items/{i}", item[1])
            checks += [("absent", f"claims/{i}"), unchanged]
            ops.append(("delete", f"items/{i}"))
            try:
                yield ("commit", checks, ops)
            except (Conflict, Unknown):
                if not (yield from self._holds(fence[0][1].partition("/")[2], fence[0][2])):
                    return False
