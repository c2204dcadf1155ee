"""The process of the cluster bench that runs the real job manager and reports its rebalances."""

from __future__ import annotations

import gc
import time
from dataclasses import replace
from pathlib import Path
from resource import getpagesize
from typing import TYPE_CHECKING

from latchwork.jobs import Observer, RebalanceInfo
from latchwork.jobs.manager import ClusterManager, ManagerCounters, ManagerOptions, Strategies
from latchwork.jobs.stored import MemberOptions, NodeRecord, cluster_store, keys
from latchwork.store import Observers, connect
from latchwork_testkit.cluster_bench.model import BenchOptions, LiveWorkers, MemoryUse, Ready, RebalanceReport
from latchwork_testkit.cluster_bench.workers import SESSION_TTL_S

if TYPE_CHECKING:
    from latchwork.store import Mirror
    from latchwork_testkit.cluster_bench.processes import BenchConnection


class _ReportingObserver(Observer):
    def __init__(self, connection: BenchConnection) -> None:
        self._connection = connection

    def rebalanced(self, info: RebalanceInfo) -> None:
        error = "" if info.error is None else f"{type(info.error).__name__}: {info.error}"
        done = RebalanceReport(time.monotonic(), info.seconds, info.assignments, info.moves, info.written_bytes, error)
        self._connection.send(done)


def run_manager(connection: BenchConnection, options: BenchOptions, namespace: str) -> None:
    """Run a job manager in this process, and execute commands until the connection closes.

    The commands are "lead", "resign", "memory" (report the memory use), and a number, which is the new debounce time in
    seconds. Sends `Ready` after each command, `RebalanceReport` after each rebalance, and `LiveWorkers` when the number
    of live workers changes.

    Args:
        connection: Connection to the process that runs the benchmark.
        options: Size of the cluster and URL of the store.
        namespace: Namespace of the keys of the cluster.
    """
    manager_options = ManagerOptions(
        strategies=Strategies(options.strategy_by_job()),
        debounce_s=options.debounce_s,
        debounce_max_s=10 * options.debounce_s,
        cleanup_period_s=0.0,
        sweep_period_s=0.0,
        sweep=lambda: None,
    )
    current_options = [manager_options]
    with connect(options.url) as root:
        store = cluster_store(root, namespace)
        session = store.open_session(SESSION_TTL_S)
        me = NodeRecord.of_this_process(MemberOptions("manager", session.ttl_s), since=time.time(), ttl_s=session.ttl_s)
        observers = Observers[Observer]([_ReportingObserver(connection)])

        def new_manager() -> ClusterManager:
            return ClusterManager(
                store, session, me, lambda: current_options[0], ManagerCounters(), observers=observers
            )

        manager = new_manager()
        with store.mirror(keys.ALIVE) as alive:
            _report_live_workers(alive, connection)
            before = measure_resident_bytes()
            connection.send(Ready(time.monotonic()))
            while (command := connection.recv()) is not None:
                if command == "lead":
                    manager.start()
                    connection.send(Ready(time.monotonic()))
                elif command == "resign":
                    manager.close()
                    manager = new_manager()
                    connection.send(Ready(time.monotonic()))
                elif command == "memory":
                    connection.send(MemoryUse(before, measure_resident_bytes()))
                    connection.send(Ready(time.monotonic()))
                else:
                    current_options[0] = replace(manager_options, debounce_s=command, debounce_max_s=10 * command)
                    manager.request_check()
                    connection.send(Ready(time.monotonic()))
        manager.close()


def _report_live_workers(alive: Mirror, connection: BenchConnection) -> None:
    reported = [-1]

    def report(_batch: object) -> None:
        count = len(alive)
        if count != reported[0]:
            reported[0] = count
            connection.send(LiveWorkers(time.monotonic(), count))

    alive.on_change(report)


def measure_resident_bytes() -> int:
    """Return the physical memory that this process uses, in bytes, after a garbage collection. Linux only."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * getpagesize()
