"""The peers of rendezvous hashing in benchmarks: the same scheme in numpy and Python, and two hash rings.

Peers whose packages are not installed are left out.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

Assign = Callable[[Sequence[str]], list[str]]

#: Pairs that numpy and Python place at most, and items for a ring: enough for a rate.
_NUMPY_PAIRS = 20_000_000
_PYTHON_PAIRS = 300_000
_RING_ITEMS = 20_000


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer.

    Attributes:
        name: Name in tables.
        module: Module that it needs.
        make: Returns a function that maps keys to owners, for these workers. Its own time is not counted.
        most_items: Returns the maximum number of items to give it, for a number of workers.
        goals: The factor by which latchwork should be faster, by number of workers.
    """

    name: str
    module: str
    make: Callable[[Sequence[str]], Assign]
    most_items: Callable[[int], int]
    goals: dict[int, float] = field(default_factory=dict)


def installed() -> list[Peer]:
    """Return the installed peers."""
    return [peer for peer in PEERS if importlib.util.find_spec(peer.module)]


def _numpy(workers: Sequence[str]) -> Assign:
    """Hash each text once, mix all pairs of a block at a time, and take the maximum."""
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


def _python(workers: Sequence[str]) -> Assign:
    """Call a hash written in C for each pair, which is the fastest way in Python."""
    import xxhash

    digest = xxhash.xxh3_64_intdigest
    encoded = {worker.encode(): worker for worker in workers}

    def owner(key: bytes) -> str:
        return encoded[max(encoded, key=lambda worker: digest(key + worker))]

    return lambda keys: [owner(key.encode()) for key in keys]


def _uhashring(workers: Sequence[str]) -> Assign:
    """Use a consistent-hashing ring in Python."""
    from uhashring import HashRing

    ring: Any = HashRing(nodes=list(workers))
    return lambda keys: [ring.get_node(key) for key in keys]


def _tooz(workers: Sequence[str]) -> Assign:
    """Use the hash ring of OpenStack's services."""
    from tooz.hashring import HashRing

    ring: Any = HashRing(list(workers))
    return lambda keys: [next(iter(ring.get_nodes(key.encode()))) for key in keys]


PEERS = (
    Peer("numpy", "numpy", _numpy, lambda workers: _NUMPY_PAIRS // workers, {1000: 15, 100: 10}),
    Peer(
        "python, xxhash", "xxhash", _python, lambda workers: max(200, _PYTHON_PAIRS // workers), {1000: 700, 100: 250}
    ),
    Peer("uhashring", "uhashring", _uhashring, lambda _: _RING_ITEMS, {1000: 14, 100: 35}),
    Peer("tooz HashRing", "tooz", _tooz, lambda _: _RING_ITEMS, {1000: 120, 100: 100}),
)
