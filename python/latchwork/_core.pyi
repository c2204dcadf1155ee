# ruff: noqa: PYI021 - this stub is the documentation of the extension
"""Hashing and balancing in Rust, and the messages of etcd.

Everything here is a pure function of its arguments: no I/O, no clock, no randomness, no global state. Long work
releases the GIL. Text is hashed as UTF-8; text that UTF-8 cannot encode (a lone surrogate) is a ValueError. Name order
is plain string order, by code points.

Placements are part of the contract: the same arguments give the same result on every machine and in every version.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, final, overload

__all__ = [
    "Assignment",
    "Board",
    "Delta",
    "EtcdCodec",
    "EtcdPage",
    "ItemSet",
    "Moves",
    "RendezvousHasher",
    "ZooKeeperCodec",
    "choose_moves",
    "compat_score",
    "fast_score",
    "hash128",
    "place",
    "place_replicas",
]

def hash128(data: str | bytes, seed: int = 0) -> tuple[int, int]:
    """Hash with murmur3_x64_128.

    It is no cryptographic hash: collisions are easy to construct.

    Args:
        data: bytes, or text that is hashed as UTF-8.
        seed: 0 to 2**32 - 1.
    Returns:
        Both 64-bit halves, unsigned; `mmh3.hash64` with signed=False gives the same pair.
    """

def fast_score(key: str, worker: str) -> int:
    """Score a pair in `fast` mode: 0 to 2**32 - 1, the highest owns the key.

    With k and w the first halves of hash128 of key (seed 0x6974656d) and worker (seed 0x776f726b) and x = k ^ w, the
    score is (low32(x) * 0x9E3779B1 + high32(x) * 0x85EBCA77) mod 2**32.
    """

def compat_score(key: str, worker: str) -> int:
    """Score a pair in `compat` mode: `mmh3.hash64(key + worker)[0]`, signed 64 bits; the highest owns the key."""

def place(
    strategy: str,
    jobs: Sequence[tuple[str, Iterable[str], dict[str, float], dict[str, str]]],
    mode: str = "fast",
) -> list[dict[str, str]]:
    """Place the items of all jobs. `latchwork.assignment` has this with types, moves and documentation.

    Args:
        strategy: "rendezvous", "evenly-rendezvous", "evenly-spread" or "balanced".
        jobs: per job its id, its items, its able workers with their weights, and the previous owner of items, which may
            name items and workers that are gone.
        mode: "fast" or "compat"; matters to the two rendezvous strategies.
    Returns:
        For each job, in the order given, item to worker in item order; empty if no worker can run the job.
    Raises:
        ValueError: unknown strategy or mode, a job or item given twice, a weight that is not finite and positive.
        TypeError: an id, item or worker that is no str.
    """

def choose_moves(moves: Sequence[tuple[int, int, int]], limit: int) -> list[bool]:
    """Say of each move whether it is among the best `limit`; see `latchwork.assignment.Budgeted`.

    Args:
        moves: job, giver and taker of each, by number.
        limit: how many may be made.
    """

def place_replicas(
    copies: int, zone: Sequence[int], weights: Sequence[float], previous: Sequence[Sequence[int]]
) -> list[list[int]]:
    """Place replicas over zones; `latchwork.assignment.place_replicas` has this with names.

    Args:
        copies: how many workers each item asks for.
        zone: the number of the zone of each worker, below the number of workers.
        weights: of each worker, finite and greater than 0.
        previous: the numbers of the workers that had each item, each once.
    Returns:
        The workers of each item, ascending.
    Raises:
        ValueError: a number or a weight out of range.
    """

@final
class Board:
    """Jobs, workers and the owners of items, kept in Rust from one placement to the next.

    Changes are recorded and cheap. `place` computes one new placement for all of them: the one that the strategy makes
    of the whole problem with the present owners as the previous ones. A worker that leaves and joins again before the
    next placement keeps its items. Thread-safe: one call works at a time, without the GIL.
    """

    def __new__(cls, strategy: str = "balanced") -> Board:
        """Make an empty board.

        Args:
            strategy: "balanced" or "evenly-spread": the strategies that keep previous owners.
        Raises:
            ValueError: another strategy.
        """

    @property
    def strategy(self) -> str:
        """The name of the strategy."""

    @property
    def jobs(self) -> list[str]:
        """The jobs in name order."""

    @property
    def workers(self) -> list[str]:
        """The workers that are there, in name order."""

    def add_job(self, job: str, items: Iterable[str], previous: dict[str, str] | None = None) -> None:
        """Add a job.

        Args:
            job: its id, new.
            items: unique, in any order.
            previous: item to the worker that has it; items and workers that are not there are passed over, so let the
                workers join first.
        Raises:
            ValueError: the job is there already, or an item is given twice.
        """

    def remove_job(self, job: str) -> None:
        """Remove a job and its items. ValueError if it is not there."""

    def add_items(self, job: str, items: Iterable[str]) -> None:
        """Add items to a job; they have no owner until they are placed. ValueError if one is there already."""

    def remove_items(self, job: str, items: Iterable[str]) -> None:
        """Remove items from a job. ValueError if one is not there."""

    def join(self, worker: str, weight: float = 1.0, jobs: Iterable[str] | None = None) -> None:
        """Add a worker. O(jobs).

        Args:
            worker: its id, not there yet.
            weight: finite and greater than 0.
            jobs: the ids of the jobs it can run, which may come later; None for all.
        Raises:
            ValueError: the worker is there already, or a bad weight.
        """

    def leave(self, worker: str) -> None:
        """Remove a worker; the next placement gives its items to others. ValueError if it is not there."""

    def reweigh(self, worker: str, weight: float) -> None:
        """Change a worker's weight. ValueError if the worker is not there or the weight is bad."""

    def place(self, max_moves: int | None = None) -> Moves:
        """Place all items again.

        Args:
            max_moves: The most items that are taken from a worker that can run them, at least 0; None for no limit.
                Items without such an owner are always placed. The best moves are made first, see
                docs/reference/assignment.md; the next call makes more.
        Returns:
            What changed.
        Raises:
            ValueError: max_moves is negative.
        """

    def owner(self, job: str, item: str) -> str | None:
        """Return the owner of an item as of the last placement; None if it has none. O(log items).

        Raises:
            ValueError: no such job or item.
        """

    def owners(self, job: str) -> dict[str, str]:
        """Return item to worker, items in name order, without items that have no owner. ValueError for no such job."""

    def by_worker(self, job: str) -> dict[str, list[str]]:
        """Return worker to items, both in name order; only workers that have some. ValueError for no such job."""

    def shares(self, job: str, items: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        """Return worker to items, both in name order, made of the very strings given; only workers that have some.

        Args:
            job: whose.
            items: all its items in name order.
        Raises:
            ValueError: no such job, or these are not its items in name order.
        """

    def unplaced(self, job: str) -> list[str]:
        """Return the items without an owner, in name order. ValueError for no such job."""

@final
class Moves:
    """What one placement changed: rows (job, item, source, target), sorted by job, then item.

    `source` is None for an item that had no owner, `target` is None for one that no worker can run any more. Rows are
    built one at a time.
    """

    @property
    def jobs(self) -> list[str]:
        """The jobs in which something moved, in name order."""

    def of(self, job: str) -> Iterator[tuple[str, str, str | None, str | None]]:
        """Return the rows of one job, none if nothing moved there. O(workers), and O(1) for each row."""

    @property
    def deferred(self) -> int:
        """How many more items should move, and stay where they are for want of budget."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[tuple[str, str, str | None, str | None]]: ...

@final
class RendezvousHasher:
    """Rendezvous hashing over a fixed set of workers.

    Every key goes to the worker that scores highest for it; ties go to the first worker in name order. Loads are even
    statistically, not exactly. Immutable, so safe to share between threads.
    """

    def __new__(
        cls,
        workers: Iterable[str],
        weights: Sequence[float] | None = None,
        mode: str = "fast",
    ) -> RendezvousHasher:
        """Hash the workers.

        Args:
            workers: unique, at least one, any order.
            weights: one per worker, finite and greater than 0; None for equal weights. A worker of weight 2 gets twice
                the keys of one of weight 1, and raising a weight moves keys only to that worker.
            mode: "fast" hashes every key and worker once and mixes the hashes; "compat" hashes key and worker together,
                for placements shared with other implementations, and takes many times as long.
        Raises:
            ValueError: no workers, a worker given twice, a bad weight or an unknown mode.
            TypeError: a worker that is no str, a weight that is no number, or a mapping of workers without weights.
        """

    @property
    def workers(self) -> list[str]:
        """The workers in name order."""

    @property
    def mode(self) -> str:
        """The mode: "fast" or "compat"."""

    def owner(self, key: str) -> str:
        """Return the worker that owns a key. O(workers)."""

    @overload
    def owners(self, key: str, k: int) -> list[str]:
        """Return the best k workers for a key, best first; all of them if there are fewer. O(workers).

        Raises:
            ValueError: k is less than 1.
        """

    @overload
    def owners(self, key: ItemSet, k: int) -> memoryview:
        """Return the best k workers of each item as numbers. O(items * workers), without the GIL.

        Returns:
            A read-only memoryview of native u32 (format "I"), shape (items, min(k, workers)), best first: positions in
            `workers`. For no items it is empty and of one dimension.
        """

    @overload
    def assign(self, keys: ItemSet, *, threads: int | None = None) -> Assignment:
        """Assign the items and keep their owners in Rust. O(items * workers), without the GIL.

        Args:
            keys: items, hashed before.
            threads: the most to use, at least 1; None for one per processor. No more are started than pay, which is
                one for each 8 million pairs ("compat": 200,000). The result does not depend on it.
        """

    @overload
    def assign(self, keys: Iterable[str], *, threads: int | None = None) -> list[str]:
        """Return the owner of each key, in the order of the keys. O(keys * workers), without the GIL."""

    def assign_evenly(self, items: ItemSet, *, threads: int | None = None) -> memoryview:
        """Give items, in the order of the set, to the highest-scoring worker that is not full.

        A worker is full when it holds its share: its part of the items by weight, rounded down, and one of the items
        that rounding leaves over as long as there are any. `EvenlyRendezvous` does this with items in name order.

        Returns:
            Per item its worker's position in `workers`: a read-only memoryview of native u32, format "I".
        """

    def __len__(self) -> int: ...

@final
class ItemSet:
    """Items that are hashed once, to be assigned many times. Immutable, so safe to share between threads.

    It borrows the strings: beyond them it takes 16 bytes per item.
    """

    def __new__(cls, items: Iterable[str], prefix: str | None = None, *, most: int | None = None) -> ItemSet:
        """Hash the items. O(items).

        Args:
            items: unique, any order, which is kept.
            prefix: what stands before each item in its key; "job:" places items as `Rendezvous` places those of a job.
            most: refuse more items than this; None for as many as can be numbered, 2**32 - 2.
        Raises:
            ValueError: an item given twice, a lone surrogate, or too many items.
            TypeError: an item that is no str.
        """

    @property
    def prefix(self) -> str:
        """What stands before each item in its key; "" for none."""

    def to_list(self) -> list[str]:
        """Return the items, in the order given: the very strings. Faster than iterating."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> str: ...

@final
class Assignment:
    """The owners of items by rendezvous hashing, kept in Rust while workers and items come and go.

    Made by `RendezvousHasher.assign` from an `ItemSet`; neither is ever changed by it. After any changes the owners are
    those of a fresh assignment, and each change moves the fewest items that this allows. The job manager keeps one for
    each job that `Rendezvous` places. Safe to share between threads: calls take turns. A change that raises changes
    nothing. Beyond the item set it takes 8 bytes per item.
    """

    @property
    def workers(self) -> list[str]:
        """The workers in name order: what `indices` count."""

    @property
    def weights(self) -> list[float]:
        """The weights of `workers`."""

    @property
    def items(self) -> ItemSet:
        """The items, as they are now. Items that are added stand behind the others."""

    @property
    def indices(self) -> memoryview:
        """The position in `workers` of each item's owner: a snapshot, in the order of `items`.

        It is a read-only memoryview of native u32, format "I". `numpy.frombuffer(assignment, numpy.uint32)` reads the
        same numbers, and neither copies them. Making it takes O(1) as long as no worker has joined or left, else
        O(items). Later changes leave it as it is.
        """

    def to_dict(self) -> dict[str, str]:
        """Return item to worker, in the order of `items`. O(items); some 0.1 s per million."""

    def by_worker(self) -> dict[str, list[str]]:
        """Return worker to its items: all workers in name order, items in the order of `items`. O(items)."""

    def join(self, worker: str, weight: float = 1.0) -> Delta:
        """Add a worker, which takes the items that it wins. O(items + workers).

        Raises:
            ValueError: the worker is a member already, or the weight is not finite and greater than 0.
        """

    def leave(self, worker: str) -> Delta:
        """Remove a worker; each of its items goes to the next best. O(items + its items * workers).

        Raises:
            ValueError: no such worker, or it is the last.
        """

    def reweigh(self, worker: str, weight: float) -> Delta:
        """Change a worker's weight. If it rises, items move only to it; if it falls, only from it.

        O(items + workers) for more, O(items + its items * workers) for less.

        Raises:
            ValueError: no such worker, or the weight is not finite and greater than 0.
        """

    def add_items(self, items: Iterable[str]) -> Delta:
        """Add items behind the others and assign them. O(items + new items * workers).

        Raises:
            ValueError: an item is given twice or there already, or there would be more than 2**32 - 2.
        """

    def remove_items(self, items: Iterable[str]) -> Delta:
        """Remove items; the others keep their order and their owners. O(items).

        Raises:
            ValueError: an item is given twice, or is not there.
        """

    def __len__(self) -> int: ...

@final
class Delta:
    """What a change moved. Immutable; each column is made when it is asked for.

    Iterating gives a tuple of item, source and target per move, in the order of the items: source is None for an item
    that is new, target is None for one that is gone.
    """

    @property
    def items(self) -> list[str]:
        """The items that moved."""

    @property
    def sources(self) -> list[str | None]:
        """Their owners before."""

    @property
    def targets(self) -> list[str | None]:
        """Their owners after."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[tuple[str, str | None, str | None]]: ...

@final
class EtcdCodec:
    """Encodes requests to etcd and decodes its answers, for the keys below one root. Immutable, safe to share.

    Made for ``latchwork.backends.etcd``. Bytes that are no protobuf message are a ValueError, whatever is wrong.
    """

    def __new__(
        cls,
        root: bytes,
        limits: tuple[int, int],
        *,
        entry: type,
        version: type,
        committed: type,
        checks: tuple[type, type, type, type],
        ops: tuple[type, type, type],
    ) -> EtcdCodec:
        """Make one.

        Args:
            root: what stands before every key.
            limits: the most conditions and operations of transactions that are encoded here. When the operations and
                the reads that follow puts are more than the second number, puts are nested with their reads.
            entry: the record of a key, a dataclass with slots, as are the next two.
            version: the record of a version.
            committed: the record of what a transaction did.
            checks: the classes `At`, `Absent`, `Exists` and `SessionAlive`.
            ops: the classes `Put`, `Create` and `Delete`.
        Raises:
            TypeError: a record has no such slots.
        """

    def get(self, key: str, stale_ok: bool) -> bytes:
        """Encode a RangeRequest for one key. O(bytes)."""

    def get_many(self, keys: Sequence[str], stale_ok: bool) -> bytes:
        """Encode a TxnRequest that reads keys and nothing else. O(bytes)."""

    def transaction(
        self,
        checks: Sequence[Any],
        ops: Sequence[Any],
        ended: set[str],
        key: bytes,
        revision: int,
        lease: int,
    ) -> bytes | None:
        """Encode a TxnRequest of checks and operations under a guard. O(bytes).

        Args:
            checks: flattened.
            ops: each key at most once.
            ended: the IDs of sessions that must not be used any more.
            key: of the guard, the whole one.
            revision: of the guard, as last known.
            lease: of the guard.
        Returns:
            The same message as ``Compiler.commit`` makes. None where the compiler is needed: for a session that ended
            or is none of etcd, two sessions, a deletion below a key that is bound to a session, versions of another
            backend, and more than the limits.
        """

    def entry(self, answer: bytes) -> Any | None:
        """Decode the entry in the answer to a request for one key."""

    def found(self, answer: bytes) -> list[Any | None]:
        """Decode the answer to ``get_many``: an entry or None for each key, in order."""

    def page(self, answer: bytes) -> EtcdPage:
        """Decode the answer to a request for a range, except for its keys. O(keys)."""

    def committed(self, answer: bytes, ops: Sequence[Any]) -> tuple[int, Any] | None:
        """Decode the answer to ``transaction``.

        Args:
            answer: as it came.
            ops: The operations that were sent.
        Returns:
            The revision and the record of what was committed; None when the transaction was refused.
        """

@final
class EtcdPage:
    """The answer to a request for a range of keys. Immutable."""

    @property
    def more(self) -> bool:
        """There are more keys than were asked for."""

    @property
    def revision(self) -> int:
        """Of the store."""

    @property
    def size(self) -> int:
        """Of the answer, in bytes."""

    def __len__(self) -> int:
        """How many there are, those included that are no keys of the contract."""

    def names(self) -> list[str]:
        """The keys below the root, in order. O(bytes)."""

    def strangers(self) -> list[bytes]:
        """Return the raw keys that are no valid keys; no other method returns them. O(keys)."""

    def last(self) -> bytes:
        """Return the last raw key, valid or not. O(1); ValueError if there is none."""

    def count(self, skip: int | None = None) -> int:
        """How many keys there are; with ``skip`` those only that have no slash from there on. O(bytes)."""

    def entries(self, skip: int | None = None) -> list[Any]:
        """The entries in order; with ``skip`` of those keys only that have no slash from there on. O(bytes)."""

@final
class ZooKeeperCodec:
    """Encodes reads of many keys below one root, and decodes the answers. Immutable, safe to share.

    Made for ``latchwork.backends.zookeeper``. Bytes that are no such answer are a ValueError, whatever is wrong.
    """

    def __new__(cls, root: str, *, entry: type, version: type) -> ZooKeeperCodec:
        """Make one.

        Args:
            root: the path of the root.
            entry: the record of a key, a dataclass with slots, as is the next.
            version: the record of a version.
        Raises:
            TypeError: a record has no such slots.
        """

    def reads(self, keys: list[str], start: int, end: int) -> bytes:
        """Encode a multi-read of the data of ``keys[start:end]``. O(bytes)."""

    def entries(
        self, answer: bytes, keys: list[str], start: int, gens: list[int]
    ) -> tuple[list[Any | None], list[int], tuple[int, int] | None]:
        """Decode the answer to ``reads``. O(bytes).

        Args:
            answer: as it came.
            keys: those of ``reads``.
            start: the place of the first of them that was asked for.
            gens: version of each guard.
        Returns:
            An entry for each key, None where there is none; the places of the keys that have children; and place and
            error code of the first key that was refused, if one was.
        """
