"""A cluster of five job nodes with ten jobs of all shapes."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import latchwork
from latchwork.jobs import inspect
from patience import Deadline
from trials.judges.jobs import judge
from trials.raw import KEPT
from trials.storms.jobs_node import CRON_PERIOD_S, ITEMS, JOBS, LOCK_TTL_S, ON_CRON, SESSION_TTL_S
from trials.storms.storm import Load, Storm

ROOT = "chaos"
#: After the last fault every item has to run again within so many seconds.
BOUND_S = max(SESSION_TTL_S, LOCK_TTL_S) + 5.0
#: Prefixes of what stays in the store after all nodes have closed.
#: PostgreSQL keeps the writer of a killed store for a day; on other servers it ends with the store's session.
WRITERS = {"postgresql": ("@writers/",)}
STAYS = ("results/", "@jobs/fired/", "@jobs/settings/", "@jobs/outcomes/", *KEPT)


class JobsLoad(Load):
    """Nodes that run their jobs without being asked to."""

    nodes = tuple(f"n{number}" for number in range(5))
    ttl_s = LOCK_TTL_S

    def process(self, node: str) -> tuple[Any, ...]:
        return "trials.storms.jobs_node:serve", self.storm.url(ROOT, node), node

    def wait_ready(self) -> None:
        self.storm.wait_for_events("start", self.nodes, 30.0)

    def victim(self, role: str) -> str | None:
        return self._manager() if role == "manager" else super().victim(role)

    def _manager(self) -> str | None:
        with contextlib.suppress(latchwork.LatchworkError), latchwork.connect(self.storm.url(ROOT)) as store:
            state = inspect(store)
            if state is not None and state.manager in self.nodes:
                return state.manager
        return None

    def settle(self) -> None:
        recovery = Deadline(BOUND_S + 1.0)
        while not recovery.has_passed:
            self.storm.sleep(1.0)
        self.ended_at, self.stolen_s = time.monotonic(), recovery.stolen_s
        self.storm.end_nodes(self.nodes)

    def left_over(self) -> list[str]:
        """Return the keys, hidden ones included, that have no reason to be in the store any more."""
        until, stays = Deadline(3.0 * SESSION_TTL_S), STAYS + WRITERS.get(self.storm.url(ROOT).partition(":")[0], ())
        with contextlib.closing(self.storm.stage.raw(ROOT)) as raw:
            while True:  # a session that was lost a moment ago may need its TTL
                with latchwork.connect(self.storm.url(ROOT)) as store:
                    found = [entry.key for entry in store.list("", recursive=True)]
                left = [key for key in (*found, *raw.hidden()) if not key.startswith(stays)]
                if not left or until.has_passed:
                    return left
                time.sleep(0.2)


def judge_jobs(storm: Storm) -> tuple[list[str], dict[str, Any]]:
    """Judge the log of the nodes, and what is left in the store."""
    load = storm.load
    verdict = judge(
        storm.events,
        storm.faults,
        items=[(job, f"{job}/item-{i}") for job in JOBS for i in range(ITEMS)],
        ended_at=load.ended_at,
        bound_s=BOUND_S + load.stolen_s,
        once_per_fire=frozenset(ON_CRON),
        every_fire_s={job: CRON_PERIOD_S for job, cron in ON_CRON.items() if cron.misfire == "all"},
        lock_ttl_s=LOCK_TTL_S,
        one_file=storm.stage.server is None,
    )
    left = [f"{key} is left after all nodes have closed" for key in load.left_over()]
    figures = {
        "runs": verdict.runs,
        "refused_writes": verdict.refused,
        "forgiven_overlaps": verdict.forgiven,
        "of_starved_processes": verdict.starved,
        "fire_times_run_again": verdict.again,
    }
    return verdict.violations + left, figures
