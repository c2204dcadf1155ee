"""Runs the eight workers of a job in processes of their own and hurts them, their network and server, by a seed."""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import latchwork
from latchwork.worker_group import GroupSweeper, find, submit
from patience import Deadline
from trials.fault import frozen, held, killed, refused
from trials.judges.workers import judge
from trials.remote import Remote
from trials.stage import Stage
from trials.workers.node import JOB, STOP, TTL_S, WORKERS

ROOT = "workers-chaos"
KEYS = [f"w{number}" for number in range(WORKERS)]
#: After the last fault all have to meet again within the TTL and so much more.
GRACE_S = 30.0
_WHATS = {"sqlite": ("kill", "freeze")}
_ALL = ("kill", "freeze", "cut", "silence")


def kinds_of(backend):
    """Every kind of fault there is."""
    on_nodes = [f"{what} worker" for what in _WHATS.get(backend, _ALL)]
    return on_nodes + ([] if backend == "sqlite" else ["kill server", "freeze server"])


@dataclass
class Report:
    """What a storm did and what came of it."""

    backend: str
    seed: int
    seconds: float = 0.0
    landed: Counter = field(default_factory=Counter)
    met: int = 0
    epochs: int = 0
    refused: int = 0
    restarts: int = 0
    violations: list[str] = field(default_factory=list)

    def to_json(self):
        return {
            "backend": self.backend,
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
            "faults": dict(sorted(self.landed.items())),
            "generations_passed": self.met,
            "epochs": self.epochs,
            "refused_writes": self.refused,
            "restarts": self.restarts,
            "violations": self.violations,
        }


class Storm:
    """A stage with a job on it, under a seeded series of faults. One thread only."""

    def __init__(self, backend: str, seed: int, folder: str | Path) -> None:
        self.random = random.Random(seed)
        self.folder = Path(folder)
        self.stage = Stage(backend, self.folder)
        self.events = []
        self.writes = {}
        self.report = Report(backend, seed)
        self.processes = {}
        self.restart_at = {}
        self._open = contextlib.ExitStack()

    def __enter__(self):
        with contextlib.ExitStack() as opened:
            opened.enter_context(self.stage)
            self.stage.lay_ways(WORKERS)
            opened.callback(lambda: [process.kill() for process in self.processes.values()])
            self.store = opened.enter_context(latchwork.connect(self.stage.url(ROOT)))
            handle = submit(self.store, JOB, WORKERS, max_restarts=1_000_000, max_executions=1_000_000)
            self.run = handle.run
            mirror = opened.enter_context(self.store.mirror("results"))
            mirror.on_change(self._see)
            for key in KEYS:
                self.start(key)
            self.await_meeting(60.0)
            self._open = opened.pop_all()
        return self

    def __exit__(self, *_):
        self._open.close()

    def _see(self, batch):
        for change in batch:
            if change.entry is not None:
                self.writes[change.entry.token] = int(change.entry.value.split()[0])

    # The job

    def links(self, key):
        return self.stage.ways.links(KEYS.index(key))

    def start(self, key):
        self.processes[key] = Remote(
            "trials.workers.node:serve",
            self.stage.url(ROOT, KEYS.index(key)),
            key,
            self.run,
            report=self.events.append,
            output=self.folder / f"{key}.log",
        )

    def look_after(self):
        """Start again what was killed."""
        for key, due in list(self.restart_at.items()):
            if time.monotonic() >= due:
                del self.restart_at[key]
                self.processes[key].kill()
                self.start(key)

    def await_meeting(self, timeout_s):
        """Until all have passed a barrier that nobody had passed before."""
        seen, until = len(self.events), Deadline(timeout_s)
        while not until.has_passed:
            self.look_after()
            passed = {event["id"] for event in list(self.events[seen:]) if event["event"] == "pass"}
            if len(passed) == WORKERS:
                return True
            time.sleep(0.05)
        self.report.violations.append(f"all were not seen to meet within {timeout_s:.0f} s")
        return False

    # Faults

    def strike(self, kind):
        """One fault, from beginning to end."""
        what, whom = kind.split()
        key = self.random.choice([key for key in KEYS if self.processes[key].is_alive])
        lasts_s = self.random.choice([0.3, 1.0, 1.5, 2.5]) * TTL_S
        if kind == "kill worker":
            self.processes[key].kill()
            self.restart_at[key] = time.monotonic() + self.random.uniform(0.0, 1.5 * TTL_S)
            return
        if whom == "server":
            context = killed(self.stage.server) if what == "kill" else frozen(self.stage.server)
            lasts_s = self.random.uniform(0.1, 1.0)
        elif what == "freeze":
            context = frozen(self.processes[key])
        elif what == "cut":
            context = refused(self.stage.ways, self.links(key))
        else:
            context = held(self.stage.ways, self.links(key), way=self.random.choice(["requests", "answers", "both"]))
        with context:
            self.sleep(lasts_s)

    def sleep(self, seconds):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.look_after()
            time.sleep(min(0.05, max(0.0, until - time.monotonic())))

    # The whole of it

    def blow(self, seconds, progress=lambda _text: None):
        """Strike for so long, let it recover, end the job, judge."""
        began, kinds = time.monotonic(), []
        while time.monotonic() < began + seconds:
            if not kinds:
                kinds = kinds_of(self.stage.backend)
                self.random.shuffle(kinds)
            kind = kinds.pop()
            self.strike(kind)
            self.report.landed[kind] += 1
            progress(f"{time.monotonic() - began:6.1f} s  {kind}: {sum(self.report.landed.values())} faults landed")
            self.sleep(self.random.uniform(0.1, 2.0))
        self.await_meeting(TTL_S + GRACE_S)
        self.end()
        self.report.seconds = time.monotonic() - began
        self.count()
        self.report.violations += judge(self.events, self.writes.items(), WORKERS)
        (self.folder / "events.json").write_text("\n".join(map(json.dumps, self.events)))
        return self.report

    def end(self):
        """All stop at one meeting, complete and leave; nothing stays but how the job ended."""
        self.store.put(STOP, b"")
        for key, process in self.processes.items():
            if not process.wait(TTL_S + GRACE_S):
                self.report.violations.append(f"worker {key} did not come to its end")
        until = Deadline(3 * TTL_S + 5.0)
        while find(self.store, JOB) is not None and not until.has_passed:
            GroupSweeper(self.store).sweep()  # a lease of a killed one may have outlived the last to leave
            time.sleep(0.2)
        left = [entry.key for entry in self.store.list("@workers", recursive=True)]
        if left != [f"@workers/default/ended/{JOB}"]:
            self.report.violations.append(f"left behind: {left[:10]}")
        elif b'"COMPLETED"' not in self.store.get(left[0]).value:
            self.report.violations.append(f"the job ended as {self.store.get(left[0]).value!r}")

    def count(self):
        self.report.met = len({(e["epoch"], e["generation"]) for e in self.events if e["event"] == "pass"})
        self.report.epochs = max((e["epoch"] for e in self.events if e["event"] == "begin"), default=0)
        self.report.refused = sum(e["event"] == "refused" for e in self.events)
        self.report.restarts = max((e["restarts"] for e in self.events if e["event"] == "joined"), default=0)
