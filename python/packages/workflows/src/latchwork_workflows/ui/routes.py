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
from latchwork_workflows.ui.page_helpers import PAGES as PAGES  # noqa: PLC0414 - the site needs them
from latchwork_workflows.web import NavigationEntry, Role

NAVIGATION: tuple[NavigationEntry, ...] = (
    NavigationEntry("/", "Home"),
    NavigationEntry("/workflows", "Workflows", also=("/edit",)),
    NavigationEntry("/runs", "Runs", also=("/tasks", "/attempts")),
    NavigationEntry("/backfills", "Backfills"),
    NavigationEntry("/schedules", "Schedules"),
    NavigationEntry("/alerts", "Alerts"),
    NavigationEntry("/lineage", "Lineage"),
    NavigationEntry("/pools", "Pools"),
    NavigationEntry("/settings", "Settings"),
    NavigationEntry("/workers", "Workers"),
    NavigationEntry("/audit", "Audit", Role.ADMIN),
    NavigationEntry("/users", "Users", Role.ADMIN),
    NavigationEntry("/api", "API"),
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
