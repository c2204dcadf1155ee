"""Schedules while the wall clock of a node jumps, and progress that a clock which was ahead has left."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest

from latchwork.errors import LockLost
from latchwork.jobs import Control, Cron, JobManager, explain_item, inspect
from latchwork.jobs.cron_progress import (
    CronProgress,
    FireTimes,
    HeldItem,
    read_item_progress,
    read_progress_records,
    reset_future_progress,
)
from latchwork.schedules import FireProgress, WallClock
from latchwork.schedules.wall_clock import CONFIRM_S
from latchwork.testing import VirtualClock
from patience import eventually

EACH_MINUTE = Cron("* * * * *")
EACH_SECOND = Cron("* * * * * *")
NOW = 600.0


class Wall:
    """A wall clock that somebody sets."""

    def __init__(self, clock=None):
        self.clock, self.ahead_s = clock, 0.0

    def __call__(self):
        return self.ahead_s + (time.time() if self.clock is None else self.clock.now())


@pytest.mark.parametrize("ahead_s", [3600.0, -3600.0, 86_400.0])
def test_a_jump_counts_once_it_has_lasted(ahead_s):
    clock = VirtualClock()
    wall = Wall(clock)
    steady = WallClock(clock, wall)
    wall.ahead_s = ahead_s
    for _ in range(int(CONFIRM_S) - 1):
        assert steady.now() == clock.now()
        assert steady.jumped_s == ahead_s
        clock.advance(1.0)
    clock.advance(2.0)
    assert (steady.now(), steady.jumped_s) == (clock.now() + ahead_s, 0.0)


def test_a_jump_that_ends_counts_never():
    clock = VirtualClock()
    wall = Wall(clock)
    steady = WallClock(clock, wall)
    for ahead_s in (3600.0, 0.0, 3600.0, 0.0, -50.0, 3600.0):
        wall.ahead_s = ahead_s
        for _ in range(4):
            assert steady.now() == clock.now()
            clock.advance(5.0)


def test_a_clock_that_is_adjusted_little_by_little_is_followed():
    clock = VirtualClock()
    wall = Wall(clock)
    steady = WallClock(clock, wall)
    for _ in range(100):
        wall.ahead_s += 1.0
        clock.advance(10.0)
        assert steady.now() == wall()


class Starts:
    """The fire times that a job was started for."""

    def __init__(self):
        self.times = []

    def run(self, context):
        self.times.append(context.fire_time_s)


def a_node(cluster, store, node_id, wall, schedule, starts):
    """A node with a wall clock of its own."""
    job = cluster.endless(run=starts.run, items="a", schedule=schedule)
    node = JobManager(store, node_id, job, session_ttl_s=3.0, lock_ttl_s=2.0)
    node._wall = WallClock(wall_s=wall)
    node._settings._wall_s = node._wall.now
    cluster.nodes.append(node)
    return node.start()


@pytest.mark.parametrize("misfire", ["once", "all"])
@pytest.mark.parametrize("ahead_s", [3600.0, -3600.0])
def test_a_wall_clock_that_jumps_for_seconds_changes_no_fire_time(store, cluster, misfire, ahead_s):
    wall, starts = Wall(), Starts()
    node = a_node(cluster, store, "n1", wall, Cron("* * * * * *", misfire=misfire), starts)
    eventually(lambda: len(starts.times) >= 2)
    wall.ahead_s = ahead_s
    began = len(starts.times)
    eventually(lambda: len(starts.times) >= began + 3)
    assert any("the wall clock has jumped" in each for each in node.health().degraded)
    wall.ahead_s = 0.0
    began = len(starts.times)
    eventually(lambda: len(starts.times) >= began + 3)
    assert node.health().degraded == ()
    assert len(set(starts.times)) == len(starts.times)
    assert max(starts.times) - min(starts.times) < 60.0, "no fire time that only the jump has brought"


BEFORE_AUTUMN, AFTER_AUTUMN = datetime(2026, 10, 25, 0, 30, tzinfo=UTC), datetime(2026, 10, 25, 1, 30, tzinfo=UTC)
NEXT_DAY = datetime(2026, 10, 26, 1, 30, tzinfo=UTC)
DAILY = Cron("30 2 * * *", tz="Europe/Berlin")


def test_a_daily_job_starts_once_though_the_cluster_restarts_between_the_two_passes_of_an_hour(store, cluster):
    """At 2:30 in summer time the first node runs it; at 2:30 in winter time, an hour later, another one is there."""
    starts = Starts()
    for moment, count in ((BEFORE_AUTUMN, 1), (AFTER_AUTUMN, 1), (NEXT_DAY, 2)):
        wall = Wall()
        wall.ahead_s = moment.timestamp() - 4.0 - time.time()
        node = a_node(
            cluster, store, f"n{moment.timestamp():.0f}", wall, Cron("30 2 * * *", tz="Europe/Berlin"), starts
        )
        eventually(lambda wall=wall, moment=moment: wall() > moment.timestamp() + 3.0)
        eventually(lambda count=count: len(starts.times) >= count)
        assert len(starts.times) == count
        node.close()
    assert starts.times == [BEFORE_AUTUMN.timestamp(), NEXT_DAY.timestamp()]


def test_progress_in_the_future_is_named_and_set_back(store, cluster, caplog):
    wrong, right = Wall(), Wall()
    wrong.ahead_s = 3600.0
    early, starts = Starts(), Starts()
    first = a_node(cluster, store, "n1", wrong, EACH_SECOND, early)
    eventually(lambda: early.times)
    first.close()
    second = a_node(cluster, store, "n2", right, EACH_SECOND, starts)
    said = "cron progress of job report is 3[56]"
    eventually(lambda: any(said[:-4] in each for each in second.health().degraded))
    assert "latchwork jobs reset-progress report" in caplog.text
    fired = read_item_progress(store, "report", "a")
    told = explain_item(inspect(store), Control(store).settings(), "report", "a", fired, now_s=time.time())
    assert said[:-4] in told.sentences[-1]
    assert starts.times == []
    assert Control(store).reset_progress("report") == {"a": fired.through}
    eventually(lambda: len(starts.times) >= 2, 30.0)
    assert second.health().degraded == ()
    assert Control(store).reset_progress("report") == {}


@pytest.fixture
def held(store):
    """The progress of a job whose item this node holds, without a lock around it."""
    store.put("owners/o1", b"{}")
    progress = CronProgress(store, "report")
    return progress, {"a": HeldItem(1, "o1"), "b": HeldItem(1, "o1")}


def far(store, held):
    """Fire times whose progress lies an hour ahead."""
    times = FireTimes(*held)
    times.find_next_step(EACH_MINUTE, NOW, 0.0)
    times.record_start(times.find_next_step(EACH_MINUTE, NOW + 3600.0, 0.0))
    return times


def only(store):
    """Return what is stored."""
    ((record, _),) = read_progress_records(store, "report")
    return dict(zip(record.items, record.fired, strict=True))


def test_a_start_that_meets_a_set_back_does_not_start(store, held):
    times = far(store, held)
    times.record_end(times.find_next_step(EACH_MINUTE, NOW + 3600.0, 0.0))
    late = times.find_next_step(EACH_MINUTE, NOW + 3660.0, 0.0)
    assert set(reset_future_progress(store, "report", NOW)) == {"a", "b"}
    with pytest.raises(LockLost, match="set back by an operator"):
        times.record_start(late)
    assert times.find_next_step(EACH_MINUTE, NOW + 1.0, 0.0).at == NOW + 60.0
    assert {each.through for each in only(store).values()} == {NOW}


def test_a_run_that_ends_after_a_set_back_has_ended(store, held):
    times = far(store, held)
    step = times.find_next_step(EACH_MINUTE, NOW + 3600.0, 0.0)
    assert step.is_rerun, "it has started and not ended"
    reset_future_progress(store, "report", NOW)
    times.record_end(step)
    again = times.find_next_step(EACH_MINUTE, NOW + 1.0, 0.0)  # it finds the progress ahead, and looks at the next call
    again = times.find_next_step(EACH_MINUTE, NOW + 1.0, 0.0)
    assert (again.at, again.is_rerun) == (NOW + 60.0, False)


def test_progress_within_the_error_of_clocks_is_not_set_back(store, held):
    times = FireTimes(*held)
    times.record_start(times.find_next_step(EACH_MINUTE, NOW, 0.0))
    assert reset_future_progress(store, "report", NOW - 30.0) == {}
    assert FireProgress(NOW).ahead_s(NOW - 30.0) == 0.0
