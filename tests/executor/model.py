"""A model of the executor's transactions under random schedules: crashes, freezes, lost answers, writes that land late.

A process is a generator that yields calls of the store; the scheduler makes one call at a time. A write whose answer is
lost has landed, never will, or lands at any later moment, also after its process has gone on. The rules are judged at
the transaction that breaks them. Nothing here imports the executor: this is its protocol, to be tried out of it.
"""

from __future__ import annotations

import contextlib
import random
from dataclasses import dataclass, field

DEFECTS = (
    "no-bump",  # after a lost answer the submitter's key is not written anew
    "no-result-look",  # after a lost answer only the item is looked for
    "no-claim-fence",  # a task is ended without the check that the claim is ours
    "no-item-check",  # ... without the check that the item is the one that was taken
    "cancel-gives-up",  # a cancellation whose answer is lost is not sent again
    "deleted-before-told",  # a result is deleted before its future is told
    "no-submitter-check",  # a task is claimed without the check that its submitter is there
)


class Conflict(Exception):
    """A check did not hold."""


class Unknown(Exception):
    """The answer was lost."""


class Broken(AssertionError):
    """A rule was broken."""


@dataclass
class Proc:
    """A process: what it runs, by which session, and what it waits for."""

    session: str
    steps: object
    is_immortal: bool = False
    answer: object = None
    frozen: int = 0
    is_dead: bool = False
    expires_in: int = 0
    noticed: int = 0
    began: bool = False


class Store:
    """Keys with versions and owners; every commit is judged before it is made."""

    def __init__(self):
        self.keys, self.version, self.alive, self.judge = {}, 0, set(), lambda ops: None

    def get(self, key):
        return self.keys.get(key)

    def names(self, prefix):
        return sorted(key for key in self.keys if key.startswith(prefix))

    def commit(self, checks, ops):
        for check in checks:
            if not self.holds(*check):
                raise Conflict(check)
        for op, key, _, owner, _ in ops:
            if (op == "create" and key in self.keys) or (owner is not None and owner not in self.alive):
                raise Conflict(op, key)
        self.judge(ops)
        self.version += 1
        for op, key, value, owner, _ in ops:
            if op == "delete":
                self.keys.pop(key, None)
            else:
                self.keys[key] = (value, self.version, owner)
        return self.version

    def holds(self, kind, key, version=None):
        if kind == "session":
            return key in self.alive
        there = self.keys.get(key)
        return there is not None and version in (None, there[1]) if kind in {"at", "exists"} else there is None

    def expire(self, session):
        self.alive.discard(session)
        for key in [key for key, entry in self.keys.items() if entry[2] == session]:
            del self.keys[key]


def create(key, value, owner=None, by=None):
    return ("create", key, value, owner, by)


def put(key, value, owner=None):
    return ("put", key, value, owner, None)


def delete(key):
    return ("delete", key, None, None, None)


