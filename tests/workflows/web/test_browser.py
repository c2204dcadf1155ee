"""The pages in a real browser, the system's Chromium: without one the tests are left out, and say so."""

import re
from pathlib import Path

import pytest

from latchwork_workflows.model.definition import build_plan
from latchwork_workflows.model.validate import check_definition
from latchwork_workflows.state import Ended, Outcome
from workflows.web.seeds import BAD, GOOD, HALF, NIGHTLY, TYPES, apply, shell

pytestmark = pytest.mark.slow


def test_a_run_that_is_watched_shows_what_happens_by_itself(page, address, seeds):
    run = seeds.run(HALF)
    page.goto(f"{address[0]}/runs/{run}")
    page.get_by_text("Live.").wait_for()
    assert page.locator("svg.dag .state-running").count() == 1
    found = check_definition(NIGHTLY, TYPES)
    seeds.tell(run, build_plan(found.definition, found.order), [Ended("load", 1, Outcome.FAILURE)], 2e9)
    page.locator("svg.dag .state-failure").wait_for()
    page.locator("h1 .chip.state-running").wait_for()
    page.get_by_role("button", name="Pause").click()
    page.get_by_text(re.compile("pause, requested by admin .* ago")).wait_for()


def test_what_happens_to_a_run_moves_nothing_under_who_reads(page, address, seeds):
    run = seeds.run(HALF)
    page.goto(f"{address[0]}/runs/{run}")
    page.get_by_text("Live.").wait_for()
    before = page.locator("#graph-title").bounding_box()
    assert "6 tasks" in page.locator(".cause").inner_text()
    found = check_definition(NIGHTLY, TYPES)
    seeds.tell(run, build_plan(found.definition, found.order), [Ended("load", 1, Outcome.FAILURE)], 2e9)
    page.locator(".cause").get_by_text("Waiting for").wait_for()
    assert page.locator("#graph-title").bounding_box() == before
    page.get_by_role("button", name="Stop").evaluate("each => delete each.dataset.confirm")
    page.get_by_role("button", name="Stop").click()
    page.locator(".cause").get_by_text("requested by admin").wait_for()
    assert page.locator("#graph-title").bounding_box() == before


def test_a_workflow_of_a_thousand_tasks_is_a_list_that_can_be_read_and_drawn_if_asked_for(page, address, seeds):
    names = [f"task-{number:04}" for number in range(998)]
    rows = [shell("root"), *(shell(each, ["root"]) for each in names), shell("end", names)]
    apply(seeds.database, {"name": "thousand", "tasks": rows})
    page.goto(f"{address[0]}/workflows/default/thousand")
    assert page.locator("svg.dag").count() == 0
    last = page.locator("tr", has_text="and 988 more")
    assert last.locator("td").first.inner_text() == "end"
    assert page.locator("#task-1").bounding_box()["height"] < 60  # one line
    page.get_by_role("link", name="Draw them all").click()
    page.locator("svg.dag").get_by_text("task-0997", exact=True).wait_for()


def test_the_editor_says_what_is_wrong_as_one_types_and_draws_what_is_right(page, address):
    page.goto(f"{address[0]}/workflows/default/nightly/edit")
    area = page.locator("#yaml")
    text = area.input_value()
    area.fill(text.replace("after:\n  - clean", "after:\n  - claen"))
    page.get_by_text(re.compile("there is no task 'claen'")).first.wait_for()
    page.get_by_role("link", name=re.compile("line ")).first.click()
    assert "claen" in area.evaluate("each => each.value.slice(each.selectionStart, each.selectionEnd)")
    area.fill(text + "- name: publish\n  type: shell\n  params: {script: echo}\n  after: [report]\n")
    page.locator("#result svg.dag").get_by_text("publish", exact=True).wait_for()
    page.get_by_role("button", name="Apply").click()
    page.wait_for_url(f"{address[0]}/workflows/default/nightly")
    page.locator("svg.dag").get_by_text("publish", exact=True).wait_for()


def test_the_editor_has_a_form_for_each_task_type_with_a_field_for_each_of_its_parameters(page, address):
    page.goto(f"{address[0]}/edit")
    fields = set(page.evaluate("[...document.querySelectorAll('[id^=f-]')].map((each) => each.id)"))
    for kind in TYPES.names:
        wanted = TYPES.get(kind).params.model_json_schema().get("properties", {})
        assert {f"f-{kind}-p-{name}" for name in wanted} <= fields, kind
        assert {f"f-{kind}-name", f"f-{kind}-o-after", f"f-{kind}-o-retries"} <= fields, kind


def test_the_grid_and_the_chart_lead_to_tasks_and_attempts_and_a_log_is_downloaded(page, address, seeds):
    run = seeds.run(GOOD)
    page.goto(f"{address[0]}/workflows/default/nightly/runs")
    page.get_by_label(f"load of run {run}: success").click()
    page.get_by_role("heading", name="load").wait_for()
    page.goto(f"{address[0]}/runs/{run}")
    bars = page.locator("svg.bars a")
    assert bars.count() == len(NIGHTLY["tasks"])
    bars.first.click()
    page.get_by_role("log").get_by_text("read 1,200 rows").wait_for()
    with page.expect_download() as started:
        page.get_by_role("link", name="Download").click()
    assert started.value.suggested_filename.endswith(".log")
    assert "read 1,200 rows\n" in Path(started.value.path()).read_text()


