"""All pages, and how they are found."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter

from latchwork.web import Link, Pages

PAGES = Pages([Path(__file__).parent / "templates"])
NAVIGATION: tuple[Link, ...] = ()
ui_routers: tuple[APIRouter, ...] = ()
