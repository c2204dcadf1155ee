"""The log of a group's views: a head, steps between views, and a base to start from.

Keys:  <name>/views                      the head
       <name>/log/<log_id>/<number>        one step per view
       <name>/base/<log_id>/<number>-<i>   a whole view in chunks, for clients that have none

A client with the members of one view gets later views from the steps; a client without starts from the base. A step
contains only changes. Only ``ViewLog`` does I/O.
"""

from __future__ import annotations

import logging
import uuid
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter

from msgspec import Struct
from msgspec.structs import replace

from latchwork._base.decoding import Count, Decoder, Positive, Record, Whole, encode
from latchwork.errors import Conflict, LatchworkError
from latchwork.primitives.group.views import GroupMember, StoredMember, View, ViewChange, change
from latchwork.store.steps import ask
from latchwork.store.store import Store
from latchwork.types import Absent, At, Delete, Entry, Op, Put

_log = logging.getLogger(__name__)

#: A step has at most so many changes, and so many bytes; what is more goes into the next one.
MOST_CHANGES, MOST_STEP_BYTES = 500, 200_000
#: A head has its step inside, up to so many bytes: then a view costs its followers one event and no read.
MOST_INLINE_BYTES = 16_000
#: A base is written when the steps since the last one have this many changes, and this many for each member.
BASE_CHANGES, BASE_CHANGES_PER_MEMBER = 1_000, 2
_BASE_BYTES = 400_000
_by_id = attrgetter("id")
_OTHER = "use another name"

#: Keys read, or deleted, in one request.
_PAGE = 90
#: How often a reader starts again when records are cleaned up while it reads them.
_ATTEMPTS = 20


class LoggedMember(Struct, frozen=True, array_like=True):
    """A member in a step, stored as a JSON array.

    Attributes:
        token: The token of its write; a later state of the member has a greater one.
        created: As in ``GroupMember``.
        record: Its description.
    """

    token: Whole
    created: Whole
    record: StoredMember

    @classmethod
    def from_entry(cls, entry: Entry) -> LoggedMember:
        """Return the member that an entry describes."""
        return cls(entry.token, entry.created, StoredMember.from_entry(entry))

    def member(self, name: str) -> GroupMember:
        """Return the member with its ID."""
        return self.record.member(name, self.created)


class ViewChangeStep(Struct, frozen=True):
    """The change from one view to the next.

    Attributes:
        number: The number of the new view.
        written: New or changed members by ID.
        gone: IDs of members that have left.
    """

    number: Positive
    written: Mapping[str, LoggedMember]
    gone: Sequence[str]

    @property
    def changes(self) -> int:
        """The number of members that differ between the two views."""
        return len(self.written) + len(self.gone)


class LogHead(Record, frozen=True):
    """The position of the log, and what is kept of it.

    Attributes:
        log_id: Identifies all steps and bases of one log; after the head was deleted, the next log has another one.
        number: The number of the newest view.
        first: The number of the oldest kept step.
        base: The number of the view in the base; 0 is the empty group, which is not stored.
        chunks: The number of chunks of the base.
        changes: The number of changes in the steps after the base.
        step: The newest step, if it is small.
    """

    log_id: str
    number: Count = 0
    first: Count = 1
    base: Count = 0
    chunks: Count = 0
    changes: Count = 0
    step: ViewChangeStep | None = None

    @classmethod
    def from_entry(cls, entry: Entry) -> LogHead:
        """Decode the stored head of a log.

        Raises:
            BadRecord: It is not a log of views.
        """
        return _HEAD.decode_entry(entry)

    @classmethod
    def is_head(cls, value: bytes) -> bool:
        """Return whether a value is the stored head of a log."""
        return _HEAD.find(value) is not None


_HEAD: Decoder[LogHead] = Decoder(LogHead, "views", _OTHER)


_STEP: Decoder[ViewChangeStep] = Decoder(ViewChangeStep, "a step of views", _OTHER)


_BASE: Decoder[dict[str, LoggedMember]] = Decoder(dict[str, LoggedMember], "a base of views", _OTHER)


