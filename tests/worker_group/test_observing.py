"""What is seen of a run: who is missed, and which detector are ours to tell. Pure."""

from __future__ import annotations

import itertools

from latchwork.primitives.waiting import get_rank_delay_s
from latchwork.types import Entry
from latchwork.worker_group import WorkerInfo
from latchwork.worker_group.keys import GroupKeys
from latchwork.worker_group.observation import LossDetector, Roster
from latchwork.worker_group.records import LOST, create_member, create_restarted_member, encode_lease, merge_info

KEYS = GroupKeys("default", "train").for_run("r")
_tokens = itertools.count(1)


def entry(key, value):
    token = next(_tokens)
    return Entry(key, value, str(token), token, token, None)


def worker(number, incarnation="i"):
    return create_member(WorkerInfo(ip="10.0.0.7"), number, f"k{number}", f"{incarnation}{number}")


class Seen:
    """A roll, and what is told to it."""

    def __init__(self):
        self.roll = Roster(KEYS)

    def member(self, info):
        key = KEYS.member_key(info.key)
        self.roll.set_member(key, entry(key, info.to_bytes()))

    def lease(self, info):
        key = KEYS.lease_key(info.rank)
        self.roll.set_lease(key, entry(key, encode_lease(info)))

    def no_lease(self, info):
        self.roll.set_lease(KEYS.lease_key(info.rank), None)

    @property
    def lost(self):
        return [(WorkerInfo.from_entry(each.member).rank, each.had_lease) for each in self.roll.list_missing_workers()]


def test_who_is_at_work_and_has_no_lease_is_missed_and_we_know_whether_we_saw_it_go():
    seen = Seen()
    for number in range(3):
        seen.member(worker(number))
    assert seen.lost == [(0, False), (1, False), (2, False)]  # the leases are told on another way
    for number in range(3):
        seen.lease(worker(number))
    assert seen.lost == []
    seen.no_lease(worker(1))
    assert seen.lost == [(1, True)]


def test_who_comes_back_is_not_missed_for_the_lease_that_it_had_before():
    seen, first, again = Seen(), worker(0), create_restarted_member(worker(0), worker(0), "j0")
    seen.member(first)
    seen.lease(first)
    seen.no_lease(first)
    seen.member(again)
    assert seen.lost == [(0, False)]
    seen.lease(again)
    seen.member(merge_info(again, WorkerInfo(ip="10.0.0.8", key=again.key)))
    assert seen.lost == []
    seen.no_lease(again)
    assert seen.lost == [(0, True)]


def test_who_is_lost_already_is_not_missed():
    seen, one = Seen(), worker(0)
    seen.member(one)
    seen.lease(one)
    seen.no_lease(one)
    key = KEYS.member_key(one.key)
    lost = one.to_bytes().replace(b'"STARTED"', f'"{LOST}"'.encode())
    seen.roll.set_member(key, entry(key, lost))
    assert seen.lost == []


def due(detector, seen, rank, now):
    found, next_s = detector.take_due_losses(seen.roll.list_missing_workers(), rank, now)
    return [WorkerInfo.from_entry(each).rank for each in found], next_s


def test_a_loss_that_was_seen_is_told_at_once_by_the_first_in_rank_and_later_by_the_others():
    seen = Seen()
    seen.member(worker(0))
    seen.lease(worker(0))
    seen.no_lease(worker(0))
    assert due(LossDetector(), seen, 0, 10.0) == ([0], None)
    detector = LossDetector()
    assert due(detector, seen, 2, 0.0) == ([], get_rank_delay_s(2))
    assert due(detector, seen, 2, get_rank_delay_s(2)) == ([0], None)


def test_a_worker_whose_lease_was_never_seen_is_told_lost_only_when_that_lasts():
    """Members and leases are followed apart: without this each join would be looked into as a loss."""
    seen, detector = Seen(), LossDetector()
    seen.member(worker(0))
    found, next_s = due(detector, seen, 0, 10.0)
    assert found == []
    assert 0.0 < next_s <= 1.0
    assert due(detector, seen, 0, 10.0 + next_s) == ([0], None)
    seen.lease(worker(0))
    assert due(detector, seen, 0, 12.0) == ([], None)
