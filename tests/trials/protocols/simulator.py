"""Protocols on paper: random schedules over a dictionary that keeps the store's contract.

What is judged here is a design, before and beside its code: a process is a generator that yields one call of the store
at a time, and a scheduler decides whose call is next. Processes crash, are slow, freeze past the TTL of their sessions,
lose answers, and have writes that land late. A run follows from its seed. Thousands of runs cost what a dozen take with
threads.

    ("get", key) -> (value, version, owner) or None       ("list", prefix) -> [(key, that)]
    ("children", prefix) -> [name]                        ("pause",)
    ("commit", checks, ops) -> version, or raises Conflict or Unknown

Checks: ("at", key, version), ("absent", key), ("exists", key), ("session", session).
Operations: ("put", key, value), ("create", key, value[, session]), ("delete", key).
"""

from __future__ import annotations

import contextlib
import random

#: How often a call is its process's last, how often it comes so late that the session may have ended, how often a
#: commit's answer is lost, and how often a process is slow, and keeps its session.
TROUBLE = (0.01, 0.01, 0.03, 0.01)
_NOTICED_AFTER = 40
_LANDS_LATE = 0.05
_EXPIRES = 0.03


class Conflict(Exception):
    """A check did not hold, or a key to be created exists."""


class Unknown(Exception):
    """The commit may have been applied, or be yet."""


class Store:
    """The contract, in one dictionary: key -> (value, version, session or None)."""

    def __init__(self):
        self.entries = {}
        self.alive = set()
        self.version = 0
        self.after_commit = []

    def get(self, key):
        return self.entries.get(key)

    def list(self, prefix):
        return sorted((key, entry) for key, entry in self.entries.items() if key.startswith(prefix + "/"))

    def children(self, prefix):
        return sorted({key[len(prefix) + 1 :].split("/")[0] for key in self.entries if key.startswith(prefix + "/")})

    def commit(self, checks, ops):
        before = {op[1]: self.entries.get(op[1]) for op in ops}
        if not all(self._holds(check) for check in checks) or not all(self._possible(op) for op in ops):
            raise Conflict
        assert len(before) == len(ops), ("a key written twice", ops)
        self.version += 1
        for op in ops:
            self._apply(op)
        for judge in self.after_commit:
            judge(before, ops)
        return self.version

    def expire(self, session):
        self.alive.discard(session)
        for key in [key for key, entry in self.entries.items() if entry[2] == session]:
            del self.entries[key]

    def _holds(self, check):
        kind, subject, *version = check
        entry = self.entries.get(subject)
        if kind == "session":
            return subject in self.alive
        if kind == "at":
            return entry is not None and entry[1] == version[0]
        return (entry is None) == (kind == "absent")

    def _possible(self, op):
        session = op[3] if len(op) > 3 else None
        return (op[0] != "create" or op[1] not in self.entries) and (session is None or session in self.alive)

    def _apply(self, op):
        if op[0] == "delete":
            self.entries.pop(op[1], None)
            return
        old = self.entries.get(op[1])
        owner = op[3] if len(op) > 3 else old[2] if old is not None else None
        self.entries[op[1]] = (op[2], self.version, owner)


class Process:
    """Somebody with a session. `immortal` ones lose answers, and nothing else happens to them."""

    def __init__(self, session, steps, *, immortal):
        self.session = session
        self.steps = steps
        self.immortal = immortal
        self.started = self.dead = False
        self.answer = self.call = self.late = None
        self.frozen = self.slow = self.noticed = 0
        self.expires_in = 20


class Simulation:
    """Everybody's turns, drawn from a seed."""

    def __init__(self, seed, trouble=TROUBLE):
        self.random = random.Random(seed)
        self.store = Store()
        self.trouble = trouble
        self.processes = []
        self.count = 0

    def spawn(self, name, protocol, *, immortal=False):
        session = f"{name}#{self.count}"
        self.count += 1
        self.store.alive.add(session)
        self.processes.append(Process(session, protocol(session), immortal=immortal))

    def run(self, until, most_turns, each_turn=lambda _turn: None):
        """Take turns; whether `until` came true."""
        for turn in range(most_turns):
            if until():
                return True
            self._time_passes()
            ready = [each for each in self.processes if not each.dead and not each.frozen and not each.slow]
            if ready:
                self._step(self.random.choice(ready))
            if turn % 50 == 0:
                self.processes = [p for p in self.processes if not p.dead or p.session in self.store.alive]
            each_turn(turn)
        return until()

    def living(self):
        return sum(not each.dead for each in self.processes)

    def _time_passes(self):  # noqa: C901 - one `if` for each kind of trouble
        for each in self.processes:
            if each.slow:
                each.slow -= 1
                if not each.slow:
                    self._do(each)
            if each.dead and each.session in self.store.alive:
                each.expires_in -= 1
                if each.expires_in <= 0:
                    self._land(each)
                    self.store.expire(each.session)
            if each.frozen:
                each.frozen -= 1
                if each.frozen and self.random.random() < _EXPIRES:
                    self.store.expire(each.session)
                if not each.frozen:
                    self._do(each)
            if each.late and self.random.random() < _LANDS_LATE:
                self._land(each)
            if not each.dead and not each.frozen and each.session not in self.store.alive:
                each.noticed += 1
                each.dead = each.noticed > _NOTICED_AFTER

    def _step(self, process):
        crash, freeze, _, slow = self.trouble
        try:
            if isinstance(process.answer, Exception):
                process.call = process.steps.throw(process.answer)
            else:
                process.call = process.steps.send(process.answer)
        except StopIteration:
            process.dead = True
            return
        if not process.immortal and self.random.random() < crash:
            process.dead = True
            process.expires_in = self.random.randint(5, 60)
        elif not process.immortal and self.random.random() < freeze:
            process.frozen = self.random.randint(10, 150)
        elif self.random.random() < slow:
            process.slow = self.random.randint(10, 200)
        else:
            self._do(process)

    def _do(self, process):
        self._land(process)
        name, *arguments = process.call
        if name == "commit" and self.random.random() < self.trouble[2]:
            self._lose_answer(process)
            return
        try:
            process.answer = None if name == "pause" else getattr(self.store, name)(*arguments)
        except Conflict as error:
            process.answer = error

    def _lose_answer(self, process):
        fate = self.random.random()
        process.answer = Unknown()
        process.late = process.call if fate < 0.7 else None
        if fate < 0.4:
            self._land(process)

    def _land(self, process):
        """What was on its way arrives; by the next call of its sender at the latest."""
        call, process.late = process.late, None
        if call is not None:
            with contextlib.suppress(Conflict):
                self.store.commit(*call[1:])
