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
    """Return a redirect to the page that shows the result of a change. Reloading that page does not repeat the
    change.
    """
    return RedirectResponse(path, 303)


def build_url(path: str, **query: Any) -> str:
    """Return a URL path with query parameters. Empty parameters are left out."""
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


def paginate(rows: list[Any], limit: int, path: str, key: str = "id", **query: Any) -> tuple[list[Any], str]:
    """Return one page of rows and the URL of the next page.

    Args:
        rows: The rows of the page, and at least one more row if there is a next page.
        limit: The number of rows of a page.
        path: The path of the list.
        key: The column that the next page continues after.
        query: Further query parameters of the list.
    Returns:
        The rows, and the URL. The URL is empty if this is the last page.
    """
    if len(rows) <= limit:
        return rows, ""
    shown = rows[:limit]
    return shown, build_url(path, **query, before=getattr(shown[-1], key))


def parse_role(word: str) -> Role:
    """Parse a role from a form.

    Raises:
        HttpProblem: 422 (invalid) if there is no such role.
    """
    try:
        return Role.from_label(word)
    except ValueError as error:
        raise HttpProblem(422, f"role: {error}", errors=[("role", str(error))]) from None
