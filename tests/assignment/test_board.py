"""A board keeps state in Rust and places as the strategies do."""

from __future__ import annotations

import threading

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from latchwork.assignment import Board, JobProblem, Problem, strategy_by_name

JOBS = st.sampled_from(["j1", "j2", "j3"])
WORKERS = st.sampled_from([f"w{n}" for n in range(6)])
ITEMS = st.sets(st.sampled_from([f"i{n:02}" for n in range(25)]))
WEIGHTS = st.sampled_from([1.0, 1.0, 2.0, 0.25])


class BoardMachine(RuleBasedStateMachine):
    """Any changes, and after each placement a look at what the strategy makes of the same problem."""

    strategy = "balanced"

    def __init__(self):
        super().__init__()
        self.board = Board(self.strategy)
        self.jobs: dict[str, set[str]] = {}
        self.workers: dict[str, tuple[float, set[str] | None]] = {}
        self.owners: dict[str, dict[str, str]] = {}

    @rule(job=JOBS, items=ITEMS)
    def add(self, job, items):
        if job in self.jobs:
            self.board.add_items(job, items - self.jobs[job])
        else:
            self.board.add_job(job, items)
        self.jobs[job] = self.jobs.get(job, set()) | items

    @rule(job=JOBS, items=ITEMS)
    def remove(self, job, items):
        if job in self.jobs:
            self.board.remove_items(job, items & self.jobs[job])
            self.jobs[job] -= items
            for item in items:
                self.owners.get(job, {}).pop(item, None)

    @rule(job=JOBS)
    def remove_job(self, job):
        if job in self.jobs:
            self.board.remove_job(job)
            del self.jobs[job]
            self.owners.pop(job, None)

    @rule(worker=WORKERS, weight=WEIGHTS, jobs=st.none() | st.sets(JOBS))
    def join_or_leave(self, worker, weight, jobs):
        if worker in self.workers:
            self.board.leave(worker)
            del self.workers[worker]
        else:
            self.board.join(worker, weight, jobs)
            self.workers[worker] = (weight, jobs)

    @rule(worker=WORKERS, weight=WEIGHTS)
    def reweigh(self, worker, weight):
        if worker in self.workers:
            self.board.reweigh(worker, weight)
            self.workers[worker] = (weight, self.workers[worker][1])

    @rule()
    def place(self):
        problem = Problem(tuple(self.problem(job) for job in self.jobs))
        plan = strategy_by_name(self.strategy).assign(problem)
        moves = self.board.place()
        alive = [move for move in plan.moves if move.item in self.jobs[move.job]]
        assert list(moves) == [(move.job, move.item, move.source, move.target) for move in alive]
        assert (len(moves), moves.deferred) == (len(alive), 0)
        self.owners = {job: dict(owners) for job, owners in plan.owners.items()}
        for job, items in self.jobs.items():
            assert self.board.owners(job) == self.owners[job]
            assert self.board.by_worker(job) == plan.by_worker(job)
            shares = self.board.shares(job, tuple(sorted(items)))
            assert list(shares.items()) == [(worker, tuple(have)) for worker, have in plan.by_worker(job).items()]
            assert self.board.unplaced(job) == sorted(items - self.owners[job].keys())
            assert all(self.board.owner(job, item) == self.owners[job].get(item) for item in items)

    @invariant()
    def lists_are_in_name_order(self):
        assert self.board.jobs == sorted(self.jobs)
        assert self.board.workers == sorted(self.workers)

    def problem(self, job):
        able = {w: weight for w, (weight, jobs) in self.workers.items() if jobs is None or job in jobs}
        return JobProblem(job, tuple(self.jobs[job]), able, self.owners.get(job, {}))


class SpreadMachine(BoardMachine):
    strategy = "evenly-spread"


for machine in (BoardMachine, SpreadMachine):
    machine.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestABalancedBoardIsWhatTheStrategyMakesOfTheWhole = BoardMachine.TestCase
TestAnEvenlySpreadBoardIsWhatTheStrategyMakesOfTheWhole = SpreadMachine.TestCase


def test_previous_owners_are_kept_and_unknown_ones_passed_over():
    board = Board("evenly-spread")
    board.join("w1")
    board.join("w2")
    board.add_job("j", ["b", "a"], {"a": "w2", "b": "ghost", "gone": "w1"})
    assert list(board.place()) == [("j", "b", None, "w1")]


