"""The counter of a parent outlives all below it, whoever made the parent."""

from __future__ import annotations

from latchwork.types import Put


def test_a_parent_that_was_there_before_keeps_its_numbers_when_all_is_deleted(backend, other):
    backend.commit([], [Put("queue/made-by-hand", b"")]).result(10)
    first = [backend.create_sequential("queue/t-", b"", None).result(10).key for _ in range(3)]
    assert backend.delete_tree("queue").result(10) == 4
    later = [other.create_sequential("queue/t-", b"", None).result(10).key for _ in range(2)]
    assert sorted([*first, *later]) == [*first, *later]
    assert len({*first, *later}) == 5
