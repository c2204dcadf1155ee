"""Exactly one start for each item and fire time: written before it starts, by whoever holds the lock."""

from __future__ import annotations

import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass

import pytest

import latchwork
from latchwork import LockLost, OutcomeUnknown, Unavailable
from latchwork.clock import SYSTEM_CLOCK
from latchwork.jobs import Control, Cron, FixedDelay, Job, JobManager, JobSettings, Threads
from latchwork.jobs.cron_progress import (
    FIRED,
    CronProgress,
    FireTimes,
    HeldItem,
    delete_obsolete_progress,
    read_progress_records,
)
from latchwork.jobs.job import JobContext
from latchwork.jobs.stored import cluster_store
from latchwork.jobs.worker.outcomes import OutcomeTracker
from latchwork.jobs.worker.runs import JobRun, RunSetup
from latchwork.primitives import LockKeeper
from latchwork.schedules.fires import FireProgress, Jitter, describe_rule
from latchwork.schedules.schedule import DueTime, Instant

EACH_MINUTE = Cron("* * * * *")
RULE = describe_rule(EACH_MINUTE)
NOW = 600.0


@pytest.fixture
def memory():
    with latchwork.connect("memory://fires") as store:
        yield cluster_store(store)


@dataclass
class Node:
    """A holder of locks, and its progress."""

    keeper: LockKeeper
    progress: CronProgress

    def holds(self, *items):
        locks = {item: self.keeper.acquire(f"report/{item}", timeout_s=10.0) for item in items}
        return {item: HeldItem(lock.fence.token, lock.owner.id) for item, lock in locks.items()}

    def release(self, *items):
        self.keeper.release([f"report/{item}" for item in items])


@pytest.fixture
def node():
    made = []

    def make(store):
        keeper = LockKeeper(store, ttl_s=30.0)
        keeper.start()
        made.append(keeper)
        return Node(keeper, CronProgress(store, "report"))

    yield make
    for keeper in made:
        keeper.close(release=True)


def run(times, now=NOW):
    step = times.find_next_step(EACH_MINUTE, now, 0.0)
    times.record_start(step)
    return step


def test_progress_goes_with_the_lock_from_node_to_node(store, node):
    first, second = node(store), node(store)
    holds = first.holds("a", "b")
    times = FireTimes(first.progress, holds)
    times.record_end(run(times))
    first.release("a")
    step = FireTimes(second.progress, second.holds("a")).find_next_step(EACH_MINUTE, NOW + 1, 0.0)
    assert (step.at, step.items) == (NOW + 60, ("a",))
    assert times.find_next_step(EACH_MINUTE, NOW + 1, 0.0).items == ("a", "b")


def test_a_run_whose_node_died_is_begun_again_by_the_next_holder(store, node):
    first, second = node(store), node(store)
    run(FireTimes(first.progress, first.holds("a")))
    first.keeper.close(release=True)
    step = FireTimes(second.progress, second.holds("a")).find_next_step(EACH_MINUTE, NOW + 1, 0.0)
    assert (step.at, step.is_rerun) == (NOW, True)


def test_nothing_starts_on_a_node_whose_owner_was_taken_over(store, node):
    first, second = node(store), node(store)
    holds = first.holds("a")
    times = FireTimes(first.progress, holds)
    step = times.find_next_step(EACH_MINUTE, NOW, 0.0)
    store.delete(f"owners/{holds['a'].owner_id}")
    taken = FireTimes(second.progress, second.holds("a"))
    run(taken)
    with pytest.raises(LockLost):
        times.record_start(step)
    newest = max((record for record, _ in read_progress_records(store, "report")), key=lambda record: record.token)
    assert newest.fired == (FireProgress(NOW, NOW, RULE),)


def test_nothing_starts_on_a_node_whose_owner_is_gone_though_nobody_has_its_items_yet(memory, node):
    first = node(memory)
    holds = first.holds("a")
    times = FireTimes(first.progress, holds)
    step = times.find_next_step(EACH_MINUTE, NOW, 0.0)
    ((_, before),) = read_progress_records(memory, "report")
    memory.delete(f"owners/{holds['a'].owner_id}")
    with pytest.raises(LockLost):
        times.record_start(step)
    ((_, after),) = read_progress_records(memory, "report")
    assert after == before


