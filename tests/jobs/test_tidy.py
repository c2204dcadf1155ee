"""What is left in the store after nodes have closed."""

from __future__ import annotations

import logging
import threading
import time

import pytest

import latchwork
from latchwork.jobs import Control, Cron, Threads, inspect
from latchwork.jobs.node import membership
from latchwork.jobs.node.membership import remove_cluster_state
from latchwork.jobs.node.registration import Registration
from latchwork.jobs.stored import cluster_store
from latchwork.jobs.stored.chunked_set import commit_all
from latchwork.jobs.stored.nodes import MemberOptions, NodeRecord
from latchwork.jobs.worker.item_locks import LOCK_BATCH, ItemLocks
from latchwork.testing import FaultyStore
from latchwork.types import Put


@pytest.fixture
def memory():
    with latchwork.connect("memory://tidy") as store:
        yield cluster_store(store)


def left(store):
    """The keys that are left, but for how runs went."""
    return sorted(entry.key for entry in store.list("", recursive=True) if not entry.key.startswith("outcomes/"))


def test_the_last_node_to_close_leaves_nothing_behind(store, cluster, eventually):
    nodes = [cluster.node(store, f"n{n}", cluster.endless(items=list("abcdef"))) for n in range(3)]
    eventually(lambda: len(cluster.log.owners()) == 6, 15)
    nodes[1].close()
    assert inspect(store) is not None
    nodes[0].close()
    nodes[2].close()
    assert left(store) == []


