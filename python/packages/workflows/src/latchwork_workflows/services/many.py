"""Backfills, from a program on the database itself: one workflow for many dates."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, TypeAlias

from latchwork.errors import WaitTimeout
from latchwork_workflows.looking import LOOK_S, Looks, split, told
from latchwork_workflows.model.moments import DateRange
from latchwork_workflows.services import backfills as desk
from latchwork_workflows.state.backfills import RESTS, BackfillState

Row: TypeAlias = Any


@dataclass(frozen=True, slots=True)
class BackfillSeen:
    """One backfill, as the database has it.

    Attributes:
        id: of it.
        workflow: ``project.name``.
        version: of the workflow, of all its runs.
        state: where it is; ``held`` is one of which a date has failed, with ``stop_on_failure``.
        parallel: so many runs at a time.
        order: ``asc`` or ``desc``.
        stop_on_failure: no other date starts while one has failed.
        dates: how many runs it has.
        counts: how many of them are in each state; ``submitted`` has those that were never started.
        created_at: in seconds since the epoch.
        ended_at: None while it goes on.
        by: who asked for it.
        cause: the backfill of a workflow that this one waits for, which led to it; None: somebody asked for it.
    """

    id: int
    workflow: str
    version: int
    state: BackfillState
    parallel: int
    order: str
    stop_on_failure: bool
    dates: int
    counts: Mapping[str, int]
    created_at: float
    ended_at: float | None
    by: str
    cause: int | None = None

    @property
    def is_over(self) -> bool:
        """Nothing happens any more unless somebody asks."""
        return self.state in RESTS


class BackfillRef:
    """A backfill that was asked for. Safe to share between threads.

    Attributes:
        command: the number of the command that asks for it.
    """

    def __init__(self, client: Backfills, command: int) -> None:
        self._client = client
        self.command = command

    def __repr__(self) -> str:
        return f"<BackfillRef of command {self.command}>"

    def id(self, timeout_s: float | None = 30.0) -> int:
        """Its number, once a master has made it.

        Raises:
            WrongState: it was refused; the message says why.
            WaitTimeout: no master has done it in that time; it is done when one comes.
        """
        return int(self._client.done_row(self.command, timeout_s).backfill)

    def wait(self, timeout_s: float | None = None) -> BackfillSeen:
        """The backfill, once nothing of it goes on. Errors as for ``id``."""
        return self._client.wait_backfill(self.id(timeout_s), timeout_s)


class Backfills(Looks):
    """What is asked and seen of backfills. Safe to share between threads."""

    def backfill(
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
        """Ask for a run of a workflow for each of these dates: for each time at which its schedule fires on them.

        A workflow without a schedule runs once for each date, whose midnight in UTC is its schedule time. All runs are
        made at once; the next is started when one has ended, whatever became of it.

        Args:
            name: ``project.name``, or a name of the project ``default``.
            dates: from one to another, or each by itself; at most 5,000 runs.
            parallel: so many runs at a time, 1 to 1,000.
            order: ``asc``, the oldest first, or ``desc``.
            stop_on_failure: no other date starts while one has failed, or was stopped.
            params: values instead of the definition's, for all runs.
            priority: instead of the definition's.
            dry_run: every task succeeds without running.
            no_cache: every task runs, whatever is known of its outputs.
            dependents: which online workflows that wait for runs of this one get a backfill over the same dates:
                ``none``, ``direct``, or ``all``, with those that wait for these. Each of their runs waits for its date.
            unique_key: the same key and the same backfill again are one.
        Raises:
            UnknownWorkflow: there is none of this name.
            WrongState: it is offline.
            BadRequest: a date that has not come yet or has no fire time, too many, or no such parameter.
        """
        chosen = dates if isinstance(dates, DateRange) else tuple(dates)
        given = desk.Backfill(
            chosen, parallel, order, stop_on_failure, params or {}, priority, dry_run, no_cache, dependents
        )
        with told():
            asked = desk.start(self._parts, self._who, *split(name), given, unique_key=unique_key)
        return BackfillRef(self, asked.id)

    def behind(self, name: str, dependents: str = "all") -> list[str]:
        """The workflows that a backfill of this one with ``dependents`` leads to, as ``project.name``."""
        with told():
            return desk.behind(self._parts, self._who, *split(name), dependents)

    def find_backfill(self, number: int) -> BackfillSeen:
        """A backfill.

        Raises:
            UnknownWorkflow: there is none of this number.
        """
        with told():
            return _seen(desk.find(self._parts, self._who, number))

    def backfills(self, name: str | None = None, *, before: int | None = None, most: int = 50) -> list[BackfillSeen]:
        """The newest backfills: of a workflow, or of all; ``before``: with lower numbers than this."""
        project, workflow = ("", "") if name is None else split(name)
        with told():
            found = desk.listed(self._parts, self._who, project=project, workflow=workflow, before=before, most=most)
        return [_seen(each) for each in found]

    def backfill_runs(self, number: int) -> list[Row]:
        """The runs of a backfill, the oldest moment first: ``id``, ``schedule_time``, ``state``, ``started_at``, …

        Raises:
            UnknownWorkflow: there is none of this number.
        """
        with told():
            return desk.runs(self._parts, self._who, number)

    def stop_backfill(self, number: int) -> int:
        """Let none of its dates start any more, and stop those at work; the number of the command.

        Raises:
            UnknownWorkflow: there is none of this number.
            WrongState: it is over, or stops.
        """
        with told():
            return desk.stop(self._parts, self._who, number).id

    def wait_backfill(self, number: int, timeout_s: float | None = None) -> BackfillSeen:
        """The backfill, once nothing of it goes on.

        Raises:
            WaitTimeout: something does, after that time.
            UnknownWorkflow: there is none.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            found = self.find_backfill(number)
            if found.is_over:
                return found
            if until is not None and time.monotonic() >= until:
                raise WaitTimeout(f"backfill {number} is {found.state.value} after {timeout_s:g} s; it goes on")
            self._never.wait(LOOK_S)


def _seen(found: desk.Seen) -> BackfillSeen:
    row = found.row
    return BackfillSeen(
        row.id,
        f"{row.project}.{row.name}",
        row.version,
        BackfillState(row.state),
        row.parallel,
        row.direction,
        row.stop_on_failure,
        row.dates,
        found.counts,
        row.created_at,
        row.ended_at,
        row.by,
        row.cause,
    )