def test_a_start_that_may_land_yet_does_not_start(memory, node, monkeypatch):
    here = node(memory)
    times = FireTimes(here.progress, here.holds("a"))
    step = times.find_next_step(EACH_MINUTE, NOW, 0.0)

    def sent_and_not_seen(_store, _checks, _ops):
        raise OutcomeUnknown("it may land yet")

    with monkeypatch.context() as patch:
        patch.setattr(type(memory), "commit", sent_and_not_seen)
        with pytest.raises(OutcomeUnknown):
            times.record_start(step)
    assert times.find_next_step(EACH_MINUTE, NOW + 1, 0.0).at == NOW


def test_items_that_never_ran_count_from_the_moment_they_came(memory, node):
    times = FireTimes(node(memory).progress, node(memory).holds("a"))
    assert times.find_next_step(EACH_MINUTE, NOW + 0.5, NOW + 0.5).at == NOW + 60


def test_a_start_whose_outcome_is_unknown_does_not_start_and_is_written_again(memory, node, monkeypatch):
    here = node(memory)
    times = FireTimes(here.progress, here.holds("a"))
    step = times.find_next_step(EACH_MINUTE, NOW, 0.0)
    commit = type(memory).commit

    def applied_but_unknown(store, checks, ops):
        commit(store, checks, ops)
        raise OutcomeUnknown("the answer was lost")

    def not_even_readable(*_args, **_options):
        raise Unavailable("down")

    with monkeypatch.context() as patch:
        patch.setattr(type(memory), "commit", applied_but_unknown)
        patch.setattr(type(memory), "get", not_even_readable)
        with pytest.raises(Unavailable):
            times.record_start(step)
    again = times.find_next_step(EACH_MINUTE, NOW + 1, 0.0)
    assert again.at == NOW
    times.record_start(again)
    times.record_end(again)
    assert times.find_next_step(EACH_MINUTE, NOW + 1, 0.0).at == NOW + 60


def test_an_end_that_could_not_be_written_goes_with_the_next_start(memory, node, monkeypatch):
    here = node(memory)
    times = FireTimes(here.progress, here.holds("a"))
    step = run(times)

    def down(*_args, **_options):
        raise Unavailable("down")

    with monkeypatch.context() as patch:
        patch.setattr(type(memory), "commit", down)
        times.record_end(step)
    assert times.find_next_step(EACH_MINUTE, NOW + 1, 0.0).at == NOW + 60
    times.record_end(run(times, NOW + 60))
    assert read_progress_records(memory, "report")[0][0].fired == (FireProgress(NOW + 60, rule=RULE),)


ALL = Cron("* * * * *", misfire="all")
LATER = NOW + 3600.0


def test_a_change_of_the_schedule_owes_nothing_from_before_it_wherever_the_item_goes(store, node):
    first, second = node(store), node(store)
    times = FireTimes(first.progress, first.holds("a"))
    times.record_end(run(times))
    assert times.find_next_step(ALL, LATER + 1, 0.0).at == LATER + 60
    first.release("a")
    later = FireTimes(second.progress, second.holds("a"))
    assert later.find_next_step(ALL, LATER + 150, 0.0).at == LATER + 60, "what is owed since the change stays owed"


def test_a_change_that_came_during_a_run_counts_from_when_it_came(memory, node):
    here = node(memory)
    times = FireTimes(here.progress, here.holds("a"))
    times.record_end(run(times))
    assert times.find_next_step(ALL, LATER, 0.0, changed_s=NOW + 100).at == NOW + 120


def test_a_schedule_that_comes_back_owes_nothing_of_the_time_it_was_away(memory, node):
    here = node(memory)
    times = FireTimes(here.progress, here.holds("a"))
    times.record_end(run(times))
    assert times.find_next_step(EACH_MINUTE, LATER + 1, 0.0, changed_s=LATER + 1).at == LATER + 60


def test_items_that_never_ran_owe_nothing_from_before_a_change(memory, node):
    here = node(memory)
    assert FireTimes(here.progress, here.holds("a")).find_next_step(ALL, NOW + 5, 0.0, changed_s=NOW + 1).at == NOW + 60


