"""Lineage: which workflows start others or wait for them."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request

from latchwork_workflows.schemas.base import Document
from latchwork_workflows.services.context import get_context
from latchwork_workflows.services.lineage import build_lineage
from latchwork_workflows.web import CurrentUser, HttpProblem

router = APIRouter(prefix="/api/v1", tags=["lineage"])
_Word = Annotated[str, Query(max_length=100)]


class LineageWorkflow(Document):
    """A workflow, `project.name`. It has no version if it does not exist but another one refers to it."""

    workflow: str
    version: int | None
    online: bool


class LineageLink(Document):
    """A task that starts another workflow (`sub_process`) or waits for its runs (`dependent`)."""

    workflow: str
    task: str
    kind: Literal["sub_process", "dependent"]
    other: str
    window: str
    other_task: str


class LineageDocument(Document):
    """Workflows that depend on each other, with the links between them. `alone` is the number of all others."""

    workflows: list[LineageWorkflow]
    links: list[LineageLink]
    alone: int


@router.get("/lineage")
def get_lineage(
    *,
    request: Request,
    user: CurrentUser,
    project: _Word = "",
    workflow: Annotated[str, Query(max_length=100, description="a name; needs project: all above and below it")] = "",
) -> LineageDocument:
    """Return the dependencies between workflows. A project is returned with its neighbors.

    A workflow is returned with all workflows upstream and downstream of it.
    """
    if workflow and not project:
        why = "give the project of the workflow too"
        raise HttpProblem(422, f"project: {why}", errors=[("project", why)])
    found = build_lineage(
        get_context(request), user, project=project.replace("\x00", ""), workflow=workflow.replace("\x00", "")
    )
    return LineageDocument(
        workflows=[
            LineageWorkflow(workflow=name, version=row.version if row else None, online=bool(row and row.online))
            for name, row in found.workflows.items()
        ],
        links=[
            LineageLink(
                workflow=each.workflow,
                task=each.other.task,
                kind="dependent" if each.other.kind == "dependent" else "sub_process",
                other=each.other.workflow,
                window=each.other.window,
                other_task=each.other.of_task,
            )
            for each in found.links
        ],
        alone=found.alone,
    )
