"""Every page in a browser: can it be read by whoever does not see it, sees little, has no mouse, or holds a phone?

What is asked of a page is in ``looked_at.js``. It is ours, and no tool from elsewhere: names, headings, contrasts and
what scrolls are what such a tool (axe) asked when it was run by hand, and these take some milliseconds of a page.
"""

from pathlib import Path

import pytest

from latchwork_workflows.db import pools
from latchwork_workflows.schemas.pools import PoolSettings
from latchwork_workflows.state import Claimed, Outcome
from latchwork_workflows.web import Role
from workflows.web.seeds import BAD, apply, shell, works
from workflows.web.test_roles import PAGES, filled, started, stored, world

assert world
assert started  # a fixture: what the addresses of pages name

LOOKED_AT = Path(__file__).with_name("looked_at.js").read_text()
LONG = "n" * 60 + "-of-a-thing-that-explains-all-that-it-does"[:40]
#: What people write may be no name, but all kinds of text.
HOSTILE = "<script>alert(1)</script> \u202etxt.exe \U0001f600 \u0645\u0631\u062d\u0628\u0627 " + "w" * 200
WIDE = {
    "name": LONG[:100],
    "project": "p" * 80,
    "description": HOSTILE,
    "params": {"text": HOSTILE},
    "schedule": {
        "cron": "0 3 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20 * *",
        "tz": "America/Argentina/ComodRivadavia",
    },
    "tasks": [
        shell("a" * 100, pool="g" * 60, description=HOSTILE),
        shell("b" * 100, ["a" * 100], pool="g" * 60, cache_s=60),
        {"name": "c", "type": "dependent", "params": {"on": {"workflow": "default.nightly", "window": "today"}}},
    ],
}
#: Of pages, and none by themselves.
PARTS = {"GET /schedules/preview", "GET /workflows/{project}/{name}/backfill/schedule-times"}
SIZES = {"desk": (1280, 800, "light"), "phone": (390, 780, "dark")}


@pytest.fixture(scope="module")
def full(seeds, world):
    """Something of each kind, with names as long as they may be."""
    seeds.codes["wide"] = apply(seeds.database, WIDE).code
    story = [(1.0, [Claimed("a" * 100, 1)])]
    runs = [seeds.run(story, name="wide", given=WIDE, by=HOSTILE[:60])]
    runs.append(seeds.run(works("a" * 100, outcome=Outcome.FAILURE), name="wide", given=WIDE))
    seeds.run(BAD)
    with seeds.database.write() as connection:
        pools.save_pool(connection, PoolSettings(name="g" * 60, size=1))
        pools.save_pool(connection, PoolSettings(name="@" + "p" * 80, size=3, admission="precompute"))
        tasks = connection.exec_driver_sql(f"SELECT id FROM task WHERE run_id = {runs[0]} ORDER BY id").scalars().all()
    stored(seeds)
    seeds.accounts.create_account("u" * 90, None, by="test")
    seeds.accounts.set_role("u" * 90, "p" * 80, Role.EDITOR, by="test")
    wide = f"/workflows/{'p' * 80}/{LONG[:100]}"
    return [
        *(f"/runs/{each}" for each in runs),
        *(f"/tasks/{each}" for each in tasks[:2]),
        *(wide + part for part in ("", "/runs", "/versions", "/start", "/backfill", "/edit")),
        f"/lineage?project={'p' * 80}&workflow={LONG[:100]}",
        f"/pools/{'g' * 60}",
        f"/pools/@{'p' * 80}",
        "/alerts?state=failed",
        "/backfills?project=billing",
        "/runs?state=paused",
        "/workflows?q=nothing",
    ]


def look(page, where, path):
    """What is wrong on a page, on a desk by day and on a phone at night."""
    found = []
    page.goto(where + path)
    for name, (width, height, scheme) in SIZES.items():
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme=scheme)
        found += [f"{path} ({name}): {each}" for each in page.evaluate(LOOKED_AT)]
    return found


def test_every_page_can_be_read_by_everybody_also_with_the_longest_names(page, address, seeds, started, full):
    found = []
    paths = [filled(each, started, seeds, "admin")[1] for each in sorted(PAGES.keys() - PARTS)]
    for path in sorted([*paths, *full], key=lambda path: path.startswith("/commands")):  # it leads on by itself
        found += look(page, address[0], path)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("page", [{}, {"scripts": False}], indirect=True, ids=["scripts", "no scripts"])
def test_errors_are_pages_that_say_what_to_do_and_can_be_read(page, address):
    answers = {}
    page.on("response", lambda got: answers.update({got.url: got.status}))
    for path, status, said in [
        ("/nowhere", 404, "there is no such path"),
        ("/runs/999999", 404, "there is no run 999999"),
        ("/pools/nobody", 404, "there is no pool 'nobody'"),
        ("/workflows?after=" + "x" * 900, 422, "is invalid"),
    ]:
        page.goto(address[0] + path)
        assert answers[address[0] + path] == status
        assert said in page.locator(".problem").inner_text()
        assert page.get_by_role("link", name="Home").count()
        assert look_here(page) == []
    page.complaints.clear()  # a browser tells of each answer that is no page


def test_what_a_form_is_refused_for_is_a_page_with_a_way_back(page, address, seeds):
    run = seeds.run(BAD)
    page.goto(f"{address[0]}/runs/{run}")
    page.locator("button[value=recover]").evaluate("each => each.value = 'pause'")
    page.locator("button[value=pause]").click()
    page.get_by_role("heading", name="Conflict").wait_for()
    assert "Actions possible now: recover, rerun." in page.locator("main").inner_text()
    assert look_here(page) == []
    page.complaints.clear()


def look_here(page):
    return page.evaluate(LOOKED_AT)


def test_a_database_that_is_away_is_a_page_that_says_so(page, address, seeds, monkeypatch):
    from latchwork_workflows.db.database import Database, DatabaseUnavailable

    def away(self):
        raise DatabaseUnavailable("the database cannot be reached: it is away for a test")

    page.goto(f"{address[0]}/account")
    monkeypatch.setattr(Database, "read", away)
    page.goto(f"{address[0]}/runs")
    said = page.locator(".problem").inner_text()
    monkeypatch.undo()
    assert "database" in said
    assert look_here(page) == []
    page.complaints.clear()
