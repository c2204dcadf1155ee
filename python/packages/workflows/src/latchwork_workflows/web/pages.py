"""Renders pages from templates. All values are escaped, and control characters are neutralized first."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

import jinja2
from fastapi import Request
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from latchwork.spi import counted
from latchwork_workflows.web.identity import Identity

_HERE = Path(__file__).parent
#: Shown for missing values: a dash.
_NOTHING = "\N{EN DASH}"
_DASH = Markup("\N{EN DASH}")


class Pages:
    """Renders templates. Thread-safe.

    Args:
        folders: Template folders that take precedence over ours. The first one that has a template is used.
    """

    def __init__(self, folders: Iterable[Path] = ()) -> None:
        paths = [str(each) for each in (*folders, _HERE / "templates")]
        self._env = jinja2.Environment(
            loader=jinja2.FileSystemLoader(paths),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            finalize=clean_value,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._env.filters.update(
            timestamp=format_timestamp,
            duration=format_duration,
            size=format_size,
            counted=counted,
            label=format_state_name,
            as_json=format_as_json,
        )
        self._env.globals.update(
            asset=get_asset_url, now=time.time, elapsed=format_elapsed, elapsed_since=format_elapsed_since
        )

    def render(
        self,
        request: Request,
        template: str,
        status: int = 200,
        *,
        user: Identity | None = None,
        headers: Mapping[str, str] | None = None,
        **values: Any,
    ) -> HTMLResponse:
        """Render a page from a template.

        Args:
            request: The request to answer.
            template: The file name of the template.
            status: The HTTP status.
            user: The user. None: unknown.
            headers: Additional headers.
            values: The values for the template.
        """
        known = {"request": request, "site": request.app.state.site, "user": user, "csrf": user.csrf if user else ""}
        return HTMLResponse(self._env.get_template(template).render(known | values), status, dict(headers or {}))


def clean_value(value: Any) -> Any:
    """Remove characters from text that move the cursor or change the text direction. Line breaks are kept."""
    if not isinstance(value, str) or isinstance(value, Markup) or value.isprintable():
        return value
    return "".join(c if c.isprintable() or c in "\n\t" else "" if c == "\r" else ascii(c)[1:-1] for c in value)


def format_timestamp(wall_s: float | None) -> Markup:
    """Format a time in UTC, such as ``2026-11-22 19:55:29``."""
    if wall_s is None:
        return _DASH
    try:
        at = datetime.fromtimestamp(wall_s, UTC)
    except (ValueError, OSError, OverflowError):
        return Markup("out of reach")
    return Markup('<time datetime="{}">{}</time>').format(f"{at:%Y-%m-%dT%H:%M:%SZ}", f"{at:%Y-%m-%d %H:%M:%S}")


def format_duration(seconds: float | None) -> str:
    """Format a duration: ``0.4 s``, ``12 s``, ``4 min 05 s``, ``2 h 03 min``, ``3 d 4 h``."""
    if seconds is None:
        return _NOTHING
    seconds = max(0.0, seconds)
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"


def format_elapsed(start: float | None, end: float | None) -> Markup:
    """Format the time from start to end. Without an end, the browser keeps counting up."""
    if start is None:
        return _DASH
    return Markup("{}").format(format_duration(end - start)) if end is not None else format_elapsed_since(start)


def format_elapsed_since(start: float) -> Markup:
    """Format the time since ``start``. The browser keeps counting up."""
    return Markup('<span class="num" data-since="{}">{}</span>').format(
        f"{start:.1f}", format_duration(time.time() - start)
    )


def format_size(count: int) -> str:
    """Format a number of bytes, such as ``17 bytes``, ``4.2 kB`` or ``1.3 MB``."""
    if count < 1000:
        return counted(count, "byte")
    for unit, each in (("GB", 1e9), ("MB", 1e6)):
        if count >= each:
            return f"{count / each:.1f} {unit}"
    return f"{count / 1000:.1f} kB"


def format_state_name(text: str) -> str:
    """Format the name of a state for users, such as ``retry wait``."""
    return str(text).replace("_", " ")


def format_as_json(value: Any, indent: int | None = None) -> str:
    """Format a value as JSON for display. Like all text, it is escaped in the page."""
    return json.dumps(value, ensure_ascii=False, indent=indent, default=str)


@cache
def get_asset_url(name: str) -> str:
    """Return the URL of a static file. It changes with the content, so that browsers may cache the file."""
    return f"/static/{name}?v={crc32((_HERE / 'static' / name).read_bytes()):08x}"