def test_a_budget_moves_the_best_items_first_and_says_how_many_wait():
    board = Board("evenly-spread")
    for worker in ("w1", "w2", "w3"):
        board.join(worker)
    holders = ["w1"] * 6 + ["w2"] * 3
    board.add_job("j", [f"i{n}" for n in range(9)], {f"i{n}": holder for n, holder in enumerate(holders)})
    first = board.place(max_moves=2)
    assert [(source, target) for _, _, source, target in first] == [("w1", "w3")] * 2
    assert first.deferred == 1
    assert len(board.place(max_moves=2)) == 1
    assert len(board.place()) == 0


def test_items_of_a_worker_that_left_do_not_count_against_the_budget():
    board = Board("balanced")
    for worker in ("w1", "w2"):
        board.join(worker)
    board.add_job("j", ["a", "b", "c", "d"])
    board.place()
    board.leave("w1")
    moves = board.place(max_moves=0)
    assert (len(moves), moves.deferred) == (2, 0)


def test_many_threads_may_use_one_board():
    board = Board("balanced")
    board.add_job("j", [f"i{n}" for n in range(1000)])

    def come_and_go(name):
        for _ in range(20):
            board.join(name)
            board.place()
            assert len(board.owners("j")) == 1000
            board.leave(name)

    board.join("always")
    threads = [threading.Thread(target=come_and_go, args=(f"w{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    board.place()
    assert board.by_worker("j") == {"always": sorted(board.owners("j"))}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda board: Board("rendezvous"), "use 'evenly-spread' or 'balanced'"),
        (lambda board: board.add_job("j", []), "job 'j' is there already; add its items to it"),
        (lambda board: board.add_job("k", ["a", "a"]), "job 'k': work item 'a' is given twice; give it once"),
        (lambda board: board.add_items("j", ["a"]), "job 'j': work item 'a' is there already; leave it out"),
        (lambda board: board.remove_items("j", ["x"]), "job 'j': work item 'x' is not there; leave it out"),
        (lambda board: board.remove_job("k"), "job 'k' is not there; add it first"),
        (lambda board: board.join("w"), "worker 'w' is there already; let it leave first, or reweigh it"),
        (lambda board: board.join("v", 0.0), "worker 'v' has weight 0; a weight must be a finite number"),
        (lambda board: board.reweigh("w", float("nan")), "worker 'w' has weight NaN"),
        (lambda board: board.leave("v"), "worker 'v' is not there; let it join first"),
        (lambda board: board.owner("j", "x"), "job 'j' has no work item 'x'; add it first"),
        (lambda board: board.shares("j", ()), "0 items are given, job 'j' has 1"),
        (lambda board: board.shares("j", ("b",)), "'b' stands where job 'j' has \"a\""),
        (lambda board: board.shares("k", ()), "job 'k' is not there"),
        (lambda board: board.place(-1), "max_moves is -1; it must be at least 0"),
        (lambda board: board.add_job("k", ["\ud800"]), "work item '\\ud800' holds a lone surrogate"),
    ],
)
def test_bad_changes_are_refused_by_name_and_change_nothing(call, message):
    board = Board("balanced")
    board.join("w")
    board.add_job("j", ["a"])
    with pytest.raises(ValueError) as caught:
        call(board)
    assert message in str(caught.value)
    assert (board.jobs, board.workers) == (["j"], ["w"])
    assert list(board.place()) == [("j", "a", None, "w")]


def test_the_rows_of_one_job_are_those_of_all_that_name_it():
    board = Board()
    for job in ("a", "b", "c"):
        board.add_job(job, [f"{job}{n}" for n in range(5)])
    board.join("w1", 1.0, ["a", "c"])
    board.join("w2", 1.0, ["a", "c"])
    moves = board.place()
    assert moves.jobs == ["a", "c"]
    assert {job: list(moves.of(job)) for job in "abcd"} == {
        job: [row for row in moves if row[0] == job] for job in "abcd"
    }
    assert len(list(moves.of("c"))) == 5


def test_rows_can_be_gone_through_again_and_outlive_the_board():
    board = Board()
    board.add_job("a", ["1", "2"])
    board.join("w1")
    moves = board.place()
    rows = moves.of("a")
    del board
    assert list(rows) == list(moves) == [("a", "1", None, "w1"), ("a", "2", None, "w1")]
