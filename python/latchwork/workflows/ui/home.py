"""The first page: is all well, what failed, what runs, what comes next, and does anything wait for masters."""

from __future__ import annotations

import time

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from latchwork.web import Who
from latchwork.workflows.database.views import catalog, overview
from latchwork.workflows.desk.definitions import next_fire
from latchwork.workflows.desk.parts import parts_of, seen_codes
from latchwork.workflows.ui.frame import page

router = APIRouter()
_DAY_S = 86_400.0


@router.get("/", response_class=HTMLResponse)
def home(request: Request, who: Who) -> HTMLResponse:
    """How everything goes."""
    parts, now = parts_of(request), time.time()
    with parts.database.read() as connection:
        codes = seen_codes(connection, who)
        values = {
            "active": overview.active(connection, codes),
            "active_count": overview.active_count(connection, codes),
            "failed": overview.failed_since(connection, now - _DAY_S, codes),
            "lag": overview.lag(connection),
        }
        schedules = catalog.schedules(connection, who.projects())
        is_new = not catalog.listed(connection, among=who.projects(), most=1)
    fires = [(next_fire(each, now), each) for each in schedules if each.enabled and each.online]
    soon = sorted(((at, each) for at, each in fires if at is not None), key=lambda pair: pair[0])[:8]
    workers = parts.workers()
    return page(request, who, "home.html", soon=soon, workers=workers, most=overview.MOST, is_new=is_new, **values)
