"""The workflows of examples/workflows do what they say."""

import importlib.util
import sqlite3
import sys
from pathlib import Path

import pytest

from latchwork.workflows.definitions.forms import read
from latchwork.workflows.definitions.validate import checked
from latchwork.workflows.trying import try_out
from latchwork.workflows.types import TaskTypes

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "workflows"


@pytest.fixture
def nightly(monkeypatch):
    spec = importlib.util.spec_from_file_location("nightly", FOLDER / "nightly.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "nightly", module)  # as a worker imports it
    spec.loader.exec_module(module)
    return module.nightly


def test_the_nightly_sums_are_those_of_the_day_and_the_same_when_it_runs_again(nightly, tmp_path):
    totals = [nightly.test(day="2026-11-21", folder=str(tmp_path)).check().outputs["load"]["total"] for _ in range(2)]
    with sqlite3.connect(tmp_path / "shop.db") as database:
        sums = database.execute("SELECT sum(amount) FROM sums WHERE day = '2026-11-21'").fetchone()
    database.close()
    assert totals == [sums[0]] * 2
    assert (tmp_path / "report.txt").read_text() == f"2026-11-21: {totals[0]}\n" * 2


def test_the_cleanup_reports_what_went(tmp_path):
    found = checked(read((FOLDER / "cleanup.yaml").read_text()), TaskTypes())
    (tmp_path / "caches").mkdir()
    (tmp_path / "caches" / "old").touch()
    __import__("os").utime(tmp_path / "caches" / "old", (0, 0))
    try_out(found.definition, found.order, {"root": str(tmp_path)}).check()
    assert (tmp_path / "report.txt").read_text() == "caches 1, uploads 0\n"
