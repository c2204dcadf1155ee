"""One live run: its thread, its schedule, its end."""

from __future__ import annotations

import threading
import time

import pytest

from latchwork.clock import SYSTEM_CLOCK
from latchwork.jobs import Cron, FixedDelay, Job, JobSettings
from latchwork.jobs.job import JobContext
from latchwork.jobs.worker.outcomes import OutcomeTracker
from latchwork.jobs.worker.runs import JobRun, RunSetup
from latchwork.schedules.fires import CronStep
from latchwork.schedules.schedule import DueTime, Instant


@pytest.fixture
def start():
    runs = []

    def make(run, *, due_in_s=0.0, may_run=lambda: True, schedule=FixedDelay(0.02), fire_times=None):  # noqa: B008 - frozen
        job = Job("report", work_pool=["a"], run=run, schedule=schedule)
        setup = RunSetup(
            job=job,
            options=lambda: JobSettings().get_effective_options(job),
            new_context=lambda items, at=None: JobContext(items, job_id="report", fire_time_s=at),
            outcomes=OutcomeTracker("report", "n1"),
            may_run=may_run,
            on_end=lambda: None,
            clock=SYSTEM_CLOCK,
            fire_times=fire_times,
        )
        made = JobRun(1, ("a",), setup, DueTime(SYSTEM_CLOCK.now() + due_in_s, schedule, Instant(0.0, 0.0)))
        runs.append(made)
        made.start()
        return made

    yield make
    for run in runs:
        run.stop()
        run.join(5)


def test_it_runs_again_and_again_with_a_new_context_each_time(start, eventually):
    contexts = []
    start(contexts.append)
    eventually(lambda: len(contexts) >= 3)
    assert len(set(map(id, contexts))) == len(contexts)


@pytest.mark.filterwarnings("error")
def test_a_run_that_returns_a_coroutine_has_failed(start, eventually):
    async def never():
        """Nobody awaits it."""

    run = start(lambda context: never())
    stats = eventually(
        lambda: (run._setup.outcomes.get_stats(0, 0).failures and run._setup.outcomes.get_stats(0, 0)) or None
    )
    assert "run returned a coroutine, which never runs" in stats.last_error


def test_a_run_told_to_stop_while_it_waits_keeps_its_due(start, eventually):
    run = start(lambda context: None, due_in_s=60.0)
    run.stop()
    eventually(lambda: run.ended)
    assert run.resume_due.at == pytest.approx(SYSTEM_CLOCK.now() + 60.0, abs=5)


def test_a_run_told_to_stop_in_the_middle_is_due_at_once(start, eventually):
    begun = threading.Event()
    run = start(lambda context: (begun.set(), context.wait_for_stop()))
    begun.wait(5)
    run.stop()
    eventually(lambda: run.ended)
    assert run.resume_due.at <= SYSTEM_CLOCK.now()


def test_a_run_told_to_stop_in_the_middle_is_due_at_once_however_long_its_schedule_waits(start, eventually):
    begun = threading.Event()
    run = start(lambda context: (begun.set(), context.wait_for_stop()), schedule=FixedDelay(3600.0))
    begun.wait(5)
    run.stop()
    eventually(lambda: run.ended)
    assert run.resume_due.at <= SYSTEM_CLOCK.now()


def test_stop_returns_at_once_although_a_listener_hangs(start, eventually):
    leave, begun = threading.Event(), threading.Event()

    def work(context):
        context.on_stop(lambda: leave.wait(10))
        begun.set()
        context.wait_for_stop()

    run = start(work)
    begun.wait(5)
    before = time.monotonic()
    run.stop()
    assert time.monotonic() - before < 1.0
    eventually(lambda: run.ended)
    leave.set()


def test_a_run_is_not_begun_while_its_locks_are_not_held(start, eventually):
    held, ran = threading.Event(), threading.Event()
    start(lambda context: ran.set(), may_run=held.is_set)
    assert not ran.wait(0.3)
    held.set()
    assert ran.wait(5)


def test_a_cron_run_is_not_begun_when_its_locks_ran_low_while_its_start_was_written_down(start, eventually):
    held, begun, ran = threading.Event(), threading.Event(), threading.Event()
    held.set()

    class Turns:
        def __init__(self, items):
            self.items = items

        def find_next_step(self, cron, now_s, since_s, **_options):
            return CronStep(items=self.items, at=now_s, wait_s=3600.0 if ran.is_set() else 0.0)

        def record_start(self, step):
            held.clear()  # as after a long freeze
            begun.set()

        def confirm_start(self):
            pass

        def record_end(self, step):
            pass

        def undo_start(self):
            pass

    start(lambda context: ran.set(), may_run=held.is_set, schedule=Cron("* * * * *"), fire_times=Turns)
    assert begun.wait(5)
    assert not ran.wait(0.3)
    held.set()
    assert ran.wait(5)


def test_a_schedule_that_raises_is_logged_and_does_not_run_in_circles(start, eventually, caplog):
    class Odd(FixedDelay):
        def next_due(self, due, ended):
            raise RuntimeError("no calendar")

    runs = []
    run = start(runs.append, schedule=Odd(0.0))
    eventually(lambda: "no calendar" in caplog.text)
    assert not threading.Event().wait(0.2)
    assert len(runs) == 1
    assert not run.ended
    run.stop()
    eventually(lambda: run.ended)
