"""A job of eight workers that meet at barriers and write with the fence of their epoch."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import latchwork
from latchwork.worker_group import GroupSweeper, find, submit
from patience import Deadline, came_true
from trials.judges.workers import judge
from trials.storms.storm import Load, Storm
from trials.storms.workers_node import JOB, STOP, TTL_S, WORKERS

ROOT = "workers-chaos"
#: After the last fault all have to meet again within the TTL and so many seconds more.
GRACE_S = 30.0


class WorkersLoad(Load):
    """Eight workers that meet until they are told to stop."""

    nodes = tuple(f"w{number}" for number in range(WORKERS))
    ttl_s = TTL_S

    def __init__(self) -> None:
        self.writes: dict[int, int] = {}

    def open(self, opened: ExitStack) -> None:
        self.store = opened.enter_context(latchwork.connect(self.storm.url(ROOT)))
        self._run = submit(self.store, JOB, WORKERS, max_restarts=1_000_000, max_executions=1_000_000).run
        opened.enter_context(self.store.mirror("results")).on_change(self._see)

    def _see(self, batch: Any) -> None:
        for change in batch:
            if change.entry is not None:
                self.writes[change.entry.token] = int(change.entry.value.split()[0])

    def process(self, node: str) -> tuple[Any, ...]:
        return "trials.storms.workers_node:serve", self.storm.url(ROOT, node), node, self._run

    def wait_ready(self) -> None:
        self._await_meeting(60.0)

    def _await_meeting(self, timeout_s: float) -> None:
        """Wait until all have passed a barrier that none of them had passed before."""
        seen, until, passed = len(self.storm.events), Deadline(timeout_s), set()
        while not until.has_passed:
            self.storm.sleep(0.05)
            passed = {event["id"] for event in self.storm.events[seen:] if event["event"] == "pass"}
            if len(passed) == WORKERS:
                return
        self.storm.report.violations.append(f"only {sorted(passed)} passed a barrier within {timeout_s:.0f} s")

    def settle(self) -> None:
        """All stop at one meeting, complete and leave. Nothing stays but how the job ended."""
        self._await_meeting(TTL_S + GRACE_S)
        self.store.put(STOP, b"")
        for node, process in self.storm.processes.items():
            if not process.wait(TTL_S + GRACE_S):
                self.storm.report.violations.append(f"worker {node} did not come to its end")

    def judge_end(self) -> list[str]:
        """Return what is wrong with the record of the job, or left next to it."""
        came_true(self._is_swept, 3 * TTL_S + 5.0, every_s=0.2)
        left = [entry.key for entry in self.store.list("@workers", recursive=True)]
        if left != [f"@workers/default/ended/{JOB}"]:
            return [f"left behind: {left[:10]}"]
        value = self.store.get(left[0]).value
        return [] if b'"COMPLETED"' in value else [f"the job ended as {value!r}"]

    def _is_swept(self) -> bool:
        if find(self.store, JOB) is None:
            return True
        GroupSweeper(self.store).sweep()  # a lease of a killed worker may have outlived the last one to leave
        return False


def judge_workers(storm: Storm) -> tuple[list[str], dict[str, Any]]:
    """Judge the log of the workers, the writes that landed, and the end of the job."""
    events, load = storm.events, storm.load
    figures = {
        "generations_passed": len({(e["epoch"], e["generation"]) for e in events if e["event"] == "pass"}),
        "epochs": max((e["epoch"] for e in events if e["event"] == "begin"), default=0),
        "refused_writes": sum(e["event"] == "refused" for e in events),
        "restarts": max((e["restarts"] for e in events if e["event"] == "joined"), default=0),
    }
    return [*load.judge_end(), *judge(events, load.writes.items(), WORKERS)], figures
