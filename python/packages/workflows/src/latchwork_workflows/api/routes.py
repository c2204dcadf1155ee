"""All routes of the API."""

from __future__ import annotations

from fastapi import APIRouter

from latchwork_workflows.api import (
    alerts,
    backfills,
    definitions,
    grants,
    groups,
    instances,
    limits,
    lineage,
    people,
    rest,
    settings,
)

#: In the order in which their paths are tried.
routers: tuple[APIRouter, ...] = (
    instances.router,
    backfills.router,
    groups.router,
    grants.router,
    limits.router,
    definitions.router,
    lineage.router,
    alerts.router,
    people.router,
    settings.router,
    rest.router,
)
