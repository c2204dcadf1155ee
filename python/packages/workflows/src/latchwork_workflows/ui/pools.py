"""Pages of pools: their sizes, the tasks that hold their slots, and the tasks that wait for one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import HTMLResponse
from starlette.responses import Response

from latchwork_workflows.db import workflow_queries
from latchwork_workflows.schemas.pools import MAX_SIZE, project_of, project_pool
from latchwork_workflows.services import pools
from latchwork_workflows.services.parts import Parts, parts_of
from latchwork_workflows.ui.frame import led, page, whole
from latchwork_workflows.web import Identity, Problem, Role, Who, shares

router = APIRouter()
_MOST, _MOST_EVER = 100, 5000
_Word = Annotated[str, Form(max_length=200)]
#: The policies for a start while the pool of its project is full.
_ADMISSIONS = {
    "suspend": "starts; its tasks wait for slots",
    "fail": "is refused",
    "precompute": "waits until its tasks fit",
}


@router.get("/pools", response_class=HTMLResponse)
def show_all(request: Request, who: Who) -> HTMLResponse:
    """Show all pools that the reader may see."""
    return _page(request, who)


@router.get("/pools/{name}", response_class=HTMLResponse)
def show_one(
    request: Request, who: Who, name: str, most: Annotated[int, Query(ge=1, le=_MOST_EVER)] = _MOST
) -> HTMLResponse:
    """Show a pool, the tasks that hold its slots, and the next tasks that wait for one."""
    found = pools.find(parts_of(request), who, name, most=most)
    more = min(most * 5, _MOST_EVER) if len(found.queue) < found.waiting and most < _MOST_EVER else 0
    bar = _bar(found.used, found.size)
    project = project_of(name)
    return page(request, who, "pool.html", pool=found, project=project, bar=bar, more=more, admissions=_ADMISSIONS)


@router.post("/pools")
def set_pool(  # noqa: PLR0917 - one for each field of the form
    request: Request, who: Who, name: _Word = "", size: _Word = "", admission: _Word = "suspend", back: _Word = ""
) -> Response:
    """Create or change a pool."""

    def change(parts: Parts) -> None:
        pools.put(parts, who, name=name.strip(), size=whole("size", size), admission=admission)

    sent = {"name": name, "size": size, "admission": admission}
    return _changed(request, who, change, sent, f"/pools/{name.strip()}" if back == "one" else "/pools")


@router.post("/pools/{name}/remove")
def remove_pool(request: Request, who: Who, name: str) -> Response:
    """Remove a pool that no workflow names."""
    return _changed(request, who, lambda parts: pools.remove(parts, who, name), {}, "/pools")


def _changed(
    request: Request, who: Identity, change: Callable[[Parts], None], sent: Mapping[str, str], after: str
) -> Response:
    """Apply a change and redirect. A refused form is shown again as it was sent."""
    try:
        change(parts_of(request))
    except Problem as error:
        if error.status not in {409, 422}:
            raise
        return _page(request, who, error.status, sent=sent, refused=error)
    return led(after)


def _page(
    request: Request,
    who: Identity,
    status: int = 200,
    /,
    *,
    sent: Mapping[str, str] | None = None,
    refused: Problem | None = None,
) -> HTMLResponse:
    parts = parts_of(request)
    found = [(each, project_of(each.name), _bar(each.used, each.size)) for each in pools.listed(parts, who)]
    with parts.database.read() as connection:
        known = [project_pool(each) for each in sorted({*workflow_queries.projects(connection), "default"})]
    values: dict[str, Any] = {"pools": found, "known": known, "max_size": MAX_SIZE, "admissions": _ADMISSIONS}
    values |= {"sent": sent or {}, "refused": refused}
    return page(request, who, "pools.html", status, may_change=who.may(Role.EDITOR), **values)


def _bar(used: int | None, size: int) -> object:
    if used is None:
        return ""
    return shares([("running", min(used, size)), ("waiting", max(0, size - used))], f"{used} of {size} slots are taken")