def test_nodes_that_close_at_one_time_leave_nothing_behind(store, cluster, eventually):
    nodes = [cluster.node(store, f"n{n}", cluster.endless(items=list("abcdef"))) for n in range(3)]
    eventually(lambda: len(cluster.log.owners()) == 6, 15)
    threads = [threading.Thread(target=node.close) for node in nodes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert left(store) == []


def test_settings_and_the_progress_of_cron_schedules_are_kept(memory, cluster, eventually):
    ran = []
    node = cluster.node(memory, "n1", cluster.endless(items=["a"], run=ran.append, schedule=Cron("* * * * * *")))
    Control(memory).enable("report")
    eventually(lambda: ran)
    node.close()
    assert {key.split("/")[0] for key in left(memory)} == {"settings", "fired"}


@pytest.mark.parametrize("late", ["n2", "n1"])
def test_a_node_that_comes_while_the_last_one_tidies_up_loses_nothing(memory, cluster, eventually, monkeypatch, late):
    first = cluster.node(memory, "n1", cluster.endless(items=["a", "b"]))
    eventually(lambda: len(cluster.log.owners()) == 2)
    came = []  # right after the last one has seen that nobody stays
    real = remove_cluster_state

    def remove(*given):
        came.append(cluster.node(memory, late, cluster.endless(items=["a", "b"])))
        results.append(real(*given))

    results = []
    monkeypatch.setattr(membership, "remove_cluster_state", remove)
    first.close()
    assert results == [False]
    assert inspect(memory).pools == {"report": ("a", "b")}
    eventually(lambda: set(cluster.log.owners().values()) == {late} and len(cluster.log.owners()) == 2)


def test_a_node_that_leaves_while_another_tidies_up_stops_the_removal_and_does_it_itself(memory, cluster, monkeypatch):
    """Both have left when the first one lists the nodes: only the last one to leave may remove keys."""
    first, second = (cluster.node(memory, name, cluster.endless(items=["a"])) for name in ("n1", "n2"))
    results = []
    real, leave = remove_cluster_state, Registration.leave

    def leave_before_another(registration, *given):
        unchanged = leave(registration, *given)
        if registration.member.worker == "n1":
            second.close()
        return unchanged

    monkeypatch.setattr(Registration, "leave", leave_before_another)
    monkeypatch.setattr(
        membership,
        "remove_cluster_state",
        lambda store, me, *given: results.append((me, real(store, me, *given))),
    )
    first.close()
    assert results == [("n2", True), ("n1", False)]
    assert left(memory) == []


def test_a_node_that_came_and_died_right_before_the_last_one_leaves_keeps_no_keys(memory, cluster, monkeypatch):
    """The last node lists what to remove only after it has left, although it seemed to be alone before."""
    last = cluster.node(memory, "n1", cluster.endless(items=["a"]))
    leave = Registration.leave

    def leave_after_another_died(registration, *given):
        session = memory.open_session(10.0)
        member = NodeRecord.of_this_process(MemberOptions("n2", 10.0), since=0, ttl_s=10.0)
        other = Registration(memory, session, member, ["mail"])
        assert other.try_join() is None
        other.write_pool("mail", ("b",), None)
        session.close()
        return leave(registration, *given)

    monkeypatch.setattr(Registration, "leave", leave_after_another_died)
    last.close()
    assert left(memory) == []


def test_a_leader_that_still_writes_when_its_node_leaves_keeps_no_keys(cluster, monkeypatch):
    """Its write arrives before its ticket is deleted, and after the node has left."""
    with FaultyStore(latchwork.connect("memory://late-leader")) as store:
        node = cluster.node(store, "n1", cluster.endless(items=["a"]))
        memory = cluster_store(store)
        manager = node._membership._manager
        close = manager.close

        def close_after_a_write():
            memory.put("workers/n1/assigned/report", b"{}")
            close()

        monkeypatch.setattr(manager, "close", close_after_a_write)
        node.close()
        assert left(memory) == []


def test_a_node_that_leaves_others_behind_lists_nothing_but_them(cluster):
    with FaultyStore(latchwork.connect("memory://beside")) as store:
        first, second = (cluster.node(store, name, cluster.endless(items=["a"])) for name in ("n1", "n2"))
        before = len(store.calls)
        second.close()
        listed = [call.keys for call in store.calls[before:] if call.op == "list"]
        assert listed == [("@jobs/alive",)]
        first.close()


@pytest.mark.parametrize("count", [2, 4 * LOCK_BATCH])
def test_a_node_leaves_while_few_locks_are_released_and_after_many(cluster, eventually, monkeypatch, count):
    """Other nodes would try many locks in vain. The free locks are removed in both cases."""
    held = []
    release, leave = ItemLocks.release, Registration.leave

    def release_slowly(locks, *given):
        time.sleep(0.05)
        release(locks, *given)

    def count_locks(registration, *given):
        held.append(sum(map(len, node._worker.locks.get_held_locks().values())))
        return leave(registration, *given)

    monkeypatch.setattr(ItemLocks, "release", release_slowly)
    monkeypatch.setattr(Registration, "leave", count_locks)
    with latchwork.connect("memory://many-locks") as store:
        items = [f"i{number}" for number in range(count)]
        node = cluster.node(store, "n1", cluster.endless(items=items, threads=Threads.whole()))
        eventually(lambda: len(cluster.log.owners()) == count, 30)
        node.close()
        assert held[0] <= LOCK_BATCH
        assert held[0] > 0 or count > LOCK_BATCH
        assert left(cluster_store(store)) == []


def test_the_last_node_removes_more_keys_than_one_listing_or_transaction_holds(memory, cluster):
    node = cluster.node(memory, "n1", cluster.endless(items=["a"], initial_delay_s=3600.0))
    many = [Put(f"workers/gone/assigned/job{number}", b"{}") for number in range(21_000)]
    commit_all(memory, [], [*many, Put("work-pool/old", b"{}"), Put("work-pool/old/m-1", b"[]")])
    node.close()
    assert left(memory) == []


def test_what_takes_too_long_to_remove_is_left_behind_and_said(memory, cluster, monkeypatch, caplog):
    monkeypatch.setattr(membership, "_CLEANUP_TIMEOUT_S", 0.0)
    caplog.set_level(logging.INFO)
    node = cluster.node(memory, "n1", cluster.endless(items=["a"]))
    node.close()
    assert "node n1 left some keys of the cluster behind" in caplog.text
    assert "work-pool/report" in left(memory)
