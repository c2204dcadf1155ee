"""Draining a node, and restarting one: what moves, what stays, and what is left over."""

from __future__ import annotations

import random
import threading
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import latchwork
from latchwork import Conflict, Exists, WaitTimeout
from latchwork.jobs import Control, InvalidSetting, JobManager, UnknownNode, inspect
from latchwork.jobs.manager.rebalance import ClusterView, ReservedItems, WorkerView, rebalance
from latchwork.jobs.manager.restarts import RestartTracker
from latchwork.jobs.manager.strategies import Strategies
from latchwork.jobs.stored import cluster_store
from latchwork.jobs.stored.nodes import (
    NODES,
    MaintenanceRecord,
    decode_maintenance_record,
    maintenance_key,
    reserved_items_key,
)

ITEMS = [f"i{n:02}" for n in range(12)]


@pytest.fixture
def memory():
    with latchwork.connect("memory://drain") as store:
        yield cluster_store(store)


def owners(store, job="report"):
    state = inspect(store)
    return dict(state.job(job).assigned) if state is not None and job in state.pools else {}


def even(cluster, *nodes):
    """All items run, shared evenly over these nodes."""
    where = cluster.log.owners()
    return len(where) == len(ITEMS) and set(where.values()) == set(nodes) and where


# Pure


def apply(view, **changed):
    """The view after a rebalance of it."""
    result = rebalance(view, Strategies("balanced"))
    assert not result.failed
    assignments = {job: dict(workers) for job, workers in view.assignments.items()}
    for change in result.changes:
        workers = assignments.setdefault(change.job, {})
        workers[change.worker] = change.after
        if not change.after:
            del workers[change.worker]
    state = {"workers": view.workers, "pools": view.pools, "assignments": assignments, "reserved": view.reserved}
    return ClusterView(**{**state, **changed}), result.moves


def holders(view):
    return {
        (job, item): w for job, workers in view.assignments.items() for w, items in workers.items() for item in items
    }


@given(
    st.integers(2, 6), st.lists(st.integers(0, 20), min_size=1, max_size=3), st.sampled_from([1.0, 2.0]), st.randoms()
)
@settings(deadline=None, max_examples=150)
def test_a_restarted_workers_items_move_out_once_and_back_once_and_nothing_else_moves(workers, sizes, weight, rng):
    jobs = {f"j{n}": tuple(f"{n}-{i}" for i in range(size)) for n, size in enumerate(sizes)}
    ready = {f"w{n}": WorkerView(weight if n else 1.0, frozenset(jobs)) for n in range(workers)}
    before, _ = apply(ClusterView(ready, jobs, {}))
    gone = rng.choice(sorted(ready))
    theirs = {job: assignments[gone] for job, assignments in before.assignments.items() if gone in assignments}
    others = {name: worker for name, worker in ready.items() if name != gone}
    away = ClusterView(others, jobs, before.assignments, {gone: ReservedItems(ready[gone], theirs)})
    during, out = apply(away)
    again, none = apply(during)
    back, home = apply(ClusterView(ready, jobs, again.assignments, {gone: ReservedItems(None, theirs)}))
    moving = sum(map(len, theirs.values()))
    assert (out, none, home) == (moving, 0, moving)
    assert holders(back) == holders(before)
    assert all(holders(during)[key] == who for key, who in holders(before).items() if who != gone)
    assert gone not in holders(during).values()


def test_a_mark_survives_being_stored_and_a_damaged_one_counts_as_none():
    mark = MaintenanceRecord("n1", "restarting", "abc", "s1", 30.0, by="me", at="now").with_reserved_items(
        2.0, ("report",), {"zone": "a"}
    )
    assert decode_maintenance_record("n1", mark.to_bytes()) == mark
    assert decode_maintenance_record("n1", b"{}") is None
    assert decode_maintenance_record("n1", b"\xff") is None


# In a cluster


def test_a_drained_node_gives_its_items_away_and_gets_none_until_it_is_undrained(store, cluster, eventually):
    for name in ("n1", "n2", "n3"):
        cluster.node(store, name, cluster.endless(items=ITEMS))
    eventually(lambda: even(cluster, "n1", "n2", "n3"), 20)
    control = Control(store)
    control.drain("n2")
    control.wait_drained("n2", 20)
    assert "n2" not in cluster.log.owners().values()
    eventually(lambda: even(cluster, "n1", "n3"), 20)
    assert control.undrain("n2")
    eventually(lambda: even(cluster, "n1", "n2", "n3"), 20)
    assert not control.undrain("n2")
    assert store.list("nodes", recursive=True) == []


