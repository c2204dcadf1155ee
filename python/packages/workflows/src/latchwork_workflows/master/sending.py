"""What a shard's master does in the store: tidies results, puts items, takes them back, cancels. All under its fence.

Each step is one transaction that changes nothing when it was done before, so what is not certain is done once more.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from latchwork.errors import Conflict, InvalidKey, LatchworkError, OutcomeUnknown, Unavailable
from latchwork.primitives import QueueItem, WorkQueue
from latchwork.store import Store
from latchwork.types import Absent, Check, Delete, Exists, Fence, Op, Put
from latchwork_workflows.errors import NotOwner
from latchwork_workflows.exchange import cancel_of
from latchwork_workflows.keys import Item, Keys

_log = logging.getLogger(__name__)

#: So many operations in one transaction, of the hundred that a store takes.
_MOST_OPS = 90
_MOST_BYTES = 700_000
#: The size of a project's slots that is no limit.
MOST_TASKS = 10_000


@dataclass(frozen=True, slots=True)
class Place:
    """Where an attempt's item is.

    Attributes:
        lane: of the backlog.
        shelf: of the lane.
        item: its name.
    """

    lane: str
    shelf: str
    item: Item

    @classmethod
    def of(cls, queue_key: str, task: int, n: int, shard: int) -> Place:
        """Of what the database has as ``lane/shelf/priority``."""
        lane, shelf, priority = queue_key.split("/")
        return cls(lane, shelf, Item(task, n, shard, int(priority)))


@dataclass(frozen=True, slots=True)
class Parcel:
    """An item that is to be put.

    Attributes:
        place: where.
        value: of the item.
        body: the second part of a large spec.
    """

    place: Place
    value: bytes
    body: bytes | None = None


class Sending:
    """The store of one shard's owner. For one thread.

    Args:
        store: the store of the process, for as long as the shard's lock is ours.
        keys: of the installation.
        shard: which.
        fence: proof that we own it.
    """

    def __init__(self, store: Store, keys: Keys, shard: int, fence: Fence) -> None:
        self._store = store
        self.keys = keys
        self._shard = shard
        self._fence = fence
        self._backlog = WorkQueue(store, keys.backlog)

    def close(self) -> None:
        """Nothing is stored by it."""
        self._backlog.close()

    def check_owner(self) -> None:
        """Let an owner pass.

        Raises:
            NotOwner: another has the shard, or nobody.
        """
        try:
            self._store.commit([self._fence], [])
        except Conflict as error:
            raise NotOwner(f"shard {self._shard} has another owner in the store") from error

    def key(self, place: Place) -> str:
        """The key of an item."""
        return self._backlog.key(place.lane, place.shelf, place.item.id)

    def poke(self, shards: Iterable[int]) -> None:
        """Have the owners of other shards look for commands; they would in some seconds, so nothing is lost."""
        for each in shards:
            try:
                self._store.put(self.keys.poke(each), b"")
            except LatchworkError:
                _log.debug("shard %d was not poked", each, exc_info=True)

    # Results

    def tidy(self, ended: Sequence[str], strange: Sequence[str], seq: int) -> None:
        """Results that are in the database are deleted, with what was cancelled of them.

        Args:
            ended: attempts.
            strange: keys that nobody of ours wrote.
            seq: the transaction that wrote them: a database that has not made it is from before.
        """
        ops = [Delete(key) for x in ended for key in (self.keys.result(self._shard, x), self.keys.cancel(x))]
        ops += [Delete(key) for key in strange]
        for start in range(0, len(ops), _MOST_OPS):
            mark = Put(self.keys.high(self._shard), str(seq).encode())
            self._commit([], [mark, *ops[start : start + _MOST_OPS]])

    def _commit(self, checks: Sequence[Check], ops: Sequence[Op]) -> None:
        try:
            self._store.commit([self._fence, *checks], ops)
        except Conflict:
            self.check_owner()
            raise

    def values(self, prefix: str) -> dict[str, bytes]:
        """Return all values below a prefix, by key."""
        return {each.key: each.value for each in self._store.list(prefix, recursive=True)}

    def write(self, ops: Sequence[Op]) -> None:
        """Apply writes under the fence of the shard, in as many transactions as they need."""
        for start in range(0, len(ops), _MOST_OPS):
            self._commit([], ops[start : start + _MOST_OPS])

    # Putting

    def put(self, parcels: Iterable[Parcel]) -> list[str]:
        """Put items, unless they are there, or have ended; the attempts that need not be looked at again."""
        done: list[str] = []
        for batch in _batches(parcels):
            try:
                self._commit(
                    [Absent(self.keys.result(self._shard, each.place.item.x)) for each in batch],
                    list(dict.fromkeys(op for each in batch for op in self._ops_of(each))),
                )
            except Conflict:
                done += self._put_each(batch)
            except (Unavailable, OutcomeUnknown) as error:
                _log.info("shard %d: items are put at the next turn: %s", self._shard, error)
                return done
            else:
                done += [each.place.item.x for each in batch]
        return done

    def _ops_of(self, parcel: Parcel) -> list[Op]:
        place = parcel.place
        ops = self._backlog.put_ops(place.lane, place.shelf, {place.item.id: parcel.value})
        return ops if parcel.body is None else [*ops, Put(self.keys.data(place.item.x), parcel.body)]

    def _put_each(self, batch: Sequence[Parcel]) -> list[str]:
        """Some of a batch are there, or have ended: those are left out."""
        items = self._store.get_many([self.key(each.place) for each in batch])
        results = self._store.get_many([self.keys.result(self._shard, each.place.item.x) for each in batch])
        done = [each.place.item.x for each, item in zip(batch, items, strict=True) if item is not None]
        ended = {each.place.item.x for each, result in zip(batch, results, strict=True) if result is not None}
        for each in batch:
            x = each.place.item.x
            if x in done or x in ended:
                continue
            try:
                self._commit([Absent(self.keys.result(self._shard, x))], self._ops_of(each))
            except Conflict:
                continue  # it was put, or ended, just now: the next turn sees that
            done.append(x)
        return done

    # Taking back, and ending

    def take_back(self, places: Mapping[str, Place]) -> list[str]:
        """Take items back from the workers, unless one has them.

        Returns:
            The attempts that no worker will ever see: taken back now, or before.
        """
        gone: list[str] = []
        for x, place in places.items():
            item = self._backlog.find(place.lane, place.shelf, place.item.id)
            if item is None:
                if not self._is_somewhere(x):
                    gone.append(x)
            elif self._remove(x, item):
                gone.append(x)
        return gone

    def _is_somewhere(self, x: str) -> bool:
        """After no item was found: whether it runs, or has ended, in this order: an end makes one of the other."""
        keys = (self.keys.running(self._shard, x), self.keys.result(self._shard, x))
        return any(self._store.get(key) is not None for key in keys)

    def _remove(self, x: str, item: QueueItem) -> bool:
        checks, ops = self._backlog.removal(item)
        try:
            self._commit(checks, [*ops, Delete(self.keys.data(x)), Delete(self.keys.cancel(x))])
        except Conflict:
            return False  # somebody took it: it runs, or is cancelled then
        return True

    def cancel(self, places: Mapping[str, Place]) -> list[str]:
        """Have attempts ended by those who run them, and not taken again; those that it was said of."""
        told: list[str] = []
        for x, place in places.items():
            try:
                self._commit([Exists(self.key(place))], [Put(self.keys.cancel(x), cancel_of(time.time()))])
            except Conflict:
                continue  # it has ended
            told.append(x)
        return told

    # Mending

    def items(self) -> dict[str, Place]:
        """Every item of the backlog, of all shards, by its attempt; those that nobody of ours named are left out."""
        found = {}
        lanes = f"{self.keys.backlog}/partitions"
        for entry in self._store.list(lanes, recursive=True):
            lane, _, rest = entry.key[len(lanes) + 1 :].partition("/")
            kind, _, rest = rest.partition("/")
            shelf, _, name = rest.partition("/")
            if kind == "items":
                with suppress(InvalidKey):
                    item = Item.of(name)
                    found[item.x] = Place(lane, shelf, item)
        return found

    def marked(self) -> set[str]:
        """Attempts, of all shards, that are cancelled or have a second part of their spec."""
        keys = self.keys
        return {
            entry.key[len(prefix) + 1 :].partition("/")[0]
            for prefix in (keys.cancels, keys.every_data)
            for entry in self._store.list(prefix, recursive=True)
        }

    def unmark(self, attempts: Sequence[str]) -> None:
        """Delete cancels and second parts that belong to no item."""
        ops = [Delete(key) for x in attempts for key in (self.keys.cancel(x), self.keys.data(x))]
        for start in range(0, len(ops), _MOST_OPS):
            self._commit([], ops[start : start + _MOST_OPS])

    def has_died(self, place: Place) -> bool | None:
        """Whether nobody has an attempt that ran, in the order item, running, result.

        Returns:
            None: somebody has it, or it has ended. True: its worker died. False: its worker gave it back.
        """
        item = self._backlog.find(place.lane, place.shelf, place.item.id)
        if self._is_somewhere(place.item.x):
            return None
        return item is None or not item.why


def _batches(parcels: Iterable[Parcel]) -> Iterable[list[Parcel]]:
    batch: list[Parcel] = []
    size = count = 0
    for each in parcels:
        more = len(each.value) + len(each.body or b"") + 400
        ops = 3 if each.body is not None else 2
        if batch and (count + ops > _MOST_OPS or size + more > _MOST_BYTES):
            yield batch
            batch, size, count = [], 0, 0
        batch.append(each)
        size += more
        count += ops
    if batch:
        yield batch


#: What ends a turn and not the run: the next turn does it again.
PASSING: tuple[type[LatchworkError], ...] = (Unavailable, OutcomeUnknown, Conflict)
