"""Nodes of one cluster, in one process, on every backend."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from concurrent.futures import Future

import pytest

import latchwork
from latchwork import Closed, Conflict, Exists, LockLost, NodeIdInUse, Put, SessionLost, Unavailable, WaitTimeout
from latchwork.assignment import Balanced, Budgeted, plan_from_owners
from latchwork.clock import SYSTEM_CLOCK
from latchwork.jobs import FixedDelay, InvalidJob, Job, JobManager, NodeRecord, Threads, WorkPoolFailed, inspect
from latchwork.jobs.node.registration import Registration
from latchwork.jobs.stored import cluster_store, keys
from latchwork.jobs.stored.nodes import MemberOptions
from latchwork.store.session import Session
from latchwork.testing.faults import FaultyStore


@pytest.fixture
def memory():
    with latchwork.connect("memory://cluster") as store:
        yield cluster_store(store)


# On every backend


def test_nodes_share_the_items_evenly_and_hand_them_over_when_one_leaves(store, cluster, eventually):
    items = [f"item-{i}" for i in range(9)]
    job = cluster.endless(items=items)
    first = cluster.node(store, "n1", job)
    eventually(lambda: set(cluster.log.owners()) == set(items))
    cluster.node(store, "n2", cluster.endless(items=items))
    cluster.node(store, "n3", cluster.endless(items=items))
    eventually(lambda: sorted(map(len, by_node(cluster).values())) == [3, 3, 3], 15)
    first.close()
    eventually(lambda: sorted(map(len, by_node(cluster).values())) == [4, 5], 15)
    assert "n1" not in by_node(cluster)


def test_the_inspector_sees_who_leads_who_lives_and_what_runs_where(store, cluster, eventually):
    assert inspect(store) is None
    job = cluster.endless(items=["a/b", "c d"])
    cluster.node(store, "n1", job, labels={"zone": "x"})
    eventually(lambda: len(cluster.log.owners()) == 2)
    state = inspect(store)
    assert state.manager == "n1"
    assert state.candidates == ("n1",)
    assert list(state.nodes) == ["n1"]
    node = state.nodes["n1"]
    assert (node.is_manager, node.jobs, node.assigned) == (True, ("report",), {"report": ("a/b", "c d")})
    assert node.member.state == "ready"
    assert node.member.pid > 0
    assert node.member.labels == {"zone": "x"}
    assert state.pools == {"report": ("a/b", "c d")}
    assert [(lock.job, lock.item, lock.holder.label) for lock in state.locks] == [
        ("report", "a/b", "n1"),
        ("report", "c d", "n1"),
    ]
    assert state.job("report").running == {"a/b": "n1", "c d": "n1"}
    with pytest.raises(LookupError, match="known are: report"):
        state.job("other")


def test_a_node_whose_session_was_lost_registers_anew_and_its_runs_go_on(store, cluster, eventually, expire):
    node = cluster.node(store, "n1", cluster.endless())
    eventually(lambda: len(cluster.log.owners()) == 4)
    before = store.get(keys.alive_key("n1"))
    expire(node._membership.session)
    eventually(lambda: (now := store.get(keys.alive_key("n1"))) and now.created != before.created, 15)
    eventually(lambda: node.is_manager, 15)
    assert len(cluster.log.owners()) == 4
    assert set(cluster.log.count().values()) == {1}, "a run was interrupted"


@pytest.mark.parametrize(("ended_s_ago", "are_stopped"), [(0.0, False), (0.7, True)])
def test_runs_are_told_to_stop_when_half_the_grace_after_a_session_is_over_and_no_sooner(
    memory, cluster, eventually, ended_s_ago, are_stopped
):
    node = cluster.node(memory, "n1", cluster.endless(), session_ttl_s=20.0, lock_ttl_s=20.0)  # a grace of 1 s
    eventually(lambda: len(cluster.log.owners()) == 4)
    renewer = node._membership.session._renewer
    with renewer._lock:  # it has ended, and the thread that renews the locks without it has not looked yet
        renewer._lease._counted = SYSTEM_CLOCK.now() - node._membership.session.ttl_s - ended_s_ago
        renewer._lease._waiting.clear()
    node._worker._guard.check()
    assert [run.stopping for run in node._worker._list_live_runs()] == [are_stopped] * len(
        node._worker._list_live_runs()
    )


def test_a_second_node_with_the_same_id_is_refused_with_host_and_pid_of_the_first(store, cluster, eventually):
    cluster.node(store, "n1", cluster.endless(), session_ttl_s=4.0)
    eventually(lambda: len(cluster.log.owners()) == 4)
    second = JobManager(store, "n1", cluster.endless(), session_ttl_s=4.0)
    started = store.clock.now()
    with pytest.raises(NodeIdInUse, match=r"node ID 'n1' is in use by pid \d+ on "):
        second.start()
    assert store.clock.now() - started >= 5.0, "it must wait for the granted TTL and a second"
    assert second.state == "closed"
    assert store.get(keys.alive_key("n1")) is not None
    assert set(cluster.log.count().values()) == {1}


def test_items_of_a_dead_node_run_elsewhere_within_the_ttl_and_two_seconds(store, cluster, eventually, die):
    short = {"session_ttl_s": 2.0, "lock_ttl_s": 1.5}
    first = cluster.node(store, "n1", cluster.endless(), **short)
    eventually(lambda: len(cluster.log.owners()) == 4)
    cluster.node(store, "n2", cluster.endless(), **short)
    eventually(lambda: sorted(map(len, by_node(cluster).values())) == [2, 2], 15)
    ttl_s = max(first._membership.session.ttl_s, 1.5)
    died = store.clock.now()
    die(first)
    eventually(lambda: len(by_node(cluster).get("n2", ())) == 4, 15)
    assert store.clock.now() - died <= ttl_s + 2.0


def by_node(cluster):
    found = {}
    for item, node in cluster.log.owners().items():
        found.setdefault(node, []).append(item)
    return found


# What does not depend on the backend


def test_a_node_gets_no_items_of_a_job_that_it_lacks(memory, cluster, eventually):
    cluster.node(memory, "n1", [cluster.endless("j1", ["a", "b"]), cluster.endless("j2", ["c", "d"])])
    cluster.node(memory, "n2", cluster.endless("j2", ["c", "d"]))
    eventually(lambda: cluster.log.owners().keys() == set("abcd") and "n2" in by_node(cluster))
    assert {cluster.log.owners()["a"], cluster.log.owners()["b"]} == {"n1"}
    assert cluster.log.count("n2").keys() <= {"c", "d"}


def test_with_a_budget_a_new_node_gets_its_items_in_steps_without_further_events(memory, cluster, eventually):
    steps = []

    class Recorded(Budgeted):
        def assign(self, problem):
            plan = super().assign(problem)
            steps.append((sum(move.source is not None for move in plan.moves), len(plan.deferred)))
            return plan

    items = [f"item-{i}" for i in range(10)]
    strategy = Recorded(Balanced(), 2)
    cluster.node(memory, "n1", cluster.endless(items=items), strategy=strategy)
    eventually(lambda: set(cluster.log.owners()) == set(items))
    cluster.node(memory, "n2", cluster.endless(items=items), strategy=strategy)
    eventually(lambda: sorted(map(len, by_node(cluster).values())) == [5, 5], 20)
    assert [step for step in steps if step[0]] == [(2, 3), (2, 1), (1, 0)]


def test_a_strategy_of_ones_own_places_items_by_the_labels_of_living_nodes(store, cluster, eventually):
    class ByZone:
        name = "by-zone"

        def assign(self, problem):
            owners = {
                job.job: {
                    item: name for item in job.items for name in job.workers if job.labels[name].get("zone") == item[0]
                }
                for job in problem.jobs
            }
            return plan_from_owners(problem, owners)

    items = ["a1", "a2", "a3", "b1"]
    for zone in "ab":
        job = cluster.endless(items=items)
        cluster.node(store, f"in-{zone}", job, labels={"zone": zone}, strategy=ByZone())
    eventually(lambda: cluster.log.owners() == {"a1": "in-a", "a2": "in-a", "a3": "in-a", "b1": "in-b"})


def test_a_failing_run_is_logged_counted_and_run_again_at_its_next_time(memory, cluster, eventually, caplog):
    def run(context):
        raise RuntimeError("disk on fire")

    job = Job("report", work_pool=["a"], run=run, schedule=FixedDelay(0.05), initial_delay_s=0.0)
    node = cluster.node(memory, "n1", job)
    eventually(lambda: node.stats().jobs["report"].failures >= 3)
    assert node.stats().jobs["report"].runs >= 3
    ours = [record for record in caplog.records if record.name.startswith("latchwork")]
    told = [record for record in ours if record.exc_info or "fail" in record.getMessage()]
    assert len(told) <= node.stats().jobs["report"].failures, "each failure is told once"
    assert "run_failed node=n1 job=report" in told[0].getMessage()
    assert "disk on fire" in str(told[0].exc_info[1])


@pytest.mark.parametrize("how", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_a_run_that_exits_the_interpreter_only_fails_itself(memory, cluster, eventually, how):
    def run(context):
        raise how

    job = Job("report", work_pool=["a"], run=run, schedule=FixedDelay(0.05), initial_delay_s=0.0)
    node = cluster.node(memory, "n1", job)
    eventually(lambda: node.stats().jobs["report"].failures >= 2)


def test_all_items_of_a_node_are_one_run_which_is_restarted_when_they_become_more(memory, cluster, eventually):
    shares = []

    def run(context):
        shares.append(context.items)
        context.wait_for_stop()

    def job():
        return Job("report", work_pool=["a", "b"], run=run, schedule=FixedDelay(60.0), initial_delay_s=0.0)

    cluster.node(memory, "n1", job())
    eventually(lambda: shares == [("a", "b")])
    second = cluster.node(memory, "n2", job())
    eventually(lambda: len(shares) == 3)
    assert sorted(shares[1:]) == [("a",), ("b",)]
    second.close()
    eventually(lambda: len(shares) == 4)
    assert shares[3] == ("a", "b")


def test_at_most_n_runs_have_disjoint_parts_of_sizes_within_one(memory, cluster, eventually):
    job = cluster.endless(items="abcdefg", threads=Threads.at_most(3))
    node = cluster.node(memory, "n1", job)
    eventually(lambda: len(cluster.log.owners()) == 7)
    assert node.stats().jobs["report"].active == 3
    assert node.stats().jobs["report"].items == 7


def test_a_run_waits_its_initial_delay_which_is_the_schedules_by_default(memory, cluster, eventually):
    ran = threading.Event()
    job = Job("report", work_pool=["a"], run=lambda context: ran.set(), schedule=FixedDelay(0.6))
    cluster.node(memory, "n1", job)
    eventually(lambda: inspect(memory).locks)
    assert not ran.wait(0.3)
    assert ran.wait(2.0)


def test_the_inspector_says_since_when_an_item_is_with_its_node(memory, cluster, eventually):
    before = time.time()
    cluster.node(memory, "n1", cluster.endless(items=["a"]))
    eventually(cluster.log.owners)
    report = inspect(memory).job("report")
    assert report.running == {"a": "n1"}
    assert before - 1.0 <= report.since_s["a"] <= time.time() + 1.0


def test_a_changed_work_pool_moves_its_items_and_an_unchanged_one_is_no_write(memory, cluster, eventually):
    items = ["a", "b"]
    job = cluster.endless(work_pool=lambda: list(items), pool_check_period_s=0.05)
    cluster.node(memory, "n1", job)
    eventually(lambda: set(cluster.log.owners()) == {"a", "b"})
    before = memory.get(keys.work_pool_key("report")).version
    assert not threading.Event().wait(0.3)
    assert memory.get(keys.work_pool_key("report")).version == before
    items[:] = ["b", "c"]
    eventually(lambda: set(cluster.log.owners()) == {"b", "c"})
    assert cluster.log.count()["b"] == 1, "an item that stayed was restarted"


def test_a_pool_that_fails_later_keeps_its_last_good_items_and_is_reported(memory, cluster, eventually, caplog):
    broken = threading.Event()

    def pool():
        if broken.is_set():
            raise OSError("no network")
        return ["a"]

    cluster.node(memory, "n1", cluster.endless(work_pool=pool, pool_check_period_s=0.05))
    eventually(cluster.log.owners)
    broken.set()
    eventually(lambda: "OSError: no network" in caplog.text)
    assert cluster.log.owners() == {"a": "n1"}


def test_nodes_that_disagree_about_a_pool_are_reported_with_the_difference(memory, cluster, eventually, caplog):
    cluster.node(memory, "n1", cluster.endless(items="ab", pool_check_period_s=0.05))
    with caplog.at_level(logging.WARNING):
        cluster.node(memory, "n2", cluster.endless(items="bc", pool_check_period_s=0.05))
        eventually(lambda: "another node stored other items" in caplog.text)
    assert "1 added" in caplog.text


@pytest.mark.parametrize(
    ("pool", "error", "word"),
    [
        (lambda: 1 / 0, WorkPoolFailed, "ZeroDivisionError"),
        (lambda: ["a", 7], InvalidJob, "7 is of type int"),
    ],
)
def test_a_bad_work_pool_stops_the_start_and_loses_nothing_stored(memory, cluster, eventually, pool, error, word):
    good = cluster.node(memory, "n1", cluster.endless())
    eventually(lambda: len(cluster.log.owners()) == 4)
    with pytest.raises(error, match=f"work pool of job report.*{word}"):
        cluster.node(memory, "n2", cluster.endless(work_pool=pool))
    assert inspect(memory).pools == {"report": ("a", "b", "c", "d")}
    assert list(inspect(memory).nodes) == ["n1"]
    good.close()


def test_a_strategy_that_raises_keeps_the_assignment_and_is_tried_again(memory, cluster, eventually, caplog):
    class Flaky:
        name = "flaky"
        broken = False

        def assign(self, problem):
            if self.broken:
                raise RuntimeError("out of ideas")
            owners = {job.job: {item: min(job.workers) for item in job.items} for job in problem.jobs}
            return plan_from_owners(problem, owners)

    flaky = Flaky()
    cluster.node(memory, "n2", cluster.endless(), strategy=flaky)
    eventually(lambda: len(cluster.log.owners()) == 4)
    flaky.broken = True
    cluster.node(memory, "n1", cluster.endless())
    eventually(lambda: "out of ideas" in caplog.text)
    assert set(cluster.log.owners().values()) == {"n2"}
    flaky.broken = False
    eventually(lambda: set(cluster.log.owners().values()) == {"n1"} and len(cluster.log.owners()) == 4)


def test_close_waits_for_runs_to_stop_and_gives_their_locks_back(memory, cluster, eventually):
    stopped = threading.Event()

    def run(context):
        context.wait_for_stop()
        threading.Event().wait(0.3)
        stopped.set()

    node = cluster.node(memory, "n1", Job("report", work_pool=["a"], run=run, initial_delay_s=0.0))
    eventually(lambda: node.stats().jobs["report"].active)
    node.close()
    assert stopped.is_set()
    assert inspect(memory) is None, "the last one leaves nothing behind"


def test_close_ends_the_runs_first_then_the_locks_and_the_alive_key_last(memory, cluster, eventually):
    left_in_run = []

    def run(context):
        context.wait_for_stop()
        left_in_run.append((memory.get(keys.alive_key("n1")) is not None, len(inspect(memory).locks)))

    other = cluster.node(memory, "n2", [])
    node = cluster.node(memory, "n1", Job("report", work_pool=["a"], run=run, initial_delay_s=0.0))
    eventually(lambda: node.stats().jobs["report"].active)
    owners_without_it = []

    def look(_batch):
        state = mirror.snapshot()
        if keys.alive_key("n1") not in state:
            owners_without_it.append([key for key in state if key.startswith(f"{keys.OWNERS}/")])

    with memory.mirror("") as mirror:
        mirror.on_change(look)
        node.close()
        eventually(lambda: owners_without_it)
    assert left_in_run == [(True, 1)], "while its run stops the node is there, and holds the lock"
    assert inspect(memory).locks == ()
    assert not any(owners_without_it), "its locks ended before, or with, its alive key"
    other.close()


def test_a_node_is_ready_before_its_own_manager_stands_for_election(cluster, eventually):
    with FaultyStore(latchwork.connect("memory://ready-first")) as store:
        node = cluster.node(store, "n1", cluster.endless())
        eventually(lambda: node.is_manager)
        writes = [call.keys for call in store.calls if call.op in {"commit", "create"}]
        stands = next(
            at for at, names in enumerate(writes) if any(name.startswith(f"@jobs/{keys.LEADER}") for name in names)
        )
        own = [at for at, names in enumerate(writes) if f"@jobs/{keys.alive_key('n1')}" in names]
        assert len([at for at in own if at < stands]) >= 2, "it said that it joins, and that it is ready, before"
        node.close()


def test_an_item_that_stays_keeps_its_due_time_when_the_assignment_changes(memory, cluster, eventually):
    items = ["a"]
    job = cluster.endless(
        work_pool=lambda: list(items), schedule=FixedDelay(3600.0), initial_delay_s=None, threads=Threads.whole()
    )
    node = cluster.node(memory, "n1", job)
    before = eventually(lambda: [run for run in node._worker._list_live_runs() if run.items == ("a",)])
    items.append("b")
    job.refresh_pool()
    after = eventually(lambda: [run for run in node._worker._list_live_runs() if run.items == ("a", "b")])
    assert after[0]._due.at == before[0]._due.at


def test_a_run_that_does_not_stop_is_reported_and_its_lock_left_to_run_out(memory, cluster, eventually, caplog):
    leave = threading.Event()
    job = Job("report", work_pool=["a"], run=lambda context: leave.wait(20), initial_delay_s=0.0)
    node = cluster.node(memory, "n1", job, close_timeout_s=0.3)
    eventually(lambda: node.stats().jobs["report"].active)
    node.close()
    try:
        assert "job report did not stop within 0.3 s" in caplog.text
        assert [lock.item for lock in inspect(memory).locks] == ["a"]
    finally:
        leave.set()


def test_a_moved_item_starts_at_its_new_node_only_after_the_old_run_has_ended(memory, cluster, eventually):
    leave = threading.Event()

    def run(context):
        cluster.log.begin(context)
        context.wait_for_stop()
        leave.wait(20)
        cluster.log.end(context)

    def job():
        return cluster.endless(items="ab", run=run)

    cluster.node(memory, "n1", job())
    eventually(lambda: len(cluster.log.owners()) == 2)
    cluster.node(memory, "n2", job())
    eventually(lambda: {len(node.assigned.get("report", ())) for node in inspect(memory).nodes.values()} == {1})
    assert not threading.Event().wait(2.0), "longer than the lock's TTL"
    assert set(cluster.log.owners().values()) == {"n1"}
    leave.set()
    eventually(lambda: set(cluster.log.owners().values()) == {"n1", "n2"})


def test_runs_are_told_to_stop_before_their_locks_run_out(memory, cluster, eventually, monkeypatch):
    left = []

    def run(context):
        context.wait_for_stop()
        left.append(context.remaining_s())

    node = cluster.node(memory, "n1", Job("report", work_pool=["a"], run=run, initial_delay_s=0.0), lock_ttl_s=2.0)
    eventually(lambda: node.stats().jobs["report"].active)
    backend = memory._core.backend
    commit = backend.commit

    def commit_no_renewals(checks, ops):
        if any("owners/" in each.key for each in (*checks, *ops) if isinstance(each, (Exists, Put))):
            lost = Future()
            lost.set_exception(Unavailable("renewals are lost on their way"))
            return lost
        return commit(checks, ops)

    monkeypatch.setattr(backend, "commit", commit_no_renewals)
    monkeypatch.setattr(Session, "commit", lambda _session, _backend, *transaction: commit_no_renewals(*transaction))
    eventually(lambda: left)
    assert left[0] > 0.1


def test_the_fence_of_an_item_guards_a_write_and_fails_when_the_lock_is_gone(memory, cluster, eventually):
    contexts = []

    def run(context):
        contexts.append(context)
        context.wait_for_stop()

    node = cluster.node(memory, "n1", Job("report", work_pool=["a"], run=run, initial_delay_s=0.0))
    eventually(lambda: contexts)
    fence = contexts[0].fence("a")
    assert fence.token > 0
    contexts[0].store.commit([fence], [Put("result", b"1")])
    node.close()
    with pytest.raises(Conflict):
        memory.commit([fence], [Put("result", b"2")])
    with pytest.raises(LockLost):
        contexts[0].fence("a")


def test_two_clusters_live_side_by_side_in_namespaces(memory, cluster, eventually):
    cluster.node(memory, "n1", cluster.endless(items="ab"), namespace="blue")
    cluster.node(memory, "n1", cluster.endless(items="cd"), namespace="green")
    eventually(lambda: len(cluster.log.owners()) == 4)
    assert inspect(memory) is None
    assert inspect(memory, namespace="blue").pools == {"report": ("a", "b")}
    assert inspect(memory, namespace="green").pools == {"report": ("c", "d")}


def test_jobs_that_no_living_node_can_run_are_cleaned_from_the_pool(memory, cluster, eventually):
    first = cluster.node(memory, "n1", cluster.endless("old", ["a"]))
    cluster.node(memory, "n2", cluster.endless("new", ["b"]), cleanup_period_s=0.5)
    first.close()
    assert set(inspect(memory).pools) == {"old", "new"}
    eventually(lambda: set(inspect(memory).pools) == {"new"})
    assert not [entry.key for entry in memory.list("workers", recursive=True) if "n1" in entry.key]


def test_a_worker_that_registers_during_the_cleaning_does_not_lose_its_pool(memory, cluster, eventually):
    first = cluster.node(memory, "n1", cluster.endless("old", ["a"]))
    node = cluster.node(memory, "n2", cluster.endless("new", ["b"]))
    first.close()
    eventually(lambda: node.is_manager)
    list_keys, joined = memory.list, []

    def list_late(prefix, **options):
        found = list_keys(prefix, **options)
        if prefix == keys.ALIVE and not joined:
            joined.append(cluster.node(memory, "n3", cluster.endless("old", ["a"])))
        return found

    from latchwork.jobs.manager.leadership import Leadership
    from latchwork.jobs.stored.caches import PoolCache

    membership = node._membership
    with memory.mirror(keys.ALIVE) as alive, memory.mirror(keys.WORK_POOL) as pools:
        term = Leadership(
            memory,
            membership.get_registration().member,
            membership._manager._latch.fence,
            alive=alive,
            pools=PoolCache(memory, pools),
            nodes=None,
            restarts=None,
            options=membership._manager_options(),
        )
        memory.list = list_late
        try:
            with pytest.raises(Conflict):
                term.delete_unused_pools()
        finally:
            del memory.list
    assert inspect(memory).pools["old"] == ("a",)
    eventually(lambda: cluster.log.owners().get("a") == "n3")


def test_a_store_passed_in_stays_open_and_one_opened_from_a_url_is_closed(memory, cluster):
    node = cluster.node(memory, "n1", cluster.endless())
    node.close()
    assert memory.get("anything") is None
    own = cluster.node("memory://own", "n1", cluster.endless())
    own.close()
    with pytest.raises(Closed):
        own._store.get("anything")


def test_the_life_of_a_node_is_logged_and_no_jobs_are_a_warning(memory, cluster, caplog):
    with caplog.at_level(logging.INFO, logger="latchwork.jobs"):
        node = cluster.node(memory, "n1", [])
        node.close()
    text = caplog.text
    for phrase in ("n1 is starting", "n1 has no jobs", "n1 is started", "n1 is closing", "n1 is closed, it took"):
        assert phrase in text


def test_a_job_manager_is_started_once_and_closed_as_often_as_one_likes(memory, cluster):
    node = cluster.node(memory, "n1", cluster.endless())
    with pytest.raises(Closed, match="started before"):
        node.start()
    node.close()
    node.close()
    assert node.state == "closed"
    assert JobManager(memory, "n2", []).close() is None


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"session_ttl_s": 0}, "session_ttl_s must be a number of seconds above 0, not 0"),
        ({"lock_ttl_s": 0.1}, "lock_ttl_s is 0.1"),
        ({"close_timeout_s": -1}, "close_timeout_s is -1"),
        ({"weight": float("nan")}, "weight is nan"),
        ({"strategy": "fastest"}, "fastest"),
        ({"debounce_s": "soon"}, "debounce_s is 'soon'"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused_by_name(memory, options, word):
    with pytest.raises(ValueError, match=word):
        JobManager(memory, "n1", [], **options)


def test_a_node_id_that_cannot_be_a_key_is_refused(memory):
    with pytest.raises(ValueError, match="node id 'a b'"):
        JobManager(memory, "a b", [])


def test_close_ends_a_start_that_waits_for_another_node_of_its_id(memory, cluster, eventually):
    cluster.node(memory, "n1", [], session_ttl_s=30.0)
    second = JobManager(memory, "n1", cluster.endless(), session_ttl_s=30.0)
    errors = []

    def start():
        try:
            second.start()
        except Closed as error:
            errors.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    eventually(lambda: second._membership is not None and second._membership._session is None)
    second.close()
    thread.join(5)
    assert len(errors) == 1
    assert list(inspect(memory).nodes) == ["n1"]


def test_an_idle_cluster_writes_nothing(memory, cluster, eventually):
    def job():
        return cluster.endless(items=[f"item-{i}" for i in range(20)])

    cluster.node(memory, "n1", job())
    cluster.node(memory, "n2", job())
    eventually(lambda: sorted(map(len, by_node(cluster).values())) == [10, 10])
    eventually(lambda: inspect(memory).job("report").active_items == 20)  # what runs for a second is told, once
    with memory.watch("") as watch:
        watch.next(5)
        changed = set()
        deadline = memory.clock.now() + 2.0
        while (left := deadline - memory.clock.now()) > 0:
            with contextlib.suppress(WaitTimeout):
                changed.update(change.key.split("/")[0] for change in watch.next(left))
    assert changed == set()


def test_a_registration_whose_session_has_ended_writes_nothing_more(memory):
    session = memory.open_session(5.0)
    member = NodeRecord.of_this_process(MemberOptions("n1", 5.0), since=0.0, ttl_s=5.0)
    stale = Registration(memory, session, member)
    stale.join(1.0, threading.Event())
    session.close()
    for step in (
        lambda: stale.write_pool("report", ("a",), None),
        stale.mark_ready,
    ):
        with pytest.raises((Conflict, SessionLost, Closed)):
            step()
    assert [entry.key for entry in memory.list("", recursive=True)] == [keys.GUARD_WORKER]  # written while it lasted


def test_a_registration_whose_place_another_start_has_taken_writes_nothing_more(memory):
    with contextlib.closing(memory.open_session(5.0)) as first, contextlib.closing(memory.open_session(5.0)) as second:
        made = []
        for session in (first, second):
            member = NodeRecord.of_this_process(MemberOptions("n1", 5.0), since=0.0, ttl_s=5.0)
            made.append(Registration(memory, session, member))
            made[-1].join(1.0, threading.Event())
            if session is first:
                memory.delete(keys.alive_key("n1"))
        with pytest.raises(Conflict):
            made[0].write_pool("report", ("a",), None)
        made[1].write_pool("report", ("b",), None)
    assert inspect(memory).pools == {"report": ("b",)}


def test_run_forever_in_a_thread_works_until_close(memory, cluster, eventually):
    node = JobManager(memory, "n1", cluster.endless())
    thread = threading.Thread(target=node.run_forever)
    thread.start()
    eventually(lambda: len(cluster.log.owners()) == 4)
    node.close()
    thread.join(5)
    assert not thread.is_alive()


def test_a_heavier_node_takes_more(memory, cluster, eventually):
    items = [f"item-{i:02d}" for i in range(12)]
    cluster.node(memory, "n1", cluster.endless(items=items), weight=2.0)
    cluster.node(memory, "n2", cluster.endless(items=items))
    eventually(lambda: {node: len(held) for node, held in by_node(cluster).items()} == {"n1": 8, "n2": 4})


def test_thousands_of_items_are_shared_out_and_moved(memory, cluster, eventually):
    items = [f"https://example.org/{i:05d}" for i in range(5_000)]
    job = cluster.endless(items=items, threads=Threads.whole())
    cluster.node(memory, "n1", job)
    eventually(lambda: len(cluster.log.owners()) == 5_000, 20)
    cluster.node(memory, "n2", cluster.endless(items=items, threads=Threads.whole()))
    eventually(lambda: sorted(map(len, by_node(cluster).values())) == [2_500, 2_500], 20)
