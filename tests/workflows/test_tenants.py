"""As which users a worker runs tasks, and what it says about that."""

import pytest

from latchwork.workflows.worker import tenants


@pytest.mark.parametrize(
    ("uid", "allowed", "said"),
    [(0, (), "-"), (0, ("etl", "db"), "db,etl"), (0, ("etl", "root"), "etl,root,-"), (65534, ("etl",), "nobody,-")],
)
def test_worker_says_as_which_users_it_runs_tasks(monkeypatch, uid, allowed, said):
    monkeypatch.setattr(tenants.os, "geteuid", lambda: uid)
    found = tenants.tenants_label(allowed)
    monkeypatch.undo()
    assert found == said


@pytest.mark.parametrize(("uid", "allowed", "is_root"), [(0, (), True), (0, ("etl",), False), (65534, (), False)])
def test_tasks_without_a_tenant_run_as_root_only_without_a_list(monkeypatch, uid, allowed, is_root):
    monkeypatch.setattr(tenants.os, "geteuid", lambda: uid)
    found = tenants.runs_as_root(allowed)
    monkeypatch.undo()
    assert found is is_root
