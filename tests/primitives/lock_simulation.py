"""The lock protocol in virtual time: nodes with drifting clocks, pauses, cuts, late and lost messages, one server.

Runs the functions with which the package decides (`Lease`, `OwnerObservations`, `plan_write`). Only the loop around
them is simulated. With `sessions`, each owner names a session, which the server ends when no renewal arrives for a TTL.
A mutation replaces one of the decisions, to show that the check for overlaps can fail.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field, replace

from latchwork.primitives.leased.protocol import (
    FREE,
    TAKEOVER_FACTOR,
    LockRecord,
    LockWrite,
    OwnerObservations,
    OwnerRecord,
    liveness_key,
    plan_write,
    session_grace_s,
)
from latchwork.store.lease import Lease
from latchwork.types import Absent, At, Create, Delete, Entry, Exists, Put

TTL_S = 1.0
LOCK = "locks/it"
GRACE_S = session_grace_s(TTL_S) / TAKEOVER_FACTOR


class Server:
    def __init__(self):
        self.entries = {}
        self.token = 0
        self.sessions = {}
        self.liveness_keys = {}

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

    def open_session(self, session, deadline):
        self.sessions[session] = deadline
        return True

    def renew_session(self, session, deadline):
        if session in self.sessions:
            self.sessions[session] = deadline
            return True
        return None

    def create_with_liveness_key(self, owner_key, session):
        if session not in self.sessions:
            return None
        self.liveness_keys[liveness_key(owner_key)] = session
        record = OwnerRecord(TTL_S, session=session).to_bytes()
        return self.commit([], [Create(owner_key, record), Create(liveness_key(owner_key), b"")])

    def expire_sessions(self, now):
        for session in [session for session, deadline in self.sessions.items() if deadline <= now]:
            del self.sessions[session]
            for key in [key for key, owner in self.liveness_keys.items() if owner == session]:
                self.entries.pop(key, None)

    def holds(self, check):
        entry = self.entries.get(check.key)
        if isinstance(check, At):
            return entry is not None and entry.version == check.version
        return (entry is None) == isinstance(check, Absent)


@dataclass
class Session:
    id: str
    lease: Lease
    opened: bool = False


@dataclass
class Owner:
    id: str
    lease: Lease
    session: Session | None = None
    created: bool = False
    has_liveness_key: bool = True
    retry_at: float = 0.0


@dataclass
class Node:
    name: str
    rate: float
    offset: float
    sightings: OwnerObservations = field(default_factory=OwnerObservations)
    session: Session | None = None
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
    mute_until: float = 0.0
    ignores_session: bool = False

    def clock(self, now):
        return self.offset + now * self.rate

    def believes(self, now):
        return self.held is not None and not self.has_ended(self.held_by, now)

    def has_ended(self, owner, now):
        clock, session = self.clock(now), None if self.ignores_session else owner.session
        return owner.lease.has_ended(clock) or (session is not None and clock >= session.lease.expires_at + GRACE_S)


class Simulation:
    def __init__(self, seed, *, nodes=3, mutation="", sessions=False):
        self.random = random.Random(seed)
        self.mutation = mutation
        self.sessions = sessions
        self.server = Server()
        self.now = 0.0
        self.steps = self.grants = self.takeovers = self.unknown = self.overlaps = self.ids = self.detachments = 0
        self.events = []
        self.nodes = [Node(f"n{i}", self.random.uniform(0.98, 1.02), self.random.uniform(0, 100)) for i in range(nodes)]
        for node in self.nodes:
            node.ignores_session = mutation == "an owner outlives its session"
            self.at(0.0, lambda node=node: self.tick(node))

    def at(self, delay_s, fn):
        self.ids += 1
        heapq.heappush(self.events, (self.now + delay_s, self.ids, fn))

    def run(self, steps):
        while self.steps < steps:
            self.now, _, fn = heapq.heappop(self.events)
            self.server.expire_sessions(self.now)
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
        elif chance < 0.026:  # the session is not renewed, calls go through until nothing does
            node.mute_until = self.now + 3.0
            self.at(self.random.uniform(0.3, 3.0), lambda: setattr(node, "cut_until", self.now + 2.0))
        if self.sessions:
            self.keep_session(node)
        self.live(node)
        self.watch(node)
        if node.held is None:
            self.compete(node)
        elif self.random.random() < node.haste:
            self.release(node)

    def keep_session(self, node):
        now, session = node.clock(self.now), node.session
        if session is None or session.lease.has_ended(now):
            self.ids += 1
            opened = node.session = Session(f"s{self.ids}", Lease(now, TTL_S))

            def answered(_result):
                opened.opened = True

            self.ask(node, lambda: self.server.open_session(opened.id, self.now + TTL_S), answered)
        elif now >= session.lease.next_renewal_at() and self.now >= node.mute_until:
            session.lease.record_renewal_sent(now)

            def renewed(result, sent_at=now):
                if result is None:
                    session.lease.end(node.clock(self.now))
                else:
                    session.lease.record_confirmation(sent_at, node.clock(self.now))

            self.ask(node, lambda: self.server.renew_session(session.id, self.now + TTL_S), renewed)

    def live(self, node):
        now = node.clock(self.now)
        owner = node.owner
        if owner is None or node.has_ended(owner, self.now):
            if node.held is not None and not node.believes(self.now):
                node.held = None  # lost: its work has stopped
            self.create_owner(node)
        elif owner.created and now >= (
            owner.retry_at if self.must_detach(owner, now) else owner.lease.next_renewal_at()
        ):
            self.renew(node, owner, now)

    def must_detach(self, owner, now):
        session = owner.session
        return session is not None and (session.lease.has_ended(now) or not owner.has_liveness_key)

    def renew(self, node, owner, now):
        owner.lease.record_renewal_sent(now)
        owner.retry_at = now + GRACE_S / 4
        key = f"owners/{owner.id}"
        checks, ops = [Exists(key)], [Put(key, OwnerRecord(TTL_S).to_bytes())]
        detaches = self.must_detach(owner, now)
        if detaches:
            ops.append(Delete(liveness_key(key)))
        elif owner.session is not None:
            checks, ops = [*checks, Exists(liveness_key(key))], []

        def renewed(result, sent_at=now):
            if result is None:
                owner.has_liveness_key = False
                return
            counted = node.clock(self.now) if self.mutation == "deadline from the answer" else sent_at
            if (
                owner.lease.record_confirmation(counted, node.clock(self.now))
                and detaches
                and not node.has_ended(owner, self.now)
            ):
                owner.session = None
                self.detachments += 1

        self.ask(node, lambda: self.server.commit(checks, ops), renewed)

    def create_owner(self, node):
        session = node.session if node.session is not None and node.session.opened else None
        if self.sessions and session is None:
            node.owner = None
            return
        self.ids += 1
        owner = node.owner = Owner(f"{node.name}-{self.ids}", Lease(node.clock(self.now), TTL_S), session)
        key = f"owners/{owner.id}"

        def created(result):
            owner.created = result is not None

        def create():
            if session is not None:
                return self.server.create_with_liveness_key(key, session.id)
            return self.server.commit([], [Create(key, OwnerRecord(TTL_S).to_bytes())])

        self.ask(node, create, created)

    def watch(self, node):
        if self.now < node.blind_until:
            return
        asked_at = node.clock(self.now)
        misses_liveness_keys = self.random.random() < 0.05  # a listing is no snapshot

        def seen(entries):
            at = asked_at if self.mutation == "observation from the request" else node.clock(self.now)
            shown = {entry.key for entry in entries}
            owners = [entry for entry in entries if entry.key.count("/") == 1]
            for entry in owners:
                owner = entry.key.partition("/")[2]
                if liveness_key(entry.key) in shown:
                    node.sightings.observe_liveness_key(owner)
                else:
                    node.sightings.observe_missing_liveness_key(owner, at)
                session = OwnerRecord.decode(entry.value).session
                node.sightings.observe_owner(owner, entry.version, TTL_S, at, session=session)

        def listed():
            entries = [entry for key, entry in self.server.entries.items() if key.startswith("owners/")]
            return [entry for entry in entries if not (misses_liveness_keys and entry.key.startswith("owners/alive/"))]

        self.ask(node, listed, seen)

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
        if owner is None or node.attempt != attempt or node.has_ended(owner, self.now):
            return
        seen = node.sightings.find(named or "")
        if named and seen is None and owner_exists:
            return  # never seen: its key is read first
        if not owner_exists:
            seen = None
        me = f"owners/{owner.id}"
        value = LockRecord(owner.id, str(attempt)).to_bytes()
        decision = plan_write(LOCK, entry, value, own_key=me, owner_key=f"owners/{named}", seen=seen, now=now)
        if not isinstance(decision, LockWrite):
            return
        decision = self.mutated(decision)

        def answered(written):
            if written is not None and node.attempt == attempt and not node.has_ended(owner, self.now):
                self.grant(node, owner, written[0], decision)

        self.ask(node, lambda: self.server.commit(decision.checks, decision.ops), answered)

    def mutated(self, decision):
        if self.mutation == "takeover without At(O_old)" and decision.removes_owner:
            kept = [c for c in decision.checks if not (isinstance(c, At) and c.key.startswith("owners/"))]
            return replace(decision, checks=tuple(kept))
        if self.mutation == "takeover without Absent(alive)":
            return replace(decision, checks=tuple(c for c in decision.checks if c.key.count("/") < 2))
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
