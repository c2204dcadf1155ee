"""The session TTL of a system: its own option, else that of the URL, else its default."""

from __future__ import annotations

import pytest

import latchwork
from latchwork.executor import Executor, ExecutorWorker
from latchwork.jobs import Job, JobManager
from latchwork.plans import PlanWorker
from latchwork.store import session_ttl_s
from latchwork.store.connection import StoreConnection
from latchwork.tasks import Functions
from latchwork.testing.faults import FaultyStore
from latchwork_workflows.logs import open_logs
from latchwork_workflows.worker import Worker, WorkerOptions
from patience import eventually

URL = "memory://session-ttl"


@pytest.fixture
def asked(monkeypatch):
    """The TTLs of the sessions that are opened."""
    found, open_session = [], StoreConnection.open_session

    def with_note(self, ttl_s):
        found.append(ttl_s)
        return open_session(self, ttl_s)

    monkeypatch.setattr(StoreConnection, "open_session", with_note)
    return found


FUNCTIONS = Functions()


@FUNCTIONS.task
def twice(number: int) -> int:
    return 2 * number


def a_job_manager(store, ttl, _folder):
    return JobManager(store, "n1", Job("report", work_pool=["a"], run=lambda _context: None), **ttl)


def a_job_manager_with_a_url(store, ttl, _folder):
    url = URL if store.given_session_ttl_s is None else f"{URL}?session_ttl_s={store.given_session_ttl_s:g}"
    return a_job_manager(url, ttl, _folder)


def a_worker(store, ttl, _folder):
    return ExecutorWorker(store, node_id="n1", functions=FUNCTIONS, **ttl)


def a_plan_worker(store, ttl, _folder):
    return PlanWorker(store, functions=FUNCTIONS, **ttl)


def a_workflow_worker(store, ttl, folder):
    options = WorkerOptions(work_dir=folder, **ttl)
    return Worker(store, logs=open_logs(str(folder / "logs")), name="w1", options=options)


SYSTEMS = [
    (a_job_manager, 10.0),
    (a_job_manager_with_a_url, 10.0),
    (a_worker, 10.0),
    (a_plan_worker, 10.0),
    (a_workflow_worker, 30.0),
]


@pytest.mark.parametrize(("make", "default"), SYSTEMS, ids=lambda each: getattr(each, "__name__", ""))
@pytest.mark.parametrize("source", ["option", "url", "default"])
def test_the_session_of_a_system_has_the_ttl_of_its_option_else_of_the_url(make, default, source, asked, tmp_path):
    given = {} if source == "default" else {"session_ttl_s": 47.0}
    ttl = {"session_ttl_s": 61.0} if source == "option" else {}
    with latchwork.connect(URL, **given) as store:
        system = make(store, ttl, tmp_path)
        system.start()
        try:
            eventually(lambda: {"option": 61.0, "url": 47.0, "default": default}[source] in asked)
        finally:
            system.close()


@pytest.mark.parametrize(("options", "ttl_s"), [({"session_ttl_s": 61.0}, 61.0), ({}, 47.0)])
def test_the_session_of_an_executor_has_the_ttl_of_its_option_else_of_the_url(options, ttl_s, asked):
    with latchwork.connect(URL, session_ttl_s=47.0) as store:
        executor = Executor(store, functions=FUNCTIONS, **options)
        executor.submit(twice, 1)
        try:
            eventually(lambda: ttl_s in asked)
        finally:
            executor.shutdown(wait=False, cancel_futures=True)


def test_a_store_for_tests_keeps_the_ttl_of_the_store_below():
    with FaultyStore(latchwork.connect(URL, session_ttl_s=47.0)) as store:
        assert session_ttl_s(store.namespace("app"), None, 10.0) == 47.0


@pytest.mark.parametrize("ttl_s", [0, -1.0, "10", True, float("nan")])
def test_an_option_that_is_no_duration_is_refused_by_name(ttl_s):
    with latchwork.connect(URL) as store:
        for make, _ in (a_job_manager, 0), (a_worker, 0), (a_plan_worker, 0):
            with pytest.raises(ValueError, match="session_ttl_s"):
                make(store, {"session_ttl_s": ttl_s}, None)
