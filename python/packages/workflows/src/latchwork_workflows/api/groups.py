"""Task groups: how many of their tasks run at a time."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request
from pydantic import Field

from latchwork_workflows.api import models as m
from latchwork_workflows.api.slots import HeldDocument, held_fields
from latchwork_workflows.db.policies.groups import MOST_SIZE
from latchwork_workflows.model.model import NAME_PATTERN
from latchwork_workflows.services.limiting import groups as desk
from latchwork_workflows.services.parts import parts_of
from latchwork_workflows.web import Who

router = APIRouter(prefix="/api/v1", tags=["groups"])
_Name = Annotated[str, Path(pattern=NAME_PATTERN)]


class GroupRequest(m.Document):
    """How many of its tasks run at a time."""

    size: Annotated[int, Field(ge=1, le=MOST_SIZE)]


class GroupRow(m.Document):
    """A task group; ``used``: how many of its tasks run, null where the store cannot be asked."""

    name: str
    size: int
    used: int | None
    waiting: int
    workflows: list[str]


class GroupDocument(GroupRow, HeldDocument):
    """A task group with those that hold its slots, and the first of those that wait for one."""


@router.get("/groups")
def list_groups(request: Request, who: Who) -> list[GroupRow]:
    """All task groups, with the workflows that name them."""
    return [GroupRow.model_validate(each) for each in desk.listed(parts_of(request), who)]


@router.get("/groups/{group}")
def get_group(*, request: Request, who: Who, group: _Name, limit: m.Limit = 100) -> GroupDocument:
    """A task group, who holds its slots, and who waits for one: the next ones, in their order."""
    seen, held = desk.find(parts_of(request), who, group, most=limit)
    return GroupDocument.model_validate({**seen._asdict(), **held_fields(held)})


@router.put("/groups/{group}", status_code=204)
def put_group(*, request: Request, who: Who, group: _Name, given: GroupRequest) -> None:
    """Make a group, or change its size; what runs beyond a smaller one ends by itself."""
    desk.put(parts_of(request), who, group, given.size)


@router.delete("/groups/{group}", status_code=204)
def remove_group(*, request: Request, who: Who, group: _Name) -> None:
    """Remove a group that no workflow names."""
    desk.remove(parts_of(request), who, group)
