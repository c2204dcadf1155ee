"""Reading and writing the log of a group's views. What is in it is in ``log``.

Keys:  <name>/views                      the head
       <name>/log/<life>/<number>        one step for each view
       <name>/base/<life>/<number>-<i>   a whole view, in parts: where those who have none begin
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from latchwork.errors import Conflict, LatchworkError
from latchwork.primitives.group import log as logs
from latchwork.primitives.group.log import Head, State, Step, read_step, write_step
from latchwork.store.steps import ask
from latchwork.store.store import Store
from latchwork.types import Absent, At, Delete, Entry, Op, Put

_log = logging.getLogger(__name__)

#: Keys read, or deleted, in one request.
_PAGE = 90
#: So often a reader begins anew when what it reads is cleaned away meanwhile.
_ATTEMPTS = 20


class Journal:
    """The log of one group. Holds no state; safe to share between threads."""

    def __init__(self, store: Store, name: str, what: str) -> None:
        self.head_key = f"{name}/views"
        self.members_key = f"{name}/members"
        self._store = store
        self._name = name
        self._what = what

    async def load(self, entry: Entry | None) -> tuple[Entry | None, State]:
        """The newest view, from the base on; and the head that it belongs to, which may be newer than the one given."""
        for _ in range(_ATTEMPTS):
            if entry is None:
                return None, State()
            head = Head.of(entry)
            chunks = await self._read(f"base/{head.life}/{head.base:012d}-{part:04d}" for part in range(head.chunks))
            steps = await self.steps(head, head.base)
            if steps is not None and None not in chunks:
                state = State.of(head, (chunk for chunk in chunks if chunk is not None))
                for step in steps:
                    state.apply(step)
                return entry, state
            entry = await ask(self._store.get, self.head_key)  # it was cleaned away while we read
        raise LatchworkError(f"the views of {self._what} are incomplete: remove the group, its members begin anew")

    async def steps(self, head: Head, after: int) -> list[Step] | None:
        """The steps that lead from a view to the newest, in order; None when they are not all there any more."""
        if after + 1 < head.first:
            return None
        last = [head.step] if head.step is not None and head.number > after else []
        found = await self._read(_step_key(head.life, n) for n in range(after + 1, head.number + 1 - len(last)))
        return None if None in found else [*(read_step(each) for each in found if each is not None), *last]

    async def append(self, at: Entry | None, state: State, names: Iterable[str]) -> tuple[Entry, Head, Step] | None:
        """Write the next view, with these members as they are now; None if the newest view has them so already.

        The members are read after the head, which must still be as it was when the view is written: so no view is
        older than the one before it.

        Raises:
            Conflict: another was faster.
        """
        names = list(names)[: logs.MOST_CHANGES]
        found = await ask(self._store.get_many, [f"{self.members_key}/{name}" for name in names])
        step = state.step(dict(zip(names, found, strict=True)))
        if step is None:
            return None
        before = Head(uuid.uuid4().hex[:12]) if at is None else Head.of(at)
        ended = [] if at is not None else await self._lives()
        based = await self._based(before, state)
        data = write_step(step)
        inline = step if len(data) <= logs.MOST_INLINE_BYTES else None
        head = replace(based, number=step.number, changes=based.changes + step.changes, step=inline)
        ops: list[Op] = [Put(self.head_key, head.to_bytes()), Put(self._key(_step_key(head.life, step.number)), data)]
        written = await ask(self._store.commit, [Absent(self.head_key) if at is None else At(at)], ops)
        try:
            await self._delete_lives(ended)
            if based is not before:
                await self._sweep(head)
        except LatchworkError as error:  # it goes with the next base, or the next log
            _log.info("%s: old views are not cleaned away yet: %s", self._what, error)
        return written.entries[0], head, step

    async def _based(self, head: Head, state: State) -> Head:
        """The head with a base of this state, written if it is time; nobody reads that before the head names it."""
        due = logs.BASE_CHANGES + logs.BASE_CHANGES_PER_MEMBER * len(state)
        if head.changes < due:
            return head
        chunks = state.chunks()
        for part, chunk in enumerate(chunks):
            await ask(self._store.put, self._key(f"base/{head.life}/{state.number:012d}-{part:04d}"), chunk)
        return replace(head, first=head.base + 1, base=state.number, chunks=len(chunks), changes=0)

    async def _sweep(self, head: Head) -> None:
        """Delete the steps and bases that nobody needs any more."""
        for kind, least in (("log", head.first), ("base", head.base)):
            names = await ask(self._store.children, self._key(f"{kind}/{head.life}"))
            await self._delete(f"{kind}/{head.life}/{name}" for name in names if _number(name) < least)

    async def remove(self) -> None:
        """Delete the log.

        Raises:
            Conflict: the group has members.
        """
        if await ask(self._store.list, self.members_key, limit=1):
            msg = f"{self._what} has members; it can be removed when they have left"
            raise Conflict(msg, failed=[Absent(self.members_key)])
        ended = await self._lives()
        await ask(self._store.delete, self.head_key)
        await self._delete_lives(ended)
        await ask(self._store.delete_tree, self._key("evicted"))

    async def _lives(self) -> list[str]:
        """The keys above the steps and bases of each log. When the head is gone after this, they have all ended."""
        kinds = [(kind, await ask(self._store.children, self._key(kind))) for kind in ("log", "base")]
        return [self._key(f"{kind}/{life}") for kind, lives in kinds for life in lives]

    async def _delete_lives(self, keys: Iterable[str]) -> None:
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


def _step_key(life: str, number: int) -> str:
    return f"log/{life}/{number:012d}"


def _number(name: str) -> int:
    """The number in the name of a step, or of a part of a base; what is neither is kept."""
    digits = name.partition("-")[0]
    return int(digits) if digits.isdecimal() else 1 << 62
