"""As which users a worker runs tasks, and what it says about that."""

import pytest

import latchwork
from latchwork_workflows.logs import open_logs
from latchwork_workflows.worker import Worker, WorkerOptions, preparation
from latchwork_workflows.worker import worker as worker_module


@pytest.mark.parametrize(
    ("uid", "allowed", "said"),
    [(0, (), "-"), (0, ("etl", "db"), "db,etl"), (0, ("etl", "root"), "etl,root,-"), (65534, ("etl",), "nobody,-")],
)
def test_worker_says_as_which_users_it_runs_tasks(monkeypatch, uid, allowed, said):
    monkeypatch.setattr(preparation.os, "geteuid", lambda: uid)
    found = preparation.format_tenants(allowed)
    monkeypatch.undo()
    assert found == said


@pytest.mark.parametrize(("uid", "allowed", "is_root"), [(0, (), True), (0, ("etl",), False), (65534, (), False)])
def test_tasks_without_a_tenant_run_as_root_only_without_a_list(monkeypatch, uid, allowed, is_root):
    monkeypatch.setattr(preparation.os, "geteuid", lambda: uid)
    found = preparation.is_unrestricted_root(allowed)
    monkeypatch.undo()
    assert found is is_root


@pytest.mark.parametrize("is_root", [True, False])
def test_worker_that_is_root_without_a_list_warns_once_at_its_start(tmp_path, monkeypatch, caplog, is_root):
    monkeypatch.setattr(worker_module, "is_unrestricted_root", lambda allowed: is_root and not allowed)
    monkeypatch.setattr(Worker, "_run_sessions", lambda _: None)  # joins nothing
    with latchwork.connect("memory://tenants") as store:
        worker = Worker(store, logs=open_logs(tmp_path / "logs"), options=WorkerOptions(work_dir=tmp_path / "work"))
        worker.start()
        worker.start()
    told = [each.getMessage() for each in caplog.records if "tasks without a tenant run as root" in each.getMessage()]
    assert len(told) == is_root
    assert all("list the users of tasks with --tenants" in each for each in told)