def test_fire_times_come_as_one_types(page, address):
    page.goto(f"{address[0]}/schedules")
    page.get_by_label("Cron expression").fill("0 3 * * 1")
    page.locator("#fires li").nth(4).wait_for()
    page.get_by_label("Cron expression").fill("0 3 * * nonsense")
    page.locator("#fires .problem").wait_for()


def test_a_backfill_is_counted_as_one_types_and_asked_for(page, address):
    page.goto(f"{address[0]}/workflows/default/nightly/backfill")
    page.get_by_label("First date").fill("2026-01-01")
    page.get_by_label("Last date").fill("2026-01-31")
    page.locator("#schedule-times").get_by_text("31 runs").wait_for()
    page.get_by_label("Runs at a time").fill("4")
    page.get_by_role("button", name="Start the backfill").click()
    page.get_by_text("Waiting for a master").wait_for()


def test_a_log_grows_on_its_page(page, address, seeds):
    run = seeds.run(HALF)
    page.goto(f"{address[0]}/runs/{run}")
    page.locator("#tasks").get_by_role("link", name="load", exact=True).click()
    page.get_by_role("link", name="1: log").click()
    log = page.get_by_role("log")
    log.get_by_text("read 1,200 rows").wait_for()
    _, file = next(reversed(seeds.files.items()))
    file.append(b"<b>and more</b>\n")
    log.get_by_text("<b>and more</b>").wait_for()


def change_pools(page, where):
    """Create, change and remove pools by their forms; a refused form shows the error and what was typed."""
    for pool in ("warehouse", "@default"):
        page.goto(f"{where}/pools")
        page.locator("summary", has_text="Create or resize a pool").click()
        form = page.locator('details form[action="/pools"]')
        form.locator("[name=name]").fill(pool)
        form.locator("[name=size]").fill("none")
        form.get_by_role("button", name="Save").click()
        assert "'none' is not a whole number" in page.get_by_role("alert").inner_text()
        form.locator("[name=size]").fill("4")
        form.get_by_role("button", name="Save").click()
        page.get_by_role("link", name=pool, exact=True).click()
        page.get_by_label("Size").fill("5")
        page.get_by_role("button", name="Change").click()
        assert page.get_by_label("Size").input_value() == "5"
        page.get_by_role("button", name="Remove").click()
        page.get_by_role("heading", name="Pools", exact=True).wait_for()
        assert page.get_by_role("link", name=pool, exact=True).count() == 0
        page.complaints.clear()  # a browser tells of each answer that is no page


@pytest.mark.parametrize("page", [{"scripts": False}], indirect=True, ids=["without JavaScript"])
def test_everything_can_be_done_without_javascript(page, address, seeds):
    run = seeds.run(BAD)
    page.goto(f"{address[0]}/runs/{run}")
    assert page.locator("svg.dag .state-failure").count() == 1
    page.get_by_role("button", name="Recover").click()
    page.get_by_text(re.compile("recover, requested by admin")).wait_for()
    page.goto(f"{address[0]}/schedules?cron=%40daily")
    assert page.locator("#fires li").count() == 5
    change_pools(page, address[0])
    page.goto(f"{address[0]}/edit")
    page.locator("summary", has_text="shell").click()
    page.locator("#f-shell-name").fill("second")
    page.locator("#f-shell-p-script").fill("echo two")
    page.locator("#f-shell-o-after").fill("first")
    page.get_by_role("button", name="Add").last.click()
    assert "second" in page.locator("#yaml").input_value()
    page.locator("#result svg.dag").get_by_text("second", exact=True).wait_for()


@pytest.mark.parametrize(
    "page",
    [{"width": 360, "height": 700, "scheme": "dark"}, {}],
    indirect=True,
    ids=["phone, dark", "desk, light"],
)
def test_no_page_is_wider_than_the_screen_and_nothing_jumps(page, address, seeds):
    run = seeds.run(HALF)
    paths = [
        "/",
        "/runs",
        f"/runs/{run}",
        "/workflows",
        "/workflows/default/nightly",
        "/workflows/default/nightly/runs",
    ]
    paths += ["/backfills", "/workflows/default/nightly/backfill"]
    paths += [
        "/workflows/default/nightly/edit",
        "/lineage",
        "/schedules",
        "/workers",
        "/users",
        "/audit",
        "/account",
        "/api",
    ]
    page.add_init_script(
        "window.shifted = 0; new PerformanceObserver((list) => { for (const each of list.getEntries())"
        " if (!each.hadRecentInput) window.shifted += each.value; }).observe({type: 'layout-shift', buffered: true});"
    )
    for path in paths:
        page.goto(address[0] + path)
        wide = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        assert wide <= 0, (path, wide)
        assert page.evaluate("window.shifted") < 0.02, path
        assert page.locator("h1").count() == 1, path


def test_a_keyboard_is_enough(page, address, seeds):
    run = seeds.run(HALF)
    page.goto(f"{address[0]}/runs/{run}")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    seen = set()
    for _ in range(30):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("document.activeElement.getAttribute('href') || document.activeElement.value || ''"))
    assert {"pause", "stop"} <= seen
    assert any(each.startswith("/tasks/") for each in seen)
    page.goto(f"{address[0]}/workflows")
    page.keyboard.press("/")
    page.keyboard.type("close")
    page.get_by_role("link", name="default.nightly", exact=True).wait_for(state="detached")
