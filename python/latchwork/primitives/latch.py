"""Leader election: candidates queue, and the first in the queue leads until it leaves or its session ends.

Keys:   <name>/t<number>  one ticket per candidate, numbered in order of arrival, dies with the candidate's session;
                          its node id and a nonce as JSON
Leader: the live ticket with the lowest number. Each other candidate watches exactly the ticket before its own.

docs/design/0006 has the states, and which fence closes which race.
"""

from __future__ import annotations

import json
import logging
import threading
import uuid
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from latchwork.errors import (
    Closed,
    ForkedProcess,
    InvalidKey,
    LatchworkError,
    NotLeader,
    OutcomeUnknown,
    PermissionDenied,
    SessionLost,
    WaitTimeout,
)
from latchwork.primitives.common import Announcer, Backoff, Identity, Patience, check_name
from latchwork.store.dispatch import Dispatcher
from latchwork.types import Exists, Fence

if TYPE_CHECKING:
    from latchwork.store.session import Session
    from latchwork.store.store import Store
    from latchwork.store.watch import Batch, Watch
    from latchwork.types import Entry

_log = logging.getLogger(__name__)

LatchState = Literal["new", "joining", "waiting", "leading", "ended"]

_TICKET = "t"
#: These do not go away by trying again.
_FATAL = (Closed, ForkedProcess, InvalidKey, PermissionDenied)
#: Seconds that leaving waits for ``on_revoked`` listeners before it lets the next candidate lead.
_REVOKE_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Candidate:
    """One place in the queue.

    Attributes:
        node_id: as the candidate gave it; empty when its ticket cannot be read.
        ticket: the key of its ticket.
        token: the fencing token it has, or will have, as leader.
        session_id: the session its ticket lives by.
    """

    node_id: str
    ticket: str
    token: int
    session_id: str | None


@dataclass(frozen=True, slots=True)
class _Place:
    """Our own ticket, and the session it lives by."""

    ticket: Entry
    session: Session
    fence: Fence


