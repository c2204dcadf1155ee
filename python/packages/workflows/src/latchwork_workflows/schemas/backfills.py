"""Backfills: run one workflow for many dates."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Annotated, Literal

from pydantic import Field

from latchwork_workflows.model.backfill_dates import MAX_PARALLEL, DateRange
from latchwork_workflows.model.definition import Priority
from latchwork_workflows.schemas.base import Document
from latchwork_workflows.schemas.values import NoCache, Plain
from latchwork_workflows.state import RunState
from latchwork_workflows.state.backfills import RESTS, BackfillState

#: Which workflows that wait for runs of a backfill get one too.
Dependents = Literal["none", "direct", "all"]


class BackfillRequest(Document):
    """The dates of a backfill, as ``first`` to ``last`` or as ``dates``, and its options.


    Attributes:
        first: The first date.
        last: The last date.
        dates: These dates.
        parallel: How many runs at a time.
        order: ``asc``: the oldest date first.
        stop_on_failure: Start no other date while one has failed.
        params: Values that replace those of the definition.
        priority: Replaces the priority of the definition.
        dry: Every task succeeds without running.
        no_cache: Every task runs, even if its outputs are cached.
        dependents: Which workflows that wait for runs of this one get a backfill over the same dates: ``none``,
            ``direct``, or ``all``, including indirect dependents.
    """

    first: date | None = None
    last: date | None = None
    dates: Annotated[list[date], Field(default_factory=list, max_length=5000)]
    parallel: Annotated[int, Field(ge=1, le=MAX_PARALLEL)] = 1
    order: Literal["asc", "desc"] = "asc"
    stop_on_failure: bool = False
    params: Plain = Field(default_factory=dict)
    priority: Priority | None = None
    dry: bool = False
    no_cache: NoCache = False
    dependents: Dependents = "none"

    def get_dates(self) -> DateRange | Sequence[date]:
        """Return the requested dates.

        Raises:
            ValueError: No dates are given, both a range and single dates are given, or the last date is before the
                first.
        """
        if self.first is None and self.last is None:
            return self.dates
        if self.dates or self.first is None or self.last is None:
            raise ValueError("give first and last, or dates, and not both")
        return DateRange(self.first, self.last)


class Backfill(Document):
    """A backfill.

    Attributes:
        id: The ID of the backfill.
        project: The project of the workflow.
        name: The name of the workflow.
        version: The version of all its runs.
        state: ``held``: a date has failed, and no other starts.
        parallel: How many runs at a time.
        order: ``asc``: the oldest date first.
        stop_on_failure: Whether no other date starts while one has failed.
        dates: How many runs it has.
        counts: How many of them are in each state. ``submitted`` are the dates that were never started.
        created_at: When a master created it.
        ended_at: When it ended. None: not yet.
        by: The account that started it.
        cause: The ID of the backfill that led to it. None: it was requested.
    """

    id: int
    project: str
    name: str
    version: int
    state: BackfillState
    parallel: int
    order: Literal["asc", "desc"]
    stop_on_failure: bool
    dates: int
    counts: dict[str, int]
    created_at: float
    ended_at: float | None
    by: str
    cause: int | None

    @property
    def workflow(self) -> str:
        """The full name of the workflow, ``project.name``."""
        return f"{self.project}.{self.name}"

    @property
    def has_ended(self) -> bool:
        """Whether the backfill has ended. It continues only if one of its runs is recovered."""
        return self.state in RESTS


class BackfillRun(Document):
    """A run of a backfill. Dates that were never started are ``submitted``."""

    id: int
    schedule_time: float
    state: RunState
    started_at: float | None
    ended_at: float | None


class FollowingBackfills(Document):
    """The workflows that a backfill with dependents also runs, as ``project.name``."""

    workflows: list[str]
