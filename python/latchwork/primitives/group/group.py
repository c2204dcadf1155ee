"""A group of members with attributes, and numbered views, which all observers see in the same order.

Keys:  <name>/members/<id>   one per member, bound to its session: weight, labels, address, host, PID, incarnation
       <name>/evicted/<id>   evicted members, which do not join again by themselves
       views: see ``view_log``; which client writes them: see ``follower``

A member is in the group while its key exists. A process observes the views from the first call that needs one. Until
then it uses no thread and no watch. All members of one process share one observer.

docs/design/groups-and-queues.md has the races.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial

from latchwork._base.interrupts import mutex
from latchwork._base.validation import check_store
from latchwork.errors import Closed, Conflict, LatchworkError, MemberEvicted, NodeIdInUse, OwnershipLost, WaitTimeout
from latchwork.primitives.fair.tickets import FATAL
from latchwork.primitives.group.follower import SharedViews, SharedViewsRegistry
from latchwork.primitives.group.membership import Membership, evict
from latchwork.primitives.group.view_log import LogHead, ViewLog
from latchwork.primitives.group.views import GroupMember, Label, View, ViewChange
from latchwork.primitives.waiting.arguments import check_member, check_name
from latchwork.primitives.waiting.deadline import Deadline
from latchwork.primitives.waiting.ownership import Identity
from latchwork.primitives.waiting.participant import Participant, is_open
from latchwork.primitives.waiting.waiter import Waiter
from latchwork.store.backoff import Backoff
from latchwork.store.driving.background import Background
from latchwork.store.observers import add_listener, check_listener
from latchwork.store.session import Session
from latchwork.store.steps import ask, blocking, coroutine_of
from latchwork.store.store import Store
from latchwork.types import Check, Exists

Listener = Callable[[ViewChange], None]
#: Seconds for which ``close`` waits for listeners.
_DELIVERY_TIMEOUT_S = 5.0


def list_groups(store: Store, prefix: str = "") -> list[str]:
    """Return the names of all groups below a key prefix, sorted. Reads every key below the prefix.

    Groups without members are included if they have stored views.

    Args:
        store: The store.
        prefix: The key prefix; "" for all groups.
    """
    check_store(store, "list_groups")
    names = set()
    for entry in store.list(prefix, recursive=True):
        above, _, last = entry.key.rpartition("/")
        if last == "views" and LogHead.is_log_head(entry.value):
            names.add(above)
        elif entry.owner is not None and above.endswith("/members"):
            names.add(above.removesuffix("/members"))
    return sorted(names)


class Group(Participant):
    """A member of a group: ``with Group(store, "web", member_id="n1", weight=2.0) as group:`` joins without waiting.

    Without a member ID it only observes. After a lost session it joins again as a new incarnation with the store's next
    session. If ``session`` is given, it cannot, and ``wait`` raises ``SessionLost``. Construction does no I/O.
    Thread-safe.

    Args:
        store: The store, or a namespace of it. The caller closes it.
        name: The key of members and views.
        member_id: The ID of this member, which only one running member has. None only observes.
        weight: The capacity of this member, for dividing work.
        labels: Any text or bytes by name. With the address at most about 4,000 bytes.
        address: The address of this member.
        session: The session of the member, which the caller closes. None uses the store's primary session.
        id_wait_s: Seconds to wait until another member with our ID has ended, such as that of our process before a
            restart. None waits for one and a half TTLs of our session, 0 does not wait.
        checks: Further preconditions of the transaction that joins. If one fails, the group ends with ``Conflict``.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        *,
        member_id: str | None = None,
        weight: float = 1.0,
        labels: Mapping[str, Label] | None = None,
        address: str = "",
        session: Session | None = None,
        id_wait_s: float | None = None,
        checks: Sequence[Check] = (),
    ) -> None:
        check_store(store, "a group")
        self.name = check_name(name, "group")
        self.member_id = member_id if member_id is None else check_member(member_id, "member")
        what = f"group {name!r}"
        who = f"member {member_id!r}" if member_id is not None else "an observer"
        super().__init__(store, what, who, session, name=f"group-{member_id or 'observer'}")
        self._membership: Membership | None = None
        if member_id is not None:
            identity = Identity()
            member = GroupMember(member_id, weight, dict(labels or {}), address, identity.host, identity.pid)
            self._membership = Membership(store, name, member, what=what, checks=checks, id_wait_s=id_wait_s)
        self._view_log = ViewLog(store, name, what)
        self._members_key = self._view_log.members_key
        self._started = False
        self._has_left = False
        self._subscription_mutex = mutex()
        self._views: SharedViews | None = None
        self._unsubscribe: Callable[[], Background | None] | None = None
        self._ending_follower: Background | None = None
        self._view_error: LatchworkError | None = None
        self._remove_end_listener: Callable[[], None] = lambda: None
        self._view = View()
        self._has_view = False
        self._listeners: dict[object, Listener] = {}

    def __repr__(self) -> str:
        return f"<Group {self.name!r} {self.member_id!r} view {self._view.number}>"

    # Joining and leaving

    def start(self) -> None:
        """Join the group in a background thread, without waiting. Idempotent.

        Raises:
            Closed: The group was closed.
        """
        self._home.check()  # first: a child of a fork may find the lock held forever
        with self._changed.mutex:
            self._check_open()
            if not self._started:
                self._started = True
                self._start_thread_if_needed()
        if self._listeners:
            self._follow_views()

    @blocking
    async def close(self) -> None:
        """Leave the group. The other members soon see a view without this one. Thread-safe and idempotent.

        Waits up to 5 seconds for listeners. If the server cannot be reached, leaving continues in the background, and
        the end of our session completes it in any case.
        """
        if self._home.is_foreign:
            return
        with self._changed.mutex:
            self._leaving = self._closed = True
            if self._started and self._background is None and self._membership is not None and not self._has_left:
                self._start_thread()  # it leaves
            self._has_left = True  # last: a close that was interrupted before this has to be made again
            background, waiter = self._background, self._waiter
            self._changed.notify_all()
        self._wake.set()
        if waiter is not None:
            waiter.cancel()
        if background is not None and not background.is_running_here:
            await background
        with self._subscription_mutex:
            if self._unsubscribe is not None:
                self._ending_follower, self._unsubscribe = self._unsubscribe(), None
            follower = self._ending_follower  # a concurrent close waits for it too
        if follower is not None and not follower.is_running_here:
            await follower
        await self._announcer.wait_until_delivered(self._store.clock, _DELIVERY_TIMEOUT_S)
        self._announcer.close()
        self._dispatcher.close()

    @blocking
    async def wait_joined(self, timeout_s: float | None = None) -> None:
        """Wait until this member has joined: its key exists, and ``members`` includes it.

        Unlike ``wait``, this does not observe the views, so it costs nothing afterwards. Arguments and errors are those
        of ``wait``. Also raises ``LatchworkError`` if there is no member ID.
        """
        membership = self._get_membership()

        def poll() -> bool | None:
            self._raise_if_ended()
            return True if membership.has_joined else None

        timeout_text = f"{membership.member.id!r} has not joined {self._what} yet"
        await self._wait_until(poll, timeout_s, f"joining {self._what}", lambda: WaitTimeout(timeout_text))

    @blocking
    async def wait(self, timeout_s: float | None = None) -> View:
        """Wait until a view contains this member. Without a member ID, wait until there is a view.

        Args:
            timeout_s: Seconds to wait. None waits forever. Joining continues after the timeout.
        Returns:
            The view.
        Raises:
            NodeIdInUse: Another running member has our ID; a dead one would be gone by now.
            MemberEvicted: We were evicted.
            WaitTimeout: We are not in a view yet.
            SessionLost: The given session has ended.
            Conflict: A check of the transaction that joins failed.
            Closed: The group or its store was closed, or the group was never started.
            PermissionDenied: The account may not write here.
            LatchworkError: The call is inside a callback.
        """
        return await self._wait(self._is_in_view, timeout_s)

    @blocking
    async def wait_until(self, is_true: Callable[[View], bool], timeout_s: float | None = None) -> View:
        """Wait for a view for which ``is_true`` returns True, and return it. Some views may be skipped.

        The function is called in this thread and must not block. The other arguments and the errors are those of
        ``wait``.
        """
        return await self._wait(is_true, timeout_s)

    @blocking
    async def sync(self, timeout_s: float | None = None) -> View:
        """Wait for a view that is at least as new as the members at the time of the call, and return it.

        Arguments and errors are those of ``wait``.
        """
        self._home.check()
        deadline = Deadline(self._store.clock, timeout_s)
        head = await ask(self._store.get, self._view_log.head_key)
        # the writer of the view after the next one reads the members after this call has begun
        new_enough = 2 if head is None else LogHead.from_entry(head).number + 2
        backoff = Backoff()
        while True:
            members = await coroutine_of(self.members)()
            view = await self._wait(lambda _: True, deadline.left_s())
            if view.number >= new_enough or list(view.members) == members:
                return view
            with suppress(WaitTimeout):
                await self._wait(partial(_has_other_number, view.number), deadline.left_s(backoff.next_s()))
            if deadline.has_passed:
                raise WaitTimeout(
                    f"{self._what}: its views have not caught up with its members yet; the newest has {self._view.ids}"
                )

    async def _wait(self, is_true: Callable[[View], bool], timeout_s: float | None) -> View:
        self._follow_views()

        def poll() -> View | None:
            with self._changed.mutex:
                view, has_view = self._view, self._has_view
                self._raise_if_ended()
                if self._view_error is not None:
                    raise self._view_error
            return view if has_view and is_true(view) else None

        def build_timeout_error() -> WaitTimeout:
            return WaitTimeout(f"{self._what}: the view waited for did not come; it is at {self._view.ids}")

        return await self._wait_until(poll, timeout_s, f"a view of {self._what}", build_timeout_error)

    @blocking
    async def update(
        self, *, weight: float | None = None, labels: Mapping[str, Label] | None = None, address: str | None = None
    ) -> None:
        """Change the attributes of this member without joining again. None keeps a value.

        The other members soon see a view with the new attributes.

        Raises:
            SessionLost: We are joining again; nothing was changed.
            Unavailable: The server could not be reached; nothing was changed.
            OutcomeUnknown: The attributes may have changed.
            ValueError: They exceed about 4,000 bytes.
            LatchworkError: The group has no member ID.
            Closed: The group was closed.
        """
        self._check_open()
        await self._get_membership().update(weight, labels, address)

    # Members and views

    @property
    def view(self) -> View:
        """The newest view that this process knows. The first use starts to observe the views. Performs no I/O."""
        with suppress(LatchworkError):  # it is closed: the last one
            self._follow_views()
        return self._view

    @blocking
    async def members(self) -> list[GroupMember]:
        """Read the current members from the store, sorted by ID. This process need not be a member."""
        self._home.check()
        entries = await ask(self._store.list, self._members_key)
        return sorted(map(GroupMember.from_entry, entries), key=lambda member: member.id)

    def check(self, member_id: str) -> Check:
        """Return a precondition that a member is in the group, for transactions that depend on it. Performs no I/O.

        The precondition also holds if the member has left and joined again.
        """
        return Exists(f"{self._members_key}/{check_member(member_id, 'member')}")

    @blocking
    async def evict(self, member_id: str, why: str = "") -> bool:
        """Remove a member from the group, and keep it from joining again by itself.

        The member is not stopped: it notices with its next view, or when it joins again. Add ``check`` to writes that
        only a member may make.

        Args:
            member_id: ID of the member.
            why: The reason, for the evicted member.
        Returns:
            False if it is not a member.
        """
        self._home.check()
        return await evict(self._store, self.name, check_member(member_id, "member"), why)

    @blocking
    async def remove(self) -> None:
        """Delete the stored records of a group that has no members. Its views start again with the next member.

        Raises:
            Conflict: The group has members.
        """
        self._home.check()
        await self._view_log.remove()

    def on_view(self, fn: Listener) -> Callable[[], None]:
        """Call ``fn(change)`` in a callback thread for each new view, in order, and immediately for the current view.

        Listeners are called one at a time: a slow one delays the others.

        Returns:
            A function that removes the listener.
        """
        self._check_open()
        check_listener(fn)
        with self._changed.mutex:
            if self._has_view:
                self._announcer.enqueue(partial(fn, ViewChange(self._view, self._view.members, (), ())))
            cancel = add_listener(self._listeners, fn)
        self._announcer.start_delivery()
        self._follow_views()
        return cancel

    # Implementation

    def _get_membership(self) -> Membership:
        if self._membership is None:
            raise LatchworkError(f"{self._what} is only observed here; create it with a member_id")
        return self._membership

    def _follow_views(self) -> None:
        """Observe the views from now on. Idempotent."""
        self._home.check()
        with self._subscription_mutex:
            if self._unsubscribe is None and self._started and not self._closed:
                if self._views is None:
                    self._views = self._shared_views()
                self._unsubscribe = self._views.subscribe(self._apply_changes, self._record_view_error)

    def _shared_views(self) -> SharedViews:
        """Return the views that all members of this process with the same session share."""
        if self._given is not None:
            return SharedViews(self._store, self.name, self._given)
        return self._store.shared(SharedViewsRegistry, SharedViewsRegistry).get_views(self.name)

    def _start_thread_if_needed(self) -> None:
        """Start the background thread, which joins the group if this member is not in it. The caller holds the
        mutex.
        """
        is_idle = self._background is None and not self._leaving and self._error is None
        if is_idle and self._started and self._membership is not None:
            self._start_thread()

    def _on_session_end(self) -> None:
        with self._changed.mutex:
            self._start_thread_if_needed()

    async def _participate(self, backoff: Backoff) -> None:
        """Join the group if this member has not joined. The background thread ends afterwards, until the session ends.

        Args:
            backoff: Delays between retries. Reset after the member has joined.
        """
        session = await self._get_open_session()
        session.ensure_usable()
        with closing(Waiter(self._store, session)) as waiter:
            with self._changed.mutex:
                self._waiter = waiter
            if not self._leaving:
                await self._get_membership().join(waiter)
            backoff.reset()
            with self._changed.mutex:
                self._changed.notify_all()
            self._remove_end_listener()
            self._remove_end_listener = session.on_end(self._on_session_end)

    def _may_end_thread(self) -> bool:
        """Return whether the background thread may end, which it may after this member has joined."""
        with self._changed.mutex:
            if self._leaving or not self._get_membership().has_joined:
                return False
            self._background = None
            return True

    def _apply_changes(self, changes: list[ViewChange]) -> None:
        """Store the newest view, queue the changes for the listeners, and join again if this member was deleted."""
        with self._changed.mutex:
            is_first, self._has_view = not self._has_view, True
            self._view = changes[-1].view
            self._view_error = None
            listeners = list(self._listeners.values())
            self._announcer.enqueue(*(partial(fn, change) for change in changes for fn in listeners))
            self._changed.notify_all()
            if self._membership is not None and self._membership.is_missing(changes, is_first=is_first):
                self._start_thread_if_needed()
        self._announcer.start_delivery()

    def _record_view_error(self, error: LatchworkError) -> None:
        with self._changed.mutex:
            self._view_error = error
            self._changed.notify_all()

    async def _depart(self) -> None:
        self._remove_end_listener()
        if self._membership is not None:
            await self._membership.leave()

    def _is_in_view(self, view: View) -> bool:
        if self._membership is None:
            return True
        member = self._membership.member
        found = view.member(member.id)
        return found is not None and found.incarnation == member.incarnation

    # Errors

    def _raise_if_ended(self) -> None:
        if self._error is not None:
            raise self._error
        if self._leaving or not self._started:
            raise Closed(f"{self._what} was closed or never started; start it before waiting, or create another one")

    def _is_final(self, error: LatchworkError) -> bool:
        if isinstance(error, (*FATAL, NodeIdInUse, MemberEvicted, Conflict)):
            return not isinstance(error, Closed) or self._given is not None or not is_open(self._store)
        return isinstance(error, OwnershipLost) and self._given is not None and self._given.remaining_s() <= 0.0


def _has_other_number(number: int, view: View) -> bool:
    return view.number != number
