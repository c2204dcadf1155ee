"""The workflows of examples/workflows do what they say."""

import datetime as dt
import importlib.util
import sqlite3
import sys
from pathlib import Path

import pytest

from latchwork_workflows.client import WorkflowClient
from latchwork_workflows.home import Home
from latchwork_workflows.local_run import run_locally
from latchwork_workflows.model.backfill_dates import DateRange
from latchwork_workflows.model.validate import check_definition
from latchwork_workflows.model.yaml_format import parse_yaml
from latchwork_workflows.serve import Serve, ServeOptions
from latchwork_workflows.types import TaskTypes
from latchwork_workflows.worker import WorkerOptions

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "workflows"


def module_of(name, monkeypatch):
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)  # as a worker imports it
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def nightly(monkeypatch):
    return module_of("nightly", monkeypatch).nightly


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    home = Home.of(tmp_path_factory.mktemp("home"), environ={})
    worker = WorkerOptions(slots=4, work_dir=tmp_path_factory.mktemp("work"))
    with Serve(home, ServeOptions(worker=worker, has_pages=False)):
        yield home


@pytest.fixture(autouse=True)
def no_thread_left_behind():
    """The server's are the module's."""


@pytest.fixture
def client(served):
    with WorkflowClient.local(served) as client:
        yield client


def test_the_nightly_sums_are_those_of_the_day_and_the_same_when_it_runs_again(nightly, tmp_path):
    totals = [nightly.test(day="2026-11-21", folder=str(tmp_path)).check().outputs["load"]["total"] for _ in range(2)]
    with sqlite3.connect(tmp_path / "shop.db") as database:
        sums = database.execute("SELECT sum(amount) FROM sums WHERE day = '2026-11-21'").fetchone()
    database.close()
    assert totals == [sums[0]] * 2
    assert (tmp_path / "report.txt").read_text() == f"2026-11-21: {totals[0]}\n" * 2


def test_the_cleanup_reports_what_went(tmp_path):
    found = check_definition(parse_yaml((FOLDER / "cleanup.yaml").read_text()), TaskTypes())
    (tmp_path / "caches").mkdir()
    (tmp_path / "caches" / "old").touch()
    __import__("os").utime(tmp_path / "caches" / "old", (0, 0))
    run_locally(found.definition, found.order, {"root": str(tmp_path)}).check()
    assert (tmp_path / "report.txt").read_text() == "caches 1, uploads 0\n"


@pytest.mark.slow
def test_files_that_are_there_twice_are_found_by_a_task_for_each_part(client, monkeypatch, tmp_path):
    files = tmp_path / "files"
    (files / "below").mkdir(parents=True)
    for name, text in {"a": "one", "below/b": "one", "c": "two", "d": "three", "e": "there"}.items():
        (files / name).write_text(text)
    client.workflows.deploy(module_of("duplicates", monkeypatch))
    report = tmp_path / "report.txt"
    run = client.runs.start("duplicates", {"folder": str(files), "report": str(report)}).wait(60.0)
    assert run.state.value == "success", client.runs.explain(run.id).tasks
    assert report.read_text() == f"{files}/a = {files}/below/b\n"
    assert sum(each.name.startswith("compare[") for each in run.tasks) == 2


@pytest.mark.slow
def test_a_backfill_of_the_warehouse_writes_each_day_once_and_leaves_out_what_was_closed(client, tmp_path):
    path = tmp_path / "shop.db"
    with sqlite3.connect(path) as shop:
        shop.executescript("CREATE TABLE orders (id, day, product, amount); CREATE TABLE sales (day, product, amount)")
        rows = [(1, "2025-01-01", "tea", 3), (2, "2025-01-01", "tea", 4), (3, "2025-01-03", "coffee", 5)]
        shop.executemany("INSERT INTO orders VALUES (?, ?, ?, ?)", rows)
    client.workflows.apply((FOLDER / "warehouse.yaml").read_text())
    dates = DateRange(dt.date(2025, 1, 2), dt.date(2025, 1, 4))  # each is about the day before it
    for _ in range(2):
        backfill = client.backfills.start("warehouse", dates, params={"database": str(path)}, parallel=2)
        assert backfill.wait(60.0).counts == {"success": 3}
    with sqlite3.connect(path) as shop:
        found = shop.execute("SELECT day, product, amount FROM sales ORDER BY day").fetchall()
    shop.close()
    assert found == [("2025-01-01", "tea", 7), ("2025-01-03", "coffee", 5)]


@pytest.mark.slow
def test_the_books_of_each_branch_are_closed_and_one_that_is_wrong_is_told(client, monkeypatch, tmp_path):
    (tmp_path / "north.txt").write_text("1 2 3")
    (tmp_path / "south.txt").write_text("4")
    client.workflows.deploy(module_of("month_end", monkeypatch))
    run = client.runs.start("month_end", {"folder": str(tmp_path)}).wait(60.0)
    assert run.state.value == "success", client.runs.explain(run.id).tasks
    assert (tmp_path / "north.closed").read_text() == "6\n"
    assert (tmp_path / "month.log").read_text() == "all closed\n"
    (tmp_path / "south.txt").write_text("four")
    run = client.runs.start("month_end", {"folder": str(tmp_path)}).wait(60.0)
    assert (tmp_path / "month.log").read_text() == "some are open\n"
    assert {each.name: each.state for each in run.tasks}["good"] == "skipped"
