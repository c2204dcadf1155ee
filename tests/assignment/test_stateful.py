"""`ItemSet`, `Assignment` and `Delta`: a stateful assignment is always the one that a fresh one would be."""

from __future__ import annotations

import random
import subprocess
import sys
import threading

import assignment_reference as reference
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latchwork.assignment import EvenlyRendezvous, ItemSet, JobProblem, Problem, Rendezvous, RendezvousHasher

MODES = ("fast", "compat")
texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
weights = st.sampled_from([1.0, 1.0, 2.0, 0.25, 7.0])


def owners(assignment):
    """Item to worker, read through the numbers."""
    workers = assignment.workers
    return {item: workers[at] for item, at in zip(assignment.items.to_list(), assignment.indices, strict=True)}


def fresh(assignment, mode="fast"):
    """The same by an assignment from nothing."""
    hasher = RendezvousHasher(assignment.workers, assignment.weights, mode)
    return hasher.assign(ItemSet(assignment.items.to_list(), assignment.items.prefix))


def checked_change(assignment, change, mode="fast"):
    """Make a change; check that it gives what a fresh assignment would and reports exactly what differs."""
    before = owners(assignment)
    delta = change()
    after = owners(assignment)
    assert assignment.to_dict() == after == fresh(assignment, mode).to_dict()
    expected = {
        (item, before.get(item), after.get(item))
        for item in before.keys() | after.keys()
        if before.get(item) != after.get(item)
    }
    assert len(delta) == len(expected)
    assert set(delta) == expected
    assert list(delta) == list(zip(delta.items, delta.sources, delta.targets, strict=True))
    return delta


@pytest.mark.parametrize("mode", MODES)
def test_joining_takes_only_what_the_newcomer_wins_and_leaving_gives_it_back(mode):
    items = ItemSet([f"i{n}" for n in range(3000)])
    assignment = RendezvousHasher([f"w{n}" for n in range(9)], mode=mode).assign(items)
    before = owners(assignment)
    joined = checked_change(assignment, lambda: assignment.join("w4b"), mode)
    assert joined.targets == ["w4b"] * len(joined)
    assert 200 < len(joined) < 400
    left = checked_change(assignment, lambda: assignment.leave("w4b"), mode)
    assert left.items == joined.items
    assert left.targets == joined.sources
    assert owners(assignment) == before


@pytest.mark.parametrize("mode", MODES)
@settings(deadline=None, max_examples=60)
@given(st.data())
def test_after_any_changes_owners_are_those_of_a_fresh_assignment(mode, data):
    workers = data.draw(st.dictionaries(texts, weights, min_size=1, max_size=6))
    items = data.draw(st.lists(texts, unique=True, max_size=30))
    prefix = data.draw(st.none() | texts)
    assignment = RendezvousHasher(workers, list(workers.values()), mode).assign(ItemSet(items, prefix))
    assert owners(assignment) == {item: reference.ranked((prefix or "") + item, workers, mode)[0] for item in items}
    for _ in range(data.draw(st.integers(0, 6))):
        worker = data.draw(st.sampled_from(sorted(workers)))
        weight = data.draw(weights)
        kind = data.draw(st.sampled_from(["join", "leave", "reweigh", "add", "remove"]))
        if kind == "join":
            new = data.draw(texts.filter(lambda name: name not in workers))
            checked_change(assignment, lambda new=new, weight=weight: assignment.join(new, weight), mode)
            workers[new] = weight
        elif kind == "leave" and len(workers) > 1:
            checked_change(assignment, lambda worker=worker: assignment.leave(worker), mode)
            del workers[worker]
        elif kind == "reweigh":
            checked_change(assignment, lambda w=worker, weight=weight: assignment.reweigh(w, weight), mode)
            workers[worker] = weight
        elif kind == "add":
            new = data.draw(st.lists(texts, unique=True, max_size=8))
            new = [item for item in new if item not in items]
            checked_change(assignment, lambda new=new: assignment.add_items(new), mode)
            items = [*items, *new]
        elif kind == "remove":
            gone = data.draw(st.lists(st.sampled_from(items), unique=True)) if items else []
            checked_change(assignment, lambda gone=gone: assignment.remove_items(gone), mode)
            items = [item for item in items if item not in gone]
    assert assignment.workers == sorted(workers)
    assert assignment.weights == [workers[worker] for worker in sorted(workers)]
    assert assignment.items.to_list() == items
    assert len(assignment) == len(items)


def test_a_rising_weight_moves_items_only_to_the_worker_and_a_falling_one_only_from_it():
    items = ItemSet([str(n) for n in range(5000)])
    assignment = RendezvousHasher("abcdef".__iter__(), [1, 2, 3, 1, 2, 3]).assign(items)
    risen = checked_change(assignment, lambda: assignment.reweigh("b", 4.0))
    assert risen.targets == ["b"] * len(risen)
    fallen = checked_change(assignment, lambda: assignment.reweigh("b", 0.5))
    assert fallen.sources == ["b"] * len(fallen)
    assert len(fallen) > len(risen) > 100
    assert len(assignment.reweigh("b", 0.5)) == 0