def test_an_announced_restart_moves_the_nodes_items_out_once_and_back_once_and_nothing_else(store, cluster, eventually):
    nodes = {name: cluster.node(store, name, cluster.endless(items=ITEMS)) for name in ("n1", "n2", "n3")}
    eventually(lambda: even(cluster, "n1", "n2", "n3"), 20)
    before = owners(store)
    mine = {item for item, node in before.items() if node == "n2"}
    counts = cluster.log.count()
    control = Control(store)
    control.announce_restart("n2")
    control.wait_drained("n2", 20)
    eventually(lambda: even(cluster, "n1", "n3"), 20)
    nodes["n2"].close()
    cluster.node(store, "n2", cluster.endless(items=ITEMS))
    eventually(lambda: even(cluster, "n1", "n2", "n3"), 20)
    assert owners(store) == before
    moved = {item: count - counts[item] for item, count in cluster.log.count().items()}
    assert {item for item, count in moved.items() if count} == mine
    assert {moved[item] for item in mine} == {2}, "once out, once back"
    eventually(lambda: store.list("nodes", recursive=True) == [])


def test_a_restart_survives_a_change_of_the_manager(memory, cluster, eventually, die):
    nodes = {name: cluster.node(memory, name, cluster.endless(items=ITEMS)) for name in ("n1", "n2", "n3")}
    eventually(lambda: even(cluster, "n1", "n2", "n3"), 20)
    mine = {item for item, node in owners(memory).items() if node == "n3"}
    control = Control(memory)
    control.announce_restart("n3")
    control.wait_drained("n3", 20)
    nodes["n3"].close()
    assert nodes["n1"].is_manager
    nodes["n1"].close()
    eventually(lambda: nodes["n2"].is_manager)
    cluster.node(memory, "n1", cluster.endless(items=ITEMS))
    cluster.node(memory, "n3", cluster.endless(items=ITEMS))
    eventually(lambda: even(cluster, "n1", "n2", "n3"), 20)
    assert mine <= {item for item, node in owners(memory).items() if node == "n3"}


def test_a_node_that_does_not_come_back_in_time_loses_its_items(memory, cluster, eventually, caplog):
    nodes = {name: cluster.node(memory, name, cluster.endless(items=ITEMS)) for name in ("n1", "n2")}
    eventually(lambda: even(cluster, "n1", "n2"), 20)
    control = Control(memory)
    control.announce_restart("n2", timeout_s=1.0)
    control.wait_drained("n2", 20)
    nodes["n2"].close()
    eventually(lambda: "node n2 did not return within 1 s" in caplog.text)
    eventually(lambda: memory.list("nodes", recursive=True) == [])
    assert set(owners(memory).values()) == {"n1"}


def test_a_rolling_restart_of_a_fleet_moves_the_items_of_each_node_out_once_and_back_once_and_disturbs_nothing_else(
    store, cluster, eventually
):
    done = Counter()

    def work(context):  # a run works until it is told to stop: an item that is left alone has one run all the time
        cluster.log.begin(context)
        while not context.wait_for_stop(0.01):
            done.update(context.items)
        cluster.log.end(context)

    def node(name):
        return cluster.node(store, name, cluster.endless(items=ITEMS, run=work))

    names = ["n1", "n2", "n3"]
    nodes = {name: node(name) for name in names}
    eventually(lambda: even(cluster, *names), 20)
    before = owners(store)
    control = Control(store)
    for name in random.sample(names, 3):
        assigned = {item for item, owner in before.items() if owner == name}
        runs, others = cluster.log.count(), {other: cluster.log.count(other) for other in names if other != name}
        control.announce_restart(name)
        control.wait_drained(name, 20)
        eventually(lambda: len(cluster.log.owners()) == len(ITEMS), 20, "all items run elsewhere")
        worked = Counter(done)
        eventually(lambda worked=worked: all(done[item] > worked[item] for item in ITEMS), 10, "work on every item")
        nodes[name].close()
        nodes[name] = node(name)
        eventually(lambda: owners(store) == before, 20)
        eventually(lambda: even(cluster, *names) == before, 20)
        more = {item: cluster.log.count()[item] - runs[item] for item in ITEMS}
        assert more == {item: 2 if item in assigned else 0 for item in ITEMS}, "out once and back once, all else stays"
        out = Counter()
        for other, had in others.items():
            out += cluster.log.count(other) - had
        assert out == dict.fromkeys(assigned, 1), "each was with exactly one other node meanwhile"
        worked = Counter(done)
        eventually(lambda worked=worked: all(done[item] > worked[item] for item in ITEMS), 10, "work on every item")


