"""The work pools as the leader knows them: followed by a watch, read when a head has changed, each text kept once.

The watch leaves out values, which are as large as the pools. Chunks never change, so of a pool that changed only the
chunks that are not known yet are read, and items that stay keep their strings.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate, pairwise

from latchwork.jobs.stored import keys
from latchwork.jobs.stored.packed import PackedSet
from latchwork.jobs.stored.packed_store import read
from latchwork.store import Mirror, Store


class KnownPools:
    """All work pools of a cluster. One thread only; whoever made the mirror closes it."""

    def __init__(self, store: Store, mirror: Mirror) -> None:
        """Read nothing yet. The mirror is of the work pool; its values are not looked at."""
        self._store = store
        self._mirror = mirror
        self._known: dict[str, _Pool] = {}

    def read(self) -> dict[str, tuple[str, ...]]:
        """Job to all its items, sorted; the same tuple while its pool has not changed.

        Raises:
            LatchworkError: a pool that changed could not be read.
        """
        pools = {}
        for job in {key.split("/", 2)[1] for key in self._mirror if key.count("/") == 1}:
            head = self._mirror.get(keys.pool(job))
            if head is None:
                continue
            known = self._known.get(job)
            if known is None or known.version != head.version:
                known = self._known[job] = self._read(job, head.version, known or _NOTHING)
            pools[job] = known.items
        for job in self._known.keys() - pools.keys():
            del self._known[job]
        return pools

    def chunks(self) -> dict[str, list[str]]:
        """Job to the keys of its chunks, whether a head names them or not; of every job that has any key."""
        found: dict[str, list[str]] = {}
        for key in self._mirror:
            of_job = found.setdefault(key.split("/")[1], [])
            if key.count("/") > 1:
                of_job.append(key)
        return found

    def _read(self, job: str, version: object, before: _Pool) -> _Pool:
        stored = read(self._store, keys.pool(job), before.chunk)
        items = before.same(stored.packed)
        ends = [0, *accumulate(len(chunk.items) for chunk in stored.packed.chunks)]
        spans = dict(zip(stored.packed.names(), pairwise(ends), strict=True))
        return _Pool(version if stored.head is None else stored.head.version, items, spans)


@dataclass(frozen=True, slots=True)
class _Pool:
    """A pool at a version of its head: its sorted items, and where those of each chunk begin and end."""

    version: object
    items: tuple[str, ...]
    spans: dict[str, tuple[int, int]]

    def chunk(self, name: str) -> tuple[str, ...] | None:
        """The items of a chunk, None when it is none of ours."""
        span = self.spans.get(name)
        return None if span is None else self.items[slice(*span)]

    def same(self, packed: PackedSet) -> tuple[str, ...]:
        """The items of a set, made of our strings where they equal ours."""
        if not packed.chunks:
            return tuple(own_text(self.items, item) for item in packed.inline)
        found: list[str] = []
        for chunk in packed.chunks:
            is_known = chunk.name in self.spans
            found += chunk.items if is_known else [own_text(self.items, item) for item in chunk.items]
        return tuple(found)


def own_text(items: tuple[str, ...], item: str) -> str:
    """The very string of a sorted tuple that equals this one, if it has it, so that no text is kept twice."""
    at = bisect_left(items, item)
    return items[at] if at < len(items) and items[at] == item else item


_NOTHING = _Pool(None, (), {})