def test_indices_are_a_snapshot_that_later_changes_leave_alone():
    assignment = RendezvousHasher(["a", "b", "c"]).assign(ItemSet([str(n) for n in range(100)]))
    view = assignment.indices
    assert (view.format, view.itemsize, view.nbytes, view.readonly) == ("I", 4, 400, True)
    before = view.tolist()
    assignment.leave("a")
    assert view.tolist() == before
    assert assignment.indices.tolist() != before


def test_indices_count_workers_in_name_order_whatever_the_order_of_joining():
    items = ItemSet([str(n) for n in range(2000)])
    assignment = RendezvousHasher(["m"]).assign(items)
    for worker in ("z", "a", "n", "b"):
        assignment.join(worker)
    assert assignment.workers == ["a", "b", "m", "n", "z"]
    assert assignment.indices == RendezvousHasher("zanbm".__iter__()).assign(items).indices


def test_indices_and_owners_need_no_copy_for_numpy():
    hasher = RendezvousHasher(["a", "b", "c", "d"])
    items = ItemSet([str(n) for n in range(50)])
    indices, best = hasher.assign(items).indices, hasher.owners(items, 3)
    array, table = np.asarray(indices), np.asarray(best)
    assert (array.dtype, array.shape, table.shape) == (np.uint32, (50,), (50, 3))
    assert np.shares_memory(array, np.frombuffer(indices, np.uint32))
    assert (table[:, 0] == array).all()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("k", [1, 3, 17, 40])
def test_the_best_k_of_a_set_are_those_of_each_item(mode, weighted, k):
    workers = [f"w{n:02}" for n in range(33)]
    hasher = RendezvousHasher(workers, [1 + n % 4 for n in range(33)] if weighted else None, mode)
    items = [f"job:{n}" for n in range(25)]
    rows = hasher.owners(ItemSet([item[4:] for item in items], "job:"), k).tolist()
    assert [[workers[at] for at in row] for row in rows] == [hasher.owners(item, k) for item in items]


def test_no_items_have_no_owners():
    hasher = RendezvousHasher(["a"])
    nothing = hasher.assign(ItemSet([]))
    assert (nothing.to_dict(), nothing.by_worker(), nothing.indices.tolist()) == ({}, {"a": []}, [])
    assert hasher.owners(ItemSet([]), 2).tolist() == []
    assert hasher.assign_evenly(ItemSet([])).tolist() == []
    assert len(nothing.join("b")) == 0


def test_by_worker_lists_every_worker_and_every_item_once():
    items = [str(n) for n in range(500)]
    assignment = RendezvousHasher([f"w{n}" for n in range(400)]).assign(ItemSet(items))
    shares = assignment.by_worker()
    assert list(shares) == assignment.workers
    assert sorted(item for share in shares.values() for item in share) == sorted(items)
    assert {item: worker for worker, share in shares.items() for item in share} == assignment.to_dict()
    assert [] in shares.values()


@pytest.mark.parametrize("mode", MODES)
def test_a_prefix_places_items_as_the_strategy_places_those_of_a_job(mode):
    items = tuple(sorted(f"item-{n}" for n in range(300)))
    workers = {"a": 1.0, "b": 2.0, "c": 1.0, "d": 1.5}
    problem = Problem((JobProblem("report", items, workers),))
    hasher = RendezvousHasher(workers, list(workers.values()), mode)
    prefixed = ItemSet(items, "report:")
    assert hasher.assign(prefixed).to_dict() == Rendezvous(mode).assign(problem).owners["report"]
    evenly = dict(zip(items, (hasher.workers[at] for at in hasher.assign_evenly(prefixed)), strict=True))
    assert evenly == EvenlyRendezvous(mode).assign(problem).owners["report"]


def test_the_number_of_threads_changes_nothing():
    hasher = RendezvousHasher([f"w{n}" for n in range(500)])
    items = ItemSet([str(n) for n in range(60_000)])
    one = hasher.assign(items, threads=1).indices
    assert hasher.assign(items, threads=3).indices == one
    assert hasher.assign(items).indices == one
    assert hasher.assign_evenly(items, threads=1) == hasher.assign_evenly(items, threads=3)


def test_the_set_an_assignment_was_made_from_never_changes():
    items = ItemSet(["a", "b", "c"])
    assignment = RendezvousHasher(["w"]).assign(items)
    assignment.add_items(["d"])
    assignment.remove_items(["a"])
    assert items.to_list() == ["a", "b", "c"]
    assert assignment.items.to_list() == ["b", "c", "d"]


def test_an_item_set_is_a_sequence_of_the_very_strings_given():
    given_items = [f"item-{n}" for n in range(5)]
    items = ItemSet(iter(given_items))
    assert len(items) == 5
    assert all(one is other for one, other in zip(items, given_items, strict=True))
    assert items[-1] is given_items[-1]
    with pytest.raises(IndexError, match="item 5 of 5"):
        items[5]


