"""Who dies: workers, all workers one after the other, submitters; and tasks that kill whoever runs them."""

from __future__ import annotations

import time

import pytest

from executor.conftest import PATIENCE_S, partitions
from executor.work import kill_node, mark, slow_where, square, wait, where
from latchwork.errors import SessionLost
from latchwork.executor import All, Key, Label, Member, NoSuchMember, RoundRobin, TaskDied, Weighted
from latchwork.executor.keys import Keys
from latchwork.executor.sweeper import ExecutorSweeper
from latchwork.primitives import WorkQueue
from latchwork.store import system_namespace
from latchwork.store.steps import run
from latchwork.types import Put

TTL_S = 2.0


def starts(store, key):
    return [store.get(f"{key}/starts/{name}").value.decode() for name in store.children(f"{key}/starts")]


def end_session(worker):
    """As the store would: its keys are gone, and it hears of it."""
    worker._work.session.close()


def test_a_killed_workers_task_runs_elsewhere_and_has_one_result(processes, pool, store, eventually):
    options = {"session_ttl_s": TTL_S, "slots": 2}
    first = processes("serve_worker", "n1", options)
    future = pool.submit(wait, "killed")
    eventually(lambda: starts(store, "killed") == ["n1"])
    processes("serve_worker", "n2", options)
    first.kill()
    eventually(lambda: starts(store, "killed") == ["n1", "n2"])
    store.commit([], [Put("killed/go", b"")])
    assert future.result(PATIENCE_S) == "n2"


def test_a_task_of_a_lost_session_runs_elsewhere_and_its_late_result_is_dropped(workers, pool, store, eventually):
    first = workers("n1", own_store=True)
    future = pool.submit(wait, "lost")
    eventually(lambda: starts(store, "lost") == ["n1"])
    second = workers("n2", own_store=True)
    first.drain(0.0)
    end_session(first)
    eventually(lambda: starts(store, "lost") == ["n1", "n2"])
    store.put("lost/go", b"")
    assert future.result(PATIENCE_S) == "n2"
    eventually(lambda: second.stats().done == 1)


def test_closing_a_worker_gives_its_tasks_back(workers, pool, store, eventually):
    first = workers("n1")
    future = pool.submit(wait, "closed")
    eventually(lambda: starts(store, "closed") == ["n1"])
    workers("n2")
    first.close(10.0)
    eventually(lambda: starts(store, "closed") == ["n1", "n2"])
    store.put("closed/go", b"")
    assert future.result(PATIENCE_S) == "n2"


def test_a_task_that_is_given_back_keeps_the_tries_that_have_failed(workers, pool, store, eventually):
    """For whatever reason: otherwise it would be tried more often than it may be."""
    first = workers("n1", own_store=True)
    future = pool.submit("fail-then-wait", "again")
    eventually(lambda: starts(store, "again") == ["n1", "n1"])
    first.close(10.0)
    workers("n2", own_store=True)
    store.put("again/go", b"")
    assert future.result(PATIENCE_S) == 2
    assert starts(store, "again") == ["n1", "n1", "n2"]


def test_failed_tries_are_counted_across_a_death_and_an_uncounted_release(workers, pool, store, eventually):
    first = workers("n1", own_store=True)
    future = pool.submit("fail-then-wait", "dies")
    eventually(lambda: starts(store, "dies") == ["n1", "n1"])
    first.drain(0.0)
    end_session(first)
    second = workers("n2", own_store=True)
    eventually(lambda: starts(store, "dies") == ["n1", "n1", "n2"])
    second.close(10.0)
    workers("n3", own_store=True)
    store.put("dies/go", b"")
    assert future.result(PATIENCE_S) == 2
    assert starts(store, "dies") == ["n1", "n1", "n2", "n3"]


def test_tasks_in_the_lane_of_a_dead_member_all_end(workers, pool, store, eventually):
    first = workers("n1", own_store=True, slots=1)
    busy = pool.with_options(target=Member("n1", otherwise="any"))
    blocker = busy.submit(wait, "blocker")
    eventually(lambda: starts(store, "blocker"))
    futures = [busy.submit(square, number) for number in range(100)]
    pool.flush(PATIENCE_S)
    first.drain(0.0)
    end_session(first)
    workers("n2", own_store=True)
    assert sum(future.result(PATIENCE_S) for future in futures) == sum(number * number for number in range(100))
    store.put("blocker/go", b"")
    assert blocker.result(PATIENCE_S) == "n2"


