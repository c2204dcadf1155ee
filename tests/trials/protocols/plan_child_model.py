"""A task that waits for a plan of its own, without the code: one plan, one task, and the children it starts.

    plan            (state, turn)               t           (state, child)
    child/<id>      (state, turn)               item, claim of the task; @<control.turn>, claims/@<control.turn>

Workers build and start children, end the task, cancel and recover the plan. A child ends as it likes, some times badly;
somebody cancels and recovers plan and child, each by itself. In the end the plan has to complete.

`MUTANTS` are the fences of docs/design/plans.md, each left out. That of the claim in a hand-over is kept, though
no run was seen to need it besides the check of the task.
"""

from __future__ import annotations

from trials.protocols.simulator import TROUBLE, Conflict, Simulation, Unknown

MOST_TURNS, TROUBLE_ENDS = 20_000, 3_000
FEW = (0.002, 0.002, 0.01, 0.002)
OVER = ("COMPLETED", "FAILED", "CANCELLED")
BADLY = ("FAILED", "CANCELLED")

MUTANTS = {
    "a hand-over does not check the task": "two runs start two children",
    "the end of a child does not check the task": "a recover has it wait again, and nobody wakes it",
    "the end of a child does not check the item": "who has it lets it go, having seen that the child goes on",
    "an item goes without a check that the child goes on": "the child has ended, and nobody ends the task",
    "a task ends without a check of its child": "the child was recovered, and goes on without it",
    "a task is cancelled without a check of its child": "the child was recovered, and goes on",
    "a recover does not check the child": "the child has ended meanwhile, and nobody wakes the task",
}


