"""A family of runs on paper: a run, what it starts, and what that starts; masters that crash, freeze and lose answers.

All of a family is of one shard, so what one run tells another is one transaction. What follows is the product's own
`advance`, `asked` and `told`; here is the list of calls that a master works through. Workers are a box of results: what
is queued or runs may end at any moment, and what is to be taken back is, unless it has ended before.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass, field, replace

from latchwork_workflows.errors import WrongState
from latchwork_workflows.state import (
    ChildForced,
    Ended,
    OnFailure,
    Outcome,
    Pause,
    Recover,
    Removed,
    Rerun,
    Resume,
    RunState,
    Start,
    Stop,
    TaskRule,
    TaskState,
    WorkflowPlan,
    WorkflowRun,
    advance,
)
from latchwork_workflows.state.records import FAILED, OVER
from latchwork_workflows.state.related_runs import choose_event_for_child, choose_event_for_parent, may_command_child
from trials.protocols.simulator import Simulation, Unknown
from trials.protocols.workflow_model import NotOwner, WorkflowSimulation

MUTANTS = {
    "no guard in the database": "a former owner writes what it knew of the family",
    "a child is never adopted": "a task that is opened again has a second child",
    "a recovery runs all of a child again": "what had succeeded in a child runs twice",
    "a parent is told in a transaction of its own": "the end of a child is lost with who knew of it",
    "a child may be recovered by itself": "a child runs whose parent is over",
    "a stop of a parent is not for its children": "a child runs whose parent was stopped",
    "a lost commit counts as done": "what memory says was never written",
}
COMMANDS = (Pause, Resume, Stop, Recover, Rerun)
ENDED = {RunState.SUCCESS, RunState.FAILURE, RunState.STOPPED}
ROOT = 1


@dataclass(frozen=True)
class Member:
    """A run of the family: what is known of it, how deep it is, and whose task's child it is."""

    known: WorkflowRun
    depth: int
    parent: tuple[int, str, int] | None = None


@dataclass(frozen=True)
class Family:
    """All runs by number, and the child of each task of each run of a member."""

    members: dict[int, Member]
    children: dict[tuple[int, str, int], int] = field(default_factory=dict)


class Database:
    """One transaction at a time; `results` are what workers have told, by member, run, task and attempt."""

    def __init__(self):
        self.token = 0
        self.family = Family({ROOT: Member(WorkflowRun(), 0)})
        self.commands = [(ROOT, Start())]
        self.results = {}


class Following:
    """One transaction of a master: events, and all that follows from them in the family."""

    def __init__(self, model, family):
        self.model = model
        self.members, self.children = dict(family.members), dict(family.children)
        self.todo = []

    def step(self, number, events):
        member = self.members[number]
        after = advance(self.model.plans[member.depth], member.known, events, 0.0)
        self.members[number] = replace(member, known=replace(after, timeline_events=(), calls=()))
        if after == member.known:
            return
        self.todo += [(number, call) for call in after.calls]
        if after.state in OVER and member.parent is not None:
            self.todo.append((number, None))

    def follow(self):
        while self.todo:
            number, call = self.todo.pop(0)
            if call is None:
                if not self.model.without("a parent is told in a transaction of its own"):
                    self.tell_parent(number)
            elif call.kind == "open" and self.members[number].known.tasks[call.task].runs_on_master:
                self.open(number, call)
            elif call.kind != "open" and not (
                call.kind == "stop" and self.model.without("a stop of a parent is not for its children")
            ):
                self.ask_child(number, call)
            elif call.kind == "stop":
                task = self.members[number].known.tasks[call.task]
                self.step(number, [Ended(call.task, task.n, Outcome.KILLED, self.members[number].known.round)])
        return Family(self.members, self.children)

    def place(self, number, name):
        return number, name, self.members[number].known.round

    def open(self, number, call):
        place = self.place(number, call.task)
        if place in self.children and not self.model.without("a child is never adopted"):
            self.ask_child(number, call)
            return
        child = max(self.members) + 1
        self.children[place] = child
        self.members[child] = Member(WorkflowRun(), self.members[number].depth + 1, place)
        self.step(child, [Start()])

    def ask_child(self, number, call):
        child = self.children.get(self.place(number, call.task))
        if child is None:
            return
        event = choose_event_for_child(call.kind, self.members[child].known.state)
        if isinstance(event, Recover) and self.model.without("a recovery runs all of a child again"):
            event = Rerun()
        if event is not None:
            self.step(child, [event])
        elif self.members[child].known.state in OVER:
            self.todo.append((child, None))

    def tell_parent(self, number):
        child = self.members[number]
        parent, name, run = child.parent
        known = self.members[parent].known
        if known.round != run:
            return
        task = known.tasks[name]
        event = choose_event_for_parent(child.known.state, name, task.n, run)
        if not task.runs_on_master:
            if task.state in FAILED and getattr(event, "outcome", None) is Outcome.SUCCESS:
                self.step(parent, [ChildForced(name, run)])
        elif event is not None:
            self.step(parent, [event])

    def command(self, number, event):
        member = self.members.get(number)
        if member is None:
            return  # a former owner does not know it, and the guard refuses what it writes
        word = type(event).__name__.lower()
        if member.parent is not None and not self.model.without("a child may be recovered by itself"):
            parent, name, run = member.parent
            known = self.members[parent].known
            if known.round != run or not may_command_child(word, known.tasks[name].state):
                return
        try:
            self.step(number, [event])
        except WrongState:
            return


