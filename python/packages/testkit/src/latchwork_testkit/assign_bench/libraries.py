"""Other libraries that assign keys to workers, for comparison in benchmarks: rendezvous hashing with numpy and with
Python, and two consistent-hashing rings.

Libraries that are not installed are left out.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

Assign = Callable[[Sequence[str]], list[str]]

#: The most pairs for numpy and Python, and the number of items for a ring. They are enough to measure a rate.
_NUMPY_PAIRS = 20_000_000
_PYTHON_PAIRS = 300_000
_RING_ITEMS = 20_000


@dataclass(frozen=True, slots=True)
class ComparedLibrary:
    """A library to compare with.

    Attributes:
        name: Name in tables.
        module: Module that must be installed.
        build: Returns a function that maps keys to owners, for these workers. The time to build it is not measured.
        max_items: Returns the greatest number of items to assign, for a number of workers.
        goals: By number of workers, how many times faster latchwork should be.
    """

    name: str
    module: str
    build: Callable[[Sequence[str]], Assign]
    max_items: Callable[[int], int]
    goals: dict[int, float] = field(default_factory=dict)


def list_installed_libraries() -> list[ComparedLibrary]:
    """Return the libraries to compare with that are installed."""
    return [peer for peer in LIBRARIES if importlib.util.find_spec(peer.module)]


def _build_numpy(workers: Sequence[str]) -> Assign:
    """Build a rendezvous hasher that hashes each text once, and combines blocks of keys and workers with numpy."""
    import mmh3
    import numpy as np

    ids = np.array([mmh3.hash64(worker, 7, signed=False)[0] for worker in workers], dtype=np.uint64)
    names = np.array(workers, dtype=object)
    block = max(1, 2_000_000 // len(ids))

    def assign(keys: Sequence[str]) -> list[str]:
        hashes = np.array([mmh3.hash64(key, 3, signed=False)[0] for key in keys], dtype=np.uint64)
        best = np.empty(len(keys), dtype=np.intp)
        for at in range(0, len(keys), block):
            pairs = hashes[at : at + block, None] ^ ids[None, :]
            pairs *= np.uint64(0x9E3779B97F4A7C15)
            pairs ^= pairs >> np.uint64(32)
            best[at : at + block] = pairs.argmax(axis=1)
        return list(names[best].tolist())

    return assign


def _build_xxhash(workers: Sequence[str]) -> Assign:
    """Build a rendezvous hasher that calls a hash function in C for each pair. This is the fastest way in pure
    Python.
    """
    import xxhash

    digest = xxhash.xxh3_64_intdigest
    encoded = {worker.encode(): worker for worker in workers}

    def owner(key: bytes) -> str:
        return encoded[max(encoded, key=lambda worker: digest(key + worker))]

    return lambda keys: [owner(key.encode()) for key in keys]


def _build_uhashring(workers: Sequence[str]) -> Assign:
    """Build the consistent-hashing ring of the package uhashring."""
    from uhashring import HashRing

    ring: Any = HashRing(nodes=list(workers))
    return lambda keys: [ring.get_node(key) for key in keys]


def _build_tooz(workers: Sequence[str]) -> Assign:
    """Build the consistent-hashing ring of the package tooz."""
    from tooz.hashring import HashRing

    ring: Any = HashRing(list(workers))
    return lambda keys: [next(iter(ring.get_nodes(key.encode()))) for key in keys]


LIBRARIES = (
    ComparedLibrary("numpy", "numpy", _build_numpy, lambda workers: _NUMPY_PAIRS // workers, {1000: 15, 100: 10}),
    ComparedLibrary(
        "python, xxhash",
        "xxhash",
        _build_xxhash,
        lambda workers: max(200, _PYTHON_PAIRS // workers),
        {1000: 700, 100: 250},
    ),
    ComparedLibrary("uhashring", "uhashring", _build_uhashring, lambda _: _RING_ITEMS, {1000: 14, 100: 35}),
    ComparedLibrary("tooz HashRing", "tooz", _build_tooz, lambda _: _RING_ITEMS, {1000: 120, 100: 100}),
)