def test_a_node_that_does_not_let_go_is_named_by_who_waits_for_it(memory, cluster, eventually):
    leave = threading.Event()
    for name in ("n1", "n2"):
        cluster.node(memory, name, cluster.endless(items=["a", "b"], run=lambda _context: leave.wait(20)))
    eventually(lambda: len(memory.list("locks", recursive=True)) == 2)
    control = Control(memory)
    control.drain("n1")
    with pytest.raises(WaitTimeout, match="node n1 has no items but is still running report/"):
        control.wait_drained("n1", 1.0)
    leave.set()


def test_a_restart_can_be_announced_of_a_living_node_only(memory, cluster, eventually):
    with pytest.raises(UnknownNode, match="node 'n9' is not running in this cluster; running nodes: none"):
        Control(memory).announce_restart("n9")
    with pytest.raises(ValueError, match="node id 'a/b'"):
        Control(memory).drain("a/b")


def test_a_node_drained_before_it_starts_gets_nothing(memory, cluster, eventually):
    Control(memory).drain("n1")
    made = JobManager(memory, "n1", cluster.endless(), session_ttl_s=2.0, debounce_s=0.05)
    with made:
        eventually(lambda: made.is_manager)
        assert not threading.Event().wait(0.5)
        assert owners(memory) == {}
        Control(memory).undrain("n1")
        eventually(lambda: len(owners(memory)) == 4)


# What is said of one node twice, or taken back


def reserved_keys(store):
    return [entry.key for entry in store.list(NODES, recursive=True) if "/reserved/" in entry.key]


def test_a_drained_node_stays_drained_when_a_restart_of_it_is_announced(memory, cluster, eventually):
    nodes = {name: cluster.node(memory, name, cluster.endless(items=ITEMS)) for name in ("n1", "n2")}
    control = Control(memory)
    control.drain("n2")
    control.announce_restart("n2")
    control.wait_drained("n2", 20)
    nodes["n2"].close()
    cluster.node(memory, "n2", cluster.endless(items=ITEMS))
    eventually(lambda: even(cluster, "n1"), 20)
    assert not threading.Event().wait(0.5)
    assert inspect(memory).maintenance["n2"].state == "drained"
    assert set(owners(memory).values()) == {"n1"}


def test_draining_a_node_of_which_a_restart_was_announced_leaves_nothing_reserved(store, cluster, eventually):
    for name in ("n1", "n2"):
        cluster.node(store, name, cluster.endless(items=ITEMS))
    eventually(lambda: even(cluster, "n1", "n2"), 20)
    control = Control(store)
    control.announce_restart("n2")
    eventually(lambda: inspect(store).maintenance["n2"].is_reserved)
    control.drain("n2")
    eventually(lambda: reserved_keys(store) == [])
    control.undrain("n2")
    assert store.list(NODES, recursive=True) == []


def test_a_restart_announced_again_keeps_the_reserved_items(memory, cluster, eventually):
    nodes = {name: cluster.node(memory, name, cluster.endless(items=ITEMS)) for name in ("n1", "n2")}
    eventually(lambda: even(cluster, "n1", "n2"), 20)
    before = owners(memory)
    control = Control(memory)
    control.announce_restart("n2")
    control.wait_drained("n2", 20)
    control.announce_restart("n2", timeout_s=600.0)
    nodes["n2"].close()
    cluster.node(memory, "n2", cluster.endless(items=ITEMS))
    eventually(lambda: even(cluster, "n1", "n2"), 20)
    assert owners(memory) == before


