"""Loads and runners-up of `fast` mode are as even as chance: chi-square within four sigma, for fixed keys.

A padded lane, a dropped lane or a weak mix passes every spot check and fails only here. Counts of workers that no
lane count divides are included on purpose.
"""

from __future__ import annotations

import math
from collections import Counter

import mmh3
import pytest

from latchwork.assignment import RendezvousHasher

COUNTS = (2, 3, 4, 5, 7, 31, 63, 65, 100, 130, 1000)


def sigma(counts, expected):
    """How many standard deviations a chi-square lies above its mean."""
    freedom = len(counts) - 1
    chi = sum((count - expected) ** 2 / expected for count in counts)
    return (chi - freedom) / math.sqrt(2 * freedom)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("shape", ["orders:{}", "{:012d}", "tenant-{}/shard"])
def test_loads_are_as_even_as_chance_on_structured_ids(count, shape):
    hasher = RendezvousHasher([f"worker-{n}" for n in range(count)])
    total = 400_000
    load = Counter(hasher.assign([shape.format(n) for n in range(total)]))
    assert len(load) == count
    assert abs(sigma(load.values(), total / count)) < 4


@pytest.mark.parametrize("count", [3, 4, 5, 7, 31, 65])
def test_runners_up_are_as_even_as_chance_for_each_owner(count):
    hasher = RendezvousHasher([f"worker-{n}" for n in range(count)])
    total = 200_000
    pairs = Counter(tuple(hasher.owners(f"orders:{n}", 2)) for n in range(total))
    owners = Counter()
    for (owner, _), seen in pairs.items():
        owners[owner] += seen
    chi = freedom = 0
    for owner, seen in owners.items():
        expected = seen / (count - 1)
        others = [pairs[owner, other] for other in hasher.workers if other != owner]
        chi += sum((each - expected) ** 2 / expected for each in others)
        freedom += count - 2
    assert abs((chi - freedom) / math.sqrt(2 * freedom)) < 4


def test_runners_up_of_a_thousand_workers_are_as_even_as_chance():
    hasher = RendezvousHasher([f"worker-{n}" for n in range(1000)])
    total = 60_000
    second = Counter(hasher.owners(f"orders:{n}", 2)[1] for n in range(total))
    assert abs(sigma([second[worker] for worker in hasher.workers], total / 1000)) < 4


def test_the_same_test_rejects_a_mix_with_one_multiply():
    # It skews some sets of workers and not others; this is one that it skews.
    hashed = [mmh3.hash64(f"worker-{n}", 10, signed=False)[0] for n in range(5)]

    def score(x):
        return ((x ^ x >> 32) * 0x9E3779B1) & 0xFFFF_FFFF

    keys = [mmh3.hash64(f"orders:{n}", 0, signed=False)[0] for n in range(100_000)]
    load = Counter(max(range(5), key=[score(key ^ worker) for worker in hashed].__getitem__) for key in keys)
    assert sigma([load[n] for n in range(5)], len(keys) / 5) > 4


def test_the_same_test_rejects_a_lane_that_is_never_chosen():
    assert sigma([0, *[1010] * 99], 1000) > 4
