"""Filling work queues, and looking at what was taken."""

from __future__ import annotations

from latchwork.primitives.queue.items import INLINE_BYTES

#: A value that is stored separately from its item.
LARGE = b"x" * (INLINE_BYTES + 1)


def fill(backlog, *places, partition="any"):
    """Put items, by ``<sort key>/<id>`` or by id alone, with that as value."""
    for place in places:
        sort_key, _, item_id = place.rpartition("/")
        backlog.put(partition, sort_key or "s", item_id, place.encode())


def take(backlog, limit=1, partitions=("any",), **how):
    return backlog.try_take(partitions, limit=limit, **how)


def values(claims):
    return [claim.value for claim in claims]


def ids(claims):
    return [claim.item.id for claim in claims]
