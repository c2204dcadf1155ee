"""A shard of workflows on paper: a database as the truth, the store as claim and fence, and everybody may be a zombie.

What follows from what is the product's own `advance`; here are the calls around it. Masters keep the run in memory
between two transactions, as the real ones do: so a former owner that wakes would write what it knew, and only the
guard in the database keeps it from that.

Keys: shard (the hold of an owner), items/x, running/x (dies with its worker), results/x, cancels/x; x is run-task.n.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

from latchwork_workflows.errors import WrongState
from latchwork_workflows.state import (
    Claimed,
    Ended,
    Lost,
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
from latchwork_workflows.state.records import AT_WORKERS
from trials.protocols.simulator import Conflict, Simulation, Unknown

MUTANTS = {
    "no guard in the database": "a former owner writes what it knew",
    "no fence in the store": "a former owner dispatches and deletes",
    "results are deleted first": "what is deleted and not written yet is lost with its reader",
    "dispatch from before the results": "what has ended is put again",
    "dispatch does not look for a result": "an item that has ended is put again",
    "a claim does not look for a cancel": "a task that was stopped is taken again when its worker dies",
    "a removal does not look for a claim": "a task runs though its item was taken back",
    "what is not there is looked for backwards": "who ends between two looks seems to be lost",
    "a lost commit counts as done": "what memory says was never written",
    "an end does not check its claim": "two workers end one attempt",
}
COMMANDS = (Pause, Resume, Stop, Recover, Rerun)
ENDED = {RunState.SUCCESS, RunState.FAILURE, RunState.STOPPED}


class NotOwner(Exception):
    """A newer owner is in the database."""


class Database:
    """One transaction at a time; the answer to a commit may be lost."""

    def __init__(self):
        self.token = 0
        self.run_id = WorkflowRun()
        self.commands = [Start()]


class WorkflowSimulation(Simulation):
    """With calls of the database: ``("db", transaction)``, which is applied or not when its answer is lost."""

    def _do(self, process):
        if process.call[0] != "db":
            super()._do(process)
            return
        self._land(process)
        lost = self.random.random() < self.trouble[2]
        if lost and self.random.random() < 0.5:
            process.answer = Unknown()
            return
        try:
            process.answer = process.call[1]()
        except NotOwner as error:
            process.answer = error
        if lost:
            process.answer = Unknown()


class WorkflowModel:
    """One run, which follows from its seed."""

    def __init__(self, seed, mutant=None):
        self.simulation = WorkflowSimulation(seed)
        self.random, self.store = self.simulation.random, self.simulation.store
        self.mutant = mutant
        self.db = Database()
        self.plan = self.a_plan()
        self.ends = {}
        self.commands_left = self.random.randint(0, 6)
        self.store.after_commit.append(self.judge)

    def a_plan(self):
        rules = {}
        for index in range(self.random.randint(2, 4)):
            after = tuple(name for name in rules if self.random.random() < 0.4)
            rules[f"t{index}"] = TaskRule(after, retries=self.random.randint(0, 1), retry_interval_s=0)
        return WorkflowPlan(rules, on_failure=self.random.choice(list(OnFailure)))

    def without(self, mutant):
        return self.mutant == mutant

    # What must hold

    def judge(self, before, ops):
        for op in ops:
            kind, _, x = op[1].partition("/")
            if kind == "running" and op[0] == "create":
                run, task = self.stored(x)
                assert run == self.db.run_id.round, ("a task of an earlier run is begun", x)
                assert task.state in AT_WORKERS, ("a task that nobody has in hand is begun", x, task)
                assert task.n == number(x), ("another attempt is begun", x, task)
                assert f"cancels/{x}" not in self.store.entries, ("a task that was stopped is begun", x)
            if kind == "results" and op[0] == "create":
                assert x not in self.ends, ("one attempt ended twice", x)
                assert before.get(f"running/{x}"), ("who ends it has it no more", x)
                self.ends[x] = op[2]

    def stored(self, x):
        run, _, rest = x.partition("-")
        return int(run), self.db.run_id.tasks[rest.partition(".")[0]]

    def written(self, before, after):
        """What a transaction may make of a run."""
        assert before.round <= after.round, ("an earlier run is written", before, after)
        for name, task in after.tasks.items():
            was = before.tasks.get(name)
            if was is None or before.round != after.round:
                continue
            assert was.n <= task.n, ("an earlier attempt is written", name, was, task)
            ended = self.ends.get(f"{after.round}-{name}.{was.n}")
            if was.state is TaskState.SUBMITTED and task.state is TaskState.PAUSED:
                assert ended is None, ("what has ended is taken back", name, was, task)
            if task.state is TaskState.SUCCESS and was.state is not TaskState.SUCCESS:
                assert self.ends.get(f"{after.round}-{name}.{task.n}"), ("success without a result", name, task)

    # Who takes part

    def own(self, version):
        def transaction():
            if self.db.token > version:
                raise NotOwner
            self.db.token = version
            return self.db.run_id

        return transaction

    def write(self, version, after, done=0):
        def transaction():
            if self.db.token != version and not self.without("no guard in the database"):
                raise NotOwner
            self.written(self.db.run_id, after)
            self.db.run_id = replace(after, timeline_events=())
            del self.db.commands[:done]

        return transaction

    def master(self, session):
        version = yield from self.hold(session)
        if version is None:
            return
        fence = [] if self.without("no fence in the store") else [("at", "shard", version)]
        while True:
            try:
                known = yield ("db", self.own(version))
                break
            except Unknown:
                continue
            except NotOwner:
                return
        while session in self.store.alive or self.random.random() < 0.9:
            try:
                known = yield from self.tick(version, fence, known)
            except Unknown:
                if self.without("a lost commit counts as done"):
                    known = self.lost
                    continue
                try:
                    known = yield ("db", self.own(version))
                except (Unknown, NotOwner):
                    return
            except NotOwner:
                return
            yield ("pause",)

    def hold(self, session):
        while session in self.store.alive:
            try:
                free = [("absent", "shard"), ("session", session)]
                return (yield ("commit", free, [("create", "shard", "", session)]))
            except Conflict:
                yield ("pause",)
            except Unknown:
                entry = yield ("get", "shard")
                if entry is not None and entry[2] == session:
                    return entry[1]
        return None

    def tick(self, version, fence, known):
        snapshot = known
        results = yield ("list", "results")
        if self.without("results are deleted first") and results:
            yield from self.tidied(fence, [key for key, _ in results])
        known = yield from self.advanced(version, known, [ended(key, entry) for key, entry in results])
        if not self.without("results are deleted first"):
            yield from self.tidied(fence, [key for key, _ in results])
        if self.db.commands:
            known = yield from self.commanded(version, known)
        known = yield from self.advanced(version, known, (yield from self.seen(known)))
        yield from self.dispatched(fence, snapshot if self.without("dispatch from before the results") else known)
        for name in known.tasks_to_kill:
            x = name_of(known, name)
            with contextlib.suppress(Conflict, Unknown):
                yield ("commit", [*fence, ("exists", f"items/{x}")], [("put", f"cancels/{x}", "")])
        return (yield from self.advanced(version, known, (yield from self.removed(fence, known))))

    def advanced(self, version, known, events):
        after = advance(self.plan, known, [each for each in events if each is not None], 0.0) if known.tasks else known
        if after != replace(known, timeline_events=()):
            self.lost = after
            yield ("db", self.write(version, after))
        return replace(after, timeline_events=())

    def commanded(self, version, known):
        command = self.db.commands[0]
        try:
            after = advance(self.plan, known, [command], 0.0)
        except WrongState:
            after = known
        self.lost = after
        yield ("db", self.write(version, after, done=1))
        return replace(after, timeline_events=())

    def tidied(self, fence, keys):
        for key in keys:
            x = key.partition("/")[2]
            while True:
                try:
                    yield ("commit", fence, [("delete", key), ("delete", f"cancels/{x}")])
                except Unknown:
                    continue
                except Conflict:
                    raise NotOwner from None
                break

    def there(self, x):
        """Item, running and result, in this order."""
        names = ["items", "running", "results"]
        if self.without("what is not there is looked for backwards"):
            names.reverse()
        found = {}
        for name in names:
            found[name] = yield ("get", f"{name}/{x}")
        return found["items"], found["running"], found["results"]

    def seen(self, known):
        """Starts, and workers that died."""
        events = []
        for name, task in known.tasks.items():
            x = name_of(known, name)
            if task.state is TaskState.SUBMITTED and (yield ("get", f"running/{x}")) is not None:
                events.append(Claimed(name, task.n, known.round))
            elif task.state is TaskState.RUNNING:
                item, running, result = yield from self.there(x)
                if item is not None and running is None and result is None:
                    events.append(Lost(name, task.n, known.round))  # where nothing is there a newer owner was faster
        return events

    def dispatched(self, fence, known):
        if known.state is not RunState.RUNNING or known.ending:
            return
        for name, task in known.tasks.items():
            x = name_of(known, name)
            if task.state is TaskState.SUBMITTED and (yield ("get", f"items/{x}")) is None:
                absent = [] if self.without("dispatch does not look for a result") else [("absent", f"results/{x}")]
                try:
                    yield ("commit", [*fence, *absent], [("create", f"items/{x}", 0)])
                except (Conflict, Unknown):
                    continue

    def removed(self, fence, known):
        """Items taken back; those that run are let."""
        events = []
        for name in known.tasks_to_withdraw:
            x = name_of(known, name)
            item, running, result = yield from self.there(x)
            if item is None and running is None and result is None:
                events.append(Removed(name, known.tasks[name].n, known.round))
            elif item is not None:
                free = [] if self.without("a removal does not look for a claim") else [("absent", f"running/{x}")]
                at = ("at", f"items/{x}", item[1]) if free else ("exists", f"items/{x}")
                try:
                    ops = [("delete", f"items/{x}"), ("delete", f"cancels/{x}")]
                    yield ("commit", [*fence, at, *free], ops)
                    events.append(Removed(name, known.tasks[name].n, known.round))
                except (Conflict, Unknown):
                    continue
        return events

    def worker(self, session):
        while session in self.store.alive:
            running = yield ("children", "running")
            items = yield ("list", "items")
            free = [(key.partition("/")[2], entry) for key, entry in items if key.partition("/")[2] not in running]
            if not free:
                yield ("pause",)
                continue
            x, entry = self.random.choice(free)
            claim = yield from self.claimed(session, x, entry)
            if claim is not None:
                yield from self.worked(session, x, claim)

    def claimed(self, session, x, entry):
        wanted = [] if self.without("a claim does not look for a cancel") else [("absent", f"cancels/{x}")]
        checks = [("at", f"items/{x}", entry[1]), ("session", session), *wanted]
        try:
            ops = [("put", f"items/{x}", entry[0] + 1), ("create", f"running/{x}", "", session)]
            return (yield ("commit", checks, ops))
        except Conflict:
            return None
        except Unknown:
            there = yield ("get", f"running/{x}")
            return there[1] if there is not None and there[2] == session else None

    def worked(self, session, x, claim):
        outcome = Outcome.SUCCESS if self.random.random() < 0.7 else Outcome.FAILURE
        for _ in range(self.random.randint(0, 5)):
            if (yield ("get", f"cancels/{x}")) is not None:
                outcome = Outcome.KILLED
        mine = [("at", f"running/{x}", claim), ("session", session)]
        checks = [] if self.without("an end does not check its claim") else mine
        ops = [("delete", f"items/{x}"), ("delete", f"running/{x}"), ("create", f"results/{x}", outcome)]
        while True:
            try:
                yield ("commit", [*checks, ("exists", f"items/{x}")], ops)
            except Unknown:
                continue
            except Conflict:
                pass
            return

    # A run

    def each_turn(self, turn):
        if turn % 15 == 0:
            for name, protocol in (("master", self.master), ("worker", self.worker)):
                living = [each for each in self.simulation.processes if not each.dead and each.session.startswith(name)]
                if len(living) < 2:
                    self.simulation.spawn(name, protocol)
        if self.commands_left and self.random.random() < 0.02:
            self.commands_left -= 1
            self.db.commands.append(self.random.choice(COMMANDS)())
        is_resting = self.db.run_id.state is RunState.PAUSED
        if not self.commands_left and not self.db.commands and is_resting:
            self.db.commands.append(Resume())

    def is_over(self):
        left = [key for key in self.store.entries if not key.startswith("shard")]
        return self.db.run_id.state in ENDED and not self.db.commands and not self.commands_left and not left

    def run(self):
        over = self.simulation.run(self.is_over, 30_000, self.each_turn)
        assert over, ("it does not end", self.db.run_id, self.db.commands, sorted(self.store.entries))


def name_of(known, name):
    return f"{known.round}-{name}.{known.tasks[name].n}"


def number(x):
    return int(x.rpartition(".")[2])


def ended(key, entry):
    run, _, rest = key.partition("/")[2].partition("-")
    name, _, n = rest.rpartition(".")
    return Ended(name, int(n), entry[0], int(run))
