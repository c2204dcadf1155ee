"""Backfills, for clients."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from latchwork.errors import WaitTimeout
from latchwork_workflows.client.runs import CommandsClient
from latchwork_workflows.client.transport import (
    PollDeadline,
    Transport,
    build_request,
    build_resource_path,
    check_params,
    split_workflow_name,
)
from latchwork_workflows.model.backfill_dates import DateRange
from latchwork_workflows.schemas.backfills import Backfill, BackfillRequest, BackfillRun, FollowingBackfills
from latchwork_workflows.schemas.commands import CommandSent


class BackfillRef:
    """A backfill that was requested and that a master creates. Thread-safe."""

    def __init__(self, backfills: BackfillsClient, command: int) -> None:
        self._backfills = backfills
        self.command = command

    def __repr__(self) -> str:
        return f"<BackfillRef of command {self.command}>"

    def id(self, timeout_s: float | None = 30.0) -> int:
        """Wait until a master has created the backfill, and return the ID of the backfill.

        Args:
            timeout_s: Seconds to wait. None: forever.
        Raises:
            WrongState: The master refused the backfill. The message has the reason.
            WaitTimeout: No master has created the backfill yet. The request stays valid.
        """
        found = self._backfills.commands.wait(self.command, timeout_s).backfill
        assert found is not None
        return found

    def wait(self, timeout_s: float | None = None) -> Backfill:
        """Wait until the backfill has ended, and return it. The errors are those of ``id``."""
        return self._backfills.wait(self.id(timeout_s), timeout_s)


class BackfillsClient:
    """Backfills. ``name`` is ``project.name`` of a workflow, or a name in the project ``default``."""

    def __init__(self, api: Transport) -> None:
        self._api = api
        self.commands = CommandsClient(api)

    def start(
        self,
        name: str,
        dates: DateRange | Sequence[date],
        *,
        parallel: int = 1,
        order: str = "asc",
        stop_on_failure: bool = False,
        params: Mapping[str, Any] | None = None,
        priority: str | None = None,
        dry_run: bool = False,
        no_cache: bool = False,
        dependents: str = "none",
        unique_key: str | None = None,
    ) -> BackfillRef:
        """Request a run of a workflow for each of these dates: for each time at which its schedule fires on them.

        A workflow without a schedule runs once for each date, whose midnight in UTC is its schedule time. All runs are
        made at once; the next one starts when one has ended, however it ended.

        Args:
            name: The workflow.
            dates: A range, or single dates. At most 5,000 runs.
            parallel: How many runs at a time, 1 to 1,000.
            order: ``asc``, the oldest date first, or ``desc``.
            stop_on_failure: Start no other date while one has failed or was stopped.
            params: Values that replace those of the definition, for all runs.
            priority: Replaces the priority of the definition.
            dry_run: Every task succeeds without running.
            no_cache: Every task runs, even if its outputs are cached.
            dependents: Which online workflows that wait for runs of this one get a backfill over the same dates:
                ``none``, ``direct``, or ``all``, including indirect dependents. Each of their runs waits for its date.
            unique_key: Requests with the same key are one backfill.
        Raises:
            NotFound: There is no such workflow.
            WrongState: The workflow is offline.
            BadRequest: A date is in the future or has no fire time, there are too many, or there is no such parameter.
        """
        check_params(params or {})
        is_range = isinstance(dates, DateRange)
        chosen = {"first": dates.first, "last": dates.last} if isinstance(dates, DateRange) else {}
        body = build_request(
            BackfillRequest,
            **chosen,
            dates=[] if is_range else list(dates),
            parallel=parallel,
            order=order,
            stop_on_failure=stop_on_failure,
            params=dict(params or {}),
            priority=priority,
            dry=dry_run,
            no_cache=no_cache,
            dependents=dependents,
        )
        where = build_resource_path("workflows", *split_workflow_name(name), action="backfill")
        return BackfillRef(self, self._api.post(where, body, CommandSent, key=unique_key).command)

    def dependents(self, name: str, dependents: str = "all") -> builtins.list[str]:
        """Return the names of the workflows that a backfill with ``dependents`` also runs, as ``project.name``.

        Raises:
            NotAllowed: The account may not run one of them.
        """
        where = build_resource_path("workflows", *split_workflow_name(name), "following-backfills")
        return self._api.get(where, FollowingBackfills, dependents=dependents).workflows

    def list(self, name: str | None = None, *, before: int | None = None, limit: int = 50) -> builtins.list[Backfill]:
        """Return backfills, newest first.

        Args:
            name: Return only backfills of this workflow. None: all workflows.
            before: Return only backfills with lower IDs, for the next page.
            limit: The maximum number of results.
        Raises:
            NotFound: There is no such workflow.
        """
        project, workflow = ("", "") if name is None else split_workflow_name(name)
        return self._api.get(
            "/backfills", list[Backfill], project=project, workflow=workflow, before=before, limit=limit
        )

    def get(self, backfill: int) -> Backfill:
        """Return a backfill with its progress.

        Raises:
            NotFound: There is no backfill with this ID.
        """
        return self._api.get(build_resource_path("backfills", backfill), Backfill)

    def runs(
        self, backfill: int, *, state: str = "", after: float | None = None, limit: int = 1000
    ) -> builtins.list[BackfillRun]:
        """Return the runs of a backfill, earliest date first.

        Args:
            backfill: The ID of the backfill.
            state: Return only runs in this state. Empty: any state.
            after: Return only runs with a later schedule time, for the next page.
            limit: The maximum number of results, up to 1,000.
        """
        where = build_resource_path("backfills", backfill, "runs")
        return self._api.get(where, list[BackfillRun], state=state, after=after, limit=limit)

    def stop(self, backfill: int) -> int:
        """Stop a backfill: start no more dates and stop the active runs. Return the ID of the command.

        Raises:
            NotFound: There is no backfill with this ID.
            WrongState: It has ended, or is stopping.
        """
        return self._api.post(build_resource_path("backfills", backfill, action="stop"), None, CommandSent).command

    def wait(self, backfill: int, timeout_s: float | None = None) -> Backfill:
        """Wait until a backfill has ended, and return it.

        Args:
            backfill: The ID of the backfill.
            timeout_s: Seconds to wait. None: forever.
        Raises:
            WaitTimeout: The backfill has not ended in time. It continues.
            NotFound: There is no backfill with this ID.
        """
        deadline = PollDeadline(timeout_s)
        while True:
            found = self.get(backfill)
            if found.has_ended:
                return found
            if not deadline.pause():
                raise WaitTimeout(f"backfill {backfill} is {found.state.value} after {timeout_s:g} s; it continues")
