"""The routes of all pages."""

from __future__ import annotations

from fastapi import APIRouter

from latchwork_workflows.ui import (
    accounts,
    alerts,
    backfills,
    home,
    lineage,
    pools,
    runs,
    schedules,
    settings,
    workers,
    workflows,
)
from latchwork_workflows.ui.editor import editor
from latchwork_workflows.ui.frame import PAGES as PAGES  # noqa: PLC0414 - the site needs them
from latchwork_workflows.web import Link, Role

NAVIGATION: tuple[Link, ...] = (
    Link("/", "Home"),
    Link("/workflows", "Workflows", also=("/edit",)),
    Link("/runs", "Runs", also=("/tasks", "/attempts")),
    Link("/backfills", "Backfills"),
    Link("/schedules", "Schedules"),
    Link("/alerts", "Alerts"),
    Link("/lineage", "Lineage"),
    Link("/pools", "Pools"),
    Link("/settings", "Settings"),
    Link("/workers", "Workers"),
    Link("/audit", "Audit", Role.ADMIN),
    Link("/users", "Users", Role.ADMIN),
    Link("/api", "API"),
)
ui_routers: tuple[APIRouter, ...] = (
    home.router,
    editor.router,
    backfills.router,
    workflows.router,
    runs.router,
    alerts.router,
    lineage.router,
    schedules.router,
    workers.router,
    settings.router,
    pools.router,
    accounts.router,
)
