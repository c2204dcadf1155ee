"""A group of members with attributes, and numbered views of it that all members see in the same order.

Keys:  <name>/members/<id>   one per member, dies with its session: weight, labels, address, host, pid, incarnation
       <name>/views          the newest view and the steps that led to it; as JSON
View:  a member that sees other members than those of the newest view writes the next one, on condition that the views
       are as it read them before it read the members. The oldest member does so at once, the others one after another,
       each a little later.

docs/design/0011 has the races.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from functools import partial

from latchwork.errors import Closed, Conflict, LatchworkError, NodeIdInUse, OwnershipLost, SessionLost, WaitTimeout
from latchwork.primitives.fair.tickets import FATAL, read_body
from latchwork.primitives.group.membership import Membership
from latchwork.primitives.group.views import GroupMember, Seen, View, ViewChange, ViewLog, delay_s, difference
from latchwork.primitives.waiting.common import Identity, check_name
from latchwork.primitives.waiting.participant import Participant
from latchwork.primitives.waiting.waiter import Waiter
from latchwork.primitives.waiting.waits import check_member
from latchwork.store.backoff import Backoff
from latchwork.store.observers import check_listener, listen
from latchwork.store.session import Session
from latchwork.store.steps import ask, driven, steps_of
from latchwork.store.store import Store
from latchwork.store.watch import Watch
from latchwork.types import Absent, At, Entry, Put

_log = logging.getLogger(__name__)

Listener = Callable[[ViewChange], None]
_SETTLE_S = 5.0
#: Our watch may lag behind what was read; seconds until we look again.
_LAG_S = 0.25


class Group(Participant):
    """A member of a group: ``with Group(store, "web", member_id="n1", weight=2.0) as group:`` joins without waiting.

    Without a member id it only looks on. After its session is lost it joins again by itself, as a new incarnation, with
    the store's next session; with a session handed in it cannot, and ``wait`` says so. Construction does no I/O. Safe
    to share between threads.

    Args:
        store: the store, or a namespace of it. It stays the caller's.
        name: the key below which members and views are.
        member_id: who we are; one live member has it.
        weight: how much we can bear, for those who divide work.
        labels: whatever we say of ourselves, as text.
        address: where we are reached.
        session: the session to live by; it stays the caller's. None takes the store's primary session.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        *,
        member_id: str | None = None,
        weight: float = 1.0,
        labels: Mapping[str, str] | None = None,
        address: str = "",
        session: Session | None = None,
    ) -> None:
        self.name = check_name(name, "group")
        self.member_id = member_id if member_id is None else check_member(member_id, "member")
        what = f"group {name!r}"
        who = f"member {member_id!r}" if member_id is not None else "an onlooker"
        super().__init__(store, what, who, session, name=f"group-{member_id or 'onlooker'}")
        self._members_key = f"{name}/members"
        self._views_key = f"{name}/views"
        self._membership: Membership | None = None
        if member_id is not None:
            identity = Identity()
            me = GroupMember(member_id, weight, dict(labels or {}), address, identity.host, identity.pid)
            self._membership = Membership(store, self._members_key, what, me)
        self._watch: Watch | None = None
        self._view = View()
        self._seen = False
        self._life = 0
        self._listeners: dict[object, Listener] = {}

    def __repr__(self) -> str:
        return f"<Group {self.name!r} {self.member_id!r} view {self._view.number}>"

    # Joining and leaving

    def start(self) -> None:
        """Join, and follow the views, in a thread of its own; does not wait for it. Twice is fine.

        Raises:
            Closed: the group was closed.
        """
        self._home.check()  # first: a child of a fork may find the lock held for ever
        with self._changed.mutex:
            self._refuse_closed()
            if self._background is None:
                self._begin()

    @driven
    async def close(self) -> None:
        """Leave: the others see a view without us soon. From any thread; twice is fine.

        If the server cannot be reached, that goes on in the background, and our session ends it at the latest.
        Listeners that take longer than 5 seconds are not waited for.
        """
        if self._home.is_foreign:
            return
        with self._changed.mutex:
            self._leaving = self._closed = True
            background, watch, waiter = self._background, self._watch, self._waiter
            self._changed.ring()
        self._wake.set()
        if waiter is not None:
            waiter.call_off()
        if watch is not None:
            watch.close()
        if background is not None and not background.is_mine:
            await background
        await self._announcer.settle(self._store.clock, _SETTLE_S)
        self._dispatcher.close()

    @driven
    async def wait(self, timeout_s: float | None = None) -> View:
        """Wait until we are in a view, or, looking on, until there is one.

        Args:
            timeout_s: seconds to wait; None waits for ever. Joining goes on when the time is over.
        Raises:
            NodeIdInUse: another live member has our id; a dead one would be gone by the time this is raised.
            WaitTimeout: we are not in a view yet.
            SessionLost: the session that was handed in has ended.
            Closed: the group or its store was closed, or it was never started.
            PermissionDenied: the account may not write here.
            LatchworkError: this is a callback.
        """
        return await self._wait(self._is_in, timeout_s)

    @driven
    async def wait_until(self, is_true: Callable[[View], bool], timeout_s: float | None = None) -> View:
        """Wait for a view that satisfies; it is asked with every new view, in this thread, and must not block.

        Views that pass while it is not asked are not asked about. Arguments and errors as for ``wait``.
        """
        return await self._wait(is_true, timeout_s)

    async def _wait(self, is_true: Callable[[View], bool], timeout_s: float | None) -> View:
        def look() -> View | None:
            with self._changed.mutex:
                view, seen = self._view, self._seen
                self._refuse_ended()
            return view if seen and is_true(view) else None

        def late() -> WaitTimeout:
            return WaitTimeout(f"{self._what}: the view waited for did not come; it is at {self._view.ids}")

        return await self._until(look, timeout_s, f"a view of {self._what}", late)

    @driven
    async def update(
        self, *, weight: float | None = None, labels: Mapping[str, str] | None = None, address: str | None = None
    ) -> None:
        """Change our attributes without rejoining: the others see a view with them soon. None leaves one as it is.

        Raises:
            SessionLost: we are joining again; the new attributes are used then.
            Unavailable, OutcomeUnknown: the server could not be reached; they are used when we next join, or write.
            LatchworkError: we only look on.
            Closed: the group was closed.
        """
        self._refuse_closed()
        if self._membership is None:
            raise LatchworkError(f"{self._what} is only looked on here; make it with a member_id")
        await self._membership.update(weight, labels, address)

    # Looking around

    @property
    def view(self) -> View:
        """The newest view that we have seen. Does no I/O."""
        return self._view

    @driven
    async def members(self) -> list[GroupMember]:
        """The members of the newest view, sorted by id, from the store. Needs no joining."""
        self._home.check()
        return list(ViewLog.of(await ask(self._store.get, self._views_key)).view().members)

    def on_view(self, fn: Listener) -> Callable[[], None]:
        """Call ``fn(change)`` for each view in order, in a callback thread; at once with the view that we have.

        Listeners are called one at a time: a slow one delays the others. Returns what ends it.
        """
        self._refuse_closed()
        check_listener(fn)
        with self._changed.mutex:
            if self._seen:
                self._announcer.post(partial(fn, ViewChange(self._view, self._view.members, (), ())))
            return listen(self._listeners, fn)

    # Inside

    async def _stay(self, backoff: Backoff) -> None:
        """Be a member, and follow the views, until the session ends or we leave."""
        session = await self._session_for_use()
        session.ensure_usable()
        with closing(Waiter(self._store, session)) as waiter, self._store.watch(self.name) as watch:
            cancel = session.on_end(watch.close)
            with self._changed.mutex:
                self._watch, self._waiter = watch, waiter
            try:
                if self._membership is not None and not self._leaving:
                    await self._membership.enter(waiter)
                backoff.reset()
                await self._follow(watch)
            except Closed:
                if not self._leaving:
                    session.ensure_usable()
                    raise
            finally:
                cancel()

    async def _follow(self, watch: Watch) -> None:
        seen = Seen(self._members_key, self._views_key)
        pause_s: float | None = None
        since: float | None = None
        while not self._leaving:
            with suppress(WaitTimeout):
                seen.fold(await steps_of(watch.next)(pause_s))
            self._tell(seen)
            await self._refuse_deleted(seen)
            now = self._store.clock.now()
            if seen.log.next(seen.live()) is None:
                pause_s = since = None
                continue
            since = now if since is None else since
            due = since + delay_s(seen.rank(self.member_id))
            if now >= due:
                await self._propose()
                since, due = now, now + _LAG_S
            pause_s = max(0.0, due - now)

    async def _refuse_deleted(self, seen: Seen) -> None:
        """Raise ``SessionLost`` if somebody deleted our key, and not just our watch is behind."""
        if (
            self._membership is not None
            and self.member_id not in seen.entries
            and not await self._membership.is_there()
        ):
            raise SessionLost(f"member {self.member_id!r} of {self._what} was deleted; it joins again")

    async def _propose(self) -> None:
        """Write the next view, if the members are not those of the newest one."""
        entry = await ask(self._store.get, self._views_key)
        live = {_id_of(each): read_body(each.value) for each in await ask(self._store.list, self._members_key)}
        log = ViewLog.of(entry).next(live)
        if log is None:
            return
        check = Absent(self._views_key) if entry is None else At(entry)
        try:
            await ask(self._store.commit, [check], [Put(self._views_key, log.to_bytes())])
        except Conflict:
            return  # somebody else was faster: the watch will show it
        _log.info("%s: view %d has %d members", self._what, log.number, len(live))

    def _tell(self, seen: Seen) -> None:
        log = seen.log
        with self._changed.mutex:
            if not self._seen:
                changes = [ViewChange(log.view(), log.view().members, (), ())]
            elif seen.life > self._life:  # somebody deleted the views, and they were begun anew
                changes = [difference(self._view, log.view())]
            else:
                changes = log.since(self._view)
            if not changes or log.number == 0:
                return
            self._seen, self._life = True, seen.life
            self._view = changes[-1].view
            listeners = list(self._listeners.values())
            self._announcer.post(*(partial(fn, change) for change in changes for fn in listeners))
            self._changed.ring()

    async def _depart(self) -> None:
        if self._membership is None or not await self._membership.leave():
            return
        try:
            await self._propose()
        except LatchworkError as error:
            _log.info("%s: the view without %r is left to others: %s", self._what, self.member_id, error)

    def _is_in(self, view: View) -> bool:
        if self._membership is None:
            return True
        me = self._membership.me
        return any(member.id == me.id and member.incarnation == me.incarnation for member in view.members)

    # Ends

    def _is_final(self, error: LatchworkError) -> bool:
        if isinstance(error, (*FATAL, NodeIdInUse)):
            return not isinstance(error, Closed) or self._given is not None or not self._is_open()
        return isinstance(error, OwnershipLost) and self._given is not None and self._given.remaining_s() <= 0.0

    def _is_open(self) -> bool:
        try:
            self._store.session  # noqa: B018 - refuses when the store was closed
        except LatchworkError as error:
            return not isinstance(error, Closed)
        return True


def _id_of(entry: Entry) -> str:
    return entry.key.rpartition("/")[2]
