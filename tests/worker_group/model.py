"""A model of the transactions of workers under random schedules: crashes, freezes past the TTL, lost and late answers.

A process is a generator that yields calls; one call at a time is made. Every commit is judged by what it may do to the
state it finds, so that each check that is left out (``Job.without``) is seen, not only what it leads to in the end.
The store and its trouble are below; the protocol is that of docs/design/locks.md, small.
"""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import dataclass, field, replace

GENERATIONS = 2


class Conflict(Exception):
    """A check did not hold."""


class Unknown(Exception):
    """The answer was lost; the commit may land later."""


class Broken(AssertionError):
    """A rule of the protocol was broken."""


class Gone(Exception):
    """Ours is not there any more."""


class Fault(Exception):
    """The epoch is over."""


@dataclass(frozen=True)
class Head:
    n: int
    following: int = 0
    completed: int = 0
    is_final: bool = False


@dataclass(frozen=True)
class Member:
    id: int
    incarnation: str
    status: str


@dataclass(frozen=True)
class Board:
    phase: int = 0
    parties: int = 0
    passed: int = 0


@dataclass(frozen=True)
class Who:
    """On whose behalf a commit is made."""

    session: str
    id: int = -1
    epoch: int = -1
    what: str = ""
    expired: int = 0


class Store:
    """Keys with versions and sessions."""

    def __init__(self, judge):
        self.known, self.count, self.alive, self.judge, self.expired = {}, 0, set(), judge, 0

    def get(self, key):
        return self.known.get(key)

    def value(self, key, default=None):
        found = self.known.get(key)
        return default if found is None else found[0]

    def list(self, prefix):
        return sorted((key, entry) for key, entry in self.known.items() if key.startswith(f"{prefix}/"))

    def commit(self, checks, ops, who):
        for kind, key, *more in checks:
            entry = self.known.get(key)
            if kind == "at" and (entry is None or entry[1] != more[0]):
                raise Conflict
            if kind == "absent" and entry is not None:
                raise Conflict
            if kind == "session" and key not in self.alive:
                raise Conflict
        for op in ops:
            if op[0] == "create" and op[1] in self.known:
                raise Conflict
            if len(op) > 3 and op[3] not in self.alive:
                raise Conflict
        before = dict(self.known)
        self.count += 1
        for op in ops:
            if op[0] == "delete":
                self.known.pop(op[1], None)
            else:
                old = self.known.get(op[1])
                self.known[op[1]] = (op[2], self.count, op[3] if len(op) > 3 else (old[2] if old else None))
        self.judge(before, ops, who)
        return self.count

    def expire(self, session):
        self.alive.discard(session)
        gone = [key for key, entry in self.known.items() if entry[2] == session]
        self.expired += bool(gone)
        for key in gone:
            del self.known[key]


@dataclass(eq=False)
class Process:
    key: str
    session: str
    steps: object
    answer: object = None
    call: tuple = ()
    late: tuple = ()
    frozen: int = 0
    expires_in: int = 20
    noticed: int = 0
    is_dead: bool = False
    has_begun: bool = False