@dataclass
class Run:
    """One schedule."""

    seed: int
    defect: str = ""
    got: dict = field(default_factory=dict)
    cancelled: set = field(default_factory=set)
    tried: set = field(default_factory=set)
    ends: dict = field(default_factory=dict)
    is_done: bool = False

    def __post_init__(self):
        self.chance = random.Random(self.seed)
        self.store = Store()
        self.store.judge = self.judge
        self.procs, self.late, self.count = [], [], 0
        self.rates = (0.008, 0.012, self.chance.choice((0.05, 0.3)))
        self.pace = self.chance.choice((0.15, 1.0))  # of the submitter beside the others
        self.cancels = self.chance.choice((0.03, 0.3))
        self.tasks = self.chance.randint(2, 5)
        self.dies_at = self.chance.randint(50, 400) if self.chance.random() < 0.25 else None

    # The rules

    def judge(self, ops):
        """Only who has the claim ends a task, once; nothing begins or ends for a submitter that is gone."""
        for op, key, _, _, by in ops:
            kind, _, task = key.partition("/")
            if op == "create" and kind == "results":
                claim = self.store.get(f"claims/{task}")
                if claim is None or claim[2] != by:
                    raise Broken(f"task {task} was ended by {by}, who does not have it")
                if task in self.cancelled:
                    raise Broken(f"task {task} was cancelled, and has a result")
                self.ends[task] = self.ends.get(task, 0) + 1
                if self.ends[task] > 1:
                    raise Broken(f"task {task} came to an end twice")
            if op == "create" and kind == "claims" and self.store.get("sub") is None:
                raise Broken(f"task {task} began after its submitter was gone")
            if op == "create" and kind == "claims" and task in self.cancelled | self.got.keys():
                raise Broken(f"task {task} began again after it was over")

    # The processes

    def submitter(self, session):
        version = self.store.commit([], [create("sub", "", session)])
        for number in range(self.tasks):
            version = yield from self.submit(str(number), version, session)
        pending = {str(number) for number in range(self.tasks)}
        while pending:
            task = self.chance.choice(sorted(pending))
            yield ("pause",)
            if task in self.got:
                pending.discard(task)
            elif task not in self.tried and self.chance.random() < self.cancels:
                self.tried.add(task)  # who was told that it goes on waits for its result
                if (yield from self.cancel(task)):
                    self.cancelled.add(task)
                    pending.discard(task)
        self.is_done = True

    def collector(self, _session):
        while True:
            for key in (yield ("names", "results/")):
                yield from self.collect(key.partition("/")[2])
            yield ("pause",)

    def submit(self, task, version, session):
        while True:
            try:
                yield ("commit", [("at", "sub", version)], [create(f"items/{task}", 0)])
            except Unknown:
                if self.defect != "no-bump":
                    version = yield from self.write_anew(session)
                there = yield ("get", f"items/{task}")
                if there is None and self.defect != "no-result-look":
                    there = yield ("get", f"results/{task}")
                if there is not None or task in self.got:
                    return version
            except Conflict:
                version = yield from self.write_anew(session)
                if (yield ("get", f"items/{task}")) or (yield ("get", f"results/{task}")) or task in self.got:
                    return version
            else:
                return version

    def write_anew(self, session):
        while True:
            now = yield ("get", "sub")
            try:
                return (yield ("commit", [("at", "sub", now[1])], [put("sub", "", session)]))
            except (Unknown, Conflict):
                continue

    def collect(self, task):
        there = yield ("get", f"results/{task}")
        if there is None:
            return
        if self.defect != "deleted-before-told":
            self.got[task] = there[0]
        while True:
            try:
                yield ("commit", [], [delete(f"results/{task}")])
            except Unknown:
                continue
            yield ("pause",)
            self.got[task] = there[0]
            return

    def cancel(self, task):
        interrupts = self.chance.random() < 0.5
        while True:
            item = yield ("get", f"items/{task}")
            if item is None:
                return (yield ("get", f"results/{task}")) is None and task not in self.got
            claim = yield ("get", f"claims/{task}")
            if claim is not None and not interrupts:
                return False
            checks = [("at", f"items/{task}", item[1])] + ([] if interrupts else [("absent", f"claims/{task}")])
            while True:
                try:
                    yield ("commit", checks, [delete(f"items/{task}")])
                except Unknown:
                    if self.defect == "cancel-gives-up":
                        there = (yield ("get", f"items/{task}")) or (yield ("get", f"results/{task}"))
                        return there is None and task not in self.got
                    continue
                except Conflict:
                    break
                return True

    def worker(self, session):
        while True:
            free = [key[6:] for key in (yield ("names", "items/"))]
            taken = {key[7:] for key in (yield ("names", "claims/"))}
            free = [task for task in free if task not in taken][:2]
            if not free:
                yield ("pause",)
                continue
            task = self.chance.choice(free)
            item = yield ("get", f"items/{task}")
            if item is None:
                continue
            checks = [("at", f"items/{task}", item[1]), ("session", session)]
            if self.defect != "no-submitter-check":
                checks.append(("exists", "sub"))
            ops = [put(f"items/{task}", item[0] + 1), create(f"claims/{task}", "", session)]
            try:
                version = yield ("commit", checks, ops)
            except Conflict:
                continue
            except Unknown:  # settled by its doubts: what did not land never will
                claim = yield ("get", f"claims/{task}")
                if claim is None or claim[2] != session:
                    return
                version = claim[1]
            for _ in range(self.chance.randint(0, 6)):
                yield ("pause",)
            yield from self.finish(task, version, session)

    def finish(self, task, version, session):
        checks = [("at", f"claims/{task}", version), ("session", session), ("at", f"items/{task}", version)]
        if self.defect == "no-claim-fence":
            checks = [("exists", f"items/{task}")]
        if self.defect == "no-item-check":
            checks = checks[:2]
        ops = [delete(f"items/{task}"), delete(f"claims/{task}"), create(f"results/{task}", session, None, session)]
        while True:
            try:
                yield ("commit", [*checks, ("exists", "sub")], ops)
            except Unknown:
                continue
            except Conflict:
                claim = yield ("get", f"claims/{task}")
                if claim is None or claim[1] != version:
                    return
                try:
                    yield ("commit", [("at", f"claims/{task}", version)], [delete(f"claims/{task}")])
                except (Unknown, Conflict):
                    continue
                return
            else:
                return

    # The scheduler

    def spawn(self, steps, *, is_immortal=False):
        session = f"s{self.count}"
        self.count += 1
        self.store.alive.add(session)
        self.procs.append(Proc(session, steps(session), is_immortal))

    def step(self, proc):
        try:
            if isinstance(proc.answer, Exception):
                call = proc.steps.throw(proc.answer)
            else:
                call = proc.steps.send(proc.answer if proc.began else None)
        except StopIteration:
            proc.is_dead, proc.expires_in = True, 5
            return
        proc.began = True
        crash, freeze, _ = self.rates
        if not proc.is_immortal and self.chance.random() < crash:
            proc.is_dead, proc.expires_in = True, self.chance.randint(5, 60)
            return
        if not proc.is_immortal and self.chance.random() < freeze:
            proc.frozen = self.chance.randint(10, 150)
            if self.chance.random() < 0.6:
                self.store.expire(proc.session)
            if call[0] == "commit":
                self.late.append(call)
            proc.answer = Unknown() if call[0] == "commit" else self.made(call)
            return
        proc.answer = self.made(call, is_doubtful=call[0] == "commit" and self.chance.random() < self.rates[2])

    def made(self, call, *, is_doubtful=False):
        if call[0] == "pause":
            return None
        if is_doubtful:
            fate = self.chance.random()
            if fate < 0.4:
                self.landed(call)
            elif fate < 0.8:
                self.late.append(call)
            return Unknown()
        try:
            return getattr(self.store, call[0])(*call[1:])
        except Conflict as error:
            return error

    def landed(self, call):
        with contextlib.suppress(Conflict):
            self.store.commit(*call[1:])

    def turn(self, number):
        for proc in self.procs:
            if proc.is_dead and proc.session in self.store.alive:
                proc.expires_in -= 1
                if proc.expires_in <= 0:
                    self.store.expire(proc.session)
            proc.frozen = max(0, proc.frozen - 1)
            if proc.session not in self.store.alive and not proc.frozen:
                proc.noticed += 1
                proc.is_dead = proc.is_dead or proc.noticed > 30
        for each in [each for each in self.late if self.chance.random() < 0.04]:
            self.late.remove(each)
            self.landed(each)
        ready = [proc for proc in self.procs if not proc.is_dead and not proc.frozen]
        if ready:
            self.step(self.chance.choices(ready, [self.pace if proc.is_immortal else 1.0 for proc in ready])[0])
        self.procs = [proc for proc in self.procs if not proc.is_dead or proc.session in self.store.alive]
        if number % 20 == 0 and sum(not proc.is_dead for proc in self.procs) < 4:
            self.spawn(self.worker)

    def play(self, turns=6000):
        """Play until all tasks are over; raises what was broken."""
        self.spawn(self.submitter, is_immortal=True)
        self.spawn(self.collector, is_immortal=True)
        for _ in range(3):
            self.spawn(self.worker)
        for number in range(turns):
            self.turn(number)
            if self.dies_at == number:
                self.store.expire("s0")
                self.procs = [proc for proc in self.procs if not proc.is_immortal]
            if self.is_done or (self.dies_at is not None and number > self.dies_at + 400):
                break
        if self.dies_at is None or self.is_done:
            self.judge_end()

    def judge_end(self):
        """All tasks are over, once; and nothing of them is left."""
        if not self.is_done:
            raise Broken(f"tasks are never over: {sorted(self.store.keys)}")
        self.rates = (0.0, 0.0, 0.0)
        for number in range(600):
            self.turn(number)
        if any(self.ends.get(task, 0) != 1 for task in self.got):
            raise Broken(f"results {self.got} of ends {self.ends}")
        if set(self.got) & self.cancelled or len(self.got) + len(self.cancelled) != self.tasks:
            raise Broken(f"got {sorted(self.got)}, cancelled {sorted(self.cancelled)}")
        left = [key for key in self.store.keys if not key.startswith("sub")]
        if left and self.store.get("sub") is not None:
            raise Broken(f"left behind: {left}")
