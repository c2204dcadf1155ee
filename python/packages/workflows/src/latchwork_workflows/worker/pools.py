"""Slots of pools: at most ``size`` tasks of a pool run at a time, in all workers together. Claims create the slots.

    Keys:  <name>/slots/<pool>/size    the size, a number as text
           <name>/slots/<pool>/<i>     one running task, created by its claim, bound to the worker's session

The tasks of a pool wait in a separate partition (``<worker group>~<pool>``), which is skipped while the pool is full. A
task that also belongs to a project's pool needs a slot of each, and waits in ``<worker group>~<pool>~=<project>``.
Every worker watches ``slots/`` and checks again when a slot is deleted. That watch merges states. So a worker checks
again soon if it was refused a slot that its mirror does not have, and also after each slot that it releases. Tasks that
run beyond a smaller size are not stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from latchwork.clock import Clock
from latchwork.spi import mutex
from latchwork.store import Mirror, Session, Store
from latchwork.types import At, Change, Check, Create, Delete, Entry, Op
from latchwork_workflows.keys import PROJECT, Keys, list_pool_keys

#: Seconds for which a slot that we picked, and may not have got, is not picked again.
_WANTED_S = 2.0
_SIZE = "size"


class PoolSlots:
    """The slots of all pools from the view of one worker. Thread-safe.

    Args:
        store: The store.
        keys: The keys.
        groups: Worker groups whose tasks it claims.
        poke: Called when there may be a task to claim. Must return quickly.
        session: Session that the slots are bound to.
    """

    def __init__(
        self, store: Store, keys: Keys, groups: Sequence[str], poke: Callable[[], object], session: Session
    ) -> None:
        self._store = store
        self._keys = keys
        self._groups = tuple(groups)
        self._poke = poke
        self._session = session
        self._clock: Clock = store.clock
        self._lock = mutex()
        self._picked: dict[str, tuple[Sequence[tuple[str, int]], float | None]] = {}
        self._slots = store.mirror(keys.slots, wait=False)
        self._indexes: dict[str, Mirror] = {}
        self._is_closed = False

    def start_watching(self, timeout_s: float) -> None:
        """Start to watch the slots of pools in the store."""
        self._slots.ready(timeout_s)
        self._slots.on_change(self._slots_changed)

    def close(self) -> None:
        """Stop watching the slots. Idempotent."""
        with self._lock:
            self._is_closed = True
            mirrors = [self._slots, *self._indexes.values()]
        for each in mirrors:
            each.close()

    def _slots_changed(self, batch: Iterable[Change]) -> None:
        if any(change.entry is None or change.key.endswith(f"/{_SIZE}") for change in batch):
            self._watch_partitions()
            self._poke()

    def _watch_partitions(self) -> None:
        """Watch the work queue partitions whose tasks need slots. The worker loop watches the other partitions."""
        for partition in self._all_partitions():
            with self._lock:
                if self._is_closed or partition in self._indexes or "~" not in partition:
                    continue
                mirror = self._indexes[partition] = self._store.mirror(self._index(partition), wait=False, values=False)
            mirror.on_change(self._partition_changed)
        with self._lock:
            plain = [each for each in self._groups if self._indexes and each not in self._indexes]
            if not self._is_closed:
                for partition in plain:  # to know which partition has the first item
                    self._indexes[partition] = self._store.mirror(self._index(partition), wait=False, values=False)

    def _partition_changed(self, _: Iterable[Change]) -> None:
        self._poke()

    def _index(self, partition: str) -> str:
        return f"{self._keys.backlog}/partitions/{partition}/sort_keys"

    def _all_partitions(self) -> list[str]:
        names = [key.split("/")[-2] for key in self._slots if key.endswith(f"/{_SIZE}")]
        projects = [each for each in names if each.startswith(PROJECT)]
        pools = [each for each in names if not each.startswith(PROJECT)]
        needed = [*((each,) for each in names), *((each, project) for each in pools for project in projects)]
        return [*self._groups, *("~".join((group, *each)) for group in self._groups for each in needed)]

    def list_available_partitions(self) -> Sequence[str]:
        """Return the work queue partitions from which tasks can be claimed, ordered by their first item.

        Partitions of pools without a free slot are left out.
        """
        partitions = self._all_partitions()
        if len(partitions) == len(self._groups):
            return self._groups
        is_open = {
            name: bool(self._free(name))
            for name in {each for partition in partitions for each in list_pool_keys(partition)}
        }
        open_ = [partition for partition in partitions if all(is_open[name] for name in list_pool_keys(partition))]
        return sorted(open_, key=self._first_sort_key)  # stable: equal partitions keep their order

    def _first_sort_key(self, partition: str) -> str:
        mirror = self._indexes.get(partition)
        first = next(iter(mirror), "") if mirror is not None else ""
        return first.rpartition("/")[2] or "~"

    def _size(self, name: str) -> tuple[int, Entry] | None:
        with suppress(KeyError, ValueError):
            entry = self._slots[self._keys.pool_size_key(name)]
            return int(entry.value), entry
        return None

    def _used(self, name: str) -> set[int]:
        prefix = f"{self._keys.slots}/{name}/"
        found = {int(each) for key in self._slots if (each := key.removeprefix(prefix)).isdigit()}
        now = self._clock.now()
        with self._lock:
            self._picked = {x: each for x, each in self._picked.items() if each[1] is None or each[1] > now}
            return found | {number for slots, _ in self._picked.values() for pool, number in slots if pool == name}

    def _free(self, name: str) -> list[int]:
        size = self._size(name)
        if size is None:
            return []
        used = self._used(name)
        return [] if len(used) >= size[0] else [each for each in range(size[0]) if each not in used]

    # A claim

    def reserve_slots(self, partition: str, attempt_key: str) -> tuple[Sequence[Check], Sequence[Op]] | None:
        """Choose free pool slots for an attempt.

        Args:
            partition: The work queue partition of the attempt.
            attempt_key: The key of the attempt.
        Returns:
            The preconditions and writes that take the slots, or None if a pool has no free slot.
        """
        names = list_pool_keys(partition)
        if not names:
            return (), ()
        with self._lock:
            self._picked.pop(attempt_key, None)
        checks: list[Check] = []
        slots: list[tuple[str, int]] = []
        for name in names:
            free, size = self._free(name), self._size(name)
            if not free or size is None:
                return None
            checks.append(At(size[1]))
            slots.append((name, free[0]))
        with self._lock:
            self._picked[attempt_key] = (slots, self._clock.now() + _WANTED_S)
        return checks, [Create(self._keys.slot_key(*each), attempt_key.encode(), self._session) for each in slots]

    def confirm_slots(self, attempt_key: str) -> None:
        """Record that the attempt was claimed. It keeps its slots until ``forget_slots``."""
        with self._lock:
            if attempt_key in self._picked:
                self._picked[attempt_key] = (self._picked[attempt_key][0], None)

    def forget_slots(self, attempt_key: str) -> bool:
        """Record that an attempt was not claimed or has ended.

        Returns:
            Whether slots had been chosen for it.
        """
        with self._lock:
            return bool(self._picked.pop(attempt_key, ((), None))[0])

    def build_release_ops(self, attempt_key: str) -> Sequence[Op]:
        """Return the writes that free the slots of an attempt."""
        with self._lock:
            found = self._picked.get(attempt_key)
        return [] if found is None else [Delete(self._keys.slot_key(*each)) for each in found[0]]