class ViewState:
    """The members of a view, and the changes that lead to the next view. For one thread at a time."""

    def __init__(self, number: int = 0, members: Mapping[str, LoggedMember] | None = None) -> None:
        self.number = number
        self._stored = dict(members or {})
        self._sorted = sorted((each.member(name) for name, each in self._stored.items()), key=_by_id)

    def __len__(self) -> int:
        return len(self._stored)

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def token(self, name: str) -> int | None:
        """Return the token of a member in this view, or None if it is not in the view."""
        stored = self._stored.get(name)
        return None if stored is None else stored.token

    def view(self) -> View:
        """Return the view."""
        return View(self.number, tuple(self._sorted))

    def apply(self, step: ViewChangeStep) -> ViewChange:
        """Advance to the next view by applying its changes, and return them."""
        old: dict[str, GroupMember] = {}
        for name in (*step.gone, *step.written):
            before = self._stored.pop(name, None)
            if before is not None:
                old[name] = before.member(name)
                del self._sorted[bisect_left(self._sorted, name, key=_by_id)]
        new = {name: stored.member(name) for name, stored in step.written.items()}
        self._stored.update(step.written)
        for member in new.values():
            insort(self._sorted, member, key=_by_id)
        self.number = step.number
        return change(self.view(), old, new)

    def step(self, found: Mapping[str, Entry | None]) -> ViewChangeStep | None:
        """Return the changes from this view to one with these members, or None if there are none.

        Changes that exceed the size of one step are left for the next one.

        Args:
            found: The current entry of each member, or None for a member that has left.
        """
        written: dict[str, LoggedMember] = {}
        gone: list[str] = []
        size = 0
        for name, entry in found.items():
            if entry is None:
                if name in self._stored:
                    gone.append(name)
            elif self.token(name) != entry.token:
                written[name] = LoggedMember.from_entry(entry)
                size += len(entry.value)
            if len(written) + len(gone) >= MOST_CHANGES or size >= MOST_STEP_BYTES:
                break
        return ViewChangeStep(self.number + 1, written, gone) if written or gone else None

    def chunks(self) -> list[bytes]:
        """Return the whole view in chunks that are small enough to be stored."""
        parts: list[bytes] = []
        part: dict[str, LoggedMember] = {}
        size = 0
        for name, stored in self._stored.items():
            part[name] = stored
            size += len(encode(stored))
            if size >= _BASE_BYTES:
                parts.append(encode(part))
                part, size = {}, 0
        return [*parts, encode(part)] if part else parts

    @classmethod
    def from_base(cls, head: LogHead, chunks: Iterable[Entry]) -> ViewState:
        """Restore the state of a view from its stored chunks.

        Raises:
            BadRecord: The stored chunks are not a base.
        """
        members: dict[str, LoggedMember] = {}
        for entry in chunks:
            members.update(_BASE.decode_entry(entry))
        return cls(head.base, members)


def read_step(entry: Entry) -> ViewChangeStep:
    """Decode stored changes between two views.

    Raises:
        BadRecord: It is not a step.
    """
    return _STEP.decode_entry(entry)


def write_step(step: ViewChangeStep) -> bytes:
    """Return the bytes to store for the changes between two views."""
    return encode(step)


