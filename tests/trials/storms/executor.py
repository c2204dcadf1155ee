"""Workers and submitters of one executor."""

from __future__ import annotations

import contextlib
import threading
import time
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

import latchwork
from latchwork.executor import Executor
from latchwork.executor.keys import Keys
from trials.judges.executor import judge
from trials.storms.executor_node import SESSION_TTL_S, WORK, answer
from trials.storms.storm import Load, Storm

ROOT = "chaos"
WORKERS = tuple(f"r{number}" for number in range(3))
SUBMITTERS = tuple(f"s{number}" for number in range(2))
KEYS = Keys("default")
#: After the last fault all tasks have ended within so many seconds, and what is left of them is gone.
RECOVERY_S = SESSION_TTL_S + 40.0


class ExecutorLoad(Load):
    """Three workers, and two submitters that submit tasks of all kinds."""

    nodes = (*WORKERS, *SUBMITTERS)
    ttl_s = SESSION_TTL_S

    def open(self, opened: ExitStack) -> None:
        self._ended = threading.Event()
        self._store = opened.enter_context(latchwork.connect(self.storm.url(ROOT)))
        watcher = threading.Thread(target=self._watch_submitters, daemon=True)
        watcher.start()
        opened.callback(watcher.join)
        opened.callback(self._ended.set)

    def process(self, node: str) -> tuple[Any, ...]:
        work = "serve_worker" if node in WORKERS else "serve_submitter"
        return f"trials.storms.executor_node:{work}", self.storm.url(ROOT, node), node

    def wait_ready(self) -> None:
        self.storm.wait_for_events("start", WORKERS, 30.0)

    def victim(self, role: str) -> str:
        return self.storm.random.choice(WORKERS if role == "worker" else SUBMITTERS)

    def _watch_submitters(self) -> None:
        """Note when a submitter was seen dead: it has no key any more, and its id never comes back."""
        while not self._ended.is_set():
            with contextlib.suppress(latchwork.LatchworkError), self._store.watch(KEYS.submitters) as watch:
                while not self._ended.is_set():
                    with contextlib.suppress(latchwork.WaitTimeout):
                        for change in watch.next(0.2):
                            if change.entry is None:
                                sid = change.key.rpartition("/")[2]
                                self.storm.note({"event": "gone", "time": time.monotonic(), "pid": 0, "sid": sid})

    def settle(self) -> None:
        """Submit nothing more. All tasks have to end, then nothing may be left of them."""
        self.storm.restart_ended()
        violations = self.storm.report.violations
        for node in SUBMITTERS:
            self.storm.processes[node].stop()
        until = time.monotonic() + RECOVERY_S
        while time.monotonic() < until and any(self.storm.processes[node].left() for node in SUBMITTERS):
            self.storm.sleep(0.2)
        self.ended_at = time.monotonic()
        self._forget_detached()
        # A large value that was written, and whose answer and removal were lost, stays until its submitter is gone.
        left = self._left_of_tasks(until, except_for="data")
        for node in SUBMITTERS:
            self.storm.processes[node].close()
        left = left or self._left_of_tasks(time.monotonic() + RECOVERY_S)
        violations += [f"{key} is left of tasks that have ended" for key in left]
        self.storm.end_nodes(WORKERS)

    def _forget_detached(self) -> None:
        """Detached tasks of submitters that were killed: each has ended, with its result."""
        with Executor(self._store, functions=WORK) as pool:
            for folder in self._store.children(KEYS.detached):
                for name in self._store.children(f"{KEYS.detached}/{folder}"):
                    ref = pool.ref(name)
                    value = ref.result(RECOVERY_S)
                    if value != answer(name.removeprefix("d.")):
                        self.storm.report.violations.append(f"detached task {name} returned {value!r}")
                    ref.forget()

    def _left_of_tasks(self, until: float, except_for: str = "") -> list[str]:
        """Return the keys that workers, which still run, have not cleared up."""
        while True:
            found = [entry.key for entry in self._store.list("executor", recursive=True)]
            left = [key for key in found if _is_left(key) and key.split("/")[1] != except_for]
            if not left or time.monotonic() >= until:
                return left
            time.sleep(0.2)


def _is_left(key: str) -> bool:
    """Return whether a key should have gone with its task, or with its submitter."""
    kind = key.split("/")[1]
    if kind == "backlog":
        return "/consumers/" not in key
    return kind in {"results", "detached", "outcomes", "data", "cancels"}


def judge_executor(storm: Storm) -> tuple[list[str], dict[str, Any]]:
    """Judge the log of workers and submitters."""
    figures = asdict(judge(list(storm.events), storm.faults, ended_at=storm.load.ended_at))
    return figures.pop("violations"), figures
