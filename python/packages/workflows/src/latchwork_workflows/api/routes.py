"""All routes of the API."""

from __future__ import annotations

from fastapi import APIRouter

from latchwork_workflows.api import (
    accounts,
    alerts,
    backfills,
    grants,
    lineage,
    pools,
    runs,
    server,
    settings,
    workflows,
)

#: In the order in which their paths are tried.
routers: tuple[APIRouter, ...] = (
    runs.router,
    backfills.router,
    pools.router,
    grants.router,
    workflows.router,
    lineage.router,
    alerts.router,
    accounts.router,
    settings.router,
    server.router,
)