class ViewLog:
    """Reads and writes the stored log of one group's views. Thread-safe."""

    def __init__(self, store: Store, name: str, what: str) -> None:
        self.head_key = f"{name}/views"
        self.members_key = f"{name}/members"
        self._store = store
        self._name = name
        self._what = what

    async def load(self, entry: Entry | None) -> tuple[Entry | None, ViewState]:
        """Read the newest view.

        Return the entry of the log's head, which may be newer than the given one, and the view.
        """
        for _ in range(_ATTEMPTS):
            if entry is None:
                return None, ViewState()
            head = LogHead.from_entry(entry)
            chunks = await self._read(f"base/{head.log_id}/{head.base:012d}-{part:04d}" for part in range(head.chunks))
            steps = await self.steps(head, head.base)
            if steps is not None and None not in chunks:
                state = ViewState.from_base(head, (chunk for chunk in chunks if chunk is not None))
                for step in steps:
                    state.apply(step)
                return entry, state
            entry = await ask(self._store.get, self.head_key)  # it was cleaned away while we read
        raise LatchworkError(f"the views of {self._what} are incomplete: remove the group, its members start again")

    async def steps(self, head: LogHead, after: int) -> list[ViewChangeStep] | None:
        """Return the changes from a view to the newest one, in order. None if the log no longer has all of them."""
        if after + 1 < head.first:
            return None
        last = [head.step] if head.step is not None and head.number > after else []
        found = await self._read(_step_key(head.log_id, n) for n in range(after + 1, head.number + 1 - len(last)))
        return None if None in found else [*(read_step(each) for each in found if each is not None), *last]

    async def append(
        self, at: Entry | None, state: ViewState, names: Iterable[str]
    ) -> tuple[Entry, LogHead, ViewChangeStep] | None:
        """Write the next view with the current state of these members.

        The members are read after the head of the log, which must be unchanged when the view is written. So no view is
        older than the one before it.

        Returns:
            The entry of the head, the head, and the changes. None if the newest view has the same members already.
        Raises:
            Conflict: Another client wrote a view first.
        """
        names = list(names)[:MOST_CHANGES]
        found = await ask(self._store.get_many, [f"{self.members_key}/{name}" for name in names])
        step = state.step(dict(zip(names, found, strict=True)))
        if step is None:
            return None
        before = LogHead(uuid.uuid4().hex[:12]) if at is None else LogHead.from_entry(at)
        ended = [] if at is not None else await self._log_prefixes()
        based = await self._write_base_if_due(before, state)
        data = write_step(step)
        inline = step if len(data) <= MOST_INLINE_BYTES else None
        head = replace(based, number=step.number, changes=based.changes + step.changes, step=inline)
        ops: list[Op] = [Put(self.head_key, head.to_bytes()), Put(self._key(_step_key(head.log_id, step.number)), data)]
        written = await ask(self._store.commit, [Absent(self.head_key) if at is None else At(at)], ops)
        try:
            await self._delete_logs(ended)
            if based is not before:
                await self._delete_old_steps(head)
        except LatchworkError as error:  # it goes with the next base, or the next log
            _log.info("%s: old views are not cleaned away yet: %s", self._what, error)
        return written.entries[0], head, step

    async def _write_base_if_due(self, head: LogHead, state: ViewState) -> LogHead:
        """Write the whole view if that is due. Return the head, which says where readers find it."""
        due = BASE_CHANGES + BASE_CHANGES_PER_MEMBER * len(state)
        if head.changes < due:
            return head
        chunks = state.chunks()
        for part, chunk in enumerate(chunks):
            await ask(self._store.put, self._key(f"base/{head.log_id}/{state.number:012d}-{part:04d}"), chunk)
        return replace(head, first=head.base + 1, base=state.number, chunks=len(chunks), changes=0)

    async def _delete_old_steps(self, head: LogHead) -> None:
        """Delete stored changes and whole views that are no longer needed."""
        for kind, least in (("log", head.first), ("base", head.base)):
            names = await ask(self._store.children, self._key(f"{kind}/{head.log_id}"))
            await self._delete(f"{kind}/{head.log_id}/{name}" for name in names if _parse_number(name) < least)

    async def remove(self) -> None:
        """Delete the log.

        Raises:
            Conflict: the group has members.
        """
        if await ask(self._store.list, self.members_key, limit=1):
            msg = f"{self._what} has members; it can be removed when they have left"
            raise Conflict(msg, failed=[Absent(self.members_key)])
        ended = await self._log_prefixes()
        await ask(self._store.delete, self.head_key)
        await self._delete_logs(ended)
        await ask(self._store.delete_tree, self._key("evicted"))

    async def _log_prefixes(self) -> list[str]:
        """Return the prefixes below which changes and whole views are stored."""
        kinds = [(kind, await ask(self._store.children, self._key(kind))) for kind in ("log", "base")]
        return [self._key(f"{kind}/{log_id}") for kind, log_ids in kinds for log_id in log_ids]

    async def _delete_logs(self, keys: Iterable[str]) -> None:
        for key in keys:
            await ask(self._store.delete_tree, key)

    async def _delete(self, keys: Iterable[str]) -> None:
        ops = [Delete(self._key(key)) for key in keys]
        for start in range(0, len(ops), _PAGE):
            await ask(self._store.commit, [], ops[start : start + _PAGE])

    async def _read(self, keys: Iterable[str]) -> Sequence[Entry | None]:
        wanted = [self._key(key) for key in keys]
        found: list[Entry | None] = []
        for start in range(0, len(wanted), _PAGE):
            found += await ask(self._store.get_many, wanted[start : start + _PAGE])
        return found

    def _key(self, below: str) -> str:
        return f"{self._name}/{below}"


def _step_key(log_id: str, number: int) -> str:
    return f"log/{log_id}/{number:012d}"


def _parse_number(name: str) -> int:
    """Return the number in the name of a stored step or chunk. Other names are not converted."""
    digits = name.partition("-")[0]
    return int(digits) if digits.isdecimal() else 1 << 62
