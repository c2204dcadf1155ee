"""Alerts about the changes of a transaction, written in the same transaction."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

import sqlalchemy as sa

from latchwork_workflows.db import alerts
from latchwork_workflows.db.runs import StoredRun
from latchwork_workflows.errors import NotFound
from latchwork_workflows.master.state_cache import LoadedVersion, VersionCache
from latchwork_workflows.state import TaskState, WorkflowRun, get_map_name
from latchwork_workflows.state.alerts import select_events_to_alert
from latchwork_workflows.state.records import AT_WORKERS, OVER

_log = logging.getLogger(__name__)


class Notifications:
    """Writes the alerts of one transaction, together with the changes that they report. Not thread-safe."""

    def __init__(self, connection: sa.Connection, plans: VersionCache, now: float) -> None:
        self._connection = connection
        self._plans = plans
        self._now = now

    def create_run_alerts(self, before: StoredRun, saved: StoredRun, after: WorkflowRun, *, why: str = "") -> None:
        """Create the alerts about a run that has changed.

        Args:
            before: The run before it was saved.
            saved: The run as it is stored now.
            after: The new state.
            why: The error that ended the run, if any.
        """
        self._add_run_alerts(saved, after, why)
        if before.known.round == after.round and not after.dry:
            self._add_query_result_alerts(before, saved, after)

    def _add_query_result_alerts(self, before: StoredRun, saved: StoredRun, after: WorkflowRun) -> None:
        """Write alerts that mail the query results of tasks that have now succeeded."""
        was = before.known.tasks
        ended = [
            name
            for name, task in after.tasks.items()
            if task.state is TaskState.SUCCESS and name in was and was[name].state in AT_WORKERS
        ]
        version = _find_version(self._plans, self._connection, saved) if ended else None
        for name in ended if version is not None else ():
            task = version.tasks[get_map_name(name)] if version is not None else None
            mail = task.params.get("mail") if task is not None and task.type == "sql" else None
            if version is not None and isinstance(mail, Mapping):
                alerts.create_query_result_alert(self._connection, version.definition, saved, name, mail, now=self._now)

    def _add_run_alerts(self, made: StoredRun, after: WorkflowRun, why: str) -> None:
        version = _find_version(self._plans, self._connection, made) if after.timeline_events else None
        if version is None:
            return
        for timeline_event in select_events_to_alert(version.plan.alerts, after.timeline_events, dry=after.dry):
            alerts.create_run_alert(
                self._connection, version.definition, made, after, timeline_event, now=self._now, why=why
            )


def create_takeover_alerts(
    connection: sa.Connection,
    plans: VersionCache,
    runs: Iterable[StoredRun],
    *,
    shard: int,
    token: int,
    owners: tuple[str, str],
    now: float,
) -> None:
    """Write one failover alert for each workflow that requests such alerts. No alert is written for runs that the
    former master released.

    Args:
        connection: The transaction in which the shard gets its new owner.
        plans: Cache of workflow versions.
        runs: The active runs of the shard.
        shard: The ID of the shard.
        token: The fencing token of the new owner.
        owners: The former owner and the new owner.
        now: Seconds since the epoch.
    """
    if owners[0] in {"", owners[1]}:
        return
    by_code: dict[int, list[tuple[LoadedVersion, StoredRun]]] = {}
    for each in runs:
        version = _find_version(plans, connection, each)
        rule = None if version is None else version.plan.alerts
        if version is not None and rule is not None and rule.failover and _is_active(each.known):
            by_code.setdefault(each.code, []).append((version, each))
    for found in by_code.values():
        mine = [(version.definition, each) for version, each in found]
        alerts.create_takeover_alert(connection, mine, shard=shard, token=token, owners=owners, now=now)


def _is_active(known: WorkflowRun) -> bool:
    return known.state not in OVER and bool(known.tasks) and not known.dry


def _find_version(plans: VersionCache, connection: sa.Connection, run: StoredRun) -> LoadedVersion | None:
    """Return the workflow version of a run. None if this program cannot read it: such a run gets no alerts."""
    try:
        return plans.get(connection, run.code, run.version)
    except (ValueError, NotFound) as error:
        _log.warning("run %d has no alerts: version %d cannot be read: %s", run.id, run.version, error)
        return None