@pytest.mark.parametrize(
    ("items", "error", "message"),
    [
        (["a", "b", "a"], ValueError, "item 'a' is given twice; give each item once"),
        (["ok", "\ud800"], ValueError, "lone surrogate"),
        (["a", 3], TypeError, "item 3 is of type int; it must be a str"),
        ("abc", TypeError, "one str was given where several items are wanted"),
        (3, TypeError, "not iterable"),
    ],
)
def test_bad_items_are_refused_by_name(items, error, message):
    with pytest.raises(error) as caught:
        ItemSet(items)
    assert message in str(caught.value)
    assignment = RendezvousHasher(["w"]).assign(ItemSet(["x"]))
    for change in (assignment.add_items, assignment.remove_items):
        with pytest.raises(error) as caught:
            change(items)
        assert message in str(caught.value)
    assert assignment.to_dict() == {"x": "w"}


def test_more_items_than_numbers_are_refused_with_the_first_too_many():
    assert len(ItemSet(["a", "b", "c"], most=3)) == 3
    with pytest.raises(ValueError, match='more than 3 items were given, "d" first; use several item sets'):
        ItemSet(["a", "b", "c", "d"], most=3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.join("w1"), "worker 'w1' is a member already"),
        (lambda a: a.join("new", 0.0), "worker 'new' has weight 0"),
        (lambda a: a.join("new", -1.0), "worker 'new' has weight -1"),
        (lambda a: a.join("new", float("nan")), "worker 'new' has weight NaN"),
        (lambda a: a.join("\ud800"), "lone surrogate"),
        (lambda a: a.leave("other"), "worker 'other' is not a member"),
        (lambda a: a.reweigh("other", 1.0), "worker 'other' is not a member"),
        (lambda a: a.reweigh("w1", float("inf")), "worker 'w1' has weight inf"),
        (lambda a: a.add_items(["new", "i3"]), "item 'i3' is there already; add only new items"),
        (lambda a: a.remove_items(["i1", "i99"]), "item 'i99' is not there; remove only items that are"),
    ],
)
def test_a_change_that_is_refused_changes_nothing(change, message):
    assignment = RendezvousHasher(["w1", "w2"]).assign(ItemSet([f"i{n}" for n in range(20)]))
    before = assignment.to_dict()
    with pytest.raises(ValueError) as caught:
        change(assignment)
    assert message in str(caught.value)
    assert (assignment.to_dict(), assignment.workers) == (before, ["w1", "w2"])


def test_the_last_worker_cannot_leave():
    assignment = RendezvousHasher(["w"]).assign(ItemSet(["x"]))
    with pytest.raises(ValueError, match="worker 'w' is the last one; join another before it leaves"):
        assignment.leave("w")


@pytest.mark.parametrize("threads", [0, -2])
def test_fewer_than_one_thread_is_refused(threads):
    with pytest.raises(ValueError, match=f"threads is {threads}; give at least 1, or None"):
        RendezvousHasher(["w"]).assign(["x"], threads=threads)


def test_threads_that_share_an_assignment_take_turns():
    assignment = RendezvousHasher(["w"]).assign(ItemSet([str(n) for n in range(5000)]))

    def churn(name):
        for n in range(20):
            assignment.join(f"{name}-{n}")
            assignment.add_items([f"{name}-{n}"])
            assignment.by_worker()
            assignment.leave(f"{name}-{n}")

    threads = [threading.Thread(target=churn, args=(f"t{n}",), name=f"churn-{n}") for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert assignment.workers == ["w"]
    assert len(assignment) == 5080
    assert set(assignment.to_dict().values()) == {"w"}


def test_a_str_subclass_that_calls_back_while_a_dict_is_made_does_not_wait_for_ever():
    assignment = None

    class Nosy(str):
        __slots__ = ()

        def __hash__(self):
            if assignment is not None:
                assert len(assignment) == 2
            return super().__hash__()

        __eq__ = str.__eq__

    assignment = RendezvousHasher([Nosy("w")]).assign(ItemSet([Nosy("x"), Nosy("y")]))
    assert assignment.to_dict() == {"x": "w", "y": "w"}
    assert assignment.by_worker() == {"w": ["x", "y"]}


def test_a_set_and_its_assignment_take_no_more_than_24_bytes_per_item():
    program = """
import psutil
from latchwork.assignment import ItemSet, RendezvousHasher
hasher, items = RendezvousHasher(["a", "b", "c"]), [str(n) for n in range(2_000_000)]
resident = psutil.Process().memory_info
hasher.assign(ItemSet(items))  # what the allocator keeps for itself is kept from here on
before = resident().rss
held = [hasher.assign(ItemSet(items)) for _ in range(4)]
print((resident().rss - before) / 4 / len(items))
"""
    ran = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60)
    assert 23.5 < float(ran.stdout) < 24.5


def test_random_churn_at_scale_stays_equal_to_a_fresh_assignment():
    rng = random.Random(5)
    assignment = RendezvousHasher([f"w{n:03}" for n in range(150)]).assign(ItemSet([str(n) for n in range(40_000)]))
    for n in range(12):
        workers = assignment.workers
        checked_change(assignment, lambda n=n: assignment.join(f"x{n}"))
        checked_change(assignment, lambda workers=workers: assignment.leave(rng.choice(workers)))