def test_tasks_survive_when_all_members_are_replaced_one_by_one(workers, pool, store, eventually):
    old = [workers(f"old{number}", own_store=True, slots=1) for number in range(2)]
    for number in range(2):
        pool.submit(wait, f"blocker-{number}")
    eventually(lambda: starts(store, "blocker-0") and starts(store, "blocker-1"))
    spread = pool.with_options(picker=RoundRobin())
    futures = [spread.submit(square, number) for number in range(20)]
    pool.flush(PATIENCE_S)
    for number, worker in enumerate(old):
        workers(f"new{number}", own_store=True)
        worker.close(0.5)
    assert [future.result(PATIENCE_S) for future in futures] == [number * number for number in range(20)]
    for number in range(2):
        store.put(f"blocker-{number}/go", b"")


def test_a_member_that_joins_or_leaves_reruns_no_task_of_others(workers, pool, store, eventually):
    workers("n1")
    futures = [pool.submit(wait, f"kept-{number}") for number in range(3)]
    eventually(lambda: all(starts(store, f"kept-{number}") for number in range(3)))
    joined = workers("n2")
    joined.close()
    for number in range(3):
        store.put(f"kept-{number}/go", b"")
    assert [future.result(PATIENCE_S) for future in futures] == ["n1"] * 3
    assert all(len(starts(store, f"kept-{number}")) == 1 for number in range(3))


def test_queued_tasks_of_a_dead_submitter_are_dropped_and_running_ones_stopped(
    processes, workers, pools, store, eventually
):
    workers("n1", own_store=True, slots=1)
    submitter = processes("serve_submitter", {"session_ttl_s": TTL_S})
    submitter.submit("wait", "running")
    eventually(lambda: starts(store, "running"))
    submitter.submit("mark", "queued")
    submitter.kill()
    eventually(lambda: store.children("running/stops"))
    assert pools().submit(square, 2).result(PATIENCE_S) == 4
    eventually(lambda: partitions(store) == [])
    assert starts(store, "queued") == []


def test_a_lost_submitters_session_fails_its_futures(workers, pools, store, eventually):
    pool = pools()
    future = pool.submit(mark, "failed")
    pool.flush(PATIENCE_S)
    pool._submitter._session.session.close()
    with pytest.raises(SessionLost, match="submit again"):
        future.result(PATIENCE_S)
    workers()
    assert pool.submit(square, 3).result(PATIENCE_S) == 9
    eventually(lambda: partitions(store) == [])
    assert starts(store, "failed") == []


def test_a_lost_submitters_tasks_are_submitted_again_when_asked(workers, pools):
    pool = pools(on_session_lost="resubmit")
    future = pool.submit(square, 5)
    pool.flush(PATIENCE_S)
    pool._submitter._session.session.close()
    workers()
    assert future.result(PATIENCE_S) == 25


def test_a_task_that_kills_its_nodes_becomes_a_dead_letter(processes, workers, pool, store, eventually):
    options = {"session_ttl_s": TTL_S, "max_attempts": 2, "slots": 1}
    future = pool.submit(kill_node, "poison")
    processes("serve_worker", "n1", options)
    eventually(lambda: len(starts(store, "poison")) == 1)
    processes("serve_worker", "n2", options)
    eventually(lambda: len(starts(store, "poison")) == 2)
    worker = workers("n3", max_attempts=2, own_store=True)
    with pytest.raises(TaskDied, match="taken 2 times"):
        future.result(PATIENCE_S)
    eventually(lambda: worker.stats().dead_lettered == 1)
    assert len(starts(store, "poison")) == 2
    assert len(store.children("@executor/default/backlog/dead")) == 1


@pytest.mark.parametrize("copies", [2, 3])
def test_all_but_one_of_the_copies_may_die(workers, pool, store, eventually, copies):
    made = [workers(f"n{number}", own_store=True, steal_after_s=None) for number in range(copies)]
    future = pool.with_options(copies=copies).submit(wait, "copies")
    eventually(lambda: len(starts(store, "copies")) == copies)
    for worker in made[:-1]:
        worker.drain(0.0)
        end_session(worker)
    store.put("copies/go", b"")
    assert future.result(PATIENCE_S) in {worker.node_id for worker in made}
    eventually(lambda: partitions(store) == [])