class FamilyModel:
    """One family through one history, which follows from its seed."""

    def __init__(self, seed, mutant=None):
        self.simulation: Simulation = WorkflowSimulation(seed)
        self.random = self.simulation.random
        self.mutant = mutant
        self.plans = [self.a_plan(depth) for depth in range(3)]
        self.db = Database()
        self.commands_left = self.random.randint(0, 8)
        self.successes = Counter()

    def a_plan(self, depth):
        """Leaves, and above the last generation tasks that start a run of the next."""
        rules = {}
        for index in range(self.random.randint(1, 3)):
            after = tuple(name for name in rules if self.random.random() < 0.5)
            kind = "sub_process" if depth < 2 and (index == 0 or self.random.random() < 0.3) else ""
            rules[f"t{index}"] = TaskRule(after, kind=kind)
        return WorkflowPlan(rules, on_failure=self.random.choice(list(OnFailure)))

    def without(self, mutant):
        return self.mutant == mutant

    # What must hold in each state that is written

    def judge(self, before, after):
        places = Counter(each.parent for each in after.members.values() if each.parent is not None)
        assert not places or max(places.values()) == 1, ("a task has two children in one run", places)
        for number, member in after.members.items():
            was = before.members.get(number)
            assert was is None or was.known.round <= member.known.round, ("an earlier run is written", number)
            self.judge_member(after, number, member, was)

    def judge_member(self, after, number, member, was):
        known = member.known
        for name, task in known.tasks.items():
            old = was.known.tasks.get(name) if was is not None and was.known.round == known.round else None
            assert old is None or old.n <= task.n, ("an earlier attempt is written", number, name)
            if self.plans[member.depth].rules[name].kind:
                self.judge_child(after, number, known, name)
            elif task.state is TaskState.SUCCESS and (old is None or old.state is not TaskState.SUCCESS):
                self.judge_success(after, number, name)

    def judge_success(self, after, number, name):
        """What succeeded in a child runs again only for another child, or another run of somebody above."""
        member = after.members[number]
        above, runs = member, []
        while above.parent is not None:
            runs.append(after.members[above.parent[0]].known.round)
            above = after.members[above.parent[0]]
        key = (number, name, *runs) if runs else (number, name, member.known.round)
        self.successes[key] += 1
        assert self.successes[key] == 1, ("what had succeeded ran again", key)

    def judge_child(self, after, number, known, name):
        task = known.tasks[name]
        child = after.children.get((number, name, known.round))
        state = after.members[child].known.state if child is not None else None
        if task.state is TaskState.SUCCESS:
            assert state is RunState.SUCCESS, ("a task succeeded without its child", number, name, state)
        if known.state in ENDED and state is not None:
            assert state in ENDED, ("a child goes on, and its parent is over", number, name, state)
        if known.state is RunState.PAUSED and state is not None:
            assert state in OVER, ("a child goes on, and its parent is paused", number, name, state)

    # Who takes part

    def own(self, version):
        def transaction():
            if self.db.token > version:
                raise NotOwner
            self.db.token = version
            return self.db.family

        return transaction

    def write(self, version, known, made, ended, done):
        """The rows that differ from what is known, as the product writes them."""
        members = {number: each for number, each in made.members.items() if known.members.get(number) != each}
        children = {place: each for place, each in made.children.items() if known.children.get(place) != each}

        def transaction():
            if self.db.token != version and not self.without("no guard in the database"):
                raise NotOwner
            there = self.db.family
            family = Family({**there.members, **members}, {**there.children, **children})
            self.judge(there, family)
            self.db.family = family
            for each in ended:
                self.db.results.pop(each, None)
            del self.db.commands[:done]

        return transaction

    def master(self, session):
        version = self.simulation.count  # those that come later are newer owners
        while True:
            try:
                family = yield ("db", self.own(version))
                break
            except Unknown:
                continue
            except NotOwner:
                return
        while True:
            made, ended, done = self.turn(family)
            try:
                if made != family or ended or done:
                    yield ("db", self.write(version, family, made, ended, done))
                    family = made
            except Unknown:
                if self.without("a lost commit counts as done"):
                    family = made
                    continue
                try:
                    family = yield ("db", self.own(version))
                except (Unknown, NotOwner):
                    return
            except NotOwner:
                return
            yield ("pause",)

    def turn(self, family):
        """Results, what was taken back, then one command; and all that follows."""
        following = Following(self, family)
        ended = [each for each in self.db.results if each[0] in family.members]
        for number, run, name, n in ended:
            following.step(number, [Ended(name, n, self.db.results[number, run, name, n], run)])
            following.follow()
        for number in list(following.members):
            known = following.members[number].known
            back = [Removed(name, known.tasks[name].n, known.round) for name in known.tasks_to_withdraw]
            if back and not any(each[0] == number for each in self.db.results if each not in ended):
                following.step(number, back)
                following.follow()
        done = 0
        if self.db.commands:
            following.command(*self.db.commands[0])
            done = 1
        return following.follow(), ended, done

    def worker(self, _session):
        """What is in hands ends; what is to be ended is killed."""
        while True:
            with contextlib.suppress(Unknown):
                yield ("db", self.work)
            yield ("pause",)

    def work(self):
        hands = [
            (number, member.known.round, name, task.n)
            for number, member in self.db.family.members.items()
            for name, task in member.known.tasks.items()
            if task.is_at_worker
        ]
        if hands and (each := self.random.choice(hands)) not in self.db.results:
            number, _, name, _ = each
            known = self.db.family.members[number].known
            is_killed = name in known.tasks_to_kill
            outcome = Outcome.SUCCESS if self.random.random() < 0.7 else Outcome.FAILURE
            if name not in known.tasks_to_withdraw:
                self.db.results[each] = Outcome.KILLED if is_killed else outcome

    # A run

    def each_turn(self, turn):
        if turn % 20 == 0:
            for name, protocol, limit in (("master", self.master, 2), ("worker", self.worker, 1)):
                living = [each for each in self.simulation.processes if not each.dead and each.session.startswith(name)]
                if len(living) < limit:
                    self.simulation.spawn(name, protocol)
        members = self.db.family.members
        if self.commands_left and self.random.random() < 0.03:
            self.commands_left -= 1
            self.db.commands.append((self.random.choice(list(members)), self.random.choice(COMMANDS)()))
        if not self.commands_left and not self.db.commands:
            for number, member in members.items():  # nobody leaves a run paused for ever
                if member.known.state in {RunState.PAUSED, RunState.READY_PAUSE}:
                    self.db.commands.append((number, Resume()))

    def is_over(self):
        states = {each.known.state for each in self.db.family.members.values()}
        return states <= ENDED and not self.db.commands and not self.commands_left

    def run(self):
        over = self.simulation.run(self.is_over, 30_000, self.each_turn)
        assert over, ("it does not end", self.db.family, self.db.commands)
