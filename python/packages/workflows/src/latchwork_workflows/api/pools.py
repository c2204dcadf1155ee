"""Pools, which limit the number of running tasks."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request

from latchwork_workflows.api.models import Limit
from latchwork_workflows.schemas.pools import POOL_PATTERN, Pool, PoolChange, PoolDetail, PoolSettings
from latchwork_workflows.services import pools
from latchwork_workflows.services.context import get_context
from latchwork_workflows.web import CurrentUser

router = APIRouter(prefix="/api/v1", tags=["pools"])
_Name = Annotated[str, Path(pattern=POOL_PATTERN, description="of a project's pool: `@` and the project")]


@router.get("/pools")
def list_pools(request: Request, user: CurrentUser) -> list[Pool]:
    """List the pools, each with the workflows that use it."""
    return pools.list_pools(get_context(request), user)


@router.get("/pools/{pool}")
def get_pool(*, request: Request, user: CurrentUser, pool: _Name, limit: Limit = 100) -> PoolDetail:
    """Return a pool, the tasks that hold its slots, and the next tasks that wait for a slot."""
    return pools.get_pool(get_context(request), user, pool, limit=limit)


@router.put("/pools/{pool}")
def put_pool(*, request: Request, user: CurrentUser, pool: _Name, body: PoolChange) -> PoolSettings:
    """Create or change a pool. If it becomes smaller, running tasks are not stopped."""
    return pools.set_pool(get_context(request), user, name=pool, **body.model_dump())


@router.delete("/pools/{pool}", status_code=204)
def remove_pool(*, request: Request, user: CurrentUser, pool: _Name) -> None:
    """Remove a pool that no workflow uses."""
    pools.remove_pool(get_context(request), user, pool)
