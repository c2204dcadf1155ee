"""Runs five nodes in processes of their own and hurts them, their network and their server, by a seed."""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager as Context
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import latchwork
from latchwork.jobs import inspect
from patience import Deadline
from trials.chaos.node import CRON_PERIOD_S, ITEMS, JOBS, LOCK_TTL_S, ON_CRON, SESSION_TTL_S
from trials.fault import frozen, held, killed, refused
from trials.judges.jobs import Fault, Verdict, judge
from trials.raw import KEPT
from trials.remote import Remote
from trials.stage import Stage

ROOT = "chaos"
NODES = [f"n{number}" for number in range(5)]
#: After the last fault every item has to run again within the greater TTL and so much more.
GRACE_S = 5.0
#: So many faults of each kind have to land in a storm of at least so many minutes; a shorter one is judged without.
LEAST_OF_EACH, FROM_MINUTES = 5, 4.0


@dataclass(frozen=True)
class Blow:
    """What is done to the server, or to a node: it is over with the end of its context, after so many seconds."""

    inflict: Callable[[Storm, str], Context[Any]]
    lasts: Callable[[random.Random], float]


def _node_killed(storm, node):
    storm.processes[node].kill()
    storm.restart_at[node] = time.monotonic() + storm.random.uniform(0.0, 2.0)
    return contextlib.nullcontext()


def _silenced(storm, node):
    return held(storm.stage.ways, storm.links(node), way=storm.random.choice(["requests", "answers", "both"]))


def _ttls(*some: float) -> Callable[[random.Random], float]:
    return lambda rng: rng.choice(some) * LOCK_TTL_S


_ON_NODES = {
    "kill": Blow(_node_killed, lambda _: 0.0),
    "freeze": Blow(lambda storm, node: frozen(storm.processes[node]), _ttls(0.5, 1.0, 1.5, 2.0)),
    "cut": Blow(lambda storm, node: refused(storm.stage.ways, storm.links(node)), _ttls(0.3, 1.0, 2.0)),
    "silence": Blow(_silenced, _ttls(0.3, 1.0, 2.0)),
}
_ON_SERVERS = {
    "kill": Blow(lambda storm, _: killed(storm.stage.server), lambda rng: rng.uniform(0.1, 1.0)),
    "freeze": Blow(lambda storm, _: frozen(storm.stage.server), _ttls(0.4, 1.5)),
}


def kinds_of(backend: str) -> list[str]:
    """Every kind of fault there is."""
    whats = ["kill", "freeze"] if backend == "sqlite" else list(_ON_NODES)
    on_nodes = [f"{what} {whom}" for what in whats for whom in ("worker", "manager")]
    return on_nodes + ([] if backend == "sqlite" else [f"{what} server" for what in _ON_SERVERS])


@dataclass
class Report:
    """What a storm did and what came of it."""

    backend: str
    seed: int
    seconds: float = 0.0
    landed: Counter = field(default_factory=Counter)
    verdict: Verdict = field(default_factory=Verdict)
    left_over: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def demand(self, kinds, minutes):
        """Fewer than five faults of a kind are a violation, or, where there was no time for more, a note."""
        few = [f"{kind} ({self.landed[kind]})" for kind in kinds if self.landed[kind] < LEAST_OF_EACH]
        text = f"fewer than {LEAST_OF_EACH} faults landed of: {', '.join(few)}"
        if few and minutes >= FROM_MINUTES:
            self.verdict.violations.append(text)
        elif few:
            self.notes.append(f"{text}; that is demanded of {FROM_MINUTES:g} minutes or more")

    @property
    def ok(self):
        return not self.verdict.violations and not self.left_over

    def to_json(self):
        return {
            "backend": self.backend,
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
            "faults": dict(sorted(self.landed.items())),
            "runs": self.verdict.runs,
            "refused_writes": self.verdict.refused,
            "forgiven_overlaps": self.verdict.forgiven,
            "of_starved_processes": self.verdict.starved,
            "fire_times_run_again": self.verdict.again,
            "violations": self.verdict.violations,
            "left_over": self.left_over,
            "notes": self.notes,
        }


