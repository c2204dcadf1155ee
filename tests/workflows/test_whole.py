"""Master, database, store, worker and log store together: what a user sees of a workflow that runs."""

from pathlib import Path

import pytest
import sqlalchemy as sa

from latchwork_workflows.db.tables import attempt, task
from latchwork_workflows.model.validate import check_definition
from latchwork_workflows.types import TaskTypes
from patience import eventually
from workflows import working

from .working import log_of, options

pytestmark = pytest.mark.threads


@pytest.fixture
def logs(stage, tmp_path):
    return working.begun(stage.store, tmp_path)


@pytest.fixture
def worker(stage, logs, tmp_path):
    assert logs
    made = working.worker(stage.store, tmp_path)
    yield made
    made.close()


def flow(*tasks, **fields):
    return check_definition({"name": "whole", "tasks": tasks, **fields}, TaskTypes())


def sh(name, script, *after, **more):
    return {"name": name, "type": "shell", "params": {"script": script}, "after": list(after), **more}


def results_prefix(stage):
    with stage.database.read() as connection:
        chosen = sa.select(task.c.name, attempt).join(attempt, attempt.c.task == task.c.id)
        return {(row.name, row.n): row for row in connection.execute(chosen)}


def test_workflow_runs_on_outputs_flow_and_its_logs_are_found_by_its_history(stage, logs, worker, tmp_path):
    again = f"test -e {tmp_path}/tried || {{ touch {tmp_path}/tried; exit 9; }}"
    version = stage.apply(
        flow(
            sh("extract", 'echo "of $day"; echo rows=17 >> "$LATCHWORK_OUTPUT"'),
            sh("load", f'echo "$n rows" > {tmp_path}/loaded', "extract", env={"n": "${extract.rows}"}),
            sh("flaky", again, "load", retries=1, retry_interval_s=0),
            params={"day": "Monday"},
        )
    )
    with stage.master():
        made = stage.start(version)
        stage.until(made, "success")
    assert (tmp_path / "loaded").read_text() == "17 rows\n"
    rows = results_prefix(stage)
    assert {key: row.outcome for key, row in rows.items()} == {
        ("extract", 1): "success",
        ("load", 1): "success",
        ("flaky", 1): "failure",
        ("flaky", 2): "success",
    }
    assert (rows["flaky", 1].exit_code, rows["flaky", 1].error) == (9, "ended with code 9")
    assert log_of(logs, rows["extract", 1]).startswith("of Monday\n")
    assert [key for key in stage.left() if "/consumers/" not in key and "/workers/" not in key] == []


def test_stop_ends_what_runs_and_pause_lets_it_end(stage, worker, tmp_path):
    wait = f"while [ ! -e {tmp_path}/go ]; do sleep 0.02; done"
    version = stage.apply(flow(sh("a", wait), sh("b", "true", "a")))
    with stage.master():
        stopped, paused = stage.start(version), stage.start(version)
        for each in (stopped, paused):
            stage.until_task(each, a="running")
        stage.send("stop", stopped)
        stage.until(stopped, "stopped")
        stage.send("pause", paused)
        stage.until(paused, "ready_pause")
        (tmp_path / "go").touch()
        stage.until(paused, "paused")
        assert stage.states(stopped) == {"a": "killed", "b": "waiting"}
        assert stage.states(paused) == {"a": "success", "b": "waiting"}
        stage.send("resume", paused)
        stage.until(paused, "success")


def test_worker_that_ends_under_a_long_task_uses_up_no_attempt_and_is_no_failure(stage, logs, tmp_path):
    path = tmp_path / "journal"
    version = stage.apply(flow(sh("long", working.STEADY), params={"journal": str(path)}))
    first = working.worker(stage.store, tmp_path, name="w1")
    with stage.master():
        made = stage.start(version)
        working.begun_runs(path)
        first.close()
        second = working.worker(stage.store, tmp_path, name="w2")
        working.begun_runs(path, 2)
        Path(f"{path}.go").touch()
        stage.until(made, "success")
        second.close()
    assert eventually(lambda: {key[1] for key in results_prefix(stage)} == {1})
    assert options(tmp_path).groups == ("default",)
