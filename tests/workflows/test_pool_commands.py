"""`latchwork workflows pools`, `backfill --dependents`: what they print, as documents too, how they end."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import latchwork
from latchwork_workflows.client import WorkflowClient
from latchwork_workflows.home import Home
from latchwork_workflows.keys import Keys, get_workflows_store
from latchwork_workflows.serve import Serve, ServeOptions
from latchwork_workflows.worker import WorkerOptions
from patience import eventually
from workflows.test_command_line import flows

assert flows  # a fixture: a command in this process, on the server below

LATCHWORK = str(Path(sys.executable).with_name("latchwork"))
HOLDS = """
name: holds
params: {go: none}
tasks:
  - {name: one, type: shell, pool: few, params: {script: 'while [ ! -e "$go" ]; do sleep 0.1; done'}}
  - {name: two, type: shell, pool: few, params: {script: 'true'}}
"""
FIRST = "{name: first, tasks: [{name: a, type: noop}]}"
AFTER = "{name: after, tasks: [{name: a, type: dependent, params: {on: {workflow: first, window: today}}}]}"


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    options = ServeOptions(port=0, worker=WorkerOptions(slots=4, work_dir=tmp_path_factory.mktemp("work")))
    with Serve(Home.of(tmp_path_factory.mktemp("home")), options) as serve:
        yield serve


@pytest.fixture(autouse=True)
def no_thread_left_behind():
    """The server's are the module's."""


@pytest.fixture
def typed(flows):
    """What somebody types: `typed("pools list")`; what it printed, its document with `--json`, or its one error."""

    def run(line, *, ends=0):
        told = flows(*line.split())
        if ends:
            told.refused(ends)
            return told.err
        assert told.code == 0, told.out + told.err
        return told.json if "--json" in line.split() else told.out

    return run


def by_itself(served, line):
    """The same in a process of its own."""
    known = {**os.environ, "LATCHWORK_WORKFLOWS_HOME": str(served.home.folder)}
    return subprocess.run(
        [LATCHWORK, "workflows", *line.split()], env=known, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.timeout(180)  # three processes, each of which imports all there is
def test_each_is_a_command_with_a_document_and_an_exit_code(served):
    with WorkflowClient.local(served.home) as client:
        client.pools.set("own", 4)
    shown = json.loads(by_itself(served, "pools show own --json").stdout)
    assert (shown["size"], shown["used"], shown["holders"], shown["queue"]) == (4, 0, [], [])
    gone = by_itself(served, "pools rm nobody")
    assert (gone.returncode, gone.stdout, gone.stderr[:6]) == (1, "", "error:")
    wrong = by_itself(served, "backfill first --dependents --json")
    assert (wrong.returncode, "give --from and --to, or --dates" in wrong.stderr) == (2, True)
    with WorkflowClient.local(served.home) as client:
        client.pools.remove("own")


def test_pools_are_set_listed_shown_and_removed(served, typed, tmp_path):
    assert "no pools; applying a workflow that names a pool creates it" in typed("pools list")
    assert typed("pools set few --size 1") == "pool few has a size of 1\n"
    assert typed("pools set more --size 2 --json") == {"name": "more", "size": 2, "admission": "suspend"}
    with WorkflowClient.local(served.home) as client:
        client.workflows.apply(HOLDS)
        run = client.runs.start("holds", {"go": str(tmp_path / "go")}).id()
        try:
            eventually(lambda: "running" in client.runs.get(run).task_states.values())
            row = typed("pools list --json")["pools"][0]
            assert (row["name"], row["size"], row["used"], row["waiting"]) == ("few", 1, 1, 1)
            assert row["workflows"] == ["default.holds"]
            shown = typed("pools show few")
            assert shown.splitlines()[:2] == ["pool few: 1 of 1 slot in use, 1 waiting", "held by"]
            assert "default.holds" in shown
            document = typed("pools show few --json")
            assert {each["name"] for each in document["holders"] + document["queue"]} == {"one", "two"}
            why = typed(f"why {run} --json")
            assert "the one slot of the pool 'few' is in use by" in " ".join(why["tasks"].values())
            assert why["cause"] == []
            assert "pool few is named by default.holds" in typed("pools rm few", ends=1)
        finally:
            (tmp_path / "go").touch()
        assert client.runs.wait(run, 60).state.value == "success"
    assert typed("pools rm more --json") == {"name": "more", "removed": True}
    assert "there is no pool 'more'" in typed("pools rm more", ends=1)
    assert "there is no pool 'more'" in typed("pools show more", ends=1)
    assert "is not a valid name" in typed("pools set a/b --size 1", ends=2)


def test_the_pool_of_a_project_is_set_shown_and_removed(served, typed):
    set_ = typed("pools set @default --size 3 --admission precompute --json")
    assert set_ == {"name": "@default", "size": 3, "admission": "precompute"}
    keys = Keys()
    with latchwork.connect(served.home.store) as opened:
        store = get_workflows_store(opened)
        store.put(keys.slot_key("=default", 2), b"nobody")
        found = typed("pools show @default --json")
        store.delete(keys.slot_key("=default", 2))
    assert (found["size"], found["used"], found["waiting"], found["active"], found["queue"]) == (3, 1, 0, 0, [])
    assert found["holders"][0]["task"] is None
    lines = typed("pools list").splitlines()
    assert lines[0].split() == ["pool", "size", "running", "waiting", "used", "by"]
    assert "the project (precompute)" in lines[1]
    assert "'suspend', 'fail' or 'precompute'" in typed("pools set @default --size 3 --admission maybe", ends=2)
    assert typed("pools rm @default") == "pool @default deleted\n"
    assert "there is no pool '@default'" in typed("pools rm @default", ends=1)


def test_a_backfill_with_dependents_says_which_follow_and_is_waited_for(served, typed):
    with WorkflowClient.local(served.home) as client:
        for each in (FIRST, AFTER):
            client.workflows.apply(each)
        line = typed("backfill first --from 2025-10-01 --to 2025-10-02 --dependents --no-cache --wait")
        assert line.splitlines() == [
            "backfill 1 of default.first started: 2 runs; backfills of default.after follow",
            "backfill 1: success, 2 success",
        ]
        eventually(lambda: len(client.backfills.list()) == 2)
        assert client.backfills.wait(2, 60).state.value == "success"
    rows = typed("backfills --json")["backfills"]
    assert [(each["backfill"], each["workflow"], each["cause"]) for each in rows] == [
        (2, "default.after", 1),
        (1, "default.first", None),
    ]
    assert typed("backfill first --dates 2025-10-03 --all-dependents --json")["runs"] == 1
    assert "give --from and --to, or --dates" in typed("backfill first", ends=2)
    assert "is in the future" in typed("backfill first --dates 2999-01-01", ends=2)


def test_projects_that_may_use_another_are_set_listed_and_removed(typed):
    assert "project reports is viewer of project billing" in typed("grants set billing reports viewer")
    typed("grants set billing all operator")
    rows = [("billing", "", "operator"), ("billing", "reports", "viewer")]
    assert [tuple(each.values()) for each in typed("grants list billing --json")["grants"]] == rows
    assert "viewer or operator, not 'editor'" in typed("grants set billing reports editor", ends=2)
    typed("grants rm billing all")
    assert "no grant of project 'billing' to all projects" in typed("grants rm billing all", ends=1)
    typed("grants rm billing reports")
    assert typed("grants list") == "no project may use another\n"
