"""The process with the real manager, which reports to the bench what it does."""

from __future__ import annotations

import gc
import time
from dataclasses import replace
from pathlib import Path
from resource import getpagesize
from typing import TYPE_CHECKING

from latchwork.jobs import Observer, RebalanceInfo
from latchwork.jobs.manager import Manager, ManagerCounters, ManagerOptions, Strategies
from latchwork.jobs.stored import Member, MemberOptions, cluster_store, keys
from latchwork.store import Observers, connect
from latchwork_testkit.cluster_bench.model import BenchOptions, Detected, Memory, Ready, Rebalanced
from latchwork_testkit.cluster_bench.workers import SESSION_TTL_S

if TYPE_CHECKING:
    from latchwork.store import Mirror
    from latchwork_testkit.cluster_bench.line import Line


class _Told(Observer):
    def __init__(self, tell: Line) -> None:
        self._tell = tell

    def rebalanced(self, info: RebalanceInfo) -> None:
        error = "" if info.error is None else f"{type(info.error).__name__}: {info.error}"
        done = Rebalanced(time.monotonic(), info.seconds, info.shares, info.moves, info.written_bytes, error)
        self._tell.send(done)


def run(tell: Line, options: BenchOptions, namespace: str) -> None:
    """The process: leads when it is told to, and answers until it is told to end."""
    manager_options = ManagerOptions(
        strategies=Strategies(options.strategy_by_job()),
        debounce_s=options.debounce_s,
        debounce_max_s=10 * options.debounce_s,
        cleanup_period_s=0.0,
        sweep_period_s=0.0,
        sweep=lambda: None,
    )
    now = [manager_options]
    with connect(options.url) as root:
        store = cluster_store(root, namespace)
        session = store.open_session(SESSION_TTL_S)
        me = Member.of_this_process(MemberOptions("manager", session.ttl_s), since=time.time(), ttl_s=session.ttl_s)
        told = Observers[Observer]([_Told(tell)])

        def new_manager() -> Manager:
            return Manager(store, session, me, lambda: now[0], ManagerCounters(), observers=told)

        manager = new_manager()
        with store.mirror(keys.ALIVE) as alive:
            _watch(alive, tell)
            before = resident_bytes()
            tell.send(Ready(time.monotonic()))
            while (order := tell.recv()) is not None:
                if order == "lead":
                    manager.start()
                    tell.send(Ready(time.monotonic()))
                elif order == "resign":
                    manager.close()
                    manager = new_manager()
                    tell.send(Ready(time.monotonic()))
                elif order == "memory":
                    tell.send(Memory(before, resident_bytes()))
                    tell.send(Ready(time.monotonic()))
                else:
                    now[0] = replace(manager_options, debounce_s=order, debounce_max_s=10 * order)
                    manager.request_check()
                    tell.send(Ready(time.monotonic()))
        manager.close()


def _watch(alive: Mirror, tell: Line) -> None:
    seen = [-1]

    def look(_batch: object) -> None:
        living = len(alive)
        if living != seen[0]:
            seen[0] = living
            tell.send(Detected(time.monotonic(), living))

    alive.on_change(look)


def resident_bytes() -> int:
    """Physical memory of this process; Linux only."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * getpagesize()
