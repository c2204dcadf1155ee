"""Pages of pools: their sizes, the tasks that hold their slots, and the tasks that wait for one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import HTMLResponse
from starlette.responses import Response

from latchwork_workflows.db import workflow_queries
from latchwork_workflows.schemas.pools import MAX_SIZE, get_pool_of_project, get_project_of_pool
from latchwork_workflows.services import pools
from latchwork_workflows.services.context import ServiceContext, get_context
from latchwork_workflows.ui.page_helpers import parse_integer, redirect, render_page
from latchwork_workflows.web import CurrentUser, HttpProblem, Identity, Role, draw_share_bar

router = APIRouter()
_MAX, _MAX_EVER = 100, 5000
_Word = Annotated[str, Form(max_length=200)]
#: The policies for a start while the pool of its project is full.
_ADMISSIONS = {
    "suspend": "starts; its tasks wait for slots",
    "fail": "is refused",
    "precompute": "waits until its tasks fit",
}


@router.get("/pools", response_class=HTMLResponse)
def list_pools(request: Request, user: CurrentUser) -> HTMLResponse:
    """Show the pools that the account may see."""
    return _page(request, user)


@router.get("/pools/{name}", response_class=HTMLResponse)
def show_pool(
    request: Request, user: CurrentUser, name: str, limit: Annotated[int, Query(ge=1, le=_MAX_EVER)] = _MAX
) -> HTMLResponse:
    """Show a pool, the tasks that hold its slots, and the next tasks that wait for a slot."""
    found = pools.get_pool(get_context(request), user, name, limit=limit)
    more = min(limit * 5, _MAX_EVER) if len(found.queue) < found.waiting and limit < _MAX_EVER else 0
    bar = _bar(found.used, found.size)
    project = get_project_of_pool(name)
    return render_page(
        request, user, "pool.html", pool=found, project=project, bar=bar, more=more, admissions=_ADMISSIONS
    )


@router.post("/pools")
def set_pool(  # noqa: PLR0917 - one for each field of the form
    request: Request,
    user: CurrentUser,
    name: _Word = "",
    size: _Word = "",
    admission: _Word = "suspend",
    back: _Word = "",
) -> Response:
    """Create or change a pool.

    Args:
        request: The request to answer.
        user: The user.
        name: The name of the pool.
        size: The maximum number of its tasks that run at a time.
        admission: How a run starts while the pool is full.
        back: ``one`` to return to the page of the pool, otherwise to the list of pools.
    """

    def change(context: ServiceContext) -> None:
        pools.set_pool(context, user, name=name.strip(), size=parse_integer("size", size), admission=admission)

    sent = {"name": name, "size": size, "admission": admission}
    return _apply_change(request, user, change, sent, f"/pools/{name.strip()}" if back == "one" else "/pools")


@router.post("/pools/{name}/remove")
def remove_pool(request: Request, user: CurrentUser, name: str) -> Response:
    """Remove a pool that no workflow uses."""
    return _apply_change(request, user, lambda context: pools.remove_pool(context, user, name), {}, "/pools")


def _apply_change(
    request: Request, user: Identity, change: Callable[[ServiceContext], None], sent: Mapping[str, str], after: str
) -> Response:
    """Apply a change of a pool and redirect. If the change is refused, show the form again with the values of the user.

    Args:
        request: The request.
        user: The signed-in user.
        change: Makes the change.
        sent: The values that the user has sent.
        after: The path to redirect to.
    """
    try:
        change(get_context(request))
    except HttpProblem as error:
        if error.status not in {409, 422}:
            raise
        return _page(request, user, error.status, sent=sent, refused=error)
    return redirect(after)


def _page(
    request: Request,
    user: Identity,
    status: int = 200,
    /,
    *,
    sent: Mapping[str, str] | None = None,
    refused: HttpProblem | None = None,
) -> HTMLResponse:
    context = get_context(request)
    found = [
        (each, get_project_of_pool(each.name), _bar(each.used, each.size)) for each in pools.list_pools(context, user)
    ]
    with context.database.read() as connection:
        known = [get_pool_of_project(each) for each in sorted({*workflow_queries.list_projects(connection), "default"})]
    values: dict[str, Any] = {"pools": found, "known": known, "max_size": MAX_SIZE, "admissions": _ADMISSIONS}
    values |= {"sent": sent or {}, "refused": refused}
    return render_page(request, user, "pools.html", status, may_change=user.has_role(Role.EDITOR), **values)


def _bar(used: int | None, size: int) -> object:
    if used is None:
        return ""
    return draw_share_bar(
        [("running", min(used, size)), ("waiting", max(0, size - used))], f"{used} of {size} slots are in use"
    )
