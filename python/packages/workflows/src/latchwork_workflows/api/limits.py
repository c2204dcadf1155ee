"""Limits of projects: how many of their tasks run at a time."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Request
from pydantic import Field

from latchwork_workflows.api import models as m
from latchwork_workflows.api.slots import HeldDocument, held_fields
from latchwork_workflows.db.policies.limits import MOST_TASKS, Limit
from latchwork_workflows.model.model import NAME_PATTERN
from latchwork_workflows.services.limiting import limits as desk
from latchwork_workflows.services.parts import parts_of
from latchwork_workflows.web import Who

router = APIRouter(prefix="/api/v1", tags=["limits"])
_Project = Annotated[str, Path(pattern=NAME_PATTERN)]


class LimitRequest(m.Document):
    """How many tasks of a project run at a time, and what a start does while it has as many."""

    max_running_tasks: Annotated[int, Field(ge=1, le=MOST_TASKS)]
    admission: Literal["suspend", "fail", "precompute"] = "suspend"


class LimitRow(m.Document):
    """The limit of a project; ``running``: with a slot, null where the store cannot be asked."""

    project: str
    max_running_tasks: int
    admission: str
    running: int | None
    in_hands: int
    waiting: int


class LimitDocument(LimitRow, HeldDocument):
    """The limit of a project with those that hold its slots, and the first of those that wait for one."""


@router.get("/limits")
def list_limits(request: Request, who: Who) -> list[LimitRow]:
    """The limits of the projects that one may see."""
    return [LimitRow.model_validate(each) for each in desk.listed(parts_of(request), who)]


@router.get("/limits/{limited}")
def get_limit(*, request: Request, who: Who, limited: _Project, limit: m.Limit = 100) -> LimitDocument:
    """The limit of a project, who holds its slots, and who waits for one: the next ones, in their order."""
    seen, held = desk.find(parts_of(request), who, limited, most=limit)
    return LimitDocument.model_validate({**seen._asdict(), **held_fields(held)})


@router.put("/limits/{limited}", status_code=204)
def put_limit(*, request: Request, who: Who, limited: _Project, given: LimitRequest) -> None:
    """Limit a project; it holds for tasks that are queued from now on."""
    desk.put(parts_of(request), who, Limit(limited, given.max_running_tasks, given.admission))


@router.delete("/limits/{limited}", status_code=204)
def remove_limit(*, request: Request, who: Who, limited: _Project) -> None:
    """Limit a project no more."""
    desk.remove(parts_of(request), who, limited)
