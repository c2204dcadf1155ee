"""Grants: the projects that may use the workflows of another project."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request

from latchwork_workflows.api import models as m
from latchwork_workflows.model.definition import NAME_PATTERN
from latchwork_workflows.schemas.grants import Grant, GrantChange
from latchwork_workflows.services import grants
from latchwork_workflows.services.context import get_context
from latchwork_workflows.web import CurrentUser

router = APIRouter(prefix="/api/v1", tags=["grants"])


@router.get("/grants")
def list_grants(
    request: Request,
    user: CurrentUser,
    project: Annotated[str, Query(pattern=rf"^$|{NAME_PATTERN}", max_length=100)] = "",
) -> list[Grant]:
    """List the grants of the projects that you may see."""
    return grants.list_grants(get_context(request), user, project)


@router.put("/projects/{project}/grants", status_code=204)
def set_grant(*, request: Request, user: CurrentUser, project: m.NamePath, body: GrantChange) -> None:
    """Set or remove the role that another project has in this project.

    Requires a session of an administrator, not a token.
    """
    if body.role is None:
        grants.remove_grant(get_context(request), user, project, body.grantee)
    else:
        grants.set_grant(get_context(request), user, project=project, grantee=body.grantee, role=body.role)
