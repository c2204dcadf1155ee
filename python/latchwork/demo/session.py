"""A demo from start to end: processes, the kill, the comparison, and the cleanup."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from latchwork._base.event import Signal
from latchwork.backends.url import parse_url
from latchwork.clock import SYSTEM_CLOCK
from latchwork.demo import records
from latchwork.demo.corpus import Items, count_serially, find_items, write_broken_item
from latchwork.demo.outcome import LATEST, Facts, Report, judge
from latchwork.demo.processes import Kill, Processes, kill_if_counting
from latchwork.demo.view import DemoView, NodeProgress, Progress
from latchwork.errors import LatchworkError
from latchwork.jobs.stored import cluster_store
from latchwork.primitives import LeaderLatch
from latchwork.store import Mirror, Store, connect
from latchwork.types import Entry

KILL_AT = 0.40
_TICK_S = 0.1
_TIMEOUT_S = 120.0
#: The key below which the nodes of a job cluster stand for election.
_LEADER = "leader"


class DemoFailed(LatchworkError):
    """The demo failed before its end. The message says why."""


class DemoImpossible(LatchworkError, ValueError):
    """The demo cannot run with these options."""


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """The options of the demo.

    Attributes:
        url: The store; None for SQLite in a temporary directory.
        kill: The process to kill: one that only works, or the one that is also the manager.
        workers: The number of processes, at least 2.
        keep: Keep what was stored, and the logs of the processes.
        pace_s: The least number of seconds per item.
        ttl_s: The TTL of the sessions and of the items' locks, in seconds.
    """

    url: str | None = None
    kill: Literal["worker", "manager"] = "worker"
    workers: int = 3
    keep: bool = False
    pace_s: float = 0.1
    ttl_s: float = 2.0


def run_demo(options: DemoOptions, view: DemoView) -> Report:
    """Run the demo and return its report. Unless ``keep`` is set, no process, file or key is left behind, even after an
    error.

    Returns:
        The report. Its ``ok`` says whether all guarantees were kept.
    Raises:
        DemoFailed: A process ended unexpectedly, or the work did not end in time.
        DemoImpossible: The store cannot be shared by processes, or there are too few workers.
        InvalidURL, BackendNotInstalled, ConnectFailed: The store cannot be opened.
    """
    if options.workers < 2:
        raise DemoImpossible(f"{options.workers} workers cannot survive a kill; ask for at least 2")
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="latchwork-demo-"))  # logs, the broken item, the default store
        if not options.keep:
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
        url = options.url or f"sqlite:///{folder}/demo.db"
        name = f"demo-{uuid.uuid4().hex[:8]}"
        root = f"{parse_url(url).root}/{name}"
        store = connect(url, root=root)
        if not options.keep:
            stack.callback(_remove_keys, url, root, name, view)  # once the store is closed
        stack.enter_context(store)
        if not store.capabilities.multi_process:
            raise DemoImpossible(f"{store.url} cannot be shared by processes; use sqlite://, etcd:// or zk://")
        write_broken_item(folder)
        items = find_items(folder)
        stack.callback(view.close)
        arguments = [
            *("--root", root, "--extra", str(folder)),
            *("--pace-s", str(options.pace_s), "--ttl-s", str(options.ttl_s)),
        ]
        processes = stack.enter_context(Processes(url, arguments, folder))
        return _Demo(options, store, items, processes, view).run()


class _Demo:
    """The main loop. For one thread."""

    def __init__(self, options: DemoOptions, store: Store, items: Items, processes: Processes, view: DemoView) -> None:
        self._options = options
        self._store = store
        self._items = items
        self._processes = processes
        self._view = view
        self._latch = LeaderLatch(cluster_store(store), _LEADER, node_id="demo")  # never joins: it only reads who leads
        self._began_s = SYSTEM_CLOCK.now()
        self._leader: str | None = None
        self._leader_s: float | None = None
        self._kill: Kill | None = None

    def run(self) -> Report:
        options = self._options
        kept = " (kept)" if options.keep else ""
        self._view.say(
            f"{options.workers} workers count the {len(self._items)} top-level modules and packages of the standard "
            f"library (test suites left out; one file is broken on purpose), each item for at least "
            f"{options.pace_s:g} s so that you can watch"
        )
        self._view.say(f"store: {self._store.url}{kept}; session and lock TTL {options.ttl_s:g} s")
        for number in range(1, options.workers + 1):
            self._processes.start(f"w{number}")
        with self._store.mirror(records.PREFIX) as mirror:
            self._run_until_done(mirror)
        seconds = SYSTEM_CLOCK.now() - self._began_s
        self._processes.stop()
        self._view.say("counting everything once more, serially, in this process")
        return judge(self._facts(), seconds=seconds, store=self._store.url, kept=options.keep)

    def _run_until_done(self, mirror: Mirror) -> None:
        """Show the progress until all items have results. Kill one process when half of them have."""
        while True:
            progress = self._progress(mirror.snapshot())
            self._view.show(progress)
            if progress.done == progress.total:
                return
            self._check_processes()
            self._look_for_leader()
            if self._kill is None and KILL_AT <= progress.done / progress.total <= LATEST:
                self._try_kill()
            SYSTEM_CLOCK.wait(Signal(), _TICK_S)

    def _try_kill(self) -> None:
        for process in self._processes:
            is_leader = process.node == self._leader
            if self._leader is None or is_leader != (self._options.kill == "manager"):
                continue
            self._kill = kill = kill_if_counting(self._store, process, is_leader=is_leader)
            if kill is not None:
                self._leader = None if is_leader else self._leader
                role = "which also manages the cluster" if is_leader else "a worker"
                self._view.say(
                    f"kill -9 {kill.pid}: {kill.node}, {role}, after {kill.done} of {len(self._items)} items, "
                    f"while it was running {kill.item}"
                )
            return

    def _look_for_leader(self) -> None:
        if self._leader is not None:
            return
        candidate = self._latch.leader()
        if candidate is None or (self._kill is not None and candidate.node_id == self._kill.node):
            return
        self._leader = candidate.node_id
        if self._kill is not None and self._kill.was_leader:
            self._leader_s = round(SYSTEM_CLOCK.now() - self._kill.at_s, 2)
            self._view.say(f"{self._leader} manages the cluster now, {self._leader_s:.1f} s after the kill")

    def _check_processes(self) -> None:
        for process in self._processes:
            if process.has_died:
                raise DemoFailed(f"{process.node} (pid {process.pid}) ended by itself; its log ends: {process.tail()}")
        if SYSTEM_CLOCK.now() - self._began_s > _TIMEOUT_S:
            tails = "; ".join(f"{process.node}: {process.tail()}" for process in self._processes)
            raise DemoFailed(f"the work was not done after {_TIMEOUT_S:g} s; the logs end: {tails}")

    def _progress(self, entries: dict[str, Entry]) -> Progress:
        done = Counter[str]()
        assignments: dict[str, int] = {}
        running: dict[str, str | None] = {}
        for key, entry in entries.items():
            node = key.split("/")[2]
            if key.startswith(f"{records.RESULTS}/"):
                done[records.decode_result(entry).node] += 1
            elif key.startswith(f"{records.ASSIGNED}/"):
                assignments[node] = len(records.decode_assignment(entry).items)
            elif key.startswith(f"{records.RUNNING}/"):
                running[node] = records.decode_running(entry).item
        nodes = [
            NodeProgress(
                node=process.node,
                pid=process.pid,
                state=self._state(process.node, known=process.node in assignments),
                items=0 if process.killed else assignments.get(process.node, 0),
                done=done[process.node],
                running=None if process.killed else running.get(process.node),
            )
            for process in self._processes
        ]
        return Progress(SYSTEM_CLOCK.now() - self._began_s, sum(done.values()), len(self._items), nodes)

    def _state(self, node: str, *, known: bool) -> str:
        if self._kill is not None and node == self._kill.node:
            return "killed"
        if node == self._leader:
            return "manager"
        return "worker" if known else "starting"

    def _facts(self) -> Facts:
        store = self._store
        return Facts(
            items=len(self._items),
            kill=self._kill,
            results={_name(entry): records.decode_result(entry) for entry in store.list(records.RESULTS)},
            starts={_name(entry): records.decode_starts(entry) for entry in store.list(records.STARTS)},
            assignments=[records.decode_assignment(entry) for entry in store.list(records.ASSIGNED, recursive=True)],
            serial=count_serially(self._items),
            leader_s=self._leader_s,
        )


def _remove_keys(url: str, root: str, name: str, view: DemoView) -> None:
    """Remove all keys of a demo, once no process uses them.

    Args:
        url: URL of the store.
        root: Root of the demo's keys.
        name: Last segment of that root.
        view: View that shows a failure.
    """
    try:
        with connect(url, root=root) as store:
            cluster_store(store).delete_tree("")
            store.delete_tree("")
        with connect(url) as above:  # what the backend kept for itself below that root is an ordinary key from here
            above.delete_tree(name)
    except LatchworkError as error:
        view.say(f"/{root} is left in the store and may be deleted: {error}")


def _name(entry: Entry) -> str:
    return entry.key.rpartition("/")[2]
