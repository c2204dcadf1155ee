"""The steps of the bench: write pools, register workers, cold start, idle time, deaths, added items, a new manager."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from latchwork.errors import LatchworkError
from latchwork.jobs.node import Registration, pool_version
from latchwork.jobs.stored import Member, MemberOptions, cluster_store, keys
from latchwork.store import connect
from latchwork_testkit.cluster_bench import manager, workers
from latchwork_testkit.cluster_bench.model import (
    BenchOptions,
    Detected,
    Die,
    Figures,
    Holdings,
    Idle,
    Lock,
    Locked,
    Memory,
    Progress,
    Rebalanced,
    Spread,
    Unlock,
    digest,
    text_bytes,
)
from latchwork_testkit.cluster_bench.processes import BenchFailed, BenchRefused, Processes

if TYPE_CHECKING:
    from latchwork.store import Store
    from latchwork.types import Entry

_ADDED = 5
_PROBE = "bench/probe"
_LOOK_S = 0.1
_MANAGER = "manager"
Tell = Callable[[str], None]


def measure(options: BenchOptions, tell: Tell = lambda _what: None) -> Figures:
    """Measure a cluster of this size in its own namespace, which is removed at the end.

    Args:
        options: Size of the cluster and URL of the store.
        tell: Called with a description of each step.
    Raises:
        BenchRefused: The store cannot be used by several processes.
        BenchFailed: A step was not done in time, or a process failed.
        LatchworkError: The store could not be used.
    """
    with connect(options.url) as root:
        if not root.capabilities.multi_process:
            raise BenchRefused(
                f"{root.capabilities.name}:// lives in one process; give the URL of a store that several can use"
            )
        namespace = f"bench-{uuid.uuid4().hex[:8]}"
        bench = _Bench(cluster_store(root, namespace), options, tell)
        with _removed(bench.store, options, tell):
            bench.run(namespace)
        return bench.figures


class _Bench:
    """One measurement. Not thread-safe."""

    def __init__(self, store: Store, options: BenchOptions, tell: Tell) -> None:
        self.store = store
        self.figures = Figures(options, store.capabilities.name)
        self._options = options
        self._tell = tell
        self._processes = Processes(self._hear, options.timeout_s)
        self._pools = options.pools()
        self._wanted = (options.items, sum(digest(items) for items in self._pools.values()))
        self._holdings: dict[str, Holdings] = {}
        self._detected: list[Detected] = []
        self._rebalanced: list[Rebalanced] = []
        self._registered: dict[str, int] = {}
        self._locked: dict[str, int] = {}
        self._memory: Memory | None = None

    def run(self, namespace: str) -> None:
        """Run all steps in order."""
        options = self._options
        with self._processes:
            names = [f"workers-{number}" for number in range(len(options.workers_by_process()))]
            began = time.monotonic()
            for name, ids in zip(names, options.workers_by_process(), strict=True):
                self._processes.start(name, workers.run, options, namespace, ids)
            self._processes.wait_ready(names)
            self.figures.registered_s = time.monotonic() - began
            owner = self._write_pools()
            self._processes.start(_MANAGER, manager.run, options, namespace)
            self._processes.wait_ready([_MANAGER])
            self._cold_start()
            self._measure_memory()
            self._measure_idle(names)
            for number, worker in enumerate(options.dying_workers(), 1):
                self._tell(f"worker {number} of {options.deaths} dies")
                self._death(worker, self._process_of(worker, names))
            self._add_items(owner)
            self._take_over()

    def _process_of(self, worker: str, names: list[str]) -> str:
        return next(name for name, ids in zip(names, self._options.workers_by_process(), strict=True) if worker in ids)

    def _hear(self, name: str, message: object) -> None:
        if isinstance(message, Holdings):
            self._holdings[name] = message
        elif isinstance(message, Detected):
            self._detected.append(message)
        elif isinstance(message, Rebalanced):
            self._rebalanced.append(message)
        elif isinstance(message, Locked):
            self._locked[name] = message.locks
        elif isinstance(message, Memory):
            self._memory = message
        elif isinstance(message, Progress):
            self._registered[name] = message.workers
            self._tell(f"{sum(self._registered.values()):,} of {self._options.workers:,} workers are registered")

    # Steps.

    def _write_pools(self) -> Registration:
        """Write all work pools as a node that never becomes ready, so that it gets no items."""
        began = time.monotonic()
        session = self.store.open_session(workers.SESSION_TTL_S)
        member = Member.of_this_process(MemberOptions("bench", session.ttl_s), since=time.time(), ttl_s=session.ttl_s)
        owner = Registration(self.store, session, member)
        owner.try_join()
        for number, (job, items) in enumerate(self._pools.items(), 1):
            self._tell(f"{number} of {len(self._pools)} work pools are written")
            owner.write_pool(job, items, pool_version(self.store, job))
        self.figures.pools_s = time.monotonic() - began
        return owner

    def _cold_start(self) -> None:
        self._tell("cold start: all items find a worker")
        began = time.monotonic()
        self._processes.command(_MANAGER, "lead")
        self._until_spread(self._options.items)
        moved = sum(len(item.encode()) for items in self._pools.values() for item in items)
        self.figures.cold_start = self._spread(began, moved, self._options.debounce_s)

    def _death(self, worker: str, process: str) -> None:
        self._rebalanced.clear()
        living = self._detected[-1].living - 1
        self._processes.command(process, Die(worker))
        self._processes.wait_until(
            lambda: self._detected[-1].living == living, "the manager to see that a worker is gone"
        )
        seen_at = self._detected[-1].at
        self._until_spread(1)
        item_bytes = len(next(iter(self._pools.values()))[0])  # all are of one length
        moved = self._moves() * item_bytes
        self.figures.deaths.append(self._spread(seen_at, moved, self._options.debounce_s))

    def _add_items(self, owner: Registration) -> None:
        """Add some items, one at a time, to several jobs. The manager debounces nothing."""
        self._processes.command(_MANAGER, 0.0)
        for number in range(_ADDED):
            self._tell(f"item {number + 1} of {_ADDED} is added")
            job = list(self._pools)[number % len(self._pools)]
            item = f"order-{self._options.items + number:09d}"
            self._pools[job] = (*self._pools[job], item)
            self._wanted = (self._wanted[0] + 1, self._wanted[1] + digest([item]))
            self._rebalanced.clear()
            token = self.store.put(_PROBE, b"").token
            seen = pool_version(self.store, job)
            began = time.monotonic()
            owner.write_pool(job, self._pools[job], seen)
            self._until_spread(1)
            pool = [*self.store.list(keys.pool(job), recursive=True), self.store.get(keys.pool(job))]
            written = sum(len(each.key) + len(each.value) for each in pool if each is not None and each.token > token)
            self.figures.added.append(self._spread(began, len(item), 0.0, more_bytes=written))

    def _take_over(self) -> None:
        """Let another manager in the same process take over, and check that it moves nothing."""
        self._tell("a new manager reads everything")
        self._processes.command(_MANAGER, "resign")
        self._rebalanced.clear()
        began = time.monotonic()
        self._processes.command(_MANAGER, "lead")
        self._processes.wait_until(lambda: bool(self._rebalanced), "a new manager to take over")
        if self._moves() or self._rebalanced[0].error:
            raise BenchFailed(f"a new manager moved items for no reason, or failed: {self._rebalanced[0]}")
        self.figures.takeover_s = self._rebalanced[0].at - began

    def _measure_memory(self) -> None:
        self._processes.command(_MANAGER, "memory")
        assert self._memory is not None
        grown = self._memory.now_bytes - self._memory.before_bytes
        self.figures.item_bytes_in_manager = (grown - text_bytes(self._pools.values())) / self._options.items

    def _measure_idle(self, processes: list[str]) -> None:
        self._tell(f"{len(self._options.locking_workers())} workers lock their items")
        for name in processes:
            self._processes.command(name, Lock())
        locks = sum(self._locked.values())
        self._tell(f"nothing happens for {self._options.idle_s:g} s")
        changed: Counter[str] = Counter()
        with self.store.mirror("", wait=False).ready(self._options.timeout_s) as everything:
            everything.on_change(lambda batch: changed.update(change.key for change in batch))
            first = self.store.put(_PROBE, b"").token
            everything.wait_until(lambda state: _is_at(state.get(_PROBE), first), self._options.timeout_s)
            while _PROBE not in changed:  # the first batch is all there is, and may take a while to be delivered
                time.sleep(_LOOK_S)
            changed.clear()
            time.sleep(self._options.idle_s)
            commits = self.store.put(_PROBE, b"").token - first - 1
        del changed[_PROBE]
        owners = [key for key in changed if key.startswith(f"{keys.OWNERS}/")]
        renewals = sum(changed.pop(key) for key in owners)
        lockers = len(self._options.locking_workers())
        self.figures.idle = Idle(self._options.idle_s, len(changed), lockers, locks, renewals, commits)
        for name in processes:
            self._processes.command(name, Unlock())

    # What they come to.

    def _until_spread(self, moves: int) -> None:
        """Wait until the workers have every item exactly once, and the manager has told of at least so many moves."""

        def is_spread() -> bool:
            all_of_them = self._holdings.values()
            return (sum(h.items for h in all_of_them), sum(h.digest for h in all_of_them)) == self._wanted

        self._processes.wait_until(is_spread, "every item to be with exactly one worker")
        self._processes.wait_until(lambda: self._moves() >= moves, "the manager to tell what it did")
        failed = next((each.error for each in self._rebalanced if each.error), "")
        if failed:
            raise BenchFailed(f"the manager failed to rebalance: {failed}")

    def _moves(self) -> int:
        return sum(each.moves for each in self._rebalanced)

    def _spread(self, began: float, moved_bytes: int, quiet_s: float, more_bytes: int = 0) -> Spread:
        done = self._rebalanced
        return Spread(
            seconds=max(each.at for each in self._holdings.values()) - began,
            quiet_s=quiet_s,
            rebalance_s=sum(each.seconds for each in done),
            shares=sum(each.shares for each in done),
            moves=sum(each.moves for each in done),
            moved_bytes=moved_bytes,
            written_bytes=sum(each.written_bytes for each in done) + more_bytes,
        )


def _is_at(entry: Entry | None, token: int) -> bool:
    return entry is not None and entry.token >= token


@contextlib.contextmanager
def _removed(store: Store, options: BenchOptions, tell: Tell) -> Iterator[None]:
    """Leave nothing behind, whatever happens; what cannot be removed does not hide what happened."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(LatchworkError):
            _remove(store, options, tell)
        raise
    _remove(store, options, tell)


def _remove(store: Store, options: BenchOptions, tell: Tell) -> None:
    tell("what was written is removed")
    with store.pipeline(max_in_flight=4) as pipeline:
        for worker in options.worker_ids():
            pipeline.delete_tree(f"{keys.WORKERS}/{worker}")
        for job in options.pools():
            pipeline.delete_tree(keys.pool(job))
    store.delete_tree("")
