"""What the leader does besides placing: periodic tasks, merged bursts, and nothing once it no longer leads."""

from __future__ import annotations

import threading
import time

import pytest

import latchwork
from latchwork import Conflict, Exists
from latchwork.jobs import Control, Observer
from latchwork.jobs.manager.leadership import Leadership
from latchwork.jobs.manager.manager import PeriodicTasks
from latchwork.jobs.manager.strategies import ManagerOptions, Strategies
from latchwork.jobs.stored import cluster_store, keys, requests
from latchwork.jobs.stored.caches import PoolCache
from latchwork.jobs.stored.nodes import MemberOptions, NodeRecord
from latchwork.jobs.stored.requests import RunRequest
from latchwork.jobs.stored.runs import JobOutcome, encode_outcomes
from latchwork.schedules import WallClock


@pytest.fixture
def memory():
    with latchwork.connect("memory://managing") as store:
        yield cluster_store(store)


class Rebalances(Observer):
    """How many there were, with or without a change."""

    def __init__(self):
        self.count = 0

    def rebalanced(self, info):
        self.count += 1


def options(**periods):
    given = {"debounce_s": 0.1, "debounce_max_s": 1.0, "cleanup_period_s": 0.0, "sweep_period_s": 0.0, **periods}
    return ManagerOptions(strategies=Strategies(), sweep=lambda: None, **given)


# Periodic tasks


class Done:
    """A term that notes what it was told to do."""

    def __init__(self):
        self.done = []

    def delete_unused_pools(self):
        self.done.append("cleanup")

    def delete_expired_records(self, _outcome_keep_s):
        self.done.append("sweep")


def test_the_first_chores_of_a_term_come_soon_and_the_next_ones_after_their_period():
    periodic_tasks, term = PeriodicTasks(options(cleanup_period_s=10_800.0, sweep_period_s=1.0), 0.0), Done()
    periodic_tasks.run_due(599.0, term)
    assert term.done == ["sweep"]
    periodic_tasks.run_due(600.0, term)
    assert sorted(term.done) == ["cleanup", "sweep", "sweep"]
    periodic_tasks.set_periods(options(cleanup_period_s=10_800.0))
    assert periodic_tasks.due_in_s(600.0) == 10_800.0


def test_the_leader_sweeps_the_locks_of_nodes_that_died(store, cluster, eventually, die):
    """Nobody else has their job, so nobody takes the locks over."""
    cluster.node(store, "n1", cluster.endless("other", items=["z"]), sweep_period_s=0.1)
    dead = cluster.node(store, "n2", cluster.endless("report", items=["a", "b"]))
    eventually(lambda: len(cluster.log.owners()) == 3, 15)
    dead._worker._guard.finish()
    die(dead)
    held = [entry for entry in store.list("locks/report", recursive=True) if entry.value]
    owners = {entry.key for entry in store.list(keys.OWNERS)}
    assert len(held) == 2
    eventually(lambda: len({entry.key for entry in store.list(keys.OWNERS)} & owners) == 1, 20, "the sweep")


# Bursts


def test_a_burst_of_changes_is_one_rebalance(memory, cluster, eventually):
    items, seen = ["a"], Rebalances()
    job = cluster.endless(work_pool=lambda: list(items), pool_check_period_s=0.0)
    cluster.node(memory, "n1", job, debounce_s=1.0, debounce_max_s=20.0, observers=[seen])
    eventually(lambda: set(cluster.log.owners()) == {"a"})
    before = seen.count
    for item in "bcdef":
        version = memory.get(keys.work_pool_key("report")).version
        items.append(item)
        job.refresh_pool()
        eventually(lambda version=version: memory.get(keys.work_pool_key("report")).version != version)
    eventually(lambda: set(cluster.log.owners()) == set("abcdef"))
    assert not threading.Event().wait(1.5)
    assert seen.count == before + 1


def test_an_unchanged_pool_that_is_read_again_causes_no_rebalance(memory, cluster, eventually):
    seen, reads = Rebalances(), []

    def pool():
        reads.append(1)
        return ["a"]

    cluster.node(memory, "n1", cluster.endless(work_pool=pool, pool_check_period_s=0.02), observers=[seen])
    eventually(lambda: set(cluster.log.owners()) == {"a"})
    before, read = seen.count, len(reads)
    version = memory.get(keys.work_pool_key("report")).version
    eventually(lambda: len(reads) >= read + 20)
    assert not threading.Event().wait(0.3)
    assert seen.count == before
    assert memory.get(keys.work_pool_key("report")).version == version