@pytest.mark.parametrize("when", ["written", "locks low"])
@pytest.mark.parametrize("rerun", [True, False])
def test_a_start_that_was_written_and_then_told_to_stop_is_owed_still(memory, node, eventually, when, rerun):
    here, called, begun = node(memory), [], []
    each = Cron("* * * * * *", rerun_interrupted=rerun)
    holds = here.holds("a")

    class Times(FireTimes):
        def record_start(self, step):
            super().record_start(step)
            begun.append(step.at)
            if when == "written":
                live.stop()

    job = Job("report", work_pool=["a"], run=called.append, schedule=each)
    setup = RunSetup(
        job=job,
        options=lambda: JobSettings().get_effective_options(job),
        new_context=lambda items, at=None: JobContext(items, fire_time_s=at),
        outcomes=OutcomeTracker("report", "n1"),
        may_run=lambda: not begun or when == "written",
        on_end=lambda: None,
        clock=SYSTEM_CLOCK,
        fire_times=lambda items: Times(here.progress, holds),
    )
    live = JobRun(1, ("a",), setup, DueTime(SYSTEM_CLOCK.now(), each, Instant(0.0, 0.0)))
    live.start()
    eventually(lambda: begun)
    live.stop()
    eventually(lambda: live.ended)
    assert called == []
    step = FireTimes(here.progress, holds).find_next_step(each, begun[0] + 0.5, 0.0)
    assert (step.at, step.is_rerun) == (begun[0], rerun)


def test_a_run_that_was_called_and_told_to_stop_is_not_given_back(memory, node):
    here = node(memory)
    holds = here.holds("a")
    times = FireTimes(here.progress, holds)
    never_again = Cron("* * * * *", rerun_interrupted=False)
    times.record_start(times.find_next_step(never_again, NOW, 0.0))
    times.confirm_start()
    times.undo_start()
    assert FireTimes(here.progress, holds).find_next_step(never_again, NOW + 1, 0.0).at == NOW + 60


def test_threads_that_start_at_one_time_are_written_together(memory, node):
    here = node(memory)
    items = [f"i{n:03}" for n in range(200)]
    holds = here.holds(*items)
    times = {item: FireTimes(here.progress, {item: holds[item]}) for item in items}
    before = memory.put("probe", b"").token

    def one(item):
        times[item].record_end(run(times[item]))

    threads = [threading.Thread(target=one, args=(item,)) for item in items]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    progress = {
        item: fired
        for record, _ in read_progress_records(memory, "report")
        for item, fired in zip(record.items, record.fired, strict=True)
    }
    assert progress == dict.fromkeys(items, FireProgress(NOW, rule=RULE))
    assert memory.put("probe", b"").token - before < 400, "a write for each thread and step would be 600"


def test_progress_that_was_swept_under_a_live_run_is_claimed_anew(memory, node):
    here = node(memory)
    times = FireTimes(here.progress, here.holds("a"))
    times.record_end(run(times))
    delete_obsolete_progress(memory, {"report": []}, [])
    step = times.find_next_step(EACH_MINUTE, NOW + 60, 0.0)
    with pytest.raises(LockLost):
        times.record_start(step)
    run(times, NOW + 60)
    assert [record.fired for record, _ in read_progress_records(memory, "report")] == [
        (FireProgress(NOW + 60, NOW + 60, RULE),)
    ]


def test_the_sweep_keeps_what_counts_and_drops_the_rest(store, node):
    first, second = node(store), node(store)
    times = FireTimes(first.progress, first.holds("a", "b"))
    times.record_end(run(times))
    first.release("a", "b")
    FireTimes(second.progress, second.holds("a")).find_next_step(EACH_MINUTE, NOW, 0.0)
    store.put(f"{FIRED}/gone/record", b"{}")
    store.put("work-pool/late", b"{}")
    store.put(f"{FIRED}/late/record", b"{}")
    with suppress(latchwork.Conflict):
        delete_obsolete_progress(store, {"report": ["a", "b"]}, [])
    assert store.list(f"{FIRED}/gone") == []
    assert store.list(f"{FIRED}/late") != [], "its pool came after the pools were read"
    store.delete_tree(f"{FIRED}/late")
    assert len(read_progress_records(store, "report")) == 2, "b has its progress only there"
    assert delete_obsolete_progress(store, {"report": ["a"]}, []) == 1


# In a cluster


EACH_SECOND = Cron("* * * * * *", misfire="all")