def test_shelves_that_a_gone_member_left_empty_vanish_while_nobody_is_free(workers, pool, store, eventually):
    busy = workers("n1", own_store=True, slots=1)
    blocker = pool.with_options(target=Member("n1")).submit(wait, "blocker")
    eventually(lambda: starts(store, "blocker"))
    gone = workers("n2", own_store=True, accept=lambda _: False)
    future = pool.with_options(target=Member("n2")).submit(square, 2)
    pool.flush(PATIENCE_S)
    assert future.cancel()
    gone.close()
    eventually(lambda: partitions(store) == ["m.n1"])
    assert busy.stats().taken == 1
    store.put("blocker/go", b"")
    assert blocker.result(PATIENCE_S) == "n1"


def test_a_sweep_forgets_empty_shelves_in_the_lanes_of_the_gone_alone(store):
    keys, system = Keys("default"), system_namespace(store, "executor")
    backlog = WorkQueue(system, keys.backlog)
    for partition, item in (("m.gone", "1"), ("m.full", "2"), ("m.here", "3")):
        backlog.put(partition, "s", item, b"")
    for partition, item in (("m.gone", "1"), ("m.here", "3")):
        backlog.remove(backlog.find(partition, "s", item))
    run(ExecutorSweeper(system, keys, backlog, unknown_after_s=60.0).sweep({"here"}))
    assert backlog.partitions() == ["m.full", "m.here"]


def test_a_target_member_alone_runs_the_task(workers, pool):
    workers("n1")
    workers("n2")
    for member in ("n1", "n2"):
        assert pool.with_options(target=Member(member)).submit(where).result(PATIENCE_S) == member


def test_a_task_for_a_member_that_is_not_there_fails_with_its_name(workers, pool, store, eventually):
    workers("n1")
    with pytest.raises(NoSuchMember, match="'gone'"):
        pool.with_options(target=Member("gone")).submit(where).result(PATIENCE_S)
    waits = pool.with_options(target=Member("later", otherwise="wait")).submit(where)
    pool.flush(PATIENCE_S)
    assert waits.state().phase == "queued"
    workers("later")
    assert waits.result(PATIENCE_S) == "later"


def test_a_task_for_a_member_that_leaves_before_it_ran_fails(workers, pool, store, eventually):
    first = workers("n1", own_store=True, slots=1)
    blocker = pool.with_options(target=Member("n1", "any")).submit(wait, "blocker")
    eventually(lambda: starts(store, "blocker"))
    future = pool.with_options(target=Member("n1")).submit(where)
    pool.flush(PATIENCE_S)
    workers("n2", own_store=True)
    first.close(0.5)
    with pytest.raises(NoSuchMember, match="left before"):
        future.result(PATIENCE_S)
    store.put("blocker/go", b"")
    blocker.result(PATIENCE_S)


def test_tasks_of_one_key_go_to_one_member(workers, pool):
    for number in range(3):
        workers(f"n{number}", steal_after_s=None)
    keyed = [pool.with_options(target=Key("customer-7")).submit(where) for _ in range(6)]
    assert len({future.result(PATIENCE_S) for future in keyed}) == 1


def test_a_label_chooses_among_members(workers, pool):
    workers("n1", labels={"zone": "a"})
    workers("n2", labels={"zone": "b"})
    futures = [pool.with_options(target=Label(zone="b")).submit(where) for _ in range(5)]
    assert {future.result(PATIENCE_S) for future in futures} == {"n2"}


def test_a_task_for_a_label_that_nobody_has_waits(workers, pool):
    workers("n1")
    future = pool.with_options(target=Label(gpu="yes")).submit(where)
    pool.flush(PATIENCE_S)
    assert future.state().phase == "queued"
    workers("n2", labels={"gpu": "yes"})
    assert future.result(PATIENCE_S) == "n2"


def test_a_refused_task_runs_on_another_member(workers, pool):
    workers("n1")
    workers("n2")
    futures = [pool.submit("refuse-on", "n1") for _ in range(4)]
    assert {future.result(PATIENCE_S) for future in futures} == {"n2"}


def test_an_idle_member_takes_from_the_lane_of_a_busy_one(workers, pool, eventually):
    workers("n1", slots=1)
    spread = pool.with_options(target=Key("k"))
    futures = [spread.submit(slow_where, 0.5) for _ in range(12)]
    pool.flush(PATIENCE_S)
    workers("n2", slots=4, steal_after_s=0.3)
    assert {future.result(PATIENCE_S) for future in futures} == {"n1", "n2"}