@dataclass
class Job:
    """One job of a few workers, from its first join to its removal.

    Attributes:
        without: which check is left out: ``edge.check``.
        extras: whether a head that a join has written is a hint for the next one, which reads nothing then, and whether
            it is told once that all have begun, always before the fault of the epoch.
    """

    seed: int
    without: str = ""
    trouble: tuple = (0.006, 0.006, 0.04)
    processes: list = field(default_factory=list)
    removals: int = 0
    extras: bool = False
    hint: tuple | None = None

    def __post_init__(self):
        self.random = random.Random(self.seed)
        self.store = Store(self.judge)
        self.n = self.random.randint(2, 4)
        self.has_final = bool(self.seed % 2)
        self.store.known = {"head": (Head(self.n), 0, None), "epoch": (0, 0, None)}
        self.started = 0
        self.scales_at = self.random.randint(5, 200)
        self.patience = 0.01
        if self.seed % 4 < 2:
            self.trouble = (0.03, 0.04, 0.04)

    # Judging

    def judge(self, before, ops, who):
        """What a commit may do to the state that it finds."""
        after = self.store.known
        old_head, head = (state.get("head", (None,))[0] for state in (before, after))
        epoch_was, epoch = before["epoch"][0], after["epoch"][0]
        for op in ops:
            name = op[1]
            if name.startswith("members/"):
                self._judge_member(name, before, op[2], who, epoch_was, epoch)
                if op[2].status == "done":
                    self._judge_completion(op[2].id, after, epoch, who)
            elif "/arrived/" in name and op[0] == "put":
                self._refuse(f"barriers/{epoch_was}/" not in name, "an arrival in an epoch that is over", who)
                self._refuse(not self._owns(before, who), "an arrival without the worker's lease", who)
                board = after.get(name.rpartition("/arrived/")[0] + "/board", (Board(),))[0]
                self._refuse(op[2] != board.phase, "an arrival at a phase that is not open", who)
            elif name.endswith("/board"):
                self._judge_board(name, before, op[2], old_head, after)
            elif name.startswith("live/") and op[0] == "delete":
                self._refuse(not self._owns(before, who), "somebody else's lease is deleted", who)
            elif name.startswith("told/"):
                self._refuse(name != f"told/{epoch_was}", "the start of another epoch is told", who)
                self._refuse(name in before, "a start is told twice", who)
        if head is not None and old_head is not None:
            self._refuse(head.following < old_head.following, "an id is given back", who)
            done = sum(entry[0].status == "done" for key, entry in after.items() if key.startswith("members/"))
            self._refuse(done != head.completed, "completed are miscounted", who)
        self._refuse(epoch not in {epoch_was, epoch_was + 1}, "an epoch is left out or comes back", who)
        is_untold = self.extras and epoch != epoch_was and f"told/{epoch_was}" not in after
        self._refuse(is_untold, "a fault is told, and its start was not", who)
        self._judge_leaving(old_head, head, after, who)

    def _judge_member(self, name, before, new, who, epoch_was, epoch):
        old = before.get(name, (None,))[0]
        ids = [entry[0].id for key, entry in before.items() if key.startswith("members/") and key != name]
        self._refuse(new.id in ids, "two members have one id", who)
        if old is None:
            self._refuse(new.id != before["head"][0].following, "an id is not the next", who)
            return
        self._refuse(old.status == "done", "a completed member is written", who)
        if new.status == "done":
            self._refuse(who.epoch != epoch_was, "work of an old epoch completes", who)
            self._refuse(not self._owns(before, who), "a worker completes without its lease", who)
            return
        if new.status == "lost":
            self._refuse(f"live/{new.id}" in before, "a live worker is lost", who)
            self._refuse(new.incarnation != old.incarnation, "a newer incarnation is lost", who)
            self._refuse(old.status == "lost", "one loss is told twice", who)
        is_fault = self._is_healthy(before, epoch_was)
        self._refuse(is_fault != (epoch == epoch_was + 1), f"a fault is {'missed' if is_fault else 'made up'}", who)

    def _judge_completion(self, number, after, epoch, who):
        for name, entry in after.items():
            if name.startswith(f"barriers/{epoch}/") and name.endswith("/board") and entry[0].parties:
                mine = after.get(f"{name.removesuffix('board')}arrived/{number}", (-1,))[0]
                self._refuse(mine != entry[0].phase, "a barrier waits for a worker that has completed", who)

    def _judge_board(self, name, before, new, head, after):
        old = before.get(name, (Board(),))[0]
        if not new.parties:
            self._refuse(new.phase != old.phase + 1, "a generation ends twice", None)
            folder = name.removesuffix("board") + "arrived/"
            here = sum(entry[0] == old.phase for key, entry in after.items() if key.startswith(folder))
            self._refuse(new.passed > old.passed and here < old.parties, "a generation passes early", None)
            self._refuse(new.passed < old.passed, "that a generation passed is forgotten", None)
        else:
            self._refuse(head is None or new.parties != head.n - head.completed, "the wrong number is expected", None)

    def _judge_leaving(self, old_head, head, after, who):
        live = [key for key in after if key.startswith("live/")]
        if head is None and old_head is not None:
            self.removals += 1
            self._refuse(bool(live), "a job is removed with somebody inside", who)
        if who.what == "leave" and head is not None and who.expired == self.store.expired:
            self._refuse(not live, "the last one leaves the job behind", who)

    def _is_healthy(self, state, epoch):
        def passed(name):
            return state.get(f"barriers/{epoch}/{name}/board", (Board(),))[0].passed

        return bool(passed("init") and not (self.has_final and passed(f"g{GENERATIONS - 1}")))

    @staticmethod
    def _owns(state, who):
        found = state.get(f"live/{who.id}")
        return found is not None and found[2] == who.session

    @staticmethod
    def _refuse(broken, why, who):
        if broken:
            raise Broken(f"{why}: {who}")

    # The protocol

    def checked(self, edge, **checks):
        """The checks of an edge by their names; but for the one that is left out."""
        return [
            each
            for name, check in checks.items()
            if f"{edge}.{name}" != self.without
            for each in (check if isinstance(check, list) else [check])
        ]

    def worker(self, session, key):
        me = {"id": -1, "live": 0}
        try:
            yield from self._join(session, key, me)
            while True:
                epoch = yield ("get", "epoch")
                try:
                    yield from self._work(session, key, me, epoch)
                    break
                except Fault:
                    continue
            yield from self._leave(session, me)
        except Gone:
            return

    def _join(self, session, key, me):
        while True:
            hint, self.hint = self.hint, None
            if self.extras and hint is not None and hint[0].following < hint[0].n:
                with suppress(Conflict, Unknown):
                    yield from self._commit_new(session, key, hint)
                continue
            head = yield ("get", "head")
            if head is None:
                raise Gone
            mine = yield ("get", f"members/{key}")
            if mine is not None and mine[0].incarnation == session:
                live = yield ("get", f"live/{mine[0].id}")
                if live is None or live[2] != session:
                    raise Gone
                me.update(id=mine[0].id, live=live[1])
                return
            if mine is None and head[0].following >= head[0].n:
                raise Gone
            with suppress(Conflict, Unknown):
                if mine is None:
                    yield from self._commit_new(session, key, head)
                else:
                    yield ("commit", *(yield from self._again(session, key, head, mine)))

    def _commit_new(self, session, key, head):
        number, member = head[0].following, f"members/{key}"
        checks = self.checked("join", head=("at", "head", head[1]), member=("absent", member))
        after = replace(head[0], following=number + 1)
        ops = [
            ("put", "head", after),
            ("put", member, Member(number, session, "run")),
            ("create", f"live/{number}", session, session),
        ]
        version = yield ("commit", checks, ops, Who(session, number))
        self.hint = (after, version)

    def _again(self, session, key, head, mine):
        if mine[0].status == "done":
            raise Gone
        epoch = yield ("get", "epoch")
        boards, is_healthy = yield from self._boards(epoch[0])
        checks = self.checked(
            "rejoin",
            head=("at", "head", head[1]),
            member=("at", f"members/{key}", mine[1]),
            epoch=("at", "epoch", epoch[1]),
            init=boards[0],
            final=boards[1],
        )
        number = mine[0].id
        ops = [
            ("put", "head", head[0]),
            ("put", f"members/{key}", Member(number, session, "run")),
            ("put", f"live/{number}", session, session),
        ]
        if is_healthy:
            ops += [("put", "epoch", epoch[0] + 1), *(yield from self._told_late(epoch[0]))]
        return checks, ops, Who(session, number, epoch[0])

    def _told_late(self, epoch):
        """That all have begun, in the transaction of the fault, if nobody has told it."""
        told = (yield ("get", f"told/{epoch}")) if self.extras else True
        return [] if told or self.without == "fault.told" else [("create", f"told/{epoch}", True)]

    def _tell(self, session, me, epoch):
        """All have begun: the lowest id that lives tells it."""
        for _ in range(5):
            live = yield ("list", "live")
            told = yield ("get", f"told/{epoch[0]}")
            if told or not live or live[0][0] != f"live/{me['id']}":
                return
            head = yield ("get", "head")
            if head is None:
                raise Gone
            checks = [
                *self._fence("tell", session, me, epoch),
                *self.checked("tell", head=("at", "head", head[1]), told=("absent", f"told/{epoch[0]}")),
            ]
            with suppress(Conflict, Unknown):
                ops = [("put", "head", head[0]), ("put", f"told/{epoch[0]}", True)]
                yield ("commit", checks, ops, Who(session, me["id"], epoch[0]))

    def _boards(self, epoch):
        checks, passed = [], []
        for name in ("init", f"g{GENERATIONS - 1}"):
            key = f"barriers/{epoch}/{name}/board"
            board = yield ("get", key)
            checks.append(("absent", key) if board is None else ("at", key, board[1]))
            passed.append(0 if board is None else board[0].passed)
        return checks, bool(passed[0] and not (self.has_final and passed[1]))

    def _current(self, me, epoch):
        now = yield ("get", "epoch")
        live = yield ("get", f"live/{me['id']}")
        if live is None or live[1] != me["live"]:
            raise Gone
        if now[0] != epoch[0]:
            raise Fault

    def _fence(self, edge, session, me, epoch):
        return self.checked(
            edge,
            live=[("at", f"live/{me['id']}", me["live"]), ("session", session)],
            epoch=("at", "epoch", epoch[1]),
        )

    def _work(self, session, key, me, epoch):
        last = yield ("get", f"barriers/{epoch[0]}/g{GENERATIONS - 1}/board")
        is_over = self.has_final and last is not None and last[0].passed
        generations = GENERATIONS if self.has_final or not me["id"] else self.random.randint(0, GENERATIONS)
        for name in () if is_over else ("init", *(f"g{number}" for number in range(generations))):
            for _ in range(self.random.randint(0, 4)):
                yield ("pause",)
            yield from self._meet(session, me, epoch, name)
            if self.extras and name == "init":
                yield from self._tell(session, me, epoch)
        yield from self._complete(session, key, me, epoch)

    def _meet(self, session, me, epoch, name):
        """Meet until a generation has passed; one that is broken now and then is met for again."""
        folder = f"barriers/{epoch[0]}/{name}"
        passed = None
        while passed is None:
            phase, before = yield from self._arrive(session, me, epoch, folder)
            passed = yield from self._await(session, me, epoch, folder, phase, before)

    def _await(self, session, me, epoch, folder, phase, before):
        """Wait for the end of a phase: True once it has passed, None if it was broken."""
        while True:
            board = yield ("get", f"{folder}/board")
            if board[0].phase > phase:
                return True if board[0].passed > before else None
            here = [each for each in (yield ("list", f"{folder}/arrived")) if each[1][0] == phase]
            breaks = self.random.random() < self.patience
            if len(here) >= board[0].parties or breaks:
                checks = self.checked("pass", board=("at", f"{folder}/board", board[1]))
                passed = board[0].passed + (len(here) >= board[0].parties)
                after = Board(phase + 1, passed=passed)
                with suppress(Conflict, Unknown):
                    yield ("commit", checks, [("put", f"{folder}/board", after)], Who(session, me["id"]))
                continue
            yield from self._current(me, epoch)
            yield from self._observe(session)

    def _arrive(self, session, me, epoch, folder):
        while True:
            yield from self._current(me, epoch)
            board = yield ("get", f"{folder}/board")
            mine = yield ("get", f"{folder}/arrived/{me['id']}")
            now = Board() if board is None else board[0]
            if mine is not None and mine[0] == now.phase:
                return now.phase, now.passed
            if mine is not None and now.passed:  # as for a member that was not told
                return mine[0], 0
            at = ("absent", f"{folder}/board") if board is None else ("at", f"{folder}/board", board[1])
            checks = [*self.checked("arrive", board=at), *self._fence("arrive", session, me, epoch)]
            ops = [("put", f"{folder}/arrived/{me['id']}", now.phase)]
            if not now.parties:
                head = yield ("get", "head")
                if head is None:
                    raise Gone
                ops.append(("put", f"{folder}/board", replace(now, parties=head[0].n - head[0].completed)))
                ops.append(("put", "opened", True))
                checks += self.checked("arrive", head=("at", "head", head[1]))
            try:
                yield ("commit", checks, ops, Who(session, me["id"], epoch[0]))
            except (Conflict, Unknown):
                continue

    def _observe(self, session):
        if self.random.random() > 0.3:
            return
        for key, entry in (yield ("list", "members")):
            if entry[0].status != "run":
                continue
            live = yield ("get", f"live/{entry[0].id}")
            if live is not None:
                continue
            head = yield ("get", "head")
            epoch = yield ("get", "epoch")
            if head is None:
                return
            boards, is_healthy = yield from self._boards(epoch[0])
            checks = self.checked(
                "lost",
                head=("at", "head", head[1]),
                live=("absent", f"live/{entry[0].id}"),
                member=("at", key, entry[1]),
                epoch=("at", "epoch", epoch[1]),
                init=boards[0],
                final=boards[1],
            )
            ops = [("put", "head", head[0]), ("put", key, replace(entry[0], status="lost"))]
            if is_healthy:
                ops += [("put", "epoch", epoch[0] + 1), *(yield from self._told_late(epoch[0]))]
            with suppress(Conflict, Unknown):
                yield ("commit", checks, ops, Who(session, entry[0].id, epoch[0]))
            return

    def _arrivals(self, me, epoch):
        """At the open barriers of an epoch: the guard of those that open later, the boards, and what is written."""
        opened = yield ("get", "opened")
        boards, arrivals = [], []
        for name in ("init", *(f"g{number}" for number in range(GENERATIONS))):
            folder = f"barriers/{epoch[0]}/{name}"
            board = yield ("get", f"{folder}/board")
            if board is None or not board[0].parties:
                continue
            mine = yield ("get", f"{folder}/arrived/{me['id']}")
            if mine is None or mine[0] != board[0].phase:
                boards.append(("at", f"{folder}/board", board[1]))
                arrivals.append(("put", f"{folder}/arrived/{me['id']}", board[0].phase))
        if self.without == "complete.arrivals":
            boards, arrivals = [], []
        return ("absent", "opened") if opened is None else ("at", "opened", opened[1]), boards, arrivals

    def _complete(self, session, key, me, epoch):
        while True:
            head = yield ("get", "head")
            mine = yield ("get", f"members/{key}")
            if head is None or mine is None:
                raise Gone
            if mine[0].status == "done":
                return
            yield from self._current(me, epoch)
            opened, boards, arrivals = yield from self._arrivals(me, epoch)
            done = head[0].completed + 1
            checks = [
                *self._fence("complete", session, me, epoch),
                *self.checked("complete", head=("at", "head", head[1]), member=("at", f"members/{key}", mine[1])),
                *self.checked("complete", opened=opened, board=boards),
            ]
            ops = [
                ("put", f"members/{key}", replace(mine[0], status="done")),
                ("put", "head", replace(head[0], completed=done, is_final=done == head[0].n)),
                *arrivals,
            ]
            try:
                yield ("commit", checks, ops, Who(session, me["id"], epoch[0]))
            except (Conflict, Unknown):
                continue

    def _leave(self, session, me):
        while True:
            head = yield ("get", "head")
            if head is None:
                return
            if not head[0].is_final:
                yield from self._observe(session)
                yield ("pause",)
                continue
            expired = self.store.expired
            mine = f"live/{me['id']}"
            is_last = [key for key, _ in (yield ("list", "live"))] == [mine]
            ops = [("delete", mine), ("delete", "head") if is_last else ("put", "head", head[0])]
            checks = self.checked(
                "leave",
                live=[("at", mine, me["live"]), ("session", session)],
                head=("at", "head", head[1]),
            )
            try:
                yield ("commit", checks, ops, Who(session, me["id"], what="leave", expired=expired))
            except Conflict:
                live = yield ("get", mine)
                if live is None or live[1] != me["live"]:
                    return
            except Unknown:
                continue
            else:
                return

    # The schedule

    def play(self, limit=14_000):
        """Play the whole job; raises ``Broken``."""
        for turn in range(limit):
            if self.store.get("head") is None:
                break
            if turn % 25 == 0:
                self._start_missing()
                self._reap()
            if turn == self.scales_at:
                self._scale()
            if turn == 1_500 and self.seed % 4 < 2:
                self.trouble = (0.006, 0.006, 0.04)
            if turn == 9_000:
                self.trouble, self.patience = (0.0, 0.0, 0.0), 0.0
            self._pass_time()
            able = [each for each in self.processes if not each.is_dead and not each.frozen]
            if able:
                self._step(self.random.choice(able))
        self._refuse(self.store.get("head") is not None, "the job never ends", None)
        self._refuse(self.removals != 1, f"it is removed {self.removals} times", None)
        ids = sorted(entry[0].id for _, entry in self.store.list("members"))
        self._refuse(ids != list(range(self.n)), f"the ids are {ids}", None)

    def _scale(self):
        """One more worker, unless the workers meet already: who meets now is as many as it was."""
        head, epoch = self.store.get("head"), self.store.value("epoch")
        if head is not None and self.store.get(f"barriers/{epoch}/init/board") is None and not epoch:
            self.n += 1
            self.store.commit([("at", "head", head[1])], [("put", "head", replace(head[0], n=self.n))], Who("scaler"))

    def _start_missing(self):
        there = {
            each.key for each in self.processes if not each.is_dead and not (each.frozen and self.random.random() < 0.3)
        }
        for number in range(self.n):
            key = f"k{number}"
            member = self.store.value(f"members/{key}")
            if key not in there and (member is None or member.status != "done"):
                self.started += 1
                session = f"{key}#{self.started}"
                self.store.alive.add(session)
                self.processes.append(Process(key, session, self.worker(session, key)))

    def _reap(self):
        head = self.store.get("head")
        if head is not None and head[0].is_final and not self.store.list("live"):
            self.store.commit([("at", "head", head[1])], [("delete", "head")], Who("reaper"))

    def _pass_time(self):
        for each in self.processes:
            if each.is_dead and each.session in self.store.alive:
                each.expires_in -= 1
                if each.expires_in <= 0:
                    self._land(each)
                    self.store.expire(each.session)
            if each.frozen:
                each.frozen -= 1
                if each.frozen and self.random.random() < 0.03:
                    self.store.expire(each.session)
                if not each.frozen:
                    if self.random.random() < 0.2:
                        self.store.expire(each.session)
                    self._do(each)
            if each.late and self.random.random() < 0.05:
                self._land(each)
            if not each.is_dead and not each.frozen and each.session not in self.store.alive:
                each.noticed += 1
                each.is_dead = each.noticed > 40
        self.processes = [each for each in self.processes if not each.is_dead or each.session in self.store.alive]

    def _land(self, process):
        call, process.late = process.late, ()
        if call:
            with suppress(Conflict):
                self.store.commit(*call[1:])

    def _step(self, process):
        crash, freeze, _ = self.trouble
        try:
            if isinstance(process.answer, Exception):
                call = process.steps.throw(process.answer)
            else:
                call = process.steps.send(process.answer if process.has_begun else None)
        except StopIteration:
            process.is_dead = True
            return
        process.has_begun, process.call = True, call
        if self.random.random() < crash:
            process.is_dead, process.expires_in = True, self.random.randint(5, 60)
        elif self.random.random() < freeze:
            process.frozen = self.random.randint(10, 150)
        else:
            self._do(process)

    def _do(self, process):
        self._land(process)
        call = process.call
        if call[0] == "commit" and self.random.random() < self.trouble[2]:
            drawn = self.random.random()
            process.answer = Unknown()
            if drawn < 0.7:
                process.late = call
            if drawn < 0.4:
                self._land(process)
            return
        try:
            process.answer = None if call[0] == "pause" else getattr(self.store, call[0])(*call[1:])
        except Conflict as error:
            process.answer = error


def seeds_until_broken(without, most, first=0, *, extras=False):
    """How many jobs are played until one is broken; None if none of them is."""
    for seed in range(first, first + most):
        try:
            Job(seed, without, extras=extras).play()
        except Broken as error:
            return seed - first + 1, str(error)
    return None
