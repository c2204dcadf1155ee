"""Grants: the projects that may use the workflows of another project."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request

from latchwork_workflows.api import models as m
from latchwork_workflows.model.model import NAME_PATTERN
from latchwork_workflows.schemas.grants import Grant, GrantChange
from latchwork_workflows.services import grants
from latchwork_workflows.services.parts import parts_of
from latchwork_workflows.web import Who

router = APIRouter(prefix="/api/v1", tags=["grants"])


@router.get("/grants")
def list_grants(
    request: Request, who: Who, project: Annotated[str, Query(pattern=rf"^$|{NAME_PATTERN}", max_length=100)] = ""
) -> list[Grant]:
    """List the grants of the projects that you may see."""
    return grants.listed(parts_of(request), who, project)


@router.put("/projects/{project}/grants", status_code=204)
def set_grant(*, request: Request, who: Who, project: m.NamePath, given: GrantChange) -> None:
    """Give a project a role in this one, or remove it. For administrators of this one, and not with a token."""
    if given.role is None:
        grants.remove(parts_of(request), who, project, given.grantee)
    else:
        grants.put(parts_of(request), who, project=project, grantee=given.grantee, role=given.role)
