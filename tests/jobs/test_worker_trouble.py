"""Trouble of one run or one job stays with it: no thread to be had, a schedule that raises, a guard that fails."""

from __future__ import annotations

import threading

import pytest

from latchwork.clock import SYSTEM_CLOCK
from latchwork.jobs import Cron, FixedDelay, Job, JobSettings, Threads
from latchwork.jobs.job import JobContext
from latchwork.jobs.stored import cluster_store
from latchwork.jobs.worker.outcomes import OutcomeTracker
from latchwork.jobs.worker.runs import JobRun, RunSetup, RunWatchdog
from latchwork.schedules.schedule import DueTime, Instant
from latchwork.store import connect


@pytest.fixture
def store():
    with connect("memory://worker-trouble") as made:
        cluster = cluster_store(made)
        cluster.delete_tree("")
        yield cluster


@pytest.fixture
def no_thread(monkeypatch):
    """Let the start of threads with this in their name fail so many times."""
    left = {}
    real = threading.Thread.start

    def start(thread):
        for part, failures in left.items():
            if part in thread.name and failures > 0:
                left[part] = failures - 1
                raise RuntimeError("can't start new thread")
        return real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    return left


class Raises(FixedDelay):
    """A schedule that cannot tell its first due."""

    def first_due(self, now, initial_delay_s):
        raise ValueError("no calendar")


def job(job_id, run, **options):
    defaults = {"work_pool": ["x", "y"], "schedule": FixedDelay(0.05), "initial_delay_s": 0.0}
    return Job(job_id, run=run, threads=Threads.per_item(), **{**defaults, **options})


def test_an_item_whose_thread_could_not_start_is_tried_again(store, cluster, eventually, no_thread, caplog):
    no_thread["latchwork-run-j-"] = 1
    ran = set()
    cluster.node(store, "n1", job("j", lambda context: ran.update(context.items)))
    eventually(lambda: ran == {"x", "y"})
    assert "can't start new thread" in caplog.text


def test_stop_listeners_that_found_no_thread_are_called_at_the_next_stop(eventually, no_thread):
    no_thread["latchwork-stop-"] = 1
    begun, called = threading.Event(), threading.Event()

    def work(context):
        context.on_stop(called.set)
        begun.set()
        context.wait_for_stop()

    made = make_run(work)
    made.start()
    assert begun.wait(5)
    made.stop()
    assert made.has_pending_listeners
    assert not called.is_set()
    made.stop()
    assert called.wait(5)
    assert not made.has_pending_listeners
    made.join(5)


def make_run(work, time_to_stop_s=lambda: 60.0, schedule=FixedDelay(0.02)):  # noqa: B008 - frozen
    job = Job("report", work_pool=["a"], run=work, schedule=schedule)
    setup = RunSetup(
        job=job,
        options=lambda: JobSettings().get_effective_options(job),
        new_context=lambda items: JobContext(items, job_id="report"),
        outcomes=OutcomeTracker("report", "n1"),
        may_run=lambda: True,
        on_end=lambda: None,
        clock=SYSTEM_CLOCK,
        time_to_stop_s=time_to_stop_s,
    )
    due = 0.0 if isinstance(schedule, Cron) else SYSTEM_CLOCK.now()
    return JobRun(1, ("a",), setup, DueTime(due, schedule, Instant(0.0, 0.0)))


@pytest.mark.parametrize("bad", [{"schedule": Raises(1.0)}, {"schedule": Cron("* * * * *"), "initial_delay_s": 1e12}])
def test_a_schedule_that_raises_stops_no_other_job_and_not_close(store, cluster, eventually, caplog, bad):
    ran = []
    jobs = [job("bad", lambda context: None, **bad), job("good", ran.append)]
    node = cluster.node(store, "n1", jobs)
    eventually(lambda: len(ran) > 4)
    assert "job bad is paused here for 60 s" in caplog.text
    node.close()
    assert store.list("owners") == []


def test_a_schedule_that_raises_at_the_end_of_a_run_is_asked_again_after_a_pause(
    store, cluster, eventually, monkeypatch
):
    for module in ("runs", "worker"):
        monkeypatch.setattr(f"latchwork.jobs.worker.{module}.SCHEDULE_PAUSE_S", 0.1)

    class Once(FixedDelay):
        def next_due(self, due, ended):
            raise ValueError("no calendar")

    ran = []
    cluster.node(store, "n1", job("j", ran.append, work_pool=["x"], schedule=Once(0.0)))
    eventually(lambda: len(ran) >= 2)


def test_an_interrupted_cron_run_is_due_at_once(eventually):
    begun = threading.Event()

    def work(context):
        begun.set()
        context.wait_for_stop()

    schedule = Cron("0 0 1 1 *")
    made = make_run(work, schedule=schedule)
    made.start()
    assert begun.wait(5)
    made.stop()
    eventually(lambda: made.ended)
    assert made.resume_due.at == 0.0
    made.join(5)


def test_the_guard_stops_the_run_whose_own_locks_run_out_and_no_other(eventually):
    runs = [
        make_run(lambda context: context.wait_for_stop(), time_to_stop_s=lambda spare=spare: spare)
        for spare in (0.0, 60.0)
    ]
    for run in runs:
        run.start()
    guard = RunWatchdog("n1", lambda: runs, on_stop=lambda: None, clock=SYSTEM_CLOCK)
    guard.thread.start()
    eventually(lambda: runs[0].ended)
    assert not runs[1].stopping
    guard.finish()
    guard.thread.join(0.2)
    assert guard.thread.is_alive()  # a run lives that nobody has told to stop
    runs[1].stop()
    guard.finish()
    guard.thread.join(5)
    assert not guard.thread.is_alive()


def test_a_guard_that_fails_once_is_reported_and_goes_on(eventually, caplog):
    run = make_run(lambda context: context.wait_for_stop(), time_to_stop_s=lambda: 0.0)
    run.start()
    answers = [RuntimeError("odd")]

    def runs():
        if answers:
            raise answers.pop()
        return [run]

    guard = RunWatchdog("n1", runs, on_stop=lambda: None, clock=SYSTEM_CLOCK)
    guard.thread.start()
    eventually(lambda: run.ended)
    assert "the watchdog of the runs failed" in caplog.text
    guard.finish()
    guard.thread.join(5)
    assert not guard.thread.is_alive()
