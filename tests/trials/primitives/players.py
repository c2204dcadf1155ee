"""Who takes part in a play: uses one primitive, and answers what became of it. In this process, or in one of its own.

Every method can be called from another process (see ``serve``): arguments and results are JSON, none waits for long.
"""

from __future__ import annotations

import logging
import sys
import threading
import time

import pytest

import latchwork
import through_loop
from latchwork.errors import Closed, LatchworkError, OutcomeUnknown, SessionLost, Unavailable
from latchwork.primitives import Barrier, Counter, DoubleBarrier, Group, Lock, RateLimiter, Sequence
from latchwork.types import Create, Put
from trials.judges.primitive import gaps
from trials.primitives import owners
from trials.primitives.owners import OWNERS, PATIENCE_S
from trials.raw import secret

_LOOK_EVERY_S = 0.004
_PAUSE_S = 0.02
#: More than that no acquisition in any interval; the slack is what the measuring may be late.
PERMITS, INTERVAL_S, SLACK_S = 3, 0.4, 0.6


class Player:
    """The base of all: threads that are joined, and steps that are tried again while the server has trouble."""

    def __init__(self, store, name, role, report):
        self.store = store
        self.name = name
        self.role = role
        self._report = report
        self._stop = threading.Event()
        self._threads = []
        self._error = None

    def prepare(self):
        """Before anybody begins, once."""

    def secret(self):
        """What a thief needs to end our session."""
        return secret(self.store.session)

    def stop(self):
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def close(self):
        self.stop()

    def _spawn(self, work):
        def run():
            try:
                work()
            except BaseException as error:
                self._error = error

        self._threads.append(threading.Thread(target=run, daemon=True))
        self._threads[-1].start()

    def _insist(self, step):
        """Try again after trouble with the server or the session, as a user would."""
        while True:
            try:
                return step()
            except (Unavailable, OutcomeUnknown, SessionLost):
                if self._stop.wait(_PAUSE_S):
                    raise

    def _raise(self):
        if self._error is not None:
            raise self._error


class Owner(Player):
    """Owns something that only one can own."""

    def __init__(self, store, name, role, report, kind="Lock", ttl_s=1.0):
        super().__init__(store, name, role, report)
        self._owner = OWNERS[kind](store, name, role, ttl_s)
        self._get_ownership = None
        self._fences = []
        self._last_held = 0.0
        self._spawn(self._look)

    def prepare(self):
        getattr(self._owner, "prepare", lambda: None)()

    def begin(self):
        """Own it as soon as that is possible; see ``owned``."""
        self._get_ownership = None
        self._spawn(self._own)

    def owned(self):
        """When it was ours at the latest, and by which token; None while it is not."""
        self._raise()
        return self._get_ownership

    def write(self):
        """Write under the fence of our last ownership: the token of the write, and of the fence."""
        done = self.store.commit(self._fences, [Put("guarded", self.role.encode())])
        return [done.token, self._fences[0].token]

    def is_held(self):
        return self._owner.is_held()

    def last_held(self):
        """The last moment at which we said that it is ours."""
        return self._last_held

    def end(self):
        self._owner.end()

    def late(self):
        self._owner.late()

    def close(self):
        self._stop.set()
        self._owner.close()
        self.stop()

    def _own(self):
        try:
            self._fences = self._insist(self._owner.own)
        except Closed:
            return
        self._get_ownership = [time.monotonic(), self._fences[0].token]

    def _look(self):
        while not self._stop.wait(_LOOK_EVERY_S):
            now = time.monotonic()
            if self._owner.is_held():
                self._last_held = now


class Looper(Player):
    """Does the same again and again, and reports when it has worked: what it had reported survives a kill."""

    def __init__(self, store, name, role, report):
        super().__init__(store, name, role, report)
        self._unknown = 0

    def begin(self):
        self._spawn(self._loop)

    def unknown(self):
        self._raise()
        return self._unknown

    def _did(self):
        self._report(time.monotonic())

    def _loop(self):
        while not self._stop.wait(_PAUSE_S):
            try:
                self._once()
            except OutcomeUnknown:
                self._unknown += 1
            except LatchworkError as error:
                if isinstance(error, Closed):
                    return
            else:
                self._did()


