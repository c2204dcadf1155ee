"""The stored log of a group's views: a head, steps from one view to the next, and a base to start from.

Keys:  <name>/views                        the head: the number of the newest view, and what the log contains
       <name>/log/<log_id>-<number>        one step per view: the changes from the view before
       <name>/base/<log_id>-<number>-<i>   a whole view in chunks, for clients that have none

A client that has the members of one view gets later views from the steps. A client that has none starts from the base.
A step contains only changes. Only ``ViewLog`` does I/O.
"""

from __future__ import annotations

import logging
import uuid
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import attrgetter

from msgspec import Struct
from msgspec.structs import replace

from latchwork._base.decoding import Count, Decoder, Positive, Record, Whole, encode
from latchwork.errors import Conflict, LatchworkError
from latchwork.primitives.group.views import GroupMember, StoredMember, View, ViewChange, build_change
from latchwork.store.steps import ask
from latchwork.store.store import Store
from latchwork.types import Absent, At, Create, Delete, Entry, Op, Put

_log = logging.getLogger(__name__)

#: Maximum number of changes, and of bytes, in a step. Further changes go into the next one.
MAX_STEP_CHANGES, MAX_STEP_BYTES = 500, 200_000
#: Maximum size of a step that is also stored in the head. Then a view costs its followers one event and no read.
MAX_INLINE_BYTES = 16_000
#: A base is written when the steps since the last one have this many changes, and this many for each member.
BASE_CHANGES, BASE_CHANGES_PER_MEMBER = 1_000, 2
_BASE_BYTES = 400_000
_by_id = attrgetter("id")
_ADVICE = "use another name"

#: Keys read, or deleted, in one request.
_PAGE = 90
#: Number of times a reader starts again when records are deleted while it reads them.
_ATTEMPTS = 20


class LoggedMember(Struct, frozen=True, array_like=True):
    """A member in a stored step, encoded as a JSON array.

    Attributes:
        token: The token of its write. A later state of the member has a greater one.
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

    def to_member(self, name: str) -> GroupMember:
        """Return the group member with this ID that the record describes."""
        return self.record.to_member(name, self.created)


class ViewChangeStep(Struct, frozen=True):
    """A stored step: the changes from one view to the next.

    Attributes:
        number: The number of the new view.
        written: New or changed members by ID.
        left: IDs of members that have left.
    """

    number: Positive
    written: Mapping[str, LoggedMember]
    left: Sequence[str]

    @property
    def changes(self) -> int:
        """The number of members that differ between the two views."""
        return len(self.written) + len(self.left)


class LogHead(Record, frozen=True):
    """The stored head of the log: the number of the newest view, and what the log contains.

    Attributes:
        log_id: Identifies the steps and the base of one log. If the head is deleted, the next log has another ID.
        number: The number of the newest view.
        first: The number of the oldest step in the log.
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
            BadRecord: The value is another kind of record.
        """
        return _HEAD.decode_entry(entry)

    @classmethod
    def is_log_head(cls, value: bytes) -> bool:
        """Return whether these stored bytes are the head of a log of views, which names the newest view."""
        return _HEAD.find(value) is not None


_HEAD: Decoder[LogHead] = Decoder(LogHead, "views", _ADVICE)


_STEP: Decoder[ViewChangeStep] = Decoder(ViewChangeStep, "a step of views", _ADVICE)


_BASE: Decoder[dict[str, LoggedMember]] = Decoder(dict[str, LoggedMember], "a base of views", _ADVICE)


class ViewState:
    """The members of a view, which is advanced step by step to later views. Single-threaded.

    Args:
        number: The number of the view.
        members: The members by ID.
    """

    def __init__(self, number: int = 0, members: Mapping[str, LoggedMember] | None = None) -> None:
        self.number = number
        self._stored = dict(members or {})
        self._sorted: list[GroupMember] | None = None  # built when a view is needed

    def __len__(self) -> int:
        return len(self._stored)

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def get_token(self, name: str) -> int | None:
        """Return the token of a member's last write in this view. None if the member is not in the view."""
        stored = self._stored.get(name)
        return None if stored is None else stored.token

    def to_view(self) -> View:
        """Return the view as an immutable object."""
        return View(self.number, tuple(self._sort_members()))

    def _sort_members(self) -> list[GroupMember]:
        if self._sorted is None:
            self._sorted = [stored.to_member(name) for name, stored in sorted(self._stored.items())]
        return self._sorted

    def skip_step(self, step: ViewChangeStep) -> None:
        """Advance to the next view by applying a step, without building the members or the changes."""
        for name in step.left:
            self._stored.pop(name, None)
        self._stored.update(step.written)
        self.number, self._sorted = step.number, None

    def apply_step(self, step: ViewChangeStep) -> ViewChange:
        """Advance to the next view by applying a step, which contains the changes from this view. Return the
        changes.
        """
        members = self._sort_members()
        old: dict[str, GroupMember] = {}
        for name in (*step.left, *step.written):
            if self._stored.pop(name, None) is not None:
                old[name] = members.pop(bisect_left(members, name, key=_by_id))
        new = {name: stored.to_member(name) for name, stored in step.written.items()}
        self._stored.update(step.written)
        for member in new.values():
            insort(members, member, key=_by_id)
        self.number = step.number
        return build_change(self.to_view(), old, new)

    def build_step(self, members: Mapping[str, Entry | None]) -> ViewChangeStep | None:
        """Build the step from this view to the current members. If it would be too large, it contains only a part of
        the changes.

        Args:
            members: The current entry of each member by ID, or None for a member that has left.
        Returns:
            The step. None if there are no changes.
        """
        written: dict[str, LoggedMember] = {}
        left: list[str] = []
        size = 0
        for name, entry in members.items():
            if entry is None:
                if name in self._stored:
                    left.append(name)
            elif self.get_token(name) != entry.token:
                written[name] = LoggedMember.from_entry(entry)
                size += len(entry.value)
            if len(written) + len(left) >= MAX_STEP_CHANGES or size >= MAX_STEP_BYTES:
                break
        return ViewChangeStep(self.number + 1, written, left) if written or left else None

    def encode_chunks(self) -> list[bytes]:
        """Encode the whole view in chunks that are small enough to be stored.

        The chunks of a view are always the same, so two writers may store them at once.
        """
        parts: list[bytes] = []
        part: dict[str, LoggedMember] = {}
        size = 0
        for name, stored in sorted(self._stored.items()):
            part[name] = stored
            size += len(encode(stored))
            if size >= _BASE_BYTES:
                parts.append(encode(part))
                part, size = {}, 0
        return [*parts, encode(part)] if part else parts

    @classmethod
    def from_base(cls, head: LogHead, chunks: Iterable[Entry]) -> ViewState:
        """Restore a view from the chunks in which a whole view is stored.

        Args:
            head: The head of the log.
            chunks: The stored chunks of the view, in order.

        Raises:
            BadRecord: A chunk is invalid.
        """
        members: dict[str, LoggedMember] = {}
        for entry in chunks:
            members.update(_BASE.decode_entry(entry))
        return cls(head.base, members)


