"""Workers and submitters of one executor in processes of their own, and what hurts them, by a seed."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from dataclasses import asdict, dataclass, field

import latchwork
from latchwork.executor import Executor
from latchwork.executor.keys import Keys
from trials.chaos.executor_node import SESSION_TTL_S, WORK
from trials.chaos.storm import Report, Storm
from trials.judges.executor import Fault, Verdict, judge
from trials.remote import Remote

RUNNERS = [f"r{number}" for number in range(3)]
SUBMITTERS = [f"s{number}" for number in range(2)]
KEYS = Keys("default")
#: After the last fault all tasks are over within so many seconds, and what is left of them is gone.
RECOVERY_S = SESSION_TTL_S + 40.0
_ON_NODES = ("kill", "freeze", "cut", "silence")


@dataclass
class ExecutorReport(Report):
    """What a storm did and what came of it."""

    verdict: Verdict = field(default_factory=Verdict)

    def to_json(self):
        figures = {name: value for name, value in asdict(self.verdict).items() if name != "violations"}
        return {
            "backend": self.backend,
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
            "faults": dict(sorted(self.landed.items())),
            **figures,
            "violations": self.verdict.violations,
            "left_over": self.left_over,
            "notes": self.notes,
        }


class ExecutorStorm(Storm):
    """An executor under a seeded series of faults. One thread only."""

    nodes = (*RUNNERS, *SUBMITTERS)

    def __init__(self, backend, seed, folder):
        super().__init__(backend, seed, folder)
        self.report = ExecutorReport(backend, seed)
        self._ended = threading.Event()

    def __enter__(self):
        super().__enter__()
        self._observer = latchwork.connect(self.url())
        self._open.callback(self._observer.close)
        watcher = threading.Thread(target=self._watch_submitters, daemon=True)
        watcher.start()
        self._open.callback(watcher.join)
        self._open.callback(self._ended.set)
        return self

    def start_node(self, node):
        work = "serve_worker" if node in RUNNERS else "serve_submitter"
        self.processes[node] = Remote(
            f"trials.chaos.executor_node:{work}",
            self.url(node),
            node,
            report=self._note,
            output=self.folder / f"{node}.log",
        )

    def wait_for_runs(self, nodes, timeout_s):
        super().wait_for_runs([node for node in nodes if node in RUNNERS], timeout_s)

    def _watch_submitters(self):
        """Note when a submitter was seen dead: it has no key any more, and its id never comes back."""
        while not self._ended.is_set():
            with contextlib.suppress(latchwork.LatchworkError), self._observer.watch(KEYS.subs) as watch:
                while not self._ended.is_set():
                    with contextlib.suppress(latchwork.WaitTimeout):
                        for change in watch.next(0.2):
                            if change.entry is None:
                                sid = change.key.rpartition("/")[2]
                                self._note({"event": "gone", "time": time.monotonic(), "pid": 0, "sid": sid})

    # Faults

    def kinds(self):
        return kinds_of(self.stage.backend)

    def victim(self, whom):
        return self.random.choice(RUNNERS if whom == "worker" else SUBMITTERS)

    # The end

    def judge_all(self, began):
        """Submit nothing more; all that is not over has to end, then nothing may be left; judge."""
        self.look_after()
        for node in SUBMITTERS:
            self.processes[node].stop()
        until = time.monotonic() + RECOVERY_S
        while time.monotonic() < until and any(self.processes[node].left() for node in SUBMITTERS):
            self.sleep(0.2)
        ended = time.monotonic()
        self._forget_detached()
        left = self._left_of_tasks(until, besides="data")
        self.report.seconds = time.monotonic() - began
        self._close_submitters()
        self.report.left_over = left or self._left_of_tasks(time.monotonic() + RECOVERY_S)
        self.close_workers()
        faults = [Fault(fault.kind, fault.since, fault.until, fault.pid) for fault in self.faults]
        (self.folder / "faults.json").write_text(json.dumps([asdict(fault) for fault in faults]))
        self.report.verdict = _joined(judge(list(self.events), faults, ended_at=ended), self.report.verdict)

    def _forget_detached(self):
        """Detached tasks of submitters that were killed: each is over, as it should be."""
        with Executor(self._observer, functions=WORK) as pool:
            for folder in self._observer.children(KEYS.detached):
                for name in self._observer.children(f"{KEYS.detached}/{folder}"):
                    ref = pool.ref(name)
                    value = ref.result(RECOVERY_S)
                    if value != f"done {name.removeprefix('d.')}":
                        self.report.verdict.violations.append(f"detached task {name} returned {value!r}")
                    ref.forget()

    def _left_of_tasks(self, until, besides=""):
        """Keys of tasks that are over, and of submitters that are gone; workers live, and clear them up.

        A large value that was written, and whose answer and removal were lost, stays until its submitter is gone: so
        those are looked at ``besides``, once submitters have closed.
        """
        while True:
            found = [entry.key for entry in self._observer.list("executor", recursive=True)]
            left = [key for key in found if _is_left(key) and key.split("/")[1] != besides]
            if not left or time.monotonic() >= until:
                return left
            time.sleep(0.2)

    def _close_submitters(self):
        for node in SUBMITTERS:
            self.processes[node].close()

    def close_workers(self):
        for node in RUNNERS:
            self.processes[node].terminate()
        for node in RUNNERS:
            if not self.processes[node].wait(20):
                self.report.verdict.violations.append(f"worker {node} did not close within 20 s")
            self.processes[node].kill()


def kinds_of(backend):
    """Every kind of fault there is."""
    whats = ["kill", "freeze"] if backend == "sqlite" else list(_ON_NODES)
    on_nodes = [f"{what} {whom}" for what in whats for whom in ("worker", "submitter")]
    return on_nodes + ([] if backend == "sqlite" else ["kill server", "freeze server"])


def _is_left(key):
    """Whether it should have gone with its task, or its submitter."""
    kind = key.split("/")[1]
    if kind == "backlog":
        return "/takers/" not in key
    return kind in {"results", "detached", "outcomes", "data", "cancels"}


def _joined(found, before):
    found.violations = [*before.violations, *found.violations]
    return found