class Counting(Looper):
    """Adds to a counter; and holds a lock, to add under its fence when asked."""

    def __init__(self, store, name, role, report):
        super().__init__(store, name, role, report)
        self._lock = Lock(store, f"{name}-lock", label=role)
        self._counter = Counter(store, name)
        self._fence = None
        self._get_ownership = None

    def own(self):
        """Hold the lock as soon as it can be had; see ``owned``."""
        self._spawn(self._own)

    def owned(self):
        return self._get_ownership

    def late(self):
        """Once more, under the fence of the lock."""
        self._once(self._fence)
        self._did()

    def total(self):
        return self._counter.value()

    def flaws(self):
        return []

    def stop(self):
        self._stop.set()
        self._lock.close()
        super().stop()

    def _own(self):
        try:
            self._fence = self._insist(lambda: self._lock.acquire(PATIENCE_S))
        except Closed:
            return
        self._get_ownership = True

    def _once(self, fence=None):
        self._counter.add(fence=fence, timeout_s=20.0)


class Numbering(Counting):
    """Takes ids, each with its record."""

    def __init__(self, store, name, role, report):
        super().__init__(store, name, role, report)
        self._sequence = Sequence(store, name)

    def total(self):
        return self._sequence.last()

    def flaws(self):
        records = [int(key) for key in self.store.children(f"{self.name}-records")]
        return gaps(records, self._sequence.last())

    def _once(self, fence=None):
        self._sequence.take(
            lambda number: [Create(f"{self.name}-records/{number:06d}", b"")], fence=fence, timeout_s=20.0
        )


class Limited(Looper):
    """Takes permits, and reports when each was ours."""

    def __init__(self, store, name, role, report):
        super().__init__(store, name, role, report)
        self._limiter = RateLimiter(store, name, permits=PERMITS, interval_s=INTERVAL_S, slack_s=SLACK_S)

    def close(self):
        self._stop.set()
        self._limiter.close()
        super().close()

    def _once(self):
        self._limiter.acquire(timeout_s=30.0)


class Meeting(Player):
    """Comes to a barrier, again and again when told."""

    def __init__(self, store, name, role, report):
        super().__init__(store, name, role, report)
        self._passed = []
        self._barrier = self._make()

    def go(self, step):
        """Begin a step; what it returns is added to ``passed``."""
        self._spawn(lambda: self._passed.append(self._insist(getattr(self._barrier, step))))

    def passed(self):
        self._raise()
        return self._passed

    def here(self):
        """Who has arrived, or is inside."""
        return self._barrier.arrived()

    def close(self):
        self._stop.set()
        self._barrier.close()
        self.stop()

    def _make(self):
        return Barrier(self.store, self.name, parties=2, member_id=self.role)


class Entering(Meeting):
    """Enters and leaves a double barrier."""

    def here(self):
        return self._barrier.members()

    def _make(self):
        return DoubleBarrier(self.store, self.name, parties=2, member_id=self.role)


class Membership(Player):
    """Is a member of a group, and keeps what it was told."""

    def __init__(self, store, name, role, report):
        super().__init__(store, name, role, report)
        self._group = Group(store, name, member_id=role)
        self._told = []
        self._group.on_view(lambda change: self._told.append(change.view))

    def begin(self):
        self._group.start()

    def view(self):
        """The members of the newest view that we know, each with its incarnation."""
        return {member.id: member.incarnation for member in self._group.view.members}

    def views(self):
        """Every view that we were told: its number, and who is in it."""
        return [[view.number, [[member.id, member.incarnation] for member in view.members]] for view in self._told]

    def close(self):
        self._stop.set()
        self._group.close()
        self.stop()


#: What uses primitives here: through twins, where an event loop drives them.
DRIVEN_MODULES = (sys.modules[__name__], owners)

PLAYERS = {
    **dict.fromkeys(OWNERS, Owner),
    "Counter": Counting,
    "Sequence": Numbering,
    "RateLimiter": Limited,
    "Barrier": Meeting,
    "DoubleBarrier": Entering,
    "Group": Membership,
}


def make(primitive, store, name, role, ttl_s, report):
    """A player of a primitive; it reports the moments at which it has worked."""
    if primitive in OWNERS:
        return Owner(store, name, role, report, primitive, ttl_s)
    return PLAYERS[primitive](store, name, role, report)


def serve(wire, url, primitive, name, role, ttl_s, driver="thread"):
    """Play in a process of its own, until it is killed."""
    logging.disable(logging.CRITICAL)
    if driver == "loop":
        through_loop.install(DRIVEN_MODULES, pytest.MonkeyPatch())
    with latchwork.connect(url) as store:
        wire.serve(make(primitive, store, name, role, ttl_s, wire.report))
