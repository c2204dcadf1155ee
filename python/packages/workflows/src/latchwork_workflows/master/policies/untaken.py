"""Attempts that no worker took in time: their rows of history. Pure."""

from __future__ import annotations

from latchwork_workflows.db.attempts import AttemptRow
from latchwork_workflows.db.runs import Stored
from latchwork_workflows.state import Instance, Plan
from latchwork_workflows.state.records import NOT_TAKEN


def untaken(stored: Stored, plan: Plan, after: Instance, now: float) -> list[AttemptRow]:
    """A row for each attempt that was taken back since no worker had taken it.

    Args:
        stored: the instance before.
        plan: what its version says.
        after: the instance now.
        now: seconds since the epoch.
    """
    return [
        AttemptRow(
            stored.ids[fact.task],
            fact.n,
            0,
            "",
            "",
            now,
            ended_at=now,
            outcome=NOT_TAKEN,
            error=f"no worker took it within {plan.rule(fact.task).max_queued_s or 0:g} s",
        )
        for fact in after.facts
        if fact.kind == NOT_TAKEN
    ]
