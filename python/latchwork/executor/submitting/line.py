"""One incarnation of a submitter: a session, a key that says it is there, and what brings its results."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from latchwork._base.decoding import encode
from latchwork.clock import Clock
from latchwork.errors import Conflict, LatchworkError, OutcomeUnknown, SessionLost, Unavailable
from latchwork.executor.futures import TaskTicket
from latchwork.executor.items import TaskItem
from latchwork.executor.keys import ANY, Keys, new_sid, shelf_of
from latchwork.executor.placing.pickers import Picker
from latchwork.executor.placing.placing import Placing, is_for_all
from latchwork.executor.submitting.collecting import Collector, Ends
from latchwork.primitives import WorkQueue
from latchwork.store import Backoff, Session, Store
from latchwork.store.driving.bell import Bell
from latchwork.store.steps import Pause, ask, steps_of
from latchwork.tasks import BlobRef, Blobs, Payloads
from latchwork.types import At, Entry, Op, Put

#: A larger payload is kept beside its item.
INLINE_BYTES = 3000


@dataclass(slots=True)
class Line:
    """One incarnation of a submitter.

    Attributes:
        sid: its id; no other has it, ever.
        session: as long as which it is there.
        sub: the key that says so.
        collector: what brings its results.
    """

    sid: str
    session: Session
    sub: Entry
    collector: Collector

    def lost_error(self, executor: str) -> SessionLost:
        """What the futures of its tasks raise when the session is lost."""
        return SessionLost(
            f"the session of submitter {self.sid} of executor {executor!r} has ended, and nodes drop its tasks: "
            "submit again, give a longer session_ttl_s, or on_session_lost='resubmit'"
        )


@dataclass(frozen=True, slots=True)
class Wanted:
    """How a task is to be placed.

    Attributes:
        picker: who is asked first.
        copies: how many.
    """

    picker: Picker
    copies: int = 1


async def open_line(store: Store, keys: Keys, payloads: Payloads, tasks: Ends, *, ttl_s: float, label: str) -> Line:
    """A new session, and its key; the results are not collected yet.

    Raises:
        Unavailable, OutcomeUnknown: the server could not be reached.
    """
    session = await ask(store.open_session, ttl_s)
    sid = new_sid()
    said = encode({"label": label, "host": socket.gethostname(), "pid": os.getpid()})
    try:
        sub = await ask(store.put, keys.sub(sid), said, session=session)
    except BaseException:
        session.close()
        raise
    return Line(sid, session, sub, Collector(store, keys, sid, payloads, tasks))


def named(error: Exception, ticket: TaskTicket) -> Exception:
    """An error of ours about storing a task, with its name; any other as it is."""
    kind = type(error)
    if not isinstance(error, LatchworkError) or kind.__init__ is not Exception.__init__ or ticket.what in str(error):
        return error
    made = kind(f"task {ticket.id or ticket.number} of {ticket.what} is not stored: {error}")
    made.__cause__ = error
    return made


async def write_anew(store: Store, line: Line) -> None:
    """Write the key that says we are there once more: what checks its version does not land any more.

    Raises:
        SessionLost: it is gone.
        Unavailable, OutcomeUnknown: the server could not be reached until the session ended.
    """
    backoff = Backoff()
    while True:
        now = await ask(store.get, line.sub.key)
        if now is None or now.owner != line.session.id:
            raise SessionLost(f"submitter {line.sid} is not there any more, its key {line.sub.key!r} is gone")
        try:
            done = await ask(store.commit, [At(now)], [Put(now.key, now.value, line.session)])
        except Conflict:
            continue
        except (OutcomeUnknown, Unavailable):
            if line.session.remaining_s() <= 0.0:
                raise
            await Pause(store.clock, line.session.lost, backoff.next_s())
        else:
            line.sub = done.entries[0]
            return


async def until(bell: Bell, clock: Clock, is_so: Callable[[], bool], timeout_s: float | None) -> bool:
    """Wait until something is so, which is asked with the bell's mutex held; False when the time is over."""
    ends_at = None if timeout_s is None else clock.now() + timeout_s
    while True:
        with bell.mutex:
            if is_so():
                return True
            rings = bell.rings
        left_s = None if ends_at is None else max(0.0, ends_at - clock.now())
        if left_s == 0.0:
            return False
        await bell.rung(rings, clock, left_s)


class Preparing:
    """Makes of a task what is stored: with its place, and its payload beside it if that is large. Safe to share.

    Args:
        store: the store.
        keys: the executor's keys.
        backlog: its tasks.
        placing: where they go.
    """

    def __init__(self, store: Store, keys: Keys, backlog: WorkQueue, placing: Placing) -> None:
        self._backlog = backlog
        self._placing = placing
        self._blobs = Blobs(store, keys.data)
        self._written: dict[int, BlobRef] = {}
        self._shelf = ""

    async def ready(self, item: TaskItem, number: int, line: Line, wanted: Wanted, at_ms: int) -> TaskItem:
        """The item as it is stored.

        Raises:
            NoSuchMember: the member that alone may run it is not there.
        """
        shelf = shelf_of(item.priority, at_ms, line.sid)
        shelf = self._shelf = self._shelf if self._shelf == shelf else shelf  # tickets keep it: one text for all
        lanes = (ANY,) if is_for_all(item, wanted.picker, wanted.copies) else ()
        ready = replace(item, sid=line.sid, number=number, shelf=shelf, lanes=lanes)
        if not lanes:
            ready = replace(ready, lanes=await self._placing.place(ready, wanted.picker, wanted.copies))
        return await self._fitting(ready)

    async def _fitting(self, item: TaskItem) -> TaskItem:
        """The item with a payload that is too large for it beside it: written once, before what names it."""
        if len(item.payload) <= INLINE_BYTES:
            return item
        ref = self._written.get(item.number)
        if ref is None or ref.owner != item.sid:
            ref = await steps_of(self._blobs.write)(item.sid, item.payload)
            self._written[item.number] = ref
        return replace(item, payload=b"", blob=ref)

    def creations(self, item: TaskItem) -> list[Op]:
        """The writes that store all copies of it; one of a shelf may be there twice."""
        return copies_ops(self._backlog, item)

    def forget(self, number: int) -> None:
        """The task is over."""
        self._written.pop(number, None)


def copies_ops(backlog: WorkQueue, item: TaskItem) -> list[Op]:
    """The writes that put all copies of a task into their lanes."""
    stored = item.to_bytes()
    pairs = zip(item.lanes, item.item_ids, strict=True)
    return [op for lane, each in pairs for op in backlog.put_ops(lane, item.shelf, {each: stored})]
