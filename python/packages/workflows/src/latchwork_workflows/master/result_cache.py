"""Tasks with cached outputs: they succeed without a worker."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import sqlalchemy as sa

from latchwork_workflows.db import result_cache
from latchwork_workflows.db.attempts import AttemptRow
from latchwork_workflows.db.result_cache import CacheEntry
from latchwork_workflows.db.runs import StoredRun
from latchwork_workflows.db.tables import event
from latchwork_workflows.master.dispatcher import load_run_context
from latchwork_workflows.master.state_cache import LoadedVersion, VersionCache
from latchwork_workflows.messages import AttemptResult
from latchwork_workflows.state import Ended, Outcome, TaskState, WorkflowRun, advance, get_element_index, get_map_name

_log = logging.getLogger(__name__)
Outputs = Mapping[str, Mapping[str, Any]]


@dataclass(slots=True)
class CachedResult:
    """A run after its tasks with cached outputs have succeeded.

    Attributes:
        after: The run.
        outputs: Cached outputs, by task name.
        hits: Number of the attempt and cache entry of each task, by task name.
    """

    after: WorkflowRun
    outputs: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    hits: dict[str, tuple[int, CacheEntry]] = field(default_factory=dict)

    def build_attempt_rows(self, ids: Mapping[str, int], now: float) -> list[AttemptRow]:
        """Build the history rows of the attempts that were replaced by cached outputs.

        Args:
            ids: IDs of the tasks, by name.
            now: Seconds since the epoch.
        """
        return [
            AttemptRow(ids[name], n, 0, "", "", now, "", now, Outcome.SUCCESS.value, cached_from=known.run_id)
            for name, (n, known) in self.hits.items()
        ]

    def record_hits(self, connection: sa.Connection, run_id: int, now: float) -> None:
        """Add an event for each task that used cached outputs to the timeline of the run."""
        rows = [
            {
                "at": now,
                "run_id": run_id,
                "task": name,
                "kind": "cached",
                "details": {"n": n, "run": known.run_id},
            }
            for name, (n, known) in self.hits.items()
        ]
        if rows:
            connection.execute(sa.insert(event), rows)


class ResultCache:
    """Reads and writes cached outputs in one transaction. Not thread-safe."""

    def __init__(self, connection: sa.Connection, plans: VersionCache, now: float) -> None:
        self._connection = connection
        self._plans = plans
        self._now = now
        #: Outputs to keep, by key. Written at the end of the transaction, so that rows are locked in one order.
        self.made: dict[str, CacheEntry] = {}

    def save_result(self, stored: StoredRun, name: str, result: AttemptResult) -> None:
        """Store the outputs of a successful task in the cache, if its definition enables caching."""
        if result.cache_key is None or result.outcome is not Outcome.SUCCESS:
            return
        try:
            spec = self._plans.get(self._connection, stored.code, stored.version).tasks[get_map_name(name)]
        except (KeyError, ValueError):
            return
        if spec.cache_s is not None:
            known = CacheEntry(stored.id, self._now, self._now + spec.cache_s, result.outputs)
            self.made[result.cache_key] = known

    def complete_cached_tasks(
        self, stored: StoredRun, version: LoadedVersion, after: WorkflowRun, outputs: Outputs
    ) -> CachedResult:
        """Complete tasks that would be queued now but have cached outputs.

        Args:
            stored: The run before.
            version: The workflow version of the run.
            after: The run as it would be without cached outputs.
            outputs: Outputs of the tasks that have ended, by name.
        """
        found = CachedResult(after)
        if after.fresh or not version.uses_cache:
            return found
        while hits := self._hits(stored, version, found, outputs):
            for name, known in hits.items():
                found.outputs[name] = known.outputs
                found.hits[name] = found.after.tasks[name].n, known
            events = [Ended(name, found.after.tasks[name].n, Outcome.SUCCESS, found.after.round) for name in hits]
            was = found.after
            made = advance(version.plan, was, events, self._now)
            found.after = replace(
                made, timeline_events=(*was.timeline_events, *made.timeline_events), calls=(*was.calls, *made.calls)
            )
        return found

    def _hits(
        self, stored: StoredRun, version: LoadedVersion, found: CachedResult, outputs: Outputs
    ) -> dict[str, CacheEntry]:
        now, after = self._now, found.after
        keys = self._compute_cache_keys(stored, version, after, {**outputs, **found.outputs})
        known = result_cache.find_cache_entries(self._connection, keys.values())
        hits = {name: known[key] for name, key in keys.items() if key in known}
        return {
            name: each
            for name, each in hits.items()
            if each.made_at > now - (version.tasks[get_map_name(name)].cache_s or 0.0)
        }

    def _compute_cache_keys(
        self, stored: StoredRun, version: LoadedVersion, after: WorkflowRun, outputs: Outputs
    ) -> dict[str, str]:
        """Return the cache keys of the tasks that would be queued now, by task name.

        Tasks that a user has forced to start are left out.

        Args:
            stored: The run before.
            version: The workflow version of the run.
            after: The run now.
            outputs: Outputs of the tasks that have ended, by name.
        """
        was = stored.known.tasks if stored.known.round == after.round else {}
        new = [
            name
            for name, task in after.tasks.items()
            if task.state is TaskState.SUBMITTED
            and version.tasks[get_map_name(name)].cache_s is not None
            and (name not in was or was[name].n != task.n)
            and (task.forced_after is None or task.n <= task.forced_after)
        ]
        keys: dict[str, str] = {}
        if not new:
            return keys
        try:
            run = load_run_context(self._connection, version, stored)
        except ValueError:
            return keys  # the error is reported when the task is dispatched
        for name in new:
            spec, n = version.tasks[get_map_name(name)], after.tasks[name].n
            key = self._plans.compute_cache_key(run, spec, n, outputs, index=get_element_index(name))
            if key is not None:
                keys[name] = key
        return keys
