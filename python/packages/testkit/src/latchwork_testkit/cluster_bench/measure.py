"""Runs the steps of the cluster bench in order and measures each.

The steps are: write the work pools, register the workers, assign all items (cold start), count writes while nothing
changes, end some workers, add items, and replace the manager.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from latchwork.errors import LatchworkError
from latchwork.jobs.node import Registration, read_pool_version
from latchwork.jobs.stored import MemberOptions, NodeRecord, cluster_store, keys
from latchwork.store import connect
from latchwork_testkit.cluster_bench import manager, workers
from latchwork_testkit.cluster_bench.model import (
    AcquireLocks,
    BenchOptions,
    EndWorker,
    Figures,
    IdleFigures,
    ItemsHeld,
    LiveWorkers,
    LocksHeld,
    MemoryUse,
    Progress,
    RebalanceReport,
    ReleaseLocks,
    StepFigures,
    compute_checksum,
    count_text_bytes,
)
from latchwork_testkit.cluster_bench.processes import BenchFailed, BenchRefused, Processes

if TYPE_CHECKING:
    from latchwork.store import Store
    from latchwork.types import Entry

_ADDED_ITEMS = 5
_PROBE_KEY = "bench/probe"
_POLL_INTERVAL_S = 0.1
_MANAGER = "manager"
StepReporter = Callable[[str], None]


def measure(options: BenchOptions, report_step: StepReporter = lambda _what: None) -> Figures:
    """Run all steps of the benchmark on a store, and return the measured figures.

    All keys are written below a new namespace, which is removed at the end, also after an error.

    Args:
        options: Size of the cluster and URL of the store.
        report_step: Called with a short description of each step, for progress output.
    Returns:
        The figures of every step.
    Raises:
        BenchRefused: Several processes cannot share the store.
        BenchFailed: A step timed out, or a process failed.
        LatchworkError: The store could not be used.
    """
    with connect(options.url) as root:
        if not root.capabilities.multi_process:
            raise BenchRefused(
                f"{root.capabilities.name}:// is for one process; give the URL of a store that several can share"
            )
        namespace = f"bench-{uuid.uuid4().hex[:8]}"
        bench = _Measurement(cluster_store(root, namespace), options, report_step)
        with _remove_keys_afterwards(bench.store, options, report_step):
            bench.run(namespace)
        return bench.figures


class _Measurement:
    """One run of the bench: its processes, the messages received from them, and the figures so far. Not thread-safe."""

    def __init__(self, store: Store, options: BenchOptions, report_step: StepReporter) -> None:
        self.store = store
        self.figures = Figures(options, store.capabilities.name)
        self._options = options
        self._report_step = report_step
        self._processes = Processes(self._receive_message, options.timeout_s)
        self._pools = options.pools()
        self._expected = (options.items, sum(compute_checksum(items) for items in self._pools.values()))
        self._holdings: dict[str, ItemsHeld] = {}
        self._live_workers: list[LiveWorkers] = []
        self._rebalances: list[RebalanceReport] = []
        self._registered: dict[str, int] = {}
        self._locked: dict[str, int] = {}
        self._memory: MemoryUse | None = None

    def run(self, namespace: str) -> None:
        """Run all steps in order and fill in `figures`.

        Args:
            namespace: Namespace of the keys of the cluster.
        """
        options = self._options
        with self._processes:
            names = [f"workers-{number}" for number in range(len(options.workers_by_process()))]
            began = time.monotonic()
            for name, ids in zip(names, options.workers_by_process(), strict=True):
                self._processes.start(name, workers.run_workers, options, namespace, ids)
            self._processes.wait_ready(names)
            self.figures.registered_s = time.monotonic() - began
            owner = self._write_work_pools()
            self._processes.start(_MANAGER, manager.run_manager, options, namespace)
            self._processes.wait_ready([_MANAGER])
            self._measure_cold_start()
            self._measure_memory()
            self._measure_idle(names)
            for number, worker in enumerate(options.dying_workers(), 1):
                self._report_step(f"worker {number} of {options.deaths} dies")
                self._measure_death(worker, self._process_with(worker, names))
            self._measure_added_items(owner)
            self._measure_takeover()

    def _process_with(self, worker: str, names: list[str]) -> str:
        return next(name for name, ids in zip(names, self._options.workers_by_process(), strict=True) if worker in ids)

    def _receive_message(self, name: str, message: object) -> None:
        if isinstance(message, ItemsHeld):
            self._holdings[name] = message
        elif isinstance(message, LiveWorkers):
            self._live_workers.append(message)
        elif isinstance(message, RebalanceReport):
            self._rebalances.append(message)
        elif isinstance(message, LocksHeld):
            self._locked[name] = message.locks
        elif isinstance(message, MemoryUse):
            self._memory = message
        elif isinstance(message, Progress):
            self._registered[name] = message.workers
            self._report_step(f"{sum(self._registered.values()):,} of {self._options.workers:,} workers are registered")

    # Steps.

    def _write_work_pools(self) -> Registration:
        """Write the items of all jobs to the store, and record how long it takes.

        A node must be registered to write them. It never becomes ready, so the manager assigns no items to it.

        Returns:
            The registration of that node, for later writes.
        """
        began = time.monotonic()
        session = self.store.open_session(workers.SESSION_TTL_S)
        member = NodeRecord.of_this_process(
            MemberOptions("bench", session.ttl_s), since=time.time(), ttl_s=session.ttl_s
        )
        owner = Registration(self.store, session, member)
        owner.try_join()
        for number, (job, items) in enumerate(self._pools.items(), 1):
            self._report_step(f"{number} of {len(self._pools)} work pools are written")
            owner.write_pool(job, items, read_pool_version(self.store, job))
        self.figures.pools_s = time.monotonic() - began
        return owner

    def _measure_cold_start(self) -> None:
        self._report_step("cold start: all items are assigned to workers")
        began = time.monotonic()
        self._processes.run_command(_MANAGER, "lead")
        self._wait_until_assigned(self._options.items)
        moved = sum(len(item.encode()) for items in self._pools.values() for item in items)
        self.figures.cold_start = self._step_figures(began, moved, self._options.debounce_s)

    def _measure_death(self, worker: str, process: str) -> None:
        self._rebalances.clear()
        remaining = self._live_workers[-1].count - 1
        self._processes.run_command(process, EndWorker(worker))
        self._processes.wait_until(
            lambda: self._live_workers[-1].count == remaining, "the manager to see that a worker is gone"
        )
        seen_at = self._live_workers[-1].at
        self._wait_until_assigned(1)
        item_bytes = len(next(iter(self._pools.values()))[0])  # all items have the same length
        moved = self._total_moves() * item_bytes
        self.figures.deaths.append(self._step_figures(seen_at, moved, self._options.debounce_s))

    def _measure_added_items(self, owner: Registration) -> None:
        """Add a few items to different jobs, one after another, and measure how long each takes to reach a worker.

        The manager does not wait for further changes in this step (its debounce time is 0).

        Args:
            owner: The registration that can write items.
        """
        self._processes.run_command(_MANAGER, 0.0)
        for number in range(_ADDED_ITEMS):
            self._report_step(f"item {number + 1} of {_ADDED_ITEMS} is added")
            job = list(self._pools)[number % len(self._pools)]
            item = f"order-{self._options.items + number:09d}"
            self._pools[job] = (*self._pools[job], item)
            self._expected = (self._expected[0] + 1, self._expected[1] + compute_checksum([item]))
            self._rebalances.clear()
            token = self.store.put(_PROBE_KEY, b"").token
            version = read_pool_version(self.store, job)
            began = time.monotonic()
            owner.write_pool(job, self._pools[job], version)
            self._wait_until_assigned(1)
            pool = [*self.store.list(keys.work_pool_key(job), recursive=True), self.store.get(keys.work_pool_key(job))]
            written = sum(len(each.key) + len(each.value) for each in pool if each is not None and each.token > token)
            self.figures.added.append(self._step_figures(began, len(item), 0.0, more_bytes=written))

    def _measure_takeover(self) -> None:
        """Replace the manager by a new one in the same process, and measure how long the new one takes to read the
        state.

        Raises:
            BenchFailed: The new manager moved items, although nothing had changed.
        """
        self._report_step("a new manager reads the state of the cluster")
        self._processes.run_command(_MANAGER, "resign")
        self._rebalances.clear()
        began = time.monotonic()
        self._processes.run_command(_MANAGER, "lead")
        self._processes.wait_until(lambda: bool(self._rebalances), "a new manager to take over")
        if self._total_moves() or self._rebalances[0].error:
            raise BenchFailed(f"a new manager moved items for no reason, or failed: {self._rebalances[0]}")
        self.figures.takeover_s = self._rebalances[0].at - began

    def _measure_memory(self) -> None:
        self._processes.run_command(_MANAGER, "memory")
        assert self._memory is not None
        grown = self._memory.now_bytes - self._memory.before_bytes
        self.figures.item_bytes_in_manager = (grown - count_text_bytes(self._pools.values())) / self._options.items

    def _measure_idle(self, processes: list[str]) -> None:
        self._report_step(f"{len(self._options.locking_workers())} workers acquire the locks of their items")
        for name in processes:
            self._processes.run_command(name, AcquireLocks())
        locks = sum(self._locked.values())
        self._report_step(f"counting writes for {self._options.idle_s:g} idle seconds")
        changed: Counter[str] = Counter()
        with self.store.mirror("", wait=False).ready(self._options.timeout_s) as everything:
            everything.on_change(lambda batch: changed.update(change.key for change in batch))
            first = self.store.put(_PROBE_KEY, b"").token
            everything.wait_until(lambda state: _is_written_at(state.get(_PROBE_KEY), first), self._options.timeout_s)
            while _PROBE_KEY not in changed:  # the first batch is the whole state, and its delivery may take a while
                time.sleep(_POLL_INTERVAL_S)
            changed.clear()
            time.sleep(self._options.idle_s)
            commits = self.store.put(_PROBE_KEY, b"").token - first - 1
        del changed[_PROBE_KEY]
        owners = [key for key in changed if key.startswith(f"{keys.OWNERS}/")]
        renewals = sum(changed.pop(key) for key in owners)
        lockers = len(self._options.locking_workers())
        self.figures.idle = IdleFigures(self._options.idle_s, len(changed), lockers, locks, renewals, commits)
        for name in processes:
            self._processes.run_command(name, ReleaseLocks())

    # Results of a step.

    def _wait_until_assigned(self, moves: int) -> None:
        """Wait until each item is assigned to exactly one worker and the manager has reported its moves.

        Args:
            moves: Least number of moves that the manager must have reported.
        Raises:
            BenchFailed: The wait timed out, or the manager reported an error.
        """

        def is_assigned() -> bool:
            held = self._holdings.values()
            return (sum(each.items for each in held), sum(each.checksum for each in held)) == self._expected

        self._processes.wait_until(is_assigned, "every item to be with exactly one worker")
        self._processes.wait_until(lambda: self._total_moves() >= moves, "the manager to report its moves")
        failed = next((each.error for each in self._rebalances if each.error), "")
        if failed:
            raise BenchFailed(f"the manager failed to rebalance: {failed}")

    def _total_moves(self) -> int:
        return sum(each.moves for each in self._rebalances)

    def _step_figures(self, began: float, moved_bytes: int, quiet_s: float, more_bytes: int = 0) -> StepFigures:
        reports = self._rebalances
        return StepFigures(
            seconds=max(each.at for each in self._holdings.values()) - began,
            quiet_s=quiet_s,
            rebalance_s=sum(each.seconds for each in reports),
            assignments=sum(each.assignments for each in reports),
            moves=sum(each.moves for each in reports),
            moved_bytes=moved_bytes,
            written_bytes=sum(each.written_bytes for each in reports) + more_bytes,
        )


def _is_written_at(entry: Entry | None, token: int) -> bool:
    return entry is not None and entry.token >= token


@contextlib.contextmanager
def _remove_keys_afterwards(store: Store, options: BenchOptions, report_step: StepReporter) -> Iterator[None]:
    """Remove the keys of the benchmark when the block ends. If the block raises an error, an error of the removal is
    ignored.

    Args:
        store: Store with the keys.
        options: Options of the benchmark.
        report_step: Called before the removal.
    """
    try:
        yield
    except BaseException:
        with contextlib.suppress(LatchworkError):
            _delete_keys(store, options, report_step)
        raise
    _delete_keys(store, options, report_step)


def _delete_keys(store: Store, options: BenchOptions, report_step: StepReporter) -> None:
    report_step("removing the keys of the bench")
    with store.pipeline(max_in_flight=4) as pipeline:
        for worker in options.worker_ids():
            pipeline.delete_tree(f"{keys.WORKERS}/{worker}")
        for job in options.pools():
            pipeline.delete_tree(keys.work_pool_key(job))
    store.delete_tree("")