class ChildModel:
    """One plan with one task, and everybody around it."""

    def __init__(self, seed, mutant=""):
        self.mutant = mutant
        self.simulation = Simulation(seed)
        self.random, self.store = self.simulation.random, self.simulation.store
        self.simulation.trouble = self.random.choice((TROUBLE, (0.03, 0.05, 0.03, 0.02), (0.01, 0.03, 0.05, 0.1)))
        self.store.after_commit.append(self._judge)
        self.meddling = self.random.choice((0, 2, 6, 12))
        self.bad_ends = self.random.choice((0, 1, 3))
        self.children = 0

    def run(self):
        """Until the plan is complete.

        Raises:
            AssertionError: a rule was broken, or it never was.
        """
        self.store.commit([], [("put", "plan", ("READY", 0)), ("put", "t", ("READY", "")), ("create", "item", 0)])
        for name, protocol in (("operator", self.operate), ("children", self.live)):
            self.simulation.spawn(name, protocol, immortal=True)
        for _ in range(3):
            self.simulation.spawn("worker", self.work)

        def replace_the_dead(turn):
            if turn == TROUBLE_ENDS:
                self.simulation.trouble, self.meddling = FEW, 0
            if turn % 20 == 0 and self.simulation.living() < 5:
                self.simulation.spawn("worker", self.work)

        def complete():
            return self.store.get("plan")[0][0] == "COMPLETED"

        assert self.simulation.run(complete, MOST_TURNS, replace_the_dead), ("never complete", self.store.entries)

    # Judge

    def _judge(self, before, _ops):
        plan, task = self.store.get("plan")[0], self.store.get("t")[0]
        live = [key for key, entry in self.store.list("child") if entry[0][0] not in ("DRAFT", *OVER)]
        assert len([1 for _, entry in self.store.list("child") if entry[0][0] != "DRAFT"]) <= 1, ("two children", live)
        assert plan[0] not in OVER or task[0] in ("DONE", *BADLY), ("a plan ends before its task", plan, task)
        was = before.get("t")
        if was is not None and was[0][0] == "CHILD" and task[0] in ("DONE", *BADLY):
            child = self.store.get(f"child/{was[0][1]}")[0]
            assert child[0] in OVER, ("the task has ended, and its child goes on", task, child)
            assert task[0] != "DONE" or child[0] == "COMPLETED", ("done without its child", child)
        if was is not None and was[0][0] in BADLY:
            assert task == was[0] or plan[0] == "RECOVERING", ("what was cancelled goes on", was, task)

    # Calls

    def _try(self, checks, ops, fence=()):
        """Whether it was committed; of an answer that is lost, whoever asks looks again."""
        try:
            yield ("commit", [*fence, *checks], ops)
        except (Conflict, Unknown):
            yield ("pause",)
            return False
        return True

    def _control(self, what, turn):
        return ("create", f"controls/{what}.{turn}", 0)

    # Outside

    def operate(self, _session):
        while True:
            yield ("pause",)
            state, turn = (plan := (yield ("get", "plan")))[0]
            check = [("at", "plan", plan[1])]
            if state in BADLY:
                ops = [("put", "plan", ("RECOVERING", turn + 1)), self._control("recover", turn + 1)]
                yield from self._try(check, ops)
            elif self.meddling and self.random.random() < 0.2:
                self.meddling -= 1
                if state == "READY" and self.random.random() < 0.5:
                    ops = [("put", "plan", ("CANCELLING", turn + 1)), self._control("cancel", turn + 1)]
                    yield from self._try(check, ops)
                else:
                    yield from self._meddle()

    def _meddle(self):
        """Cancel or recover a child by itself."""
        for key, child in (yield ("list", "child")):
            state, turn = child[0]
            to = "CANCELLING" if state == "READY" else "RECOVERING" if state in BADLY else ""
            if to:
                yield from self._try([("at", key, child[1])], [("put", key, (to, turn + 1))])

    def live(self, _session):
        """What happens in the children."""
        while True:
            yield ("pause",)
            for key, child in (yield ("list", "child")):
                state, turn = child[0]
                if state == "RECOVERING":
                    yield from self._try([("at", key, child[1])], [("put", key, ("READY", turn))])
                elif state == "CANCELLING":
                    yield from self._end(key, child, "CANCELLED")
                elif state == "READY" and self.random.random() < 0.3:
                    bad = self.bad_ends > 0 and self.random.random() < 0.5
                    self.bad_ends -= bad
                    yield from self._end(key, child, "FAILED" if bad else "COMPLETED")

    def _end(self, key, child, state):
        """The end of a child wakes the task that waits for it."""
        task = yield ("get", "t")
        checks, ops = [("at", key, child[1])], [("put", key, (state, child[0][1]))]
        if self.mutant != "the end of a child does not check the task":
            checks.append(("at", "t", task[1]))
        if task[0] == ("CHILD", key.rpartition("/")[2]):
            if (yield ("get", "item")) is None:
                ops.append(("create", "item", 0))
            elif self.mutant != "the end of a child does not check the item":
                checks.append(("exists", "item"))
        for _ in range(self.random.randint(0, 4)):
            yield ("pause",)
        yield from self._try(checks, ops)

    # Workers

    def work(self, session):
        while session in self.store.alive:
            yield ("pause",)
            controls = yield ("list", "controls")
            plan = yield ("get", "plan")
            for key, item in controls:
                name = key.rpartition("/")[2]
                claim = yield from self._claim(session, key, f"claims/{name}", item, [])
                if claim is not None:
                    yield from self._handle(session, name, claim)
            item = yield ("get", "item")
            if item is not None and plan[0][0] == "READY":
                claim = yield from self._claim(session, "item", "claim", item, [("at", "plan", plan[1])])
                if claim is not None:
                    yield from self._task(session, claim)

    def _claim(self, session, key, claim, item, checks):
        ops = [("put", key, item[0] + 1), ("create", claim, session, session)]
        try:
            return (yield ("commit", [("at", key, item[1]), *checks], ops))
        except Conflict:
            return None
        except Unknown:
            yield ("pause",)
            found = yield ("get", claim)
            return found[1] if found is not None and found[0] == session else None

    def _task(self, session, claim):
        """Run the task, or end it by its child; until the claim is over."""
        fence = [("at", "claim", claim), ("session", session)]
        gone = [("delete", "item"), ("delete", "claim")]
        while True:
            held = yield ("get", "claim")
            if held is None or held[1] != claim:
                return
            task = yield ("get", "t")
            state, child_id = task[0]
            if state == "READY":
                yield from self._hand_over(session, fence, task, gone)
            elif state == "CHILD":
                yield from self._by_child(fence, task, child_id, gone)
            else:
                yield from self._try([], gone, fence)

    def _hand_over(self, session, fence, task, gone):
        self.children += 1
        child_id = f"{session}.{self.children}".replace("#", "-")
        if not (yield from self._try([], [("create", f"child/{child_id}", ("DRAFT", 0))])):
            return
        for _ in range(self.random.randint(0, 5)):
            yield ("pause",)
        draft = yield ("get", f"child/{child_id}")
        checks = [("at", f"child/{child_id}", draft[1])]
        if self.mutant != "a hand-over does not check the task":
            checks.append(("at", "t", task[1]))
        ops = [("put", "t", ("CHILD", child_id)), ("put", f"child/{child_id}", ("READY", 0)), *gone]
        yield from self._try(checks, ops, () if self.mutant == "a hand-over does not check the task" else fence)

    def _by_child(self, fence, task, child_id, gone):
        child = yield ("get", f"child/{child_id}")
        plan = yield ("get", "plan")
        at_child, at_task = ("at", f"child/{child_id}", child[1]), ("at", "t", task[1])
        for _ in range(self.random.randint(0, 5)):
            yield ("pause",)
        unchecked = self.mutant == "a task ends without a check of its child"
        checks = [at_task] if unchecked else [at_task, at_child]
        if child[0][0] == "COMPLETED":
            end = ("COMPLETED", plan[0][1]) if plan[0][0] == "READY" else plan[0]
            ops = [("put", "t", ("DONE", child_id)), ("put", "plan", end), *gone]
            yield from self._try([*checks, ("at", "plan", plan[1])], ops, fence)
        elif child[0][0] in BADLY:
            end = ("FAILED", plan[0][1]) if plan[0][0] == "READY" else plan[0]
            ops = [("put", "t", ("FAILED", child_id)), ("put", "plan", end), *gone]
            yield from self._try([*checks, ("at", "plan", plan[1])], ops, fence)
        else:
            free = self.mutant == "an item goes without a check that the child goes on"
            yield from self._try([at_task] if free else [at_task, at_child], gone, fence)

    # Control

    def _handle(self, session, name, claim):
        fence = [("at", f"claims/{name}", claim), ("session", session)]
        what, _, turn = name.partition(".")
        while True:
            held = yield ("get", f"claims/{name}")
            if held is None or held[1] != claim:
                return
            plan = yield ("get", "plan")
            wanted = {"cancel": "CANCELLING", "recover": "RECOVERING"}[what]
            if plan[0] != (wanted, int(turn)):
                yield from self._try([], [("delete", f"controls/{name}"), ("delete", f"claims/{name}")], fence)
            elif what == "cancel":
                yield from self._cancel(fence, plan)
            else:
                yield from self._recover(fence, plan)

    def _item_as_it_is(self):
        """Checks that nobody has the item; None where somebody does."""
        item, claim = (yield ("get", "item")), (yield ("get", "claim"))
        if claim is not None:
            return None
        return item, [("absent", "claim"), ("absent", "item") if item is None else ("at", "item", item[1])]

    def _cancel(self, fence, plan):
        task = yield ("get", "t")
        state, child_id = task[0]
        if state not in ("READY", "CHILD"):
            yield from self._try(
                [("at", "plan", plan[1])], [("put", "plan", (self._outcome(state), plan[0][1]))], fence
            )
            return
        checks = [("at", "plan", plan[1]), ("at", "t", task[1])]
        if state == "CHILD":
            child = yield ("get", f"child/{child_id}")
            if child[0][0] not in OVER:
                if child[0][0] == "READY":
                    told = [("put", f"child/{child_id}", ("CANCELLING", child[0][1] + 1))]
                    yield from self._try([("at", f"child/{child_id}", child[1])], told, fence)
                return
            if self.mutant != "a task is cancelled without a check of its child":
                checks.append(("at", f"child/{child_id}", child[1]))
        found = yield from self._item_as_it_is()
        if found is None:
            yield ("pause",)
            return
        gone = [] if found[0] is None else [("delete", "item")]
        yield from self._try([*checks, *found[1]], [("put", "t", ("CANCELLED", child_id)), *gone], fence)

    def _outcome(self, state):
        return "COMPLETED" if state == "DONE" else "FAILED" if state == "FAILED" else "CANCELLED"

    def _recover(self, fence, plan):
        task = yield ("get", "t")
        state, child_id = task[0]
        at_plan = ("at", "plan", plan[1])
        if state not in BADLY:
            yield from self._try([at_plan], [("put", "plan", ("READY", plan[0][1]))], fence)
            return
        found = yield from self._item_as_it_is()
        if found is None:
            yield ("pause",)
            return
        item, checks = found
        checks = [at_plan, ("at", "t", task[1]), *checks]
        if not child_id:
            ops = [("put", "t", ("READY", ""))] + ([("create", "item", 0)] if item is None else [])
            yield from self._try(checks, ops, fence)
            return
        child = yield ("get", f"child/{child_id}")
        for _ in range(self.random.randint(0, 4)):
            yield ("pause",)
        ops = [("put", "t", ("CHILD", child_id))]
        if self.mutant != "a recover does not check the child":
            checks.append(("at", f"child/{child_id}", child[1]))
        if child[0][0] in BADLY:
            ops.append(("put", f"child/{child_id}", ("RECOVERING", child[0][1] + 1)))
        elif child[0][0] == "COMPLETED" and item is None:
            ops.append(("create", "item", 0))
        yield from self._try(checks, ops, fence)
