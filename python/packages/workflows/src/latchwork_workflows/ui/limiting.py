"""Task groups and limits of projects: how many tasks run at a time, who has the slots, and who waits for one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import HTMLResponse
from starlette.responses import Response

from latchwork_workflows.db.policies.groups import MOST_SIZE
from latchwork_workflows.db.policies.limits import ADMISSIONS, MOST_TASKS, Limit
from latchwork_workflows.db.views import catalog
from latchwork_workflows.services.limiting import groups, limits
from latchwork_workflows.services.limiting.holding import Held
from latchwork_workflows.services.parts import Parts, parts_of
from latchwork_workflows.ui.frame import led, page, whole
from latchwork_workflows.web import Identity, Problem, Role, Who, shares

router = APIRouter()
_MOST = 100
_Word = Annotated[str, Form(max_length=200)]
_WORDS = {
    "suspend": "starts; its tasks wait for slots",
    "fail": "is refused",
    "precompute": "waits until its tasks fit",
}


@router.get("/limits", response_class=HTMLResponse)
def show_all(request: Request, who: Who) -> HTMLResponse:
    """All task groups, and the limits of the projects that one may see."""
    return _page(request, who)


@router.get("/groups/{name}", response_class=HTMLResponse)
def show_group(
    request: Request, who: Who, name: str, most: Annotated[int, Query(ge=1, le=5000)] = _MOST
) -> HTMLResponse:
    """A task group: who has its slots, and who waits for one."""
    parts = parts_of(request)
    found, held = groups.find(parts, who, name, most=most)
    values = _held_values(held, found.size, most)
    return page(request, who, "group.html", group=found, limit=None, path=f"/groups/{name}", **values)


@router.get("/limits/{project}", response_class=HTMLResponse)
def show_limit(
    request: Request, who: Who, project: str, most: Annotated[int, Query(ge=1, le=5000)] = _MOST
) -> HTMLResponse:
    """The limit of a project: who has its slots, and who waits for one."""
    parts = parts_of(request)
    found, held = limits.find(parts, who, project, most=most)
    values = _held_values(held, found.max_running_tasks, most)
    return page(request, who, "group.html", group=None, limit=found, path=f"/limits/{project}", words=_WORDS, **values)


@router.post("/groups")
def set_group(request: Request, who: Who, name: _Word = "", size: _Word = "", back: _Word = "") -> Response:
    """Make a task group, or change its size."""

    def change(parts: Parts) -> None:
        groups.put(parts, who, name.strip(), whole("size", size))

    return _changed(request, who, change, "group", {"name": name, "size": size}, back)


@router.post("/groups/{name}/remove")
def remove_group(request: Request, who: Who, name: str) -> Response:
    """Remove a task group that no workflow names."""
    return _changed(request, who, lambda parts: groups.remove(parts, who, name), "group", {})


@router.post("/limits")
def set_limit(
    *,
    request: Request,
    who: Who,
    project: _Word = "",
    max_running_tasks: _Word = "",
    admission: _Word = "suspend",
    back: _Word = "",
) -> Response:
    """Limit a project."""

    def change(parts: Parts) -> None:
        most = whole("max_running_tasks", max_running_tasks)
        limits.put(parts, who, Limit(project.strip(), most, admission))

    sent = {"project": project, "max_running_tasks": max_running_tasks, "admission": admission}
    return _changed(request, who, change, "limit", sent, back)


@router.post("/limits/{project}/remove")
def remove_limit(request: Request, who: Who, project: str) -> Response:
    """Limit a project no more."""
    return _changed(request, who, lambda parts: limits.remove(parts, who, project), "limit", {})


def _changed(  # noqa: PLR0917 - one for each of four forms
    request: Request,
    who: Identity,
    change: Callable[[Parts], None],
    kind: str,
    sent: Mapping[str, str],
    back: str = "",
) -> Response:
    """Do it, and lead back; what is refused comes back as it was written."""
    try:
        change(parts_of(request))
    except Problem as error:
        if error.status not in {409, 422}:
            raise
        return _page(request, who, error.status, kind=kind, sent=sent, refused=error)
    place = sent.get("name" if kind == "group" else "project", "").strip()
    return led(f"/{kind}s/{place}" if back == "one" else "/limits")


def _page(
    request: Request,
    who: Identity,
    status: int = 200,
    /,
    *,
    kind: str = "",
    sent: Mapping[str, str] | None = None,
    refused: Problem | None = None,
) -> HTMLResponse:
    parts = parts_of(request)
    found = [(each, _bar(each.used, each.size)) for each in groups.listed(parts, who)]
    projects = [(each, _bar(each.running, each.max_running_tasks)) for each in limits.listed(parts, who)]
    with parts.database.read() as connection:
        known = sorted({*catalog.projects(connection), "default"})
    values: dict[str, Any] = {"groups": found, "limits": projects, "known": known, "most": (MOST_SIZE, MOST_TASKS)}
    values |= {"admissions": ADMISSIONS, "words": _WORDS, "kind": kind, "sent": sent or {}, "refused": refused}
    return page(request, who, "limits.html", status, may_change=who.may(Role.EDITOR), **values)


def _held_values(held: Held, size: int, most: int) -> dict[str, Any]:
    used = None if held.holders is None else len(held.holders)
    more = min(most * 5, 5000) if len(held.waiting) < held.waiting_count and most < 5000 else 0
    limits_of = {"most": (MOST_SIZE, MOST_TASKS), "admissions": ADMISSIONS}
    return {"held": held, "used": used, "size": size, "bar": _bar(used, size), "more": more, **limits_of}


def _bar(used: int | None, size: int) -> object:
    if used is None:
        return ""
    return shares([("running", min(used, size)), ("waiting", max(0, size - used))], f"{used} of {size} slots are taken")