class LeaderLatch:
    """A candidate for leadership: ``with`` joins the queue without waiting, and leaves it at the end.

    Construction does no I/O. Safe to share between threads. After its session is lost it joins again by itself, at the
    end of the queue, with the store's next session; with a session handed in it cannot, and ``wait`` says so.

    ``is_leader`` turns False by our own clock before any other candidate can lead. It does not stop a paused process
    from writing late: pass ``fence`` to every write that matters.

    Args:
        store: the store, or a namespace of it. It stays the caller's.
        name: the key below which the tickets are.
        node_id: who we are, for those who list the candidates.
        session: the session to live by; it stays the caller's. None takes the store's primary session.
    """

    def __init__(self, store: Store, name: str, *, node_id: str, session: Session | None = None) -> None:
        self.name = check_name(name, "latch")
        self.node_id = node_id
        self._store = store
        self._clock = store.clock
        self._given = session
        self._identity = Identity()
        self._changed = threading.Condition()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._state: LatchState = "new"
        self._place: _Place | None = None
        self._led: _Place | None = None
        self._session: Session | None = None
        self._nonces: set[str] = set()
        self._has_strays = False
        self._error: LatchworkError | None = None
        self._leaving = False
        self._dispatcher = Dispatcher(f"latch-{node_id}", size=1)
        self._announcer = Announcer(self._dispatcher, f"latch {name!r}")
        self._elected_listeners: list[Callable[[], None]] = []
        self._revoked_listeners: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"<LeaderLatch {self.name!r} {self.node_id!r} {self.state}>"

    def __enter__(self) -> LeaderLatch:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Life

    def start(self) -> None:
        """Join the queue, in a thread of its own; does not wait for it. Twice is fine.

        Raises:
            Closed: the latch was closed.
        """
        with self._changed:
            if self._leaving:
                raise Closed(f"latch {self.name!r} was closed; make another one")
            if self._thread is not None:
                return
            self._state = "joining"
            self._thread = threading.Thread(target=self._run, name=f"latchwork-latch-{self.node_id}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Leave the queue: ``is_leader`` is False at once, ``on_revoked`` is called, then the next candidate leads.

        Returns once our ticket is gone, or will be because its session is. Listeners that take longer than 5 seconds
        are not waited for. From any thread; twice is fine.
        """
        with self._changed:
            self._leaving = True
            thread = self._thread
            if thread is None:
                self._state = "ended"
        self._revoke("it leaves")
        self._wake.set()
        if thread is not None and thread is not threading.current_thread() and not self._announcer.is_mine:
            thread.join()
        if thread is None:
            self._dispatcher.close()

    # Being leader

    @property
    def is_leader(self) -> bool:
        """True while we lead for certain: turns False by our own clock before another can lead. Does no I/O."""
        led = self._led
        return led is not None and led.session.remaining_s() > 0.0

    @property
    def fence(self) -> Fence:
        """The check for every write that only the leader may do; its ``token`` grows with each new leader.

        Raises:
            NotLeader: we do not lead now.
        """
        led = self._led
        if led is None or not self.is_leader:
            raise NotLeader(
                f"node {self.node_id!r} does not lead {self.name!r} now; wait for it, or leave it to another"
            )
        return led.fence

    def remaining_s(self) -> float:
        """Seconds we lead for certain if no further renewal of the session succeeds; 0 when we do not lead."""
        led = self._led
        return led.session.remaining_s() if led is not None else 0.0

    def wait(self, timeout_s: float | None = None) -> Fence:
        """Wait until we lead.

        Args:
            timeout_s: seconds to wait; None waits for ever. We stay in the queue when the time is over.
        Returns:
            The fence of our leadership.
        Raises:
            WaitTimeout: somebody else still leads.
            SessionLost: the session that was handed in has ended; make another latch with another session.
            Closed: the latch or its store was closed, or the latch was never started.
            PermissionDenied: the account may not write here.
        """
        patience = Patience(self._clock, timeout_s)
        with self._changed:
            while True:
                led = self._led
                if led is not None and led.session.remaining_s() > 0.0:
                    return led.fence
                self._refuse_ended()
                if patience.is_over:
                    raise WaitTimeout(f"node {self.node_id!r} does not lead {self.name!r} after {timeout_s:.3g} s")
                self._clock.wait_condition(self._changed, patience.left_s())

    def on_elected(self, fn: Callable[[], None]) -> None:
        """Call ``fn()`` each time we become leader, in a callback thread; at once if we lead already.

        Elected and revoked alternate, in order and one at a time: a slow listener delays those after it.
        """
        with self._changed:
            self._elected_listeners.append(fn)
            if self._led is not None:
                self._announcer.post(fn)

    def on_revoked(self, fn: Callable[[], None]) -> None:
        """Call ``fn()`` each time we cease to be leader, by leaving or by loss, in a callback thread."""
        with self._changed:
            self._revoked_listeners.append(fn)

    # Looking around

    @property
    def state(self) -> LatchState:
        """``new``, ``joining``, ``waiting``, ``leading`` or ``ended``, as this candidate last knew."""
        return self._state

    def candidates(self) -> list[Candidate]:
        """All candidates in the order in which they will lead, the leader first; may be empty. Needs no joining."""
        return [_candidate(entry) for entry in self._tickets()]

    def leader(self) -> Candidate | None:
        """Who leads now as the store knows it, or None. Needs no joining."""
        return next(iter(self.candidates()), None)

    # The queue, inside

    def _run(self) -> None:
        backoff = Backoff()
        while not self._leaving:
            try:
                self._follow(self._join(), backoff)
            except LatchworkError as error:
                if self._place is None or self._is_final(error):  # else it is only trouble on the way to the server
                    self._revoke(str(error))
                if self._is_final(error):
                    self._fail(error)
                    break
                _log.info("latch %r: node %r tries again: %s", self.name, self.node_id, error)
            except Exception:  # a candidate must not vanish silently, whatever went wrong once
                _log.exception("latch %r: node %r failed unexpectedly and tries again", self.name, self.node_id)
            self._pause(backoff.next_s())
        self._revoke("it leaves")
        self._announcer.settle(self._clock, _REVOKE_TIMEOUT_S)
        self._leave()
        with self._changed:
            self._state = "ended"
            self._changed.notify_all()
        self._dispatcher.close()

    def _join(self) -> _Place:
        """Our place in the queue: the one we have, or a new one at its end."""
        session = self._given if self._given is not None else self._store.session
        place = self._place
        if place is not None and place.session is session:
            return place
        self._enter("joining")
        self._place = None
        self._session = session
        nonce = uuid.uuid4().hex
        self._nonces.add(nonce)
        ticket = self._create(nonce, session)
        fence = self._store.fence(ticket.created, Exists(ticket.key), session.fence)
        self._place = _Place(ticket, session, fence)
        ref = weakref.ref(self)
        session.on_lost(lambda: _session_lost(ref, session))
        _log.info("latch %r: node %r queues with ticket %s", self.name, self.node_id, ticket.key)
        return self._place

    def _create(self, nonce: str, session: Session) -> Entry:
        body = {"node": self.node_id, "nonce": nonce, "host": self._identity.host, "pid": self._identity.pid}
        try:
            value = json.dumps(body).encode()
            return self._store.create(f"{self.name}/{_TICKET}", value, session=session, sequential=True)
        except OutcomeUnknown:
            self._has_strays = True
            for entry in self._tickets():  # if this fails too, the nonce is known and the ticket is found later
                if _nonce(entry) == nonce and entry.owner == session.id:
                    return entry
            raise

    def _follow(self, place: _Place, backoff: Backoff) -> None:
        """Hold a place until it is lost; always look at the queue as it is now."""
        while not self._leaving:
            self._refuse_lost(place)
            ahead = self._ahead(place)
            backoff.reset()
            if ahead is None:
                self._lead(place)
            else:
                self._enter("waiting")
            self._watch(place, ahead.key if ahead is not None else place.ticket.key)

    def _ahead(self, place: _Place) -> Entry | None:
        """The ticket right before ours, None if ours is the first.

        Raises:
            SessionLost: our ticket is gone.
        """
        tickets = self._tickets()
        keys = [entry.key for entry in tickets]
        for entry in tickets:  # a ticket of ours that landed late would lead with nobody behind it
            if entry.key != place.ticket.key and _nonce(entry) in self._nonces:
                self._store.delete(entry.key)
        if place.ticket.key not in keys:
            self._place = None
            raise SessionLost(f"ticket {place.ticket.key!r} of node {self.node_id!r} is gone")
        before = [entry for entry in tickets if entry.key < place.ticket.key and _nonce(entry) not in self._nonces]
        return before[-1] if before else None

    def _watch(self, place: _Place, key: str) -> None:
        """Wait until this ticket is gone, our session is lost, or we leave."""
        gone = threading.Event()
        watch: Watch = self._store.watch(key)

        def look(batch: Batch) -> None:
            if not batch or batch[-1].entry is None:
                gone.set()
                self._wake.set()

        watch.subscribe(look, lambda _error: look(()))
        try:
            while not (gone.is_set() or self._leaving):
                self._refuse_lost(place)
                self._clock.wait(self._wake, place.session.remaining_s() + 0.001)
                self._wake.clear()
        finally:
            watch.close()

    def _refuse_lost(self, place: _Place) -> None:
        if place.session.remaining_s() <= 0.0:
            self._place = None
            raise SessionLost(f"the session of node {self.node_id!r} in latch {self.name!r} has ended; use another one")

    def _leave(self) -> None:
        """Delete every ticket of ours; trouble ends at the latest when our session does."""
        backoff = Backoff()
        session = self._session
        while session is not None and session.remaining_s() > 0.0:
            try:
                self._delete_tickets()
            except _FATAL as error:
                _log.warning("latch %r: our ticket stays until its session ends: %s", self.name, error)
                return
            except LatchworkError as error:
                _log.info("latch %r: our ticket is not deleted yet: %s", self.name, error)
                self._clock.wait(session.lost, backoff.next_s())
            else:
                return

    def _delete_tickets(self) -> None:
        if self._place is not None:
            self._store.delete(self._place.ticket.key)
        if self._has_strays:  # a join of unknown outcome may have left a ticket that only its nonce tells
            for entry in self._tickets():
                if _nonce(entry) in self._nonces:
                    self._store.delete(entry.key)

    def _tickets(self) -> list[Entry]:
        return [entry for entry in self._store.list(self.name) if entry.key.rpartition("/")[2].startswith(_TICKET)]

    # What we are, inside

    def _lead(self, place: _Place) -> None:
        with self._changed:
            if self._led is place or self._leaving or place.session.remaining_s() <= 0.0:
                return
            self._led = place
            self._state = "leading"
            self._announcer.post(*self._elected_listeners)
            self._changed.notify_all()
        _log.info("latch %r: node %r leads with token %d", self.name, self.node_id, place.fence.token)

    def _notice_loss(self, session: Session) -> None:
        led = self._led
        if led is not None and led.session is session:
            self._revoke("its session was lost")
        self._wake.set()

    def _revoke(self, why: str) -> None:
        with self._changed:
            if self._led is None:
                return
            self._led = None
            self._announcer.post(*self._revoked_listeners)
            self._changed.notify_all()
        _log.info("latch %r: node %r leads no more: %s", self.name, self.node_id, why)

    def _enter(self, state: LatchState) -> None:
        with self._changed:
            self._state = state
            self._changed.notify_all()

    def _is_final(self, error: LatchworkError) -> bool:
        given = self._given
        return isinstance(error, _FATAL) or (given is not None and given.remaining_s() <= 0.0)

    def _fail(self, error: LatchworkError) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()
        if not self._leaving:
            _log.warning("latch %r: node %r is no candidate any more: %s", self.name, self.node_id, error)

    def _refuse_ended(self) -> None:
        if self._error is not None:
            raise self._error
        if self._leaving or self._thread is None:
            raise Closed(f"latch {self.name!r} is not in the queue; start it before waiting, and do not close it")

    def _pause(self, seconds: float) -> None:
        if not self._leaving:
            self._clock.wait(self._wake, seconds)
            self._wake.clear()


def _session_lost(ref: weakref.ref[LeaderLatch], session: Session) -> None:
    """Called by the session; the latch's own thread may be waiting for a server that does not answer."""
    latch = ref()
    if latch is not None:
        latch._notice_loss(session)  # noqa: SLF001 - the same module, without keeping the latch alive


def _body(entry: Entry) -> dict[str, object]:
    try:
        found = json.loads(entry.value)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _nonce(entry: Entry) -> str:
    return str(_body(entry).get("nonce", ""))


def _candidate(entry: Entry) -> Candidate:
    return Candidate(str(_body(entry).get("node", "")), entry.key, entry.created, entry.owner)
