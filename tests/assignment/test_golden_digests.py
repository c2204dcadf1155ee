"""Owners of thousands of keys, for numbers of workers around what vectors, blocks and tiles divide, never change.

The digests were made by a plain scan over the scores, before there were kernels. Whoever changes one moves items in
every cluster.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from latchwork.assignment import ItemSet, RendezvousHasher

GOLDEN = Path(__file__).parent / "golden" / "digests.tsv"
ROWS = [line.split("\t") for line in GOLDEN.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]


def keys(mode):
    """Keys with text of one, two, three and four bytes to a character."""
    return [f"{'job ü作🎈'[n % 7]}:{n}" for n in range(3000 if mode == "fast" else 100)]


def weights_of(weighting, count):
    """The weights that a row's name stands for."""
    return {
        "equal": None,
        "three": [1.0 + n % 3 for n in range(count)],
        "many": [0.5 + n * n % 997 / 100 for n in range(count)],
    }[weighting]


def digest(names):
    """The first half of a SHA-256 over names."""
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:32]


@pytest.mark.parametrize(("mode", "weighting", "count", "expected"), ROWS, ids="-".join)
def test_golden_digests_never_change(mode, weighting, count, expected):
    workers = [f"node-{n}.example" for n in range(int(count))]
    hasher = RendezvousHasher(workers, weights_of(weighting, int(count)), mode)
    assert digest(hasher.assign(keys(mode))) == expected
    assert digest(hasher.assign(ItemSet(keys(mode))).to_dict().values()) == expected
