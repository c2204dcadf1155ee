"""Random lives of a whole cluster in virtual time: nodes that die, freeze and are cut off, and come back.

The functions that the package decides with (`rebalance`, `order_changes`, `Debouncer`, `reconcile`) run in a loop of
small steps; only the store, the clock, the threads and the network are simulated. A defect takes one of the
safeguards away, to show that the judge can see it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import count

from latchwork.jobs import Threads
from latchwork.jobs.manager.manager import Debouncer
from latchwork.jobs.manager.rebalance import ClusterView, WorkerView, order_changes, rebalance
from latchwork.jobs.manager.strategies import Strategies
from latchwork.jobs.worker.runs import RunState, reconcile

TTL_S = 2.0  # of sessions and locks
STEP_S = 0.05
STOP_AT = 0.75 * TTL_S  # runs are told to stop when their locks are so old
STOPS_WITHIN_S = 0.3
TAKEOVER_S = 1.05 * TTL_S
QUIET_S, QUIET_MAX_S = 0.3, 1.0
JOBS = {"whole": Threads.whole(), "each": Threads.per_item(), "some": Threads.at_most(2)}
POOLS = {job: tuple(f"{job}-{n}" for n in range(5)) for job in JOBS}
#: After the last fault every item runs within the time to notice, to take over, to decide and to start.
BOUND_S = 2 * TTL_S + TAKEOVER_S + QUIET_MAX_S + STOPS_WITHIN_S + 1.0

DEFECTS = ("no deadline", "grows first", "starts unlocked", "late leader writes")


@dataclass
class Lock:
    owner: int
    token: int


@dataclass
class Store:
    """What all nodes share. Each call is one step of one node."""

    sessions: dict[str, tuple[int, float]] = field(default_factory=dict)  # node: incarnation, last renewal
    queue: list[tuple[str, int]] = field(default_factory=list)  # who manages, and who is next
    assignments: dict[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)  # job, node: items
    owners: dict[int, float] = field(default_factory=dict)  # uuid: last renewal
    locks: dict[str, Lock] = field(default_factory=dict)
    token: int = 0

    def expire(self, now):
        for node, (_, seen) in list(self.sessions.items()):
            if now - seen > TTL_S:
                del self.sessions[node]
        self.queue = [(node, number) for node, number in self.queue if self.sessions.get(node, (None,))[0] == number]


@dataclass
class LiveRun:
    number: int
    job: str
    items: tuple[str, ...]
    tokens: dict[str, int]
    stops_at: float | None = None


class Node:
    """One process: a session, an owner of locks, runs; a manager while it is the first in the queue."""

    def __init__(self, world, name):
        self.world, self.name = world, name
        self.frozen_until = self.cut_until = 0.0
        self.alive = True
        self.incarnation = None
        self.session_from = self.lease_from = 0.0
        self.owner = None
        self.held = {}  # item: lock
        self.runs = {}
        self.renew_at = 0.0
        self.view = None
        self.quiet = Debouncer(QUIET_S, QUIET_MAX_S)
        self.assignments = {}
        self.looked_at = None  # the assignments, when nothing was left to do for them, nor for locks and runs
        self.pending = []  # writes decided on and not sent yet, each with the incarnation that leads

    # One look of the worker, as its loop and its guard take it

    def step(self):
        now, world = self.world.now, self.world
        if not self.alive or now < self.frozen_until:
            return
        connected = now >= self.cut_until
        if connected:
            self.renew(now)
            self.assignments = {job: world.store.assignments.get((job, self.name), ()) for job in POOLS}
        if world.defect != "no deadline":
            if self.owner is not None and now - self.lease_from >= STOP_AT:
                self.tell(self.runs.values(), now)
            if self.owner is not None and now - self.lease_from >= TTL_S:
                self.lose_locks()
        self.remove_ended_runs(now)
        self.reconcile(now, connected=connected)
        if connected:
            self.manage(now)

    def renew(self, now):
        store = self.world.store
        if self.incarnation is not None and store.sessions.get(self.name, (None,))[0] != self.incarnation:
            self.incarnation, self.view = None, None
            if self.world.defect != "late leader writes":
                self.pending = []
        if self.incarnation is None:
            if self.name in store.sessions:
                return  # its session of before has to run out first
            self.incarnation = next(self.world.numbers)
            store.queue.append((self.name, self.incarnation))
            store.sessions[self.name] = (self.incarnation, now)
        if self.owner is not None and self.owner not in store.owners:
            self.lose_locks()  # taken over: told as soon as it is seen
        if self.owner is None and not self.runs:
            self.owner, self.lease_from = next(self.world.numbers), now
            store.owners[self.owner] = now
        if now >= self.renew_at:
            self.renew_at = now + TTL_S / 3
            store.sessions[self.name] = (self.incarnation, now)
            if self.owner is not None:
                store.owners[self.owner] = self.lease_from = now

    def lose_locks(self):
        self.owner, self.held, self.looked_at = None, {}, None

    def remove_ended_runs(self, now):
        for run in [run for run in self.runs.values() if run.stops_at is not None and run.stops_at <= now]:
            del self.runs[run.number]
            self.looked_at = None

    def tell(self, runs, now):
        for run in runs:
            if run.stops_at is None:
                run.stops_at = now + self.world.random.uniform(0.0, STOPS_WITHIN_S)
                self.looked_at = None

    def reconcile(self, now, *, connected):
        if self.looked_at == self.assignments:  # nothing is different, and there was nothing to do
            return
        idle = True
        for job, threads in JOBS.items():
            live = [run for run in self.runs.values() if run.job == job]
            seen = [RunState(run.number, frozenset(run.items), run.stops_at is not None) for run in live]
            mine = {item for item in self.held if item.startswith(job)}
            wanted = self.assignments.get(job, ())
            actions = reconcile(wanted, wanted if self.world.defect == "starts unlocked" else mine, seen, threads)
            self.tell([self.runs[number] for number in actions.stop], now)
            if connected and self.owner is not None:
                for item in actions.release:
                    self.world.release(self, item)
                for item in actions.acquire:
                    self.world.acquire(self, item)
            if now - self.lease_from < STOP_AT or self.world.defect == "no deadline":
                for items in actions.start:
                    self.start(job, items)
            idle &= not (actions.stop or actions.release or actions.acquire or actions.start)
        self.looked_at = dict(self.assignments) if idle else None

    def start(self, job, items):
        number = next(self.world.numbers)
        tokens = {item: self.held[item].token if item in self.held else 0 for item in items}
        self.runs[number] = LiveRun(number, job, items, tokens)
        self.world.judge_start(self, items, tokens)

    # The manager

    def manage(self, now):
        store = self.world.store
        leads = bool(store.queue) and store.queue[0] == (self.name, self.incarnation)
        if self.pending:
            incarnation, changes, send_at = self.pending
            if now < send_at:
                return
            self.pending = []
            if self.world.defect == "late leader writes" or (leads and incarnation == self.incarnation):
                self.world.write(changes)
            return
        if not leads:
            self.view = None
            return
        view = (frozenset(store.sessions), tuple(sorted(store.assignments.items())))
        if view != self.view:
            self.view = view
            self.quiet.record_event(now)
        due_s = self.quiet.due_in_s(now)
        if due_s is None or due_s > 0:
            return
        self.quiet.clear_events()
        workers = {name: WorkerView(1.0, frozenset(POOLS)) for name in store.sessions}
        assignments = {job: {} for job in POOLS}
        for (job, node), items in store.assignments.items():
            assignments[job][node] = items
        found = rebalance(ClusterView(workers, POOLS, assignments), self.world.strategies)
        if found.changes:  # decided now, written a moment later: much may happen in between
            self.pending = (self.incarnation, found.changes, now + self.world.random.uniform(0.0, 0.5))


class World:
    """A cluster of nodes, its faults, and the judge."""

    def __init__(self, seed, *, nodes=4, defect=None):
        assert defect is None or defect in DEFECTS, defect
        self.random = random.Random(seed)
        self.defect = defect
        self.now = 0.0
        self.numbers = count(1)
        self.store = Store()
        self.strategies = Strategies(self.random.choice(["balanced", "evenly-spread", "rendezvous"]))
        self.nodes = {f"n{number}": Node(self, f"n{number}") for number in range(nodes)}
        self.violations = []
        self.last_fault = 0.0
        self.last_tokens = {}

    def live(self, seconds):
        """Let it live, with faults in the first part, and judge."""
        quiet_from = seconds - BOUND_S - 1.0
        while self.now < seconds:
            self.now += STEP_S
            self.store.expire(self.now)
            if self.now < quiet_from and self.random.random() < STEP_S / 2.5:
                self.strike(quiet_from)
            for node in self.random.sample(list(self.nodes.values()), len(self.nodes)):
                node.step()
        self.judge_end()
        return self.violations

    def strike(self, quiet_from):
        node = self.random.choice(list(self.nodes.values()))
        kind = self.random.choice(["die", "freeze", "cut", "cut"])
        seconds = min(self.random.choice([0.3, 0.8, 1.2, 2.5]) * TTL_S, quiet_from - self.now)
        if kind == "die":
            self.nodes[node.name] = Node(self, node.name)
            self.nodes[node.name].frozen_until = self.now + seconds
        elif kind == "freeze":
            node.frozen_until = max(node.frozen_until, self.now + seconds)
        else:
            node.cut_until = max(node.cut_until, self.now + seconds)
        self.last_fault = max(self.last_fault, self.now + seconds)

    # The store's side of the locks: each call is one transaction

    def acquire(self, node, item):
        lock = self.store.locks.get(item)
        if lock is not None and lock.owner in self.store.owners and lock.owner != node.owner:
            if self.now - self.store.owners[lock.owner] < TAKEOVER_S:
                return
            del self.store.owners[lock.owner]
        if node.owner not in self.store.owners:
            return
        self.store.token += 1
        self.store.locks[item] = node.held[item] = Lock(node.owner, self.store.token)

    def release(self, node, item):
        if self.store.locks.get(item) is node.held.pop(item):
            del self.store.locks[item]

    def write(self, changes):
        """The leader's transactions, what shrinks before what grows; nobody ever sees an item with two workers."""
        steps = sorted(changes, key=lambda change: len(change.after) < len(change.before))
        for change in steps if self.defect == "grows first" else order_changes(changes):
            before = self.store.assignments.get((change.job, change.worker), ())
            if before != change.before and self.defect is None:
                return  # its check fails: the leader looks again
            self.store.assignments[change.job, change.worker] = change.after
            if not change.after:
                del self.store.assignments[change.job, change.worker]
            items = [
                item for (job, _), assigned in self.store.assignments.items() if job == change.job for item in assigned
            ]
            if len(set(items)) != len(items):
                self.violations.append(f"{self.now:.2f}: an item of {change.job} is assigned twice")

    # The judge

    def judge_start(self, node, items, tokens):
        for item in items:
            if tokens[item] < self.last_tokens.get(item, 0):
                self.violations.append(f"{self.now:.2f}: {item} started with an older token on {node.name}")
            self.last_tokens[item] = max(tokens[item], self.last_tokens.get(item, 0))
            for other in self.nodes.values():
                if other is node or self.now < other.frozen_until:
                    continue  # a frozen process does nothing, and its fences are refused when it wakes
                for run in other.runs.values():
                    thawed = run.stops_at is None or run.stops_at > self.now
                    if item in run.items and thawed and not self.has_just_thawed(other):
                        self.violations.append(f"{self.now:.2f}: {item} runs on {other.name} and on {node.name}")

    def has_just_thawed(self, node):
        """Its guard has not had a look yet, or what it told to stop is stopping: its fences are refused meanwhile."""
        return node.frozen_until > 0 and self.now - node.frozen_until <= STEP_S + STOPS_WITHIN_S

    def judge_end(self):
        running = [item for node in self.nodes.values() for run in node.runs.values() for item in run.items]
        for job, items in POOLS.items():
            lost = [item for item in items if running.count(item) != 1]
            if lost:
                self.violations.append(f"at the end {lost} of {job} do not run exactly once")
        sizes = [len(assigned) for assigned in self.store.assignments.values()]
        if sum(sizes) != sum(map(len, POOLS.values())):
            self.violations.append(f"at the end {sum(sizes)} items are assigned")
