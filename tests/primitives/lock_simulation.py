"""The lock protocol in virtual time: nodes with drifting clocks, pauses, cuts, late and lost messages, one server.

Runs the functions with which the package decides (`Lease`, `Sightings`, `plan_write`). Only the loop around them is
simulated.
A mutation replaces one of the decisions, to show that the check for overlaps can fail.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field, replace

from latchwork.primitives.leased.protocol import FREE, LockRecord, OwnerRecord, Sightings, WriteLock, plan_write
from latchwork.store.lease import Lease
from latchwork.types import Absent, At, Create, Delete, Entry, Exists, Put

TTL_S = 1.0
LOCK = "locks/it"


class Server:
    def __init__(self):
        self.entries = {}
        self.token = 0

    def commit(self, checks, ops):
        if not all(self.holds(check) for check in checks):
            return None
        if any(isinstance(op, Create) and op.key in self.entries for op in ops):
            return None
        self.token += 1
        for op in ops:
            if isinstance(op, Delete):
                self.entries.pop(op.key, None)
            else:
                self.entries[op.key] = Entry(op.key, op.value, self.token, self.token, self.token)
        return [self.entries[op.key] for op in ops if not isinstance(op, Delete)]

    def holds(self, check):
        entry = self.entries.get(check.key)
        if isinstance(check, At):
            return entry is not None and entry.version == check.version
        return (entry is None) == isinstance(check, Absent)


@dataclass
class Owner:
    id: str
    lease: Lease
    created: bool = False


@dataclass
class Node:
    name: str
    rate: float
    offset: float
    sightings: Sightings = field(default_factory=Sightings)
    owner: Owner | None = None
    held: Entry | None = None
    held_by: Owner | None = None
    haste: float = 0.0
    busy_until: float = 0.0
    attempt: int = 0
    frozen_until: float = 0.0
    cut_until: float = 0.0
    deaf_until: float = 0.0
    blind_until: float = 0.0

    def clock(self, now):
        return self.offset + now * self.rate

    def believes(self, now):
        return self.held is not None and not self.held_by.lease.has_ended(self.clock(now))


class Simulation:
    def __init__(self, seed, *, nodes=3, mutation=""):
        self.random = random.Random(seed)
        self.mutation = mutation
        self.server = Server()
        self.now = 0.0
        self.steps = self.grants = self.takeovers = self.unknown = self.overlaps = self.ids = 0
        self.events = []
        self.nodes = [Node(f"n{i}", self.random.uniform(0.98, 1.02), self.random.uniform(0, 100)) for i in range(nodes)]
        for node in self.nodes:
            self.at(0.0, lambda node=node: self.tick(node))

    def at(self, delay_s, fn):
        self.ids += 1
        heapq.heappush(self.events, (self.now + delay_s, self.ids, fn))

    def run(self, steps):
        while self.steps < steps:
            self.now, _, fn = heapq.heappop(self.events)
            fn()
            self.steps += 1
        return self

    # The network: a request may come late or never, and so may its answer.

    def delay(self):
        return self.random.choice((0.002, 0.01, 0.05, self.random.expovariate(2.0)))

    def lost(self, node, until):
        return self.now < max(until, node.cut_until) or self.random.random() < 0.02

    def ask(self, node, question, answer):
        """Run `question` at the server later, then `answer` at the node, when it is not frozen."""
        if self.lost(node, 0.0):
            return

        def apply():
            result = question()
            if not self.lost(node, node.deaf_until):
                self.at(self.delay(), lambda: self.when_awake(node, lambda: answer(result)))
            else:
                self.unknown += 1

        self.at(self.delay(), apply)

    def when_awake(self, node, fn):
        if self.now < node.frozen_until:
            self.at(node.frozen_until - self.now, lambda: self.when_awake(node, fn))
        else:
            fn()

    # A node: what the keeper's thread and the users of its locks do.

    def tick(self, node):
        if self.now < node.frozen_until:
            self.at(node.frozen_until - self.now, lambda: self.tick(node))
            return
        self.at(self.random.uniform(0.01, 0.08), lambda: self.tick(node))
        chance = self.random.random()
        trouble_until = self.now + self.random.uniform(0.0, 3.0)
        if chance < 0.004:
            node.frozen_until = trouble_until
        elif chance < 0.010:
            node.cut_until = trouble_until
        elif chance < 0.014:  # requests arrive, answers do not
            node.deaf_until = trouble_until
        elif chance < 0.020:  # the watch is interrupted, calls go through
            node.blind_until = trouble_until
        self.live(node)
        self.watch(node)
        if node.held is None:
            self.compete(node)
        elif self.random.random() < node.haste:
            self.release(node)

    def live(self, node):
        now = node.clock(self.now)
        owner = node.owner
        if owner is None or owner.lease.has_ended(now):
            if node.held is not None and not node.believes(self.now):
                node.held = None  # lost: its work has stopped
            self.create_owner(node)
        elif owner.created and now >= owner.lease.next_renewal_at():
            owner.lease.record_renewal(now)
            key = f"owners/{owner.id}"

            def renewed(result, owner=owner, sent_at=now):
                if result is not None:
                    counted = node.clock(self.now) if self.mutation == "deadline from the answer" else sent_at
                    owner.lease.record_confirmation(counted, node.clock(self.now))

            self.ask(node, lambda: self.server.commit([Exists(key)], [Put(key, OwnerRecord(TTL_S).encode())]), renewed)

    def create_owner(self, node):
        self.ids += 1
        owner = node.owner = Owner(f"{node.name}-{self.ids}", Lease(node.clock(self.now), TTL_S))

        def created(result):
            owner.created = result is not None

        op = Create(f"owners/{owner.id}", OwnerRecord(TTL_S).encode())
        self.ask(node, lambda: self.server.commit([], [op]), created)

    def watch(self, node):
        if self.now < node.blind_until:
            return
        asked_at = node.clock(self.now)

        def seen(entries):
            at = asked_at if self.mutation == "sighting from the request" else node.clock(self.now)
            for entry in entries:
                node.sightings.record_owner(entry.key.partition("/")[2], entry.version, TTL_S, at)

        self.ask(node, lambda: [entry for key, entry in self.server.entries.items() if key.startswith("owners/")], seen)

    def compete(self, node):
        if node.owner is None or not node.owner.created or self.now < node.busy_until:
            return
        node.busy_until = self.now + self.random.uniform(0.05, 0.5)  # then the answer counts as lost, also if it comes
        self.ids += 1
        attempt = node.attempt = self.ids

        def read():
            entry = self.server.entries.get(LOCK)
            record = LockRecord.decode(entry.value) if entry is not None else None
            named = record.owner if record is not None else None
            return entry, named, f"owners/{named}" in self.server.entries

        self.ask(node, read, lambda found: self.take(node, attempt, *found))

    def take(self, node, attempt, entry, named, owner_exists):
        owner, now = node.owner, node.clock(self.now)
        if node.attempt != attempt or owner.lease.has_ended(now):
            return
        seen = node.sightings.find(named or "")
        if named and seen is None and owner_exists:
            return  # never seen: its key is read first
        if not owner_exists:
            seen = None
        me = f"owners/{owner.id}"
        value = LockRecord(owner.id, str(attempt)).encode()
        decision = plan_write(LOCK, entry, value, me=me, owner_key=f"owners/{named}", seen=seen, now=now)
        if not isinstance(decision, WriteLock):
            return
        decision = self.mutated(decision)

        def answered(written):
            if written is not None and node.attempt == attempt and not owner.lease.has_ended(node.clock(self.now)):
                self.grant(node, owner, written[0], decision)

        self.ask(node, lambda: self.server.commit(decision.checks, decision.ops), answered)

    def mutated(self, decision):
        if self.mutation == "takeover without At(O_old)" and decision.removes_owner:
            kept = [c for c in decision.checks if not (isinstance(c, At) and c.key.startswith("owners/"))]
            return replace(decision, checks=tuple(kept))
        if self.mutation == "take without At(L)":
            return replace(decision, checks=tuple(c for c in decision.checks if c.key != LOCK))
        return decision

    def grant(self, node, owner, entry, decision):
        node.held, node.held_by = entry, owner
        node.haste = self.random.choice((0.0, 0.02, 0.1))  # 0: until it is lost
        self.grants += 1
        self.takeovers += decision.removes_owner is not None
        self.overlaps += any(other.believes(self.now) for other in self.nodes if other is not node)

    def release(self, node):
        held, node.held = node.held, None
        self.ask(node, lambda: self.server.commit([At(held)], [Put(LOCK, FREE)]), lambda _written: None)
