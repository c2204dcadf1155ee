"""The documentation site in a browser: search, navigation and links, at 400 and 1440 pixels. `make check WHAT=site`."""

from __future__ import annotations

import functools
import http.server
import re
import threading
from pathlib import Path
from urllib.parse import unquote

import pytest
from playwright.sync_api import expect, sync_playwright

from latchwork_testkit.chromium import find_chromium

SITE = Path(__file__).resolve().parent.parent / "site"
#: Without the listings of source files.
PAGES = [page for page in sorted(SITE.rglob("*.html")) if not page.is_relative_to(SITE / "_modules")]
REFERENCE = re.compile(r'(?:href|src)="(?P<target>[^"]+)"')
ID = re.compile(r'\bid="([^"]+)"')
WIDTHS = (400, 1440)


@pytest.fixture(scope="module")
def address():
    """The address of the site, served on the loopback interface."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(SITE))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(params=WIDTHS)
def page(request, browser, address):
    """A page of this width that fails on any request to another host."""
    context = browser.new_context(viewport={"width": request.param, "height": 900})
    page, foreign = context.new_page(), []
    page.on(
        "request", lambda asked: foreign.append(asked.url) if not asked.url.startswith((address, "data:")) else None
    )
    yield page
    context.close()
    assert not foreign, "the site loads files of other hosts"


def width_of(page):
    return page.viewport_size["width"]


def open_navigation(page):
    if width_of(page) < 1000:
        page.locator("label.nav-overlay-icon").first.click()


def test_landing_page_shows_the_example_and_the_table_of_parts(page, address):
    page.goto(f"{address}/index.html")
    expect(page.get_by_role("heading", name="60 seconds")).to_be_visible()
    expect(page.get_by_role("heading", name="Which part do I need?")).to_be_visible()
    expect(page.get_by_text("latchwork run jobs:job").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width_of(page), "the page scrolls sideways"


@pytest.mark.parametrize(
    ("words", "found"), [("persistent lock", "primitives"), ("misfire", "jobs"), ("backfill", "workflow")]
)
def test_search_finds_the_page_of_a_term(page, address, words, found):
    page.goto(f"{address}/search.html?q={words.replace(' ', '+')}")
    expect(page.locator(f"#search-results li a[href*='{found}']").first).to_be_visible(timeout=20_000)


def test_navigation_leads_from_the_landing_page_to_each_part(page, address):
    for name, heading in (
        ("A pool of machines", "A pool of machines"),
        ("latchwork.primitives", "latchwork.primitives"),
    ):
        page.goto(f"{address}/index.html")
        open_navigation(page)
        page.locator(".sidebar-tree").get_by_role("link", name=name, exact=True).first.click()
        expect(page.get_by_role("heading", level=1)).to_contain_text(heading)


def test_code_blocks_have_a_copy_button_and_a_prompt_is_not_copied(page, address):
    page.goto(f"{address}/tutorial-crawler.html")
    assert page.locator("button.copybtn").count() >= 5


def test_unknown_address_shows_the_page_for_it(page, address):
    page.goto(f"{address}/404.html")
    expect(page.get_by_role("heading", level=1)).to_contain_text("not found", ignore_case=True)


def test_links_of_all_pages_lead_somewhere():
    assert len(PAGES) > 60
    ids = {page: set(ID.findall(page.read_text(encoding="utf-8"))) for page in PAGES}
    broken = []
    for page in PAGES:
        for target in {found["target"] for found in REFERENCE.finditer(page.read_text(encoding="utf-8"))}:
            if (
                target.startswith(("http://", "https://", "data:", "mailto:", "javascript:", "#"))
                or page.name == "404.html"
            ):
                continue
            path, _, anchor = target.partition("#")
            file = (page.parent / unquote(path.partition("?")[0])).resolve() if path else page
            if not file.exists() or (anchor and file in ids and unquote(anchor) not in ids[file]):
                broken.append(f"{page.relative_to(SITE)}: {target}")
    assert not broken, broken[:20]
