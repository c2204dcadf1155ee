"""Processes of a system under a seeded series of faults, and a verdict.

    with Storm(JobsLoad(), kinds, judge, "etcd35", seed=7, folder=folder) as storm:
        report = storm.run(60.0)

A storm has three parts: a *load* (processes, and requests to them), the *kinds* of faults, and a *judge*. ``forms.py``
has one row for each system.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from trials.judges.faults import Fault
from trials.remote import Remote
from trials.stage import Stage
from trials.storms.kinds import Kind


class Load:
    """Processes of one system, and what is asked of them. All calls come from the thread of the storm.

    Attributes:
        nodes: names of the processes. Each has a way of its own to the server.
        ttl_s: unit of the lengths of faults.
        storm: the storm that it belongs to, from ``open`` on.
    """

    nodes: Sequence[str] = ()
    ttl_s = 2.0
    storm: Storm

    def open(self, opened: ExitStack) -> None:
        """Prepare the store, before the processes start. ``opened`` is closed after they have ended."""

    def process(self, node: str) -> tuple[Any, ...]:
        """Return the function that the process of a node runs, as module:function, and its arguments."""
        raise NotImplementedError

    def wait_ready(self) -> None:
        """Wait until the processes work."""

    def victim(self, role: str) -> str | None:
        """Return the node of this role to hurt next, or None."""
        return self.storm.random.choice(self.nodes)

    def tend(self) -> None:
        """Ask for more. Called every 0.1 s as long as there are faults."""

    def settle(self) -> None:
        """Bring everything to its end after the last fault, and end the processes."""
        raise NotImplementedError


@dataclass
class Report:
    """The faults of a storm and its verdict.

    Attributes:
        place: the backend, or the pair of database and backend.
        faults: how many faults of each kind landed.
        figures: what the judge counted.
        violations: what must not have happened, each a sentence.
        notes: what does not count as a violation because the storm was too short for it.
    """

    of: str
    place: str
    seed: int
    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    figures: dict[str, Any] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def demand(self, kinds: Sequence[str], least: int, minutes: float, *, from_minutes: float) -> None:
        """Report kinds with fewer than ``least`` faults: as a violation from so many minutes on, before as a note."""
        few = [f"{kind} ({self.faults[kind]})" for kind in kinds if self.faults[kind] < least]
        text = f"fewer than {least} faults landed of: {', '.join(few)}"
        if few and minutes >= from_minutes:
            self.violations.append(text)
        elif few:
            self.notes.append(f"{text}; that is demanded of {from_minutes:g} minutes or more")

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "seconds": round(self.seconds, 1), "faults": dict(sorted(self.faults.items()))}


class Storm:
    """A load on a stage, under a seeded series of faults. One thread only.

    Args:
        load: what is hurt.
        kinds: the kinds of faults by their names, which are a verb and a role such as "kill worker".
        judge: returns what must not have happened, and figures.
        backend: of the store.
        seed: of the faults and of the load.
        folder: for files, and for the logs of the processes.
        members: servers of the store.
        name: of the report.

    Attributes:
        events: what the processes have reported; for people they are in the folder, too.
        faults: those that landed.
    """

    def __init__(
        self,
        load: Load,
        kinds: Mapping[str, Kind],
        judge: Callable[[Storm], tuple[list[str], dict[str, Any]]],
        backend: str,
        *,
        seed: int,
        folder: str | Path,
        members: int = 1,
        name: tuple[str, str] = ("", ""),
    ) -> None:
        self.load, self.kinds, self._judge = load, kinds, judge
        self.random = random.Random(seed)
        self.folder = Path(folder)
        self.stage = Stage(backend, self.folder, members=members)
        self.seed = seed
        self.events: list[dict[str, Any]] = []
        self.faults: list[Fault] = []
        self.report = Report(*name, seed)
        self.processes: dict[str, Remote] = {}
        self.restart_at: dict[str, float] = {}
        self._tends = False
        self._open = ExitStack()
        load.storm = self

    def __enter__(self) -> Self:
        with ExitStack() as opened:
            self._log = opened.enter_context((self.folder / "events.jsonl").open("a"))
            opened.enter_context(self.stage)
            self.stage.lay_ways(len(self.load.nodes))
            self.load.open(opened)
            opened.callback(lambda: [process.kill() for process in self.processes.values()])
            for node in self.load.nodes:
                self.start(node)
            self.load.wait_ready()
            self._open = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    # Processes

    def url(self, root: str, node: str | None = None) -> str:
        """Return the URL by which a node reaches the store, or the straight one."""
        return self.stage.url(root, None if node is None else self.load.nodes.index(node))

    def links(self, node: str) -> list[int]:
        """Return the links of a node to the servers."""
        return self.stage.ways.links(self.load.nodes.index(node))

    def note(self, event: dict[str, Any]) -> None:
        """Keep an event."""
        self.events.append(event)
        self._log.write(json.dumps(event) + "\n")

    def start(self, node: str) -> None:
        """Start the process of a node."""
        work, *arguments = self.load.process(node)
        self.processes[node] = Remote(work, *arguments, report=self.note, output=self.folder / f"{node}.log")

    def restart_ended(self) -> None:
        """Start again the processes that were killed, or that ended because they found no server."""
        for node in self.load.nodes:
            if not self.processes[node].is_alive and time.monotonic() >= self.restart_at.get(node, 0.0):
                self.restart_at[node] = time.monotonic() + 1.0
                self.processes[node].kill()
                self.start(node)

    def wait_for_events(self, event: str, nodes: Sequence[str], timeout_s: float) -> None:
        """Wait until each of the nodes has reported such an event.

        Raises:
            TimeoutError: One of them has not.
        """
        until, seen = time.monotonic() + timeout_s, set()
        while time.monotonic() < until:
            seen = {each["node"] for each in list(self.events) if each["event"] == event}
            if seen >= set(nodes):
                return
            time.sleep(0.2)
        raise TimeoutError(f"after {timeout_s} s only {sorted(seen)} have reported {event!r}; see {self.folder}")

    def end_nodes(self, nodes: Sequence[str], timeout_s: float = 20.0) -> None:
        """End these processes in order. One that does not end in time is a violation."""
        for node in nodes:
            if self.processes[node].is_alive:
                self.processes[node].terminate()
        for node in nodes:
            if not self.processes[node].wait(timeout_s):
                self.report.violations.append(f"{node} did not end within {timeout_s:g} s of SIGTERM")
            self.processes[node].kill()

    # Faults

    def sleep(self, seconds: float) -> None:
        """Wait, and meanwhile restart what has ended and tend the load."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.restart_ended()
            if self._tends:
                self.load.tend()
            time.sleep(min(0.1, max(0.0, until - time.monotonic())))

    def strike(self, name: str) -> bool:
        """Inflict one fault, from its beginning to its end. Return False if there is no process to hurt."""
        kind, role, node, pid = self.kinds[name], name.split()[1], "", 0
        if kind.on_node:
            node = self.load.victim(role) or ""
            if not node or not self.processes[node].is_alive:
                return False
            pid = self.processes[node].pid
        since = time.monotonic()
        with kind.inflict(self, node):
            self.sleep(kind.lasts_s(self.random, self.load.ttl_s))
        self.faults.append(Fault(name, since, time.monotonic(), pid))
        self.report.faults[name] += 1
        return True

    def run(self, seconds: float, progress: Callable[[str], object] = id) -> Report:
        """Inflict faults for so long, each kind as often as the others, let the load settle, and judge."""
        began, left = time.monotonic(), []
        self._tends = True
        while time.monotonic() < began + seconds:
            if not left:
                left = list(self.kinds)
                self.random.shuffle(left)
            name = left.pop()
            if not self.strike(name):
                left.insert(0, name)  # again at the end of this round: each has a fault of each kind
            progress(f"{time.monotonic() - began:6.1f} s: {name}, {len(self.faults)} faults landed")
            self.sleep(self.random.uniform(0.1, 2.0))
        self._tends = False
        self.load.settle()
        (self.folder / "faults.json").write_text(json.dumps([asdict(fault) for fault in self.faults]))
        violations, self.report.figures = self._judge(self)
        self.report.violations += violations
        self.report.seconds = time.monotonic() - began
        return self.report
