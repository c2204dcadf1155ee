"""What the manager decides to write."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latchwork.assignment import (
    Balanced,
    Budgeted,
    EvenlyRendezvous,
    EvenlySpread,
    Plan,
    Rendezvous,
    describe_strategy,
    parse_strategy,
    plan_from_owners,
)
from latchwork.jobs.manager.manager import Debouncer
from latchwork.jobs.manager.planner import Planner
from latchwork.jobs.manager.rebalance import (
    AssignmentChange,
    ClusterView,
    ReservedItems,
    WorkerView,
    create_job_problem,
    order_changes,
    rebalance,
)
from latchwork.jobs.manager.strategies import Strategies

JOBS = ("j1", "j2", "j3")
WORKERS = ("w1", "w2", "w3", "w4")
ITEMS = st.sets(st.sampled_from("abcdefghij"), max_size=8).map(lambda s: tuple(sorted(s)))
VIEWS = st.builds(
    ClusterView,
    workers=st.dictionaries(
        st.sampled_from(WORKERS),
        st.builds(WorkerView, st.sampled_from([1.0, 2.0]), st.frozensets(st.sampled_from(JOBS))),
    ),
    pools=st.dictionaries(st.sampled_from(JOBS), ITEMS),
    assignments=st.dictionaries(
        st.sampled_from(JOBS), st.dictionaries(st.sampled_from(WORKERS), ITEMS.filter(bool), min_size=1, max_size=4)
    ),
)


def view(workers=("w1", "w2"), pools=None, assignments=None, jobs=("j1",)):
    return ClusterView(
        {name: WorkerView(1.0, frozenset(jobs)) for name in workers},
        {"j1": tuple("abcd")} if pools is None else pools,
        assignments or {},
    )


def applied(before, changes):
    assignments = {job: dict(workers) for job, workers in before.assignments.items()}
    for change in changes:
        assert assignments.get(change.job, {}).get(change.worker, ()) == change.before
        assignments.setdefault(change.job, {})[change.worker] = change.after
        if not change.after:
            del assignments[change.job][change.worker]
    return ClusterView(before.workers, before.pools, {job: workers for job, workers in assignments.items() if workers})


@given(VIEWS, st.sampled_from(["balanced", "evenly-spread", "evenly-rendezvous", "rendezvous"]))
@settings(deadline=None, max_examples=200)
def test_every_item_gets_exactly_one_able_worker_and_nothing_else_is_stored(before, strategy):
    strategies = Strategies(strategy)
    result = rebalance(before, strategies)
    assert not result.failed
    after = applied(before, result.changes)
    for job, workers in after.assignments.items():
        for worker, items in workers.items():
            assert job in after.workers[worker].jobs
            assert list(items) == sorted(items)
    for job, items in before.pools.items():
        stored = sorted(item for assigned in after.assignments.get(job, {}).values() for item in assigned)
        able = any(job in worker.jobs for worker in before.workers.values())
        assert stored == (list(items) if able else [])
    assert rebalance(after, strategies).changes == (), "a second look must change nothing"


@given(VIEWS)
@settings(deadline=None, max_examples=200)
def test_in_steps_no_item_ever_gets_a_second_worker(before):
    changes = rebalance(before, Strategies()).changes
    now = before
    for step in order_changes(changes):
        owners = {}
        for job, workers in now.assignments.items():
            for worker, items in workers.items():
                for item in items:
                    owners.setdefault((job, item), set()).add(worker)
        following = applied(now, [step])
        for item in set(step.after) - set(step.before):
            assert not owners.get((step.job, item), set()) - {step.worker}
        now = following
    assert now == applied(before, changes)


def test_unchanged_assignments_are_not_written():
    assignments = {"j1": {"w1": ("a", "b"), "w2": ("c", "d")}}
    assert rebalance(view(assignments=assignments), Strategies()).changes == ()


def test_a_budget_is_spent_in_each_rebalance_until_nothing_is_deferred():
    strategies = Strategies(Budgeted(Balanced(), 2))
    now = view(pools={"j1": tuple("abcdefghij")}, assignments={"j1": {"w1": tuple("abcdefghij")}})
    steps = []
    while True:
        result = rebalance(now, strategies)
        steps.append((result.moves, result.deferred))
        if not result.changes:
            break
        now = applied(now, result.changes)
    assert steps == [(2, 3), (2, 1), (1, 0), (0, 0)]


def test_a_dead_workers_items_go_to_the_others_and_its_assignment_is_removed():
    assignments = {"j1": {"w1": ("a", "b"), "w9": ("c", "d")}}
    changes = rebalance(view(workers=("w1", "w2"), assignments=assignments), Strategies()).changes
    assert AssignmentChange("w9", "j1", ("c", "d"), ()) in changes
    assert AssignmentChange("w2", "j1", (), ("c", "d")) in changes
    assert all(change.worker != "w1" for change in changes)


def test_assignments_of_a_job_without_a_pool_are_removed():
    changes = rebalance(view(pools={}, assignments={"j1": {"w1": ("a",)}}), Strategies()).changes
    assert changes == (AssignmentChange("w1", "j1", ("a",), ()),)


def test_items_stored_with_two_workers_count_for_the_living_one():
    assert create_job_problem(view(assignments={"j1": {"a-dead": ("a",), "w2": ("a",)}}), "j1").previous == {"a": "w2"}
    assert create_job_problem(view(assignments={"j1": {"w1": ("a",), "w2": ("a",)}}), "j1").previous == {"a": "w1"}


def test_jobs_that_no_worker_can_run_are_reported_and_stay_in_their_pool():
    result = rebalance(view(jobs=("other",)), Strategies())
    assert result.changes == ()
    assert result.unplaced == {"j1": 4}


class Broken:
    name = "broken"

    def assign(self, problem):
        raise RuntimeError("out of ideas")


class Forgetful:
    name = "forgetful"

    def assign(self, problem):
        return Plan({}, ())


@pytest.mark.parametrize("strategy", [Broken(), Forgetful()])
def test_a_strategy_that_fails_keeps_the_old_assignment_of_its_jobs_alone(strategy):
    pools = {"j1": tuple("ab"), "j2": tuple("ab")}
    assignments = {"j1": {"w9": ("a", "b")}, "j2": {"w9": ("a", "b")}}
    result = rebalance(view(pools=pools, assignments=assignments, jobs=("j1", "j2")), Strategies({"j1": strategy}))
    assert set(result.failed) == {"j1"}
    assert {change.job for change in result.changes} == {"j2"}


def test_each_job_may_have_a_strategy_of_its_own():
    mine = EvenlySpread()
    groups = Strategies({"j2": mine, "*": "rendezvous"}).group_by_strategy(["j3", "j2", "j1"])
    assert [(strategy.name, jobs) for strategy, jobs in groups] == [
        ("rendezvous", ["j1", "j3"]),
        ("evenly-spread", ["j2"]),
    ]


class Lightest:
    """Each item, in name order, to the worker that has least of everything placed so far."""

    name = "lightest"

    def __init__(self):
        self.seen = []

    def assign(self, problem):
        self.seen.append(problem.placed)
        loads = dict.fromkeys(sorted({name for job in problem.jobs for name in job.workers}), 0) | problem.loads()
        owners = {}
        for job in problem.jobs:
            for item in sorted(job.items):
                worker = min(sorted(job.workers), key=loads.__getitem__)
                owners.setdefault(job.job, {})[item] = worker
                loads[worker] += 1
        return plan_from_owners(problem, owners)


def test_a_later_strategy_sees_what_earlier_ones_placed_in_the_same_round():
    lightest = Lightest()
    strategies = Strategies({"j1": "evenly-rendezvous", "j2": lightest, "*": "balanced"})
    pools = {"j1": ("a", "b", "c"), "j2": ("x", "y", "z"), "j3": ("p",)}
    result = rebalance(view(pools=pools, jobs=("j1", "j2", "j3")), strategies)
    placed = {job: {} for job in pools}
    for change in result.changes:
        placed[change.job].update(dict.fromkeys(change.after, change.worker))
    assert lightest.seen == [{"j1": placed["j1"]}], "j1 comes before it, j3 after"
    of_two = Counter([*placed["j1"].values(), *placed["j2"].values()])
    assert set(of_two.values()) == {3}, "six items of two jobs on two workers, as nobody could know without the first"


class ByDisk:
    """Every item to the workers that say they have an ssd, as long as there is one."""

    name = "by-disk"

    def __init__(self):
        self.asked = 0

    def assign(self, problem):
        self.asked += 1
        owners = {}
        for job in problem.jobs:
            fast = [name for name in sorted(job.workers) if job.labels[name].get("disk") == "ssd"]
            owners[job.job] = dict.fromkeys(job.items, (fast or sorted(job.workers))[0])
        return plan_from_owners(problem, owners)


def labelled(**labels):
    return {name: WorkerView(1.0, frozenset({"j1"}), {"disk": disk}) for name, disk in labels.items()}


def test_a_strategy_of_ones_own_sees_the_labels_of_the_workers():
    now = ClusterView(labelled(w1="tape", w2="ssd"), {"j1": ("a", "b")}, {})
    assert rebalance(now, Strategies(ByDisk())).changes == (AssignmentChange("w2", "j1", (), ("a", "b")),)


def test_a_strategy_sees_the_labels_of_a_worker_that_is_being_restarted_too():
    workers = labelled(w1="tape", w2="ssd")
    reserved = {"w2": ReservedItems(workers.pop("w2"), {"j1": ("a",)})}
    now = ClusterView(workers, {"j1": ("a",)}, {}, reserved)
    assert create_job_problem(now, "j1").labels == {"w1": {"disk": "tape"}, "w2": {"disk": "ssd"}}


def test_a_strategy_is_asked_again_when_only_a_label_has_changed():
    strategy = ByDisk()
    planner = Planner(Strategies(strategy))
    pools, assignments = {"j1": ("a",)}, {"j1": {"w1": ("a",)}}
    planner.rebalance(ClusterView(labelled(w1="ssd", w2="tape"), pools, assignments))
    planner.rebalance(ClusterView(labelled(w1="ssd", w2="tape"), pools, assignments))
    assert strategy.asked == 1, "nothing changed that it could see"
    changes = planner.rebalance(ClusterView(labelled(w1="tape", w2="ssd"), pools, assignments)).changes
    assert changes == (AssignmentChange("w1", "j1", ("a",), ()), AssignmentChange("w2", "j1", (), ("a",)))


def test_jobs_whose_strategy_failed_count_for_later_ones_where_they_stay():
    class Fails:
        name = "fails"

        def assign(self, problem):
            raise RuntimeError("no")

    lightest = Lightest()
    pools = {"j1": ("a", "b"), "j2": ("x", "y")}
    kept = {"j1": {"w1": ("a", "b")}}
    result = rebalance(
        view(pools=pools, assignments=kept, jobs=("j1", "j2")), Strategies({"j1": Fails(), "j2": lightest})
    )
    assert lightest.seen == [{"j1": {"a": "w1", "b": "w1"}}]
    assert [(change.worker, change.after) for change in result.changes] == [("w2", ("x", "y"))]


def test_jobs_that_name_the_same_strategy_are_one_problem():
    groups = Strategies({"j1": "balanced", "j2": "evenly-spread", "*": "balanced"}).group_by_strategy(
        ["j1", "j2", "j3"]
    )
    assert [jobs for _, jobs in groups] == [["j1", "j3"], ["j2"]]


@pytest.mark.parametrize(
    ("strategy", "word"),
    [
        ("balanced", "balanced"),
        (Budgeted(EvenlySpread(), 5), "evenly-spread"),
        (Rendezvous("compat"), "rendezvous:compat"),
        (EvenlyRendezvous(), "evenly-rendezvous"),
        (Lightest(), "custom:lightest"),
    ],
)
def test_a_strategy_is_told_in_one_word_from_which_it_can_be_made_again(strategy, word):
    assert Strategies(strategy).describe() == {"*": word}
    made = parse_strategy(word)
    assert (made is None) == word.startswith("custom:")
    if made is not None:
        assert describe_strategy(made) == word


@pytest.mark.parametrize("bad", ["fastest", 7, {"j1": None}])
def test_an_unknown_strategy_is_refused(bad):
    with pytest.raises(ValueError, match=r"balanced|assign\(problem\)"):
        Strategies(bad)


def test_a_burst_becomes_one_rebalance_after_the_quiet_time():
    quiet = Debouncer(1.0, 5.0)
    assert quiet.due_in_s(0.0) is None
    for now in (10.0, 10.5, 11.0):
        quiet.record_event(now)
    assert quiet.due_in_s(11.0) == 1.0
    assert quiet.due_in_s(12.5) == 0.0
    quiet.clear_events()
    assert quiet.due_in_s(12.5) is None


def test_a_burst_that_does_not_end_is_acted_on_after_the_longest_wait():
    quiet = Debouncer(1.0, 5.0)
    for tenth in range(100, 149):
        quiet.record_event(tenth / 10)
    assert quiet.due_in_s(14.8) == pytest.approx(0.2)


def test_a_failure_is_due_again_without_a_new_event_but_not_before_its_delay():
    quiet = Debouncer(1.0, 5.0)
    quiet.schedule_retry(10.0, 8.0)
    assert quiet.due_in_s(10.0) == 8.0
    quiet.record_event(10.1)
    assert quiet.due_in_s(16.0) == pytest.approx(2.0)