class Storm:
    """A stage with a cluster on it, under a seeded series of faults. One thread only.

    Attributes:
        nodes: the names of its processes, each with a way of its own to the server.
        events: what nodes have reported; for people they are in the folder, too.
    """

    nodes = NODES

    def __init__(self, backend: str, seed: int, folder: str | Path) -> None:
        self.random = random.Random(seed)
        self.folder = Path(folder)
        self.stage = Stage(backend, self.folder)
        self.events: list[dict[str, Any]] = []
        self.faults: list[Fault] = []
        self.report = Report(backend, seed)
        self.processes: dict[str, Remote] = {}
        self.restart_at: dict[str, float] = {}
        self._open = contextlib.ExitStack()

    def __enter__(self):
        with contextlib.ExitStack() as opened:
            self._log = opened.enter_context((self.folder / "events.jsonl").open("a"))
            opened.enter_context(self.stage)
            self.stage.lay_ways(len(self.nodes))
            opened.callback(lambda: [process.kill() for process in self.processes.values()])
            for node in self.nodes:
                self.start_node(node)
            self.wait_for_runs(self.nodes, 30.0)
            self._open = opened.pop_all()
        return self

    def __exit__(self, *_):
        self._open.close()

    # The cluster

    def url(self, node=None):
        return self.stage.url(ROOT, None if node is None else self.nodes.index(node))

    def links(self, node):
        return self.stage.ways.links(self.nodes.index(node))

    def start_node(self, node):
        self.processes[node] = Remote(
            "trials.chaos.node:serve", self.url(node), node, report=self._note, output=self.folder / f"{node}.log"
        )

    def _note(self, event):
        self.events.append(event)
        self._log.write(json.dumps(event) + "\n")

    def look_after(self):
        """Start again what was killed, or ended because it found no server."""
        for node in self.nodes:
            due = self.restart_at.get(node)
            if not self.processes[node].is_alive and (due is None or time.monotonic() >= due):
                self.restart_at.pop(node, None)
                self.processes[node].kill()
                self.start_node(node)

    def manager(self):
        with contextlib.suppress(latchwork.LatchworkError), latchwork.connect(self.url()) as store:
            state = inspect(store)
            if state is not None and state.manager in self.processes:
                return state.manager
        return None

    def wait_for_runs(self, nodes, timeout_s):
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            seen = {event["node"] for event in list(self.events) if event["event"] == "start"}
            if seen >= set(nodes):
                return
            time.sleep(0.2)
        raise TimeoutError(f"after {timeout_s} s only {sorted(seen)} run anything; see {self.folder}")

    # Faults

    def kinds(self):
        return kinds_of(self.stage.backend)

    def victim(self, whom):
        """A process of this kind; None when there is none."""
        return self.manager() if whom == "manager" else self.random.choice(self.nodes)

    def strike(self, kind):
        """One fault, from beginning to end; the cluster goes on meanwhile. False when there was nobody to hurt."""
        what, whom = kind.split()
        node, pid, blow = "", 0, _ON_SERVERS.get(what)
        if whom != "server":
            node, blow = self.victim(whom), _ON_NODES[what]
            if node is None or not self.processes[node].is_alive:
                return False
            pid = self.processes[node].pid
        since = time.monotonic()
        with blow.inflict(self, node):
            self.sleep(blow.lasts(self.random))
        self.faults.append(Fault(kind, since, time.monotonic(), pid))
        self.report.landed[kind] += 1
        return True

    def sleep(self, seconds):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.look_after()
            time.sleep(min(0.1, max(0.0, until - time.monotonic())))

    # The whole of it

    def blow(self, seconds, progress=lambda _text: None):
        """Strike for so long, let it recover, close everything, judge."""
        began = time.monotonic()
        self.strike_for(seconds, progress)
        self.judge_all(began)
        return self.report

    def strike_for(self, seconds, progress):
        """One fault after the other, each kind as often as the others."""
        began = time.monotonic()
        kinds = []
        while time.monotonic() < began + seconds:
            if not kinds:
                kinds = self.kinds()
                self.random.shuffle(kinds)
            kind = kinds.pop()
            if not self.strike(kind):
                kinds.insert(0, kind)  # again at the end of this round: each has a fault of each kind
            progress(f"{time.monotonic() - began:6.1f} s  {kind}: {sum(self.report.landed.values())} faults landed")
            self.sleep(self.random.uniform(0.2, 2.5))

    def judge_all(self, began):
        """Let it recover, close everything, judge."""
        recovery = Deadline(max(SESSION_TTL_S, LOCK_TTL_S) + GRACE_S + 1.0)
        while not recovery.has_passed:
            self.sleep(1.0)
        ended = time.monotonic()
        self.close_nodes()
        self.report.seconds = time.monotonic() - began
        (self.folder / "faults.json").write_text(json.dumps([asdict(fault) for fault in self.faults]))
        self.report.verdict = judge(
            self.events,
            self.faults,
            items=[(job, f"{job}/item-{i}") for job in JOBS for i in range(ITEMS)],
            ended_at=ended,
            bound_s=max(SESSION_TTL_S, LOCK_TTL_S) + GRACE_S + recovery.stolen_s,
            once_per_fire=frozenset(ON_CRON),
            every_fire_s={job: CRON_PERIOD_S for job, cron in ON_CRON.items() if cron.misfire == "all"},
            lock_ttl_s=LOCK_TTL_S,
            one_file=self.stage.server is None,
        )
        self.report.left_over = self.left_over()

    def left_over(self):
        """What is in the store after all have closed, hidden keys included, but for what is kept on purpose."""
        kept = ("results/", "@jobs/fired/", "@jobs/settings/", "@jobs/outcomes/", *KEPT)
        until = Deadline(3.0 * SESSION_TTL_S)
        with contextlib.closing(self.stage.raw(ROOT)) as raw:
            while True:  # a session that was lost a moment ago may need its TTL
                with latchwork.connect(self.url()) as store:
                    found = [entry.key for entry in store.list("", recursive=True)]
                left = [key for key in (*found, *raw.hidden()) if not key.startswith(kept)]
                if not left or until.has_passed:
                    return left
                time.sleep(0.2)

    def close_nodes(self):
        for process in self.processes.values():
            if process.is_alive:
                process.terminate()
        for node, process in self.processes.items():
            if not process.wait(20):
                self.report.verdict.violations.append(f"node {node} did not close within 20 s")
            process.kill()
