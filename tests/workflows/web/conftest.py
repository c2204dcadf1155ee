"""A site over a database of its own, and browsers and programs that ask it."""

import pytest
from fastapi.testclient import TestClient

from latchwork_testkit.chromium import find_chromium
from latchwork_workflows.app import create_admin_link, make_web_app
from latchwork_workflows.db import Database
from latchwork_workflows.db.migrations import upgrade_schema
from latchwork_workflows.web import HttpServer
from missing import found_or_skipped
from workflows.web.seeds import Seeds


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    database = Database(f"sqlite:///{folder}/flows.db")
    upgrade_schema(database)
    found = Seeds(database, folder / "logs")
    found.tokens = found.people()
    yield found
    database.close()


@pytest.fixture(scope="module")
def site(seeds):
    return make_web_app(seeds.database, logs=seeds.logs, hosts=["testserver"])


@pytest.fixture(scope="module")
def ask(site, seeds):
    """A program: `ask("viewer-of-default")` has that account's token."""
    clients = {}

    def client(name=None):
        if name not in clients:
            headers = {"Authorization": f"Bearer {seeds.tokens[name]}"} if name else {}
            clients[name] = TestClient(site, headers=headers, follow_redirects=False)
        return clients[name]

    return client


@pytest.fixture
def browser(site, seeds):
    """A browser that is signed in; `client.csrf` is what its pages hold."""

    def client(name="admin"):
        made = TestClient(site, follow_redirects=False, headers={"Accept": "text/html"})
        answer = made.post("/sign-in", data={"link": seeds.accounts.create_sign_in_link(name, by="test")})
        assert answer.status_code == 303
        made.csrf = seeds.accounts.find_identity_by_cookie(made.cookies["latchwork"]).csrf
        return made

    return client


WAIT_MS = 30_000


@pytest.fixture(scope="module")
def chromium():
    """The system's Chromium. While it is open its driver runs an event loop in this thread, so no other may run."""
    program = found_or_skipped(find_chromium)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def address(seeds):
    """Where a site is, and the link that signs its administrator in."""
    server = HttpServer(made := make_web_app(seeds.database, logs=seeds.logs))
    server.start()
    yield server.url, create_admin_link(made, server.url)
    server.close()


@pytest.fixture(scope="module")
def windows(chromium, address):
    """Windows of a browser that came by the link that `serve` prints: with scripts, and without."""
    context = chromium.new_context()
    page = context.new_page()
    page.goto(address[1])
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(f"{address[0]}/", timeout=WAIT_MS)
    plain = chromium.new_context(java_script_enabled=False)
    plain.add_cookies(context.cookies())
    page.close()
    for each in (context, plain):
        each.set_default_timeout(WAIT_MS)
    yield {True: context, False: plain}
    context.close()
    plain.close()


@pytest.fixture
def page(windows, request):
    """A page of that browser; what it complains about fails the test."""
    options = {"width": 1280, "height": 800, "scheme": "light", "scripts": True, **getattr(request, "param", {})}
    made = windows[options["scripts"]].new_page()
    made.set_viewport_size({"width": options["width"], "height": options["height"]})
    made.emulate_media(color_scheme=options["scheme"])
    made.complaints = []
    made.on("console", lambda told: made.complaints.append(told.text) if told.type == "error" else None)
    made.on("pageerror", lambda error: made.complaints.append(str(error)))
    yield made
    made.close()
    assert made.complaints == []
