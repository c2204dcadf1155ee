"""Pools, which limit the number of running tasks."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request

from latchwork_workflows.api.models import Limit
from latchwork_workflows.schemas.pools import POOL_PATTERN, Pool, PoolChange, PoolDetail, PoolSettings
from latchwork_workflows.services import pools
from latchwork_workflows.services.parts import parts_of
from latchwork_workflows.web import Who

router = APIRouter(prefix="/api/v1", tags=["pools"])
_Name = Annotated[str, Path(pattern=POOL_PATTERN, description="of a project's pool: `@` and the project")]


@router.get("/pools")
def list_pools(request: Request, who: Who) -> list[Pool]:
    """List the pools, with the workflows that name them."""
    return pools.listed(parts_of(request), who)


@router.get("/pools/{pool}")
def get_pool(*, request: Request, who: Who, pool: _Name, limit: Limit = 100) -> PoolDetail:
    """Return a pool, the tasks that hold its slots, and the next tasks that wait for one."""
    return pools.find(parts_of(request), who, pool, most=limit)


@router.put("/pools/{pool}")
def put_pool(*, request: Request, who: Who, pool: _Name, given: PoolChange) -> PoolSettings:
    """Create or change a pool. Tasks that run beyond a smaller size are not stopped."""
    return pools.put(parts_of(request), who, name=pool, **given.model_dump())


@router.delete("/pools/{pool}", status_code=204)
def remove_pool(*, request: Request, who: Who, pool: _Name) -> None:
    """Remove a pool that no workflow names."""
    pools.remove(parts_of(request), who, pool)