def decode_step(entry: Entry) -> ViewChangeStep:
    """Decode a stored step, which contains the changes from one view to the next.

    Raises:
        BadRecord: The value is another kind of record.
    """
    return _STEP.decode_entry(entry)


def encode_step(step: ViewChangeStep) -> bytes:
    """Return the bytes to store for a step, which contains the changes from one view to the next."""
    return encode(step)


class ViewLog:
    """Reads and writes the stored log of one group's views. Thread-safe.

    Args:
        store: The store.
        name: The name of the group.
        what: Name of the group, for messages.
    """

    def __init__(self, store: Store, name: str, what: str) -> None:
        self.head_key = f"{name}/views"
        self.members_key = f"{name}/members"
        self._store = store
        self._name = name
        self._what = what

    async def load(self, entry: Entry | None) -> tuple[Entry | None, ViewState]:
        """Read the newest view.

        Args:
            entry: The entry of the log's head. None if there is no log.
        Returns:
            The entry of the log's head, which may be newer than the given one, and the view.
        """
        for _ in range(_ATTEMPTS):
            if entry is None:
                return None, ViewState()
            head = LogHead.from_entry(entry)
            chunks = await self._read_entries(_chunk_key(head.log_id, head.base, part) for part in range(head.chunks))
            steps = await self.read_steps(head, head.base)
            if steps is not None and None not in chunks:
                state = ViewState.from_base(head, (chunk for chunk in chunks if chunk is not None))
                for step in steps:
                    state.skip_step(step)
                return entry, state
            entry = await ask(self._store.get, self.head_key)  # some records were deleted during the read
        raise LatchworkError(f"the views of {self._what} are incomplete: remove the group, its members start again")

    async def read_steps(self, head: LogHead, after: int) -> list[ViewChangeStep] | None:
        """Return the steps from a view to the newest one, in order. None if the log does not contain all of them any
        more.

        Args:
            head: The head of the log.
            after: The number of the view.
        """
        if after + 1 < head.first:
            return None
        last = [head.step] if head.step is not None and head.number > after else []
        found = await self._read_entries(
            _step_key(head.log_id, n) for n in range(after + 1, head.number + 1 - len(last))
        )
        return None if None in found else [*(decode_step(each) for each in found if each is not None), *last]

    async def append(
        self, head_entry: Entry | None, state: ViewState, members: Mapping[str, Entry | None]
    ) -> tuple[Entry, LogHead, ViewChangeStep] | None:
        """Write the next view with the current state of these members.

        No view is older than the one before it. Each member was read after the head of the log was written, and the
        head must be unchanged when the view is written. An entry with a greater token than the head was read after it.
        All other members are read here.

        Args:
            head_entry: The entry of the log's head. None if there is no log.
            state: The newest view.
            members: Members that may have changed: the last known entry by ID, or None for a member that has left.
                Without a log, they were read after the log was found missing.
        Returns:
            The entry of the new head, the head, and the step. None if the newest view has the same members already.
        Raises:
            Conflict: Another client wrote a view first.
        """
        current = dict(islice(members.items(), MAX_STEP_CHANGES))
        older = [
            name
            for name, entry in current.items()
            if entry is None or (head_entry is not None and entry.token <= head_entry.token)
        ]
        if older:
            read = await ask(self._store.get_many, [f"{self.members_key}/{name}" for name in older])
            current.update(zip(older, read, strict=True))
        step = state.build_step(current)
        if step is None:
            return None
        before = LogHead(uuid.uuid4().hex[:12]) if head_entry is None else LogHead.from_entry(head_entry)
        rebased = await self._write_base_if_due(before, state)
        data = encode_step(step)
        inline = step if len(data) <= MAX_INLINE_BYTES else None
        head = replace(rebased, number=step.number, changes=rebased.changes + step.changes, step=inline)
        value, step_key = head.to_bytes(), self._key(_step_key(head.log_id, step.number))
        write: Op = Create(self.head_key, value) if head_entry is None else Put(self.head_key, value)
        checks = [] if head_entry is None else [At(head_entry)]
        done = await ask(self._store.commit, checks, [write, Create(step_key, data)])
        return done.entries[0], head, step

    async def remove_old_after(self, before: Entry | None, head: LogHead) -> None:
        """Delete stored records that are no longer needed after a new head was written, if there can be any.

        Args:
            before: The entry of the head before. None if there was no log.
            head: The new head.
        """
        if before is not None and LogHead.from_entry(before).base == head.base:
            return
        try:
            await self._remove_old()
        except LatchworkError as error:  # it goes with the next base, or the next log
            _log.info("%s: old views are not removed yet: %s", self._what, error)

    async def _write_base_if_due(self, head: LogHead, state: ViewState) -> LogHead:
        """Write the whole view as a new base if there were many changes since the last one.

        Args:
            head: The head of the log.
            state: The newest view.
        Returns:
            The head that refers to the new base, or the given head.
        """
        if head.changes < BASE_CHANGES + BASE_CHANGES_PER_MEMBER * len(state):
            return head
        chunks = state.encode_chunks()
        for part, chunk in enumerate(chunks):
            await ask(self._store.put, self._key(_chunk_key(head.log_id, state.number, part)), chunk)
        return replace(head, first=head.base + 1, base=state.number, chunks=len(chunks), changes=0)

    async def _remove_old(self) -> None:
        """Delete steps and bases that the log no longer needs, and those of logs that have ended.

        The head is read after the records are listed. A log that it does not name has ended by then, because no record
        of a log is written before its head.
        """
        listed = {kind: await ask(self._store.children, self._key(kind)) for kind in ("log", "base")}
        entry = await ask(self._store.get, self.head_key)
        head = None if entry is None else LogHead.from_entry(entry)
        oldest_needed = {"log": 0 if head is None else head.first, "base": 0 if head is None else head.base}
        old = [
            Delete(self._key(f"{kind}/{name}"))
            for kind, names in listed.items()
            for name in names
            if head is None or _get_number(name, head.log_id) < oldest_needed[kind]
        ]
        for start in range(0, len(old), _PAGE):
            await ask(self._store.commit, [], old[start : start + _PAGE])

    async def remove(self) -> None:
        """Delete the log.

        Raises:
            Conflict: The group has members.
        """
        if await ask(self._store.list, self.members_key, limit=1):
            msg = f"{self._what} still has members; remove it after they have left"
            raise Conflict(msg, failed=[Absent(self.members_key)])
        await ask(self._store.delete, self.head_key)
        await self._remove_old()
        await ask(self._store.delete_tree, self._key("evicted"))

    async def _read_entries(self, keys: Iterable[str]) -> Sequence[Entry | None]:
        """Return the entries of keys of the log, in order. None for a key that does not exist."""
        full_keys = [self._key(key) for key in keys]
        found: list[Entry | None] = []
        for start in range(0, len(full_keys), _PAGE):
            found += await ask(self._store.get_many, full_keys[start : start + _PAGE])
        return found

    def _key(self, below: str) -> str:
        return f"{self._name}/{below}"


def _step_key(log_id: str, number: int) -> str:
    return f"log/{log_id}-{number:012d}"


def _chunk_key(log_id: str, number: int, part: int) -> str:
    return f"base/{log_id}-{number:012d}-{part:04d}"


def _get_number(name: str, log_id: str) -> int:
    """Return the number of the view in the name of a step or chunk of a log. -1 for the name of another log."""
    digits = name.removeprefix(f"{log_id}-").partition("-")[0]
    return int(digits) if name.startswith(f"{log_id}-") and digits.isdecimal() else -1