class Starts:
    """Which item started for which fire time, in this process."""

    def __init__(self):
        self.lock = threading.Lock()
        self.seen = []

    def run(self, context):
        with self.lock:
            self.seen += [(item, context.fire_time_s) for item in context.items]

    def counts(self):
        with self.lock:
            return Counter(self.seen)

    def gaps(self):
        """Items and seconds that were left out, between the first and the last start of each item."""
        found = []
        by_item = {}
        for item, at in self.counts():
            by_item.setdefault(item, []).append(at)
        for item, times in by_item.items():
            expected = {min(times) + n for n in range(round(max(times) - min(times)) + 1)}
            found += [(item, at) for at in sorted(expected - set(times))]
        return found


@pytest.mark.slow
def test_each_item_starts_once_at_each_second_while_nodes_come_die_and_go(store, cluster, eventually, die):
    starts = Starts()

    def jobs():
        shapes = {"whole": ("abcd", Threads.whole()), "each": ("efgh", Threads.per_item())}
        return [
            cluster.endless(job_id, run=starts.run, items=items, schedule=EACH_SECOND, threads=threads)
            for job_id, (items, threads) in shapes.items()
        ]

    first = cluster.node(store, "n1", jobs())
    eventually(lambda: len({item for item, _ in starts.counts()}) == 8)
    second = cluster.node(store, "n2", jobs())
    time.sleep(1.5)
    die(first)
    third = cluster.node(store, "n3", jobs())
    time.sleep(1.0)
    second.close()
    wanted = time.time()
    eventually(lambda: {item for item, at in starts.counts() if at > wanted} == set("abcdefgh"), 20)
    third.close()
    assert starts.gaps() == []
    assert {count for count in starts.counts().values() if count != 1} == set()


def test_fire_times_at_which_nobody_lived_are_made_up_for_once(memory, cluster, eventually):
    starts = Starts()
    job = cluster.endless(run=starts.run, items="a", schedule=Cron("* * * * * *"))
    first = cluster.node(memory, "n1", job)
    eventually(lambda: len(starts.counts()) >= 1)
    first.close()
    last = max(at for _, at in starts.counts())
    time.sleep(3.2)
    second = JobManager(memory, "n2", job, session_ttl_s=2.0, lock_ttl_s=1.5)
    with second:
        eventually(lambda: max(at for _, at in starts.counts()) > last)
        made_up = min(at for _, at in starts.counts() if at > last)
        assert made_up >= last + 3, "the newest of the missed ones is recorded"


@pytest.mark.parametrize(
    ("schedule", "jitter_s"),
    [(Cron("* * * * * *"), 4.0), (Cron("*/2 * * * * *", misfire="skip", on_time_s=0.8), 1.9)],
)
def test_starts_come_later_by_their_jitter_and_do_not_starve(memory, cluster, eventually, schedule, jitter_s):
    seen = {"a": [], "b": [], "c": []}

    def run(context):
        seen[context.items[0]].append((time.time(), context.fire_time_s))

    cluster.node(memory, "n1", cluster.endless(run=run, items="abc", schedule=schedule, jitter_s=jitter_s))
    eventually(lambda: min(map(len, seen.values())) >= 3, 25)
    for item, starts in seen.items():
        delay_s = Jitter.from_name(jitter_s, f"report/{item}").delay_s
        assert all(at >= fire_s + delay_s - 0.001 for at, fire_s in starts), (item, delay_s, starts)


def test_a_schedule_set_while_nodes_live_starts_nothing_for_a_fire_time_from_before(memory, cluster, eventually):
    ran = []
    created_s = time.time()
    job = cluster.endless(run=lambda context: ran.append(context.fire_time_s), items="a", schedule=FixedDelay(3600.0))
    job.change(initial_delay_s=None)
    cluster.node(memory, "n1", job)
    eventually(lambda: len(memory.list("locks", recursive=True)) == 1)
    eventually(lambda: time.time() > created_s + 2.1)
    past = time.gmtime(time.time() - 0.9)
    Control(memory).change_job("report", schedule=Cron(f"{past.tm_sec} {past.tm_min} {past.tm_hour} * * *"))
    assert not threading.Event().wait(1.0)
    assert ran == []
    changed_s = time.time()
    Control(memory).change_job("report", schedule=Cron("* * * * * *", misfire="all"))
    eventually(lambda: len(ran) >= 2)
    assert ran[0] > changed_s - 0.001
