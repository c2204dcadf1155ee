"""What pages say of workers: which tasks each has, which nobody takes; and of schedules that started nothing."""

import pytest
import sqlalchemy as sa

from latchwork_workflows.app import make_web_app
from latchwork_workflows.db import schedules
from latchwork_workflows.db.tables import command, task
from latchwork_workflows.services import WorkerStatus
from latchwork_workflows.state import Claimed
from workflows.web.seeds import BILLING, NIGHTLY, apply, shell

FAR = {"name": "far", "tasks": [shell("train", worker_group="gpu"), shell("near")]}


class FakeCluster:
    """A store that knows these workers."""

    def __init__(self, living):
        self.living = living

    def notify_master(self, shard):
        pass

    def get_slot_holders(self):
        return {}

    def line(self, lane, limit):
        return None

    def list_workers(self):
        return self.living


@pytest.fixture(scope="module")
def living():
    return []


@pytest.fixture(scope="module")
def site(seeds, living):
    return make_web_app(seeds.database, logs=seeds.logs, cluster=FakeCluster(living), hosts=["testserver"])


def number_of(seeds, run, name):
    with seeds.database.read() as connection:
        mine = sa.and_(task.c.run_id == run, task.c.name == name)
        return connection.execute(sa.select(task.c.id).where(mine)).scalar_one()


def test_the_page_of_workers_names_what_each_runs_as_far_as_one_may_see_it(seeds, living, browser, ask):
    run = seeds.run([(1.0, [Claimed("extract-orders", 1), Claimed("extract-customers", 1)])])
    other = seeds.run([(1.0, [Claimed("sum", 1)])], name="close", given=BILLING)
    orders = number_of(seeds, run, "extract-orders")
    attempts = [f"{orders}.1", f"{number_of(seeds, other, 'sum')}.1", "nonsense"]
    living[:] = [
        WorkerStatus("w1", groups=("default",), slots=4, busy=3, attempts=tuple(attempts)),
        WorkerStatus("w2", groups=("default",), slots=4),
    ]
    page = browser("viewer-of-default").get("/workers").text
    assert f'<a href="/tasks/{orders}">extract-orders</a>' in page
    assert f"default.nightly #{run}" in page
    assert "and 2 more" in page
    assert "billing" not in page
    assert ">nothing<" in page  # what the other one runs
    assert "billing.close" in browser("admin").get("/workers").text
    first, second = ask("viewer-of-default").get("/api/v1/workers").json()
    assert [(each["task"], each["name"], each["run"]) for each in first["running"]] == [(orders, "extract-orders", run)]
    assert (first["busy"], second["running"]) == (3, [])


def test_the_first_page_says_which_runs_wait_for_workers_that_there_are_none_of(seeds, living, browser):
    living[:] = [WorkerStatus("w1", groups=("default",), slots=4)]
    seeds.codes["far"] = apply(seeds.database, FAR).code
    run = seeds.run([(1.0, [Claimed("near", 1)])], name="far", given=FAR)
    said = f'<a href="/runs/{run}">no worker in group gpu</a>'
    assert said in browser("viewer-of-default").get("/").text
    living.append(WorkerStatus("w2", groups=("gpu",), slots=1))
    assert "no worker in" not in browser("viewer-of-default").get("/").text
    living[:] = []
    assert "no worker in groups default, gpu" not in browser("viewer-of-default").get("/").text  # near is taken
    assert said in browser("viewer-of-default").get("/").text


def test_a_fire_time_that_started_nothing_is_told_with_the_reason(seeds, browser, ask):
    """Only who knew the number of the command could find out that the schedule had started nothing."""
    at, code = 1_700_000_000.0, seeds.codes["nightly"]
    with seeds.database.write() as connection:
        row = next(each for each in schedules.load_schedules(connection) if each.code == code)
        number = schedules.start_scheduled_run(connection, row, at)
    assert ask("viewer-of-default").get("/api/v1/schedules").json()[0]["last"] == {
        "fire_time": at,
        "done_at": None,
        "run": None,
        "state": None,
        "error": None,
    }
    assert "waiting for a master" in browser("viewer-of-default").get("/schedules").text
    with seeds.database.write() as connection:
        refused = {"done_at": at, "error": "run 5 is running, and default.nightly discards further starts"}
        connection.execute(sa.update(command).where(command.c.id == number).values(**refused))
    for path in ("/schedules", "/workflows/default/nightly"):
        page = browser("viewer-of-default").get(path).text
        assert "<strong>not started</strong>: run 5 is running" in page, path
    run = seeds.run([(1.0, [])])
    with seeds.database.write() as connection:
        later = schedules.start_scheduled_run(connection, row, at + 60)
        connection.execute(sa.update(command).where(command.c.id == later).values(done_at=at, run_id=run))
    assert f'<a href="/runs/{run}">#{run}</a> running' in browser("viewer-of-default").get("/schedules").text


def test_a_schedule_whose_window_is_over_says_that_it_never_fires_again(seeds, browser, ask):
    over = {**NIGHTLY, "name": "over", "schedule": {"cron": "0 3 * * *", "end": "2030-01-01T00:00:00Z"}}
    apply(seeds.database, over)
    with seeds.database.write() as connection:
        connection.execute(sa.text("UPDATE schedule SET ends_at = 1000 WHERE code = (SELECT max(code) FROM schedule)"))
    assert "it never fires again" in browser("viewer-of-default").get("/workflows/default/over").text
    rows = {each["name"]: each["next_fires"] for each in ask("viewer-of-default").get("/api/v1/schedules").json()}
    assert rows["over"] == []
    assert rows["nightly"]
