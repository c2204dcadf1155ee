"""What all pages have in common: who asks, the templates, and where one is led afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from fastapi import Request
from fastapi.responses import HTMLResponse, RedirectResponse

from latchwork_workflows.web import Identity, Pages, Problem, Role

PAGES = Pages([Path(__file__).parent / "templates"])


def page(request: Request, who: Identity, template: str, status: int = 200, /, **values: Any) -> HTMLResponse:
    """A page for somebody."""
    return PAGES.render(request, template, status, who=who, Role=Role, **values)


def led(path: str) -> RedirectResponse:
    """After a change: the page that shows it. A reload asks nothing twice."""
    return RedirectResponse(path, 303)


def address(path: str, **query: Any) -> str:
    """The path with those parts of a query that are given."""
    given = {name: value for name, value in query.items() if value not in {None, ""}}
    return f"{path}?{urlencode(given)}" if given else path


def whole(field: str, text: str) -> int:
    """A whole number as a form has it.

    Raises:
        Problem: 422, it is none.
    """
    if text.strip().isascii() and text.strip().isdigit() and len(text.strip()) < 10:
        return int(text)
    why = f"{text[:40]!r} is no whole number"
    raise Problem(422, f"{field}: {why}", errors=[(field, why)])


def older(rows: list[Any], most: int, path: str, key: str = "id", **query: Any) -> tuple[list[Any], str]:
    """The rows of a page, and the address of the next: one row more than fits was asked for."""
    if len(rows) <= most:
        return rows, ""
    shown = rows[:most]
    return shown, address(path, **query, before=getattr(shown[-1], key))


def role_of(word: str) -> Role:
    """Return the role of this name, as a form has it.

    Raises:
        Problem: 422, there is none.
    """
    try:
        return Role.of(word)
    except ValueError as error:
        raise Problem(422, f"role: {error}", errors=[("role", str(error))]) from None