def test_a_node_that_only_lost_its_session_is_not_back_from_its_restart(store, cluster, eventually, expire):
    nodes = {name: cluster.node(store, name, cluster.endless(items=ITEMS)) for name in ("n1", "n2")}
    eventually(lambda: even(cluster, "n1", "n2"), 20)
    before = owners(store)
    control = Control(store)
    control.announce_restart("n2")
    control.wait_drained("n2", 20)
    lost = inspect(store).nodes["n2"].member.incarnation
    expire(nodes["n2"]._membership.session)
    eventually(lambda: "n2" in (found := inspect(store).nodes) and found["n2"].member.incarnation != lost, 20)
    eventually(lambda: inspect(store).nodes["n2"].member.state == "ready", 20)
    assert not threading.Event().wait(0.5)
    assert set(owners(store).values()) == {"n1"}, "its items came back to the start that is to go"
    nodes["n2"].close()
    cluster.node(store, "n2", cluster.endless(items=ITEMS))
    eventually(lambda: even(cluster, "n1", "n2"), 20)
    assert owners(store) == before


def test_what_waits_for_nobody_is_removed_by_the_manager(memory, cluster, eventually):
    """Whoever took the mark back died before the reserved items were removed."""
    cluster.node(memory, "n1", cluster.endless())
    memory.put(reserved_items_key("n1", "report"), b'{"count":1,"items":["a"]}')
    memory.put(reserved_items_key("gone", "report") + "/m-1", b'["a"]')
    eventually(lambda: memory.list(NODES, recursive=True) == [])


def leader_of(memory, store, nodes):
    """The restarts of a leader that uses this store."""
    ticket = memory.put("leader/t", b"")
    return RestartTracker(store, nodes, memory.fence(ticket.created, Exists(ticket.key)), "m")


@pytest.mark.parametrize("taken_back_by", [Control.undrain, Control.drain])
def test_items_are_not_reserved_for_a_restart_that_is_taken_back_at_the_same_time(memory, taken_back_by):
    memory.put("alive/n1", b"{}")
    control = Control(memory)
    control.announce_restart("n1")

    class Leaders:
        """The leader's store: the mark is taken back right after the leader read it."""

        def __getattr__(self, name):
            return getattr(memory, name)

        def get(self, key):
            found = memory.get(key)
            if key == maintenance_key("n1"):
                taken_back_by(control, "n1")
            return found

    with memory.mirror(NODES) as nodes:
        restarts = leader_of(memory, Leaders(), nodes)
        with pytest.raises(Conflict):
            restarts.reserve_items({"n1": WorkerView(1.0, frozenset(["report"]))}, {"report": {"n1": ("a", "b")}})
    assert reserved_keys(memory) == []


def test_taking_a_restart_back_spares_items_that_were_reserved_at_the_same_time(memory):
    memory.put("alive/n1", b"{}")
    Control(memory).announce_restart("n1")

    class Operators:
        """The operator's store: somebody else announces, and the items are reserved, right after the mark is gone."""

        def __getattr__(self, name):
            return getattr(memory, name)

        def delete(self, key):
            found = memory.delete(key)
            Control(memory).announce_restart("n1")
            with memory.mirror(NODES) as nodes:
                leader_of(memory, memory, nodes).reserve_items({}, {"report": {"n1": ("a", "b")}})
            return found

    control = Control(memory)
    control._store = Operators()
    control.undrain("n1")
    assert reserved_keys(memory) == [reserved_items_key("n1", "report")]


def test_a_leader_without_leadership_reserves_and_forgets_nothing(memory):
    memory.put("alive/n1", b"{}")
    Control(memory).announce_restart("n1")
    with memory.mirror(NODES) as nodes:
        restarts = leader_of(memory, memory, nodes)
        memory.delete("leader/t")
        with pytest.raises(Conflict):
            restarts.reserve_items({}, {"report": {"n1": ("a", "b")}})
        memory.put(reserved_items_key("gone", "report"), b"{}")
        nodes.wait_until(lambda state: reserved_items_key("gone", "report") in state, 10)
        restarts.delete_finished_records(restarts.list_maintenance_records(), {"n1": WorkerView(1.0, frozenset())})
    assert reserved_keys(memory) == [reserved_items_key("gone", "report")]
    assert memory.get(maintenance_key("n1")) is not None


@pytest.mark.parametrize("timeout_s", [float("nan"), float("inf"), -1.0, 10**400, True, "5"])
def test_a_restart_timeout_that_could_not_be_read_back_is_refused(store, timeout_s):
    with pytest.raises(InvalidSetting, match=r"timeout_s is .*; give a number of seconds from 0"):
        Control(store).announce_restart("n1", timeout_s=timeout_s)