def test_a_changed_weight_counts_without_rejoining(workers, pool, eventually):
    first = workers("n1", weight=0.0)
    workers("n2", weight=1.0)
    weighted = pool.with_options(picker=Weighted())
    assert {weighted.submit(where).result(PATIENCE_S) for _ in range(5)} == {"n2"}
    first.update(weight=1e9)
    eventually(lambda: weighted.submit(where).result(PATIENCE_S) == "n1")


def test_a_task_for_all_runs_once_on_each_member(workers, pool):
    for number in range(3):
        workers(f"n{number}")
    assert pool.with_options(target=All()).submit(where).result(PATIENCE_S) == {f"n{n}": f"n{n}" for n in range(3)}


def test_an_unknown_function_goes_to_a_member_that_has_it(workers, pools, pool):
    from latchwork.tasks import Functions

    workers("other", functions=Functions())
    future = pool.submit(where)
    pool.flush(PATIENCE_S)
    time.sleep(0.2)
    assert future.state().phase == "queued"
    workers("n2")
    assert future.result(PATIENCE_S) == "n2"


def test_all_workers_see_one_sequence_of_views_oldest_first(workers, store, eventually):
    """Who is there, and in which order they came: the same for all, whoever joins and leaves."""
    made = [workers(f"n{number}", own_store=True) for number in range(3)]
    seen = {worker.node_id: [] for worker in made[:2]}
    for worker in made[:2]:
        views = seen[worker.node_id]
        worker._work.group.on_view(lambda change, views=views: views.append(change.view))
    workers("n3", own_store=True)
    made[2].close()
    eventually(lambda: all(views and [m.id for m in views[-1].by_age] == ["n0", "n1", "n3"] for views in seen.values()))
    numbered = [{view.number: [m.id for m in view.by_age] for view in views} for views in seen.values()]
    both = numbered[0].keys() & numbered[1].keys()
    assert both
    assert all(numbered[0][number] == numbered[1][number] for number in both)
    for views in seen.values():
        assert [view.number for view in views] == sorted({view.number for view in views})


def test_a_member_that_leaves_has_only_its_own_tasks_run_again(workers, pool, store, eventually):
    keeps = workers("n1", own_store=True, slots=2)
    leaves = workers("n2", own_store=True, slots=2)
    held = {node: pool.with_options(target=Member(node, "any")) for node in ("n1", "n2")}
    futures = [held[node].submit(wait, f"{node}-{number}") for node in held for number in range(2)]
    keys = [f"{node}-{number}" for node in held for number in range(2)]
    eventually(lambda: all(starts(store, key) for key in keys))
    assert (keeps.stats().running, leaves.stats().running) == (2, 2)
    joined = workers("n3", own_store=True, slots=2)
    leaves.close(5.0)
    eventually(lambda: len(starts(store, "n2-0")) == len(starts(store, "n2-1")) == 2)
    for key in keys:
        store.put(f"{key}/go", b"")
    ended_on = [future.result(PATIENCE_S) for future in futures]
    assert ended_on[:2] == ["n1", "n1"]
    assert [len(starts(store, key)) for key in keys] == [1, 1, 2, 2]
    assert joined.stats().done == 2


def test_running_tasks_of_a_lost_submitter_are_stopped_and_detached_ones_go_on(workers, pools, store, eventually):
    workers("n1", own_store=True)
    pool = pools()
    future, ref = pool.submit(wait, "dropped"), pool.detached(wait, "kept", id="kept")
    eventually(lambda: starts(store, "dropped") and starts(store, "kept"))
    end_session_of(pool)
    eventually(lambda: store.children("dropped/stops"))
    with pytest.raises(SessionLost):
        future.result(PATIENCE_S)
    assert store.children("kept/stops") == []
    store.put("kept/go", b"")
    assert ref.result(PATIENCE_S) == "n1"


def end_session_of(pool):
    pool._submitter._session.session.close()


def test_copies_for_all_members_survive_all_deaths_but_one(workers, pool, store, eventually):
    """As many copies as members: all run at a time, and the last one's run was there all the time."""
    made = [workers(f"n{number}", own_store=True, steal_after_s=None) for number in range(4)]
    future = pool.with_options(copies=4).submit(wait, "all")
    eventually(lambda: len(starts(store, "all")) == 4)
    for worker in made[:3]:
        worker.drain(0.0)
        end_session(worker)
    store.put("all/go", b"")
    assert future.result(PATIENCE_S) in {worker.node_id for worker in made}
    assert set(starts(store, "all")[:4]) == {worker.node_id for worker in made}
    eventually(lambda: store.children("@executor/default/results") == [])
