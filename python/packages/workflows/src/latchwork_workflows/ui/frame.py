"""Shared parts of all pages: identity, templates and redirects."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from fastapi import Request
from fastapi.responses import HTMLResponse, RedirectResponse

from latchwork_workflows.web import HttpProblem, Identity, Pages, Role

PAGES = Pages([Path(__file__).parent / "templates"])


def render_page(request: Request, user: Identity, template: str, status: int = 200, /, **values: Any) -> HTMLResponse:
    """Render a page for a user."""
    return PAGES.render(request, template, status, user=user, Role=Role, **values)


def redirect(path: str) -> RedirectResponse:
    """Return a redirect to the page that shows the result of a change, so that a reload does not repeat the change."""
    return RedirectResponse(path, 303)


def url_with_query(path: str, **query: Any) -> str:
    """Return a path with query parameters. Empty parameters are left out."""
    given = {name: value for name, value in query.items() if value not in {None, ""}}
    return f"{path}?{urlencode(given)}" if given else path


def parse_integer(field: str, text: str) -> int:
    """Parse an integer from a form.

    Raises:
        HttpProblem: 422 (invalid) if the text is not an integer.
    """
    if text.strip().isascii() and text.strip().isdigit() and len(text.strip()) < 10:
        return int(text)
    why = f"{text[:40]!r} is not a whole number"
    raise HttpProblem(422, f"{field}: {why}", errors=[(field, why)])


def split_page(rows: list[Any], limit: int, path: str, key: str = "id", **query: Any) -> tuple[list[Any], str]:
    """Return the rows of one page of a list, and the address of the next page.

    ``rows`` must have one row more than fits, if there are more.
    """
    if len(rows) <= limit:
        return rows, ""
    shown = rows[:limit]
    return shown, url_with_query(path, **query, before=getattr(shown[-1], key))


def parse_role(word: str) -> Role:
    """Return the role that a form names.

    Raises:
        HttpProblem: 422 (invalid) if there is no such role.
    """
    try:
        return Role.from_label(word)
    except ValueError as error:
        raise HttpProblem(422, f"role: {error}", errors=[("role", str(error))]) from None