# Without leadership


@pytest.fixture
def leader(memory):
    """A leader, and a pool and a cron progress of a job that nobody has."""
    ticket = memory.put("leader/t", b"")
    fence = memory.fence(ticket.created, Exists(ticket.key))
    memory.put(keys.work_pool_key("gone"), b'{"count":1,"items":["a"]}')
    memory.put("fired/gone/c1", b"{}")
    me = NodeRecord.of_this_process(MemberOptions("boss", 10), since=0, ttl_s=10)
    with memory.mirror(keys.ALIVE) as alive, memory.mirror(keys.WORK_POOL, values=False) as pools:
        yield Leadership(
            memory, me, fence, alive=alive, pools=PoolCache(memory, pools), nodes=None, restarts=None, options=options()
        )


@pytest.fixture
def deposed(memory, leader):
    """A leader that knows what it knew, and whose ticket is gone."""
    memory.delete("leader/t")
    return leader


def everything(store):
    return {entry.key: entry.version for entry in store.list("", recursive=True)}


def test_a_leader_without_leadership_cleans_nothing(memory, deposed):
    before = everything(memory)
    with pytest.raises(Conflict):
        deposed.delete_unused_pools()
    assert everything(memory) == before


def test_a_leader_without_leadership_sweeps_no_progress(memory, deposed):
    memory.delete(keys.work_pool_key("gone"))
    deposed._pools._mirror.wait_until(lambda state: not state, 10)
    before = everything(memory)
    with pytest.raises(Conflict):
        deposed.delete_expired_records(3600.0)
    assert everything(memory) == before


def test_a_leader_without_leadership_trims_no_audit(memory, deposed, monkeypatch):
    monkeypatch.setattr(requests, "MAX_AUDIT_RECORDS", 1)
    memory.put("audit/1", b"{}")
    memory.put("audit/2", b"{}")
    memory.delete("fired/gone/c1")
    before = everything(memory)
    with pytest.raises(Conflict):
        deposed.delete_expired_records(3600.0)
    assert everything(memory) == before


def test_a_wall_clock_that_is_ahead_for_a_moment_removes_no_outcome_and_no_request(memory, leader, monkeypatch):
    now, ahead_s = time.time(), [0.0]
    memory.put("outcomes/n1", encode_outcomes([JobOutcome("n1", "report", now, now, None, 0, 0, (), now)]))
    memory.put("requests/r1", RunRequest("r1", "report", None, now, now + 60.0).to_bytes())
    leader._wall_clock = WallClock(memory.clock, lambda: time.time() + ahead_s[0])
    ahead_s[0] = 700_000.0
    leader.delete_expired_records(3600.0)
    assert (memory.children("outcomes"), memory.children("requests")) == (["n1"], ["r1"])
    monkeypatch.setattr("latchwork.schedules.wall_clock.CONFIRM_S", 0.0)
    leader.delete_expired_records(3600.0)  # the clock is right then, as far as anybody can know
    assert (memory.children("outcomes"), memory.children("requests")) == ([], [])


def test_a_close_at_the_moment_the_manager_begins_to_wait_is_not_missed(memory, cluster, eventually):
    node = cluster.node(memory, "n1", cluster.endless())
    eventually(lambda: len(cluster.log.owners()) == 4)
    manager = node._membership._manager
    clear, armed = manager._wake.clear, threading.Event()

    def closed_just_before():
        if not armed.is_set():
            armed.set()
            manager._closing.set()
            manager._wake.set()
        clear()

    manager._wake.clear = closed_just_before
    manager.request_check()
    eventually(lambda: armed.is_set() and not manager._thread.is_alive(), 3.0, "the end of the manager")


def test_settings_reach_the_chores_of_the_term_under_way(memory, cluster, eventually):
    first = cluster.node(memory, "n1", cluster.endless("kept"), cleanup_period_s=0.0)
    eventually(lambda: first.is_manager)
    memory.put(keys.work_pool_key("gone"), b'{"count":1,"items":["a"]}')
    assert not threading.Event().wait(0.3)
    assert memory.get(keys.work_pool_key("gone")) is not None
    Control(memory).change_cluster(cleanup_period_s=0.1)
    eventually(lambda: memory.get(keys.work_pool_key("gone")) is None)
