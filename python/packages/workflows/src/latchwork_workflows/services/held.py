"""What is known of tasks that masters hold, for who asks why they are where they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, TypeAlias
from zoneinfo import ZoneInfo

import sqlalchemy as sa
from pydantic import ValidationError

from latchwork_workflows.db import families, grants
from latchwork_workflows.errors import NotAllowed, UnknownWorkflow
from latchwork_workflows.explain import Held
from latchwork_workflows.model.model import Definition, TaskSpec
from latchwork_workflows.state import InstanceState, TaskState, base_of
from latchwork_workflows.state.conditions import Ended, Other, leaves
from latchwork_workflows.state.families import of_run, of_spans, spans
from latchwork_workflows.types.logical import DependentParams

Row: TypeAlias = Any
_LOGICAL = frozenset({"sub_process", "dependent", "switch", "conditions"})


def held(
    connection: sa.Connection, row: Row, body: Definition, tasks: Sequence[Row], names: Iterable[str]
) -> dict[str, Held]:
    """Of those of these tasks that a master holds, or held.

    Args:
        connection: a transaction.
        row: of the instance.
        body: the version that it has.
        tasks: of its run; elements of maps need not be among them.
        names: which are asked for.
    """
    asked = set(names)
    specs = {each.name: each for each in body.tasks}
    mine = [each for each in tasks if each.name in asked and base_of(each.name) in specs]
    chosen = [each for each in mine if _kind(specs[base_of(each.name)], each.name)]
    children = {
        row: (each.id, InstanceState(each.state))
        for row, each in families.children(connection, [each.id for each in chosen]).items()
    }
    found = {}
    for task in chosen:
        spec = specs[base_of(task.name)]
        kind = _kind(spec, task.name)
        elements = families.element_states(connection, row.id, task.run, task.name) if kind == "map" else {}
        is_waiting = kind == "dependent" and task.state == TaskState.RUNNING.value
        others = wanted(connection, row, body, spec) if is_waiting else []
        found[task.name] = Held(kind, children.get(task.id), others, elements, task.until)
    return found


def _kind(spec: TaskSpec, name: str) -> str:
    if spec.map is not None and name == spec.name:
        return "map"
    return spec.type if spec.type in _LOGICAL else ""


def wanted(connection: sa.Connection, row: Row, body: Definition, spec: TaskSpec) -> list[tuple[Other, bool | None]]:
    """What a dependent waits for, and whether each is as wanted, as its master would see it now; None: not yet."""
    try:
        condition = DependentParams.model_validate(spec.params).on.condition()
    except ValidationError:
        return []
    moment = datetime.fromtimestamp(row.schedule_time, ZoneInfo(body.schedule.tz if body.schedule else "UTC"))
    without = [row.id, *families.above(connection, row.parent_task)]
    return [
        (each, _said(connection, body.project, each, moment, without))
        for each in dict.fromkeys(leaves(condition))
        if not isinstance(each, Ended)
    ]


def _said(
    connection: sa.Connection, project: str, other: Other, moment: datetime, without: Sequence[int]
) -> bool | None:
    try:
        code = grants.resolve(connection, project, other.workflow, "dependent").code
    except (NotAllowed, UnknownWorkflow):
        return None
    found = [families.newest(connection, code, span, without) for span in spans(other.window, moment)]
    return of_spans(None if run is None else of_run(run.state, other.task, run.tasks) for run in found)
