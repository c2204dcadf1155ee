"""EvenlySpread in pure Python, in linear time. The benches compare latchwork's strategy with it.

It keeps the same promises for equal weights: in each job, no worker has two items more than another, and no plan that
is as even moves fewer items. It takes and returns plain dicts, and does as much as possible in loops that run in C.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain, repeat


def evenly_spread(items, workers, previous):
    """Place the items of one job.

    Args:
        items: list of unique items, in name order.
        workers: list of unique workers, in name order, at least one.
        previous: item to worker.
    Returns:
        Item to worker, and the items that moved.
    """
    floor, seats = divmod(len(items), len(workers))
    before = list(map(previous.get, items)) if previous else []
    held = Counter(before)
    gainers = [worker for worker in workers if held[worker] > floor][:seats]
    spare = set(workers).difference(gainers)
    gainers += [worker for worker in workers if worker in spare][: seats - len(gainers)]
    size = dict.fromkeys(workers, floor)
    size.update(dict.fromkeys(gainers, floor + 1))
    if not before:
        owners = chain.from_iterable(repeat(worker, count) for worker, count in size.items())
        return dict(zip(items, owners, strict=True)), items
    return _keep(items, before, size)


def _keep(items, before, size):
    room, owners, loose = dict(size), {}, []
    for item, worker in zip(items, before, strict=True):
        left = room.get(worker)
        if left:
            room[worker] = left - 1
            owners[item] = worker
        else:
            loose.append(item)
    takers = chain.from_iterable(repeat(worker, count) for worker, count in room.items())
    owners.update(zip(loose, takers, strict=True))
    return owners, loose


def evenly_spread_jobs(jobs, workers, previous):
    """Place several jobs that share their workers: job to what `evenly_spread` returns."""
    return {job: evenly_spread(items, workers, previous.get(job, {})) for job, items in jobs.items()}
