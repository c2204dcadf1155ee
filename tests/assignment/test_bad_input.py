"""What cannot be placed is refused at once, by an error that names the thing and says what to give."""

from __future__ import annotations

import numpy as np
import pytest

from latchwork.assignment import (
    Balanced,
    Budgeted,
    ItemSet,
    JobProblem,
    Problem,
    RendezvousHasher,
    ReplicaProblem,
    limit_moves,
    place_replicas,
)


def problem(items=("a",), workers=(("w", 1.0),), job="j"):
    return JobProblem(job, items, dict(workers))


@pytest.mark.parametrize("weight", ["1", None, True, [1.0]])
def test_a_weight_that_is_no_number_is_named_with_its_worker_and_its_job(weight):
    for kind in (
        lambda: problem(workers={"v": 1.0, "w": weight}),
        lambda: ReplicaProblem("j", ("a",), 1, {"w": weight}),
    ):
        with pytest.raises(TypeError, match=r"job 'j': worker 'w' has weight .*; a weight must be a finite number"):
            kind()


@pytest.mark.parametrize("weight", [0, -1.0, float("nan"), float("inf"), 10**400])
def test_a_weight_that_is_no_positive_number_is_named_in_one_short_line(weight):
    with pytest.raises(ValueError, match="job 'j': worker 'w' has weight") as error:
        problem(workers={"w": weight})
    assert len(str(error.value)) < 160


def test_any_real_number_is_a_weight():
    assert Balanced().assign(Problem((problem(workers={"v": 1, "w": np.float32(2.0)}),))).owners["j"].keys() == {"a"}


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: problem(items=(1, 2)), r"job 'j': work item 1 is of type int"),
        (lambda: problem(items=("a", None)), r"job 'j': work item None is of type NoneType"),
        (lambda: problem(workers={5: 1.0}), r"job 'j': worker 5 is of type int"),
        (lambda: problem(job=7), r"job id 7 is of type int"),
        (lambda: ReplicaProblem("j", (1,), 1, {"w": 1.0}), r"job 'j': work item 1 is of type int"),
        (lambda: RendezvousHasher([1, 2]), r"worker 1 is of type int"),
        (lambda: RendezvousHasher(["w"]).owner(5), r"key 5 is of type int"),
        (lambda: ItemSet([1]), r"item 1 is of type int"),
    ],
)
def test_an_id_that_is_no_text_is_refused_by_name_and_never_taken_for_its_text(make, what):
    with pytest.raises(TypeError, match=rf"^{what}; it must be a str, so convert it$"):
        make()


def test_one_text_in_the_place_of_many_ids_is_refused():
    with pytest.raises(TypeError, match="one str was given where several ids are wanted, 'abc' as job 'j': work item"):
        problem(items="abc")
    with pytest.raises(TypeError, match=r"job 'j': workers is \['w'\]; give a mapping of worker to weight"):
        JobProblem("j", ("a",), ["w"])


@pytest.mark.parametrize("most", [1.5, "3", None, True, float("inf")])
def test_a_budget_that_is_no_whole_number_is_refused(most):
    with pytest.raises(TypeError, match=r"max_moves is .*; give a whole number of at least 0"):
        Budgeted(Balanced(), most)
    everything = Problem((problem(),))
    with pytest.raises(TypeError, match="max_moves is"):
        limit_moves(everything, Balanced().assign(everything), most)


def test_a_budget_of_something_that_is_no_strategy_is_refused():
    with pytest.raises(TypeError, match=r"strategy is 'balanced'; give an object that has assign\(problem\)"):
        Budgeted("balanced", 3)
    with pytest.raises(ValueError, match="max_moves is -1; it must be at least 0"):
        Budgeted(Balanced(), -1)


def test_too_many_replicas_are_said_to_be_too_many():
    with pytest.raises(ValueError, match=r"1,000,000,000,000 replicas were asked for; ask for at most 4,294"):
        ReplicaProblem("j", ("a",), 10**12, {"w": 1.0})
    with pytest.raises(ValueError, match="the number of replicas is 0; it must be at least 1"):
        ReplicaProblem("j", ("a",), 0, {"w": 1.0})
    for many in (1.5, "2", None):
        with pytest.raises(TypeError, match=r"the number of replicas is .*; give a whole number of at least 1"):
            ReplicaProblem("j", ("a",), many, {"w": 1.0})
    assert place_replicas(ReplicaProblem("j", ("a",), 10**9, {"w": 1.0})).owners == {"a": ("w",)}


def test_a_mapping_in_the_place_of_workers_or_weights_is_refused_by_name():
    with pytest.raises(
        TypeError, match="workers is a mapping, and weights are not given; give its keys as workers, its"
    ):
        RendezvousHasher({"a": 2.0, "b": 1.0})
    with pytest.raises(TypeError, match="weights is a mapping; give one weight per worker, in the order"):
        RendezvousHasher(["a", "b"], {"a": 2.0, "b": 1.0})


@pytest.mark.parametrize("weights", [["1", 2], [None, 1], "12", [10**400, 1]])
def test_a_weight_of_a_hasher_that_is_no_number_is_named_with_its_worker(weights):
    with pytest.raises(TypeError, match=r"worker 'a' has weight .{1,60}; a weight must be a finite number"):
        RendezvousHasher(["a", "b"], weights)
    assert RendezvousHasher(["b", "a"], iter([1.0, 1e9])).owner("k") == "a"
