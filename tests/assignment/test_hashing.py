"""The hash and the scores agree with mmh3 and with vectors kept for ever."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import assignment_reference as reference
import mmh3
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latchwork import _core
from latchwork.assignment import RendezvousHasher

GOLDEN = Path(__file__).parent / "golden"
MODES = ("fast", "compat")
texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=60)


def golden_rows(name):
    lines = (GOLDEN / name).read_text(encoding="utf-8").splitlines()
    return [line.split("\t") for line in lines if line and not line.startswith("#")]


@settings(deadline=None, max_examples=400)
@given(texts, st.integers(0, 2**32 - 1))
def test_hash128_is_mmh3_on_any_text_and_seed(text, seed):
    assert _core.hash128(text, seed) == mmh3.hash64(text, seed, signed=False)


def test_hash128_is_mmh3_on_bytes_of_every_length_up_to_three_blocks():
    rng = random.Random(1)
    for length in range(50):
        data = rng.randbytes(length)
        assert _core.hash128(data) == mmh3.hash64(data, signed=False)


@settings(deadline=None, max_examples=300)
@given(texts, texts)
def test_scores_are_the_documented_functions_of_mmh3(key, worker):
    assert _core.compat_score(key, worker) == mmh3.hash64(key + worker)[0]
    assert _core.fast_score(key, worker) == reference.fast_score(key, worker)


@pytest.mark.parametrize("row", golden_rows("scores.tsv"), ids=lambda row: f"{row[0]}|{row[1]}")
def test_golden_scores_never_change(row):
    key, worker, fast, compat = row
    assert (_core.fast_score(key, worker), _core.compat_score(key, worker)) == (int(fast), int(compat))


@pytest.mark.parametrize("row", golden_rows("owners.tsv"), ids="|".join)
def test_golden_owners_never_change(row):
    mode, weighting, key, *owners = row
    workers = [f"node-{n}.example" for n in range(1, 12)]
    weights = [1 + n % 3 for n in range(11)] if weighting == "weighted" else None
    assert RendezvousHasher(workers, weights, mode).owners(key, 4) == owners


@pytest.mark.parametrize("mode", MODES)
@settings(deadline=None, max_examples=100)
@given(st.data())
def test_owners_are_the_workers_ranked_by_the_reference(mode, data):
    workers = data.draw(st.lists(texts, min_size=1, max_size=12, unique=True))
    weight = st.sampled_from([1.0, 1.0, 2.0, 0.25, 7.0])
    weights = {worker: data.draw(weight) for worker in workers}
    key = data.draw(texts)
    hasher = RendezvousHasher(workers, list(weights.values()), mode)
    expected = reference.ranked(key, weights, mode)
    assert hasher.owners(key, len(workers)) == expected
    assert hasher.owner(key) == expected[0]
    assert hasher.owners(key, 2) == expected[:2]
    assert hasher.assign([key, key]) == [expected[0]] * 2


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("count", [1, 2, 3, 63, 64, 65, 130, 1000])
def test_assign_gives_each_key_its_owner_for_any_number_of_workers(mode, count):
    hasher = RendezvousHasher([f"w{n}" for n in range(count)], mode=mode)
    keys = [f"job:{n}" for n in range(50)]
    expected = [reference.ranked(key, dict.fromkeys(hasher.workers, 1.0), mode)[0] for key in keys]
    assert hasher.assign(keys) == expected == [hasher.owner(key) for key in keys]


@pytest.mark.parametrize("mode", MODES)
def test_order_of_workers_does_not_matter(mode):
    workers = [f"w{n}" for n in range(40)]
    weights = [1.0 + n % 4 for n in range(40)]
    shuffled = random.Random(2).sample(range(40), 40)
    hasher = RendezvousHasher(workers, weights, mode)
    other = RendezvousHasher([workers[n] for n in shuffled], [weights[n] for n in shuffled], mode)
    keys = [str(n) for n in range(500)]
    assert hasher.workers == other.workers == sorted(workers)
    assert hasher.assign(keys) == other.assign(keys)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("weights", [None, "weighted"])
def test_a_worker_that_leaves_moves_only_its_own_keys_and_back_when_it_returns(mode, weights):
    workers = {f"w{n}": 1.0 + n % 3 if weights else 1.0 for n in range(12)}
    without = {worker: weight for worker, weight in workers.items() if worker != "w5"}
    keys = [f"k{n}" for n in range(5000)]
    before = RendezvousHasher(workers, list(workers.values()), mode).assign(keys)
    after = RendezvousHasher(without, list(without.values()), mode).assign(keys)
    moved = {key for key, old, new in zip(keys, before, after, strict=True) if old != new}
    assert moved == {key for key, old in zip(keys, before, strict=True) if old == "w5"}
    assert moved


@pytest.mark.parametrize("mode", MODES)
def test_weights_share_keys_in_proportion_within_five_percent(mode):
    weights = {"a": 1.0, "b": 2.0, "c": 4.0, "d": 0.5}
    count = 200_000 if mode == "fast" else 60_000
    owners = RendezvousHasher(weights, list(weights.values()), mode).assign([f"key/{n}" for n in range(count)])
    for worker, weight in weights.items():
        assert owners.count(worker) == pytest.approx(count * weight / 7.5, rel=0.05)


def test_scaling_all_weights_changes_nothing():
    keys = [str(n) for n in range(2000)]
    placed = [
        RendezvousHasher("abcde".__iter__(), [w * scale for w in (1, 2, 3, 4, 5)]).assign(keys) for scale in (1, 1024)
    ]
    assert placed[0] == placed[1]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([],), ValueError, "needs at least one worker"),
        ((["a", "b", "a"],), ValueError, "worker 'a' is given twice"),
        ((["a", "b"], [1.0]), ValueError, "1 weights were given for 2 workers"),
        ((["a", "b"], [1.0, 0.0]), ValueError, "worker 'b' has weight 0; a weight must be a finite number"),
        ((["a"], [-1.0]), ValueError, "worker 'a' has weight -1"),
        ((["a"], [float("nan")]), ValueError, "worker 'a' has weight NaN"),
        ((["a"], [float("inf")]), ValueError, "worker 'a' has weight inf"),
        ((["a"], None, "quick"), ValueError, "unknown hashing mode 'quick'; use 'fast' or 'compat'"),
        ((["a", 3],), TypeError, "worker 3 is of type int; it must be a str"),
        (("abc",), TypeError, "one str was given where several workers are wanted"),
        ((["\ud800"],), ValueError, "lone surrogate"),
    ],
)
def test_bad_workers_and_modes_are_refused_with_one_clear_error(arguments, error, message):
    with pytest.raises(error) as caught:
        RendezvousHasher(*arguments)
    assert message in str(caught.value)


@pytest.mark.parametrize("k", [0, -3])
def test_fewer_than_one_owner_is_refused(k):
    with pytest.raises(ValueError, match=f"k is {k}; ask for at least one owner"):
        RendezvousHasher(["a"]).owners("key", k)


def test_keys_that_are_no_text_are_refused():
    hasher = RendezvousHasher(["a"])
    with pytest.raises(TypeError, match="key 5 is of type int"):
        hasher.assign(["x", 5])
    with pytest.raises(TypeError, match="key 5 is of type int"):
        hasher.owner(5)
    with pytest.raises(ValueError, match="lone surrogate"):
        hasher.owner("\udfff")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("threads", [None, 1, 3])
@pytest.mark.parametrize(
    "keys",
    [[], [""], ["", ""], ["a\0b", "c"], ["\0"], ["é", "日本", "🦀", "x"], [f"{n}" * (n % 40) for n in range(5000)]],
)
def test_keys_of_any_text_are_assigned_in_any_kind_of_iterable(keys, threads, mode):
    hasher = RendezvousHasher(["a", "b", "c"], mode=mode)
    expected = [hasher.owner(key) for key in keys]
    for passed in (keys, tuple(keys), iter(keys), type("Keys", (list,), {})(keys), dict(enumerate(keys)).values()):
        assert hasher.assign(passed, threads=threads) == expected


@pytest.mark.parametrize("keys", [["a"] * 100 + ["\ud800"], [f"x{n}" for n in range(200)] + [7]])
def test_a_bad_key_among_many_is_named(keys):
    with pytest.raises((ValueError, TypeError), match=r"key ..ud800' holds a lone surrogate|key 7 is of type int"):
        RendezvousHasher(["a", "b"]).assign(keys)


def test_other_threads_run_while_keys_are_assigned():
    hasher = RendezvousHasher([f"w{n}" for n in range(1000)], mode="compat")
    keys = [str(n) for n in range(15_000)]
    times = []

    def assign():
        started = time.perf_counter()
        hasher.assign(keys)
        times.append(time.perf_counter() - started)

    thread = threading.Thread(target=assign, name="assign")
    thread.start()
    last, longest = time.perf_counter(), 0.0
    while thread.is_alive():
        now = time.perf_counter()
        last, longest = now, max(longest, now - last)
    thread.join()
    assert longest < times[0] / 2
