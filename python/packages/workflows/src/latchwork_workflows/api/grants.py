"""Which projects may use the workflows of which."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from pydantic import StringConstraints

from latchwork_workflows.api import models as m
from latchwork_workflows.model.model import NAME_PATTERN
from latchwork_workflows.schemas.base import Document
from latchwork_workflows.services import grants as desk
from latchwork_workflows.services.parts import parts_of
from latchwork_workflows.web import Role, Who

router = APIRouter(prefix="/api/v1", tags=["grants"])
_Grantee = Annotated[str, StringConstraints(pattern=rf"^$|{NAME_PATTERN}", max_length=100)]


class GrantRow(Document):
    """That a project, or with an empty ``grantee`` all, may use the workflows of another."""

    project: str
    grantee: str
    role: Literal["viewer", "operator"]


class GrantRequest(Document):
    """The role of a project in another; an empty ``grantee`` stands for all projects, null takes the role away."""

    grantee: _Grantee
    role: Literal["viewer", "operator"] | None


@router.get("/grants")
def list_grants(
    request: Request, who: Who, project: Annotated[str, Query(pattern=rf"^$|{NAME_PATTERN}", max_length=100)] = ""
) -> list[GrantRow]:
    """Which projects may use those that one may see."""
    found = desk.listed(parts_of(request), who, project)
    return [GrantRow.model_validate({**each._asdict(), "role": each.role.word}) for each in found]


@router.put("/projects/{project}/grants", status_code=204)
def set_grant(*, request: Request, who: Who, project: m.NamePath, given: GrantRequest) -> None:
    """Let a project use this one, or no more. For administrators of this one, and not with a token."""
    if given.role is None:
        desk.remove(parts_of(request), who, project, given.grantee)
    else:
        desk.put(parts_of(request), who, project, given.grantee, Role.of(given.role))
