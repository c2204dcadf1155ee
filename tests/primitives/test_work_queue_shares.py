"""Shares of a partition: whose an item is, and when it is everybody's. Pure, but for the last."""

from __future__ import annotations

from latchwork.primitives import ConsumerShard, WorkQueue
from latchwork.primitives.queue.partition_reader import STUCK_SHARD_READS, STUCK_SHARD_S, ConsumerCache
from latchwork.types import Entry


def entries(count):
    return [Entry(f"b/partitions/any/items/s/i{n:04d}", b"", n, n, n, None) for n in range(count)]


def test_each_item_is_of_one_share_and_all_shares_have_some():
    free = entries(400)
    mine = [ConsumerCache().split_by_shard(free, ConsumerShard(rank, 4), 0.0)[0] for rank in range(4)]
    assert sorted(entry.key for part in mine for entry in part) == [entry.key for entry in free]
    assert all(60 <= len(part) <= 140 for part in mine)


def test_who_is_alone_or_knows_nobody_has_all():
    for share in (ConsumerShard(), ConsumerShard(0, 1)):
        assert ConsumerCache().split_by_shard(entries(9), share, 0.0) == (entries(9), [])


def test_a_share_whose_first_item_does_not_move_is_everybodys():
    kept, free = ConsumerCache(), entries(100)
    for look in range(STUCK_SHARD_READS):
        assert kept.split_by_shard(free, ConsumerShard(0, 4), look * STUCK_SHARD_S)[1]
    assert kept.split_by_shard(free, ConsumerShard(0, 4), STUCK_SHARD_READS * STUCK_SHARD_S) == (free, [])


def test_a_share_of_which_somebody_takes_stays_its_takers():
    kept, free = ConsumerCache(), entries(100)
    for look in range(10):
        _, others = kept.split_by_shard(free, ConsumerShard(0, 4), look * STUCK_SHARD_S)
        assert others
        gone = {ConsumerShard(0, 4).get_shard(entry): entry.key for entry in reversed(others)}
        free = [entry for entry in free if entry.key not in gone.values()]


def test_takers_with_shares_take_all_items_once(store):
    with WorkQueue(store, "b") as backlog:
        for n in range(60):
            backlog.put("any", "s", f"i{n:03d}", b"")
        taken = []
        for turn in range(40):
            share = ConsumerShard(turn % 2, 2)
            taken += backlog.try_take(["any"], limit=5, shard=lambda _partition, share=share: share)
        assert sorted(claim.item.id for claim in taken) == [f"i{n:03d}" for n in range(60)]
