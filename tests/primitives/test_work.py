"""Work under an ownership: a clock of the test's own, and no server."""

from __future__ import annotations

import threading

import pytest

from latchwork.clock import SYSTEM_CLOCK
from latchwork.errors import LockLost, NotLeader
from latchwork.primitives.waiting.ownership import Ownership
from latchwork.types import Fence


class Lease:
    """An ownership that lasts until a moment of the system clock."""

    def __init__(self, left_s, error=LockLost):
        self.until = SYSTEM_CLOCK.now() + left_s
        self.ownership = Ownership(
            "lock 'orders'",
            Fence(7, ()),
            ttl_s=10.0,
            remaining_s=lambda: max(0.0, self.until - SYSTEM_CLOCK.now()),
            error=error,
            clock=SYSTEM_CLOCK,
        )


def test_work_is_told_to_stop_before_the_ownership_ends():
    lease = Lease(0.6)
    with lease.ownership.guard_work(margin_s=0.3) as work:
        assert not work.is_stopped
        assert work.stopped.wait(5.0)
        assert lease.ownership.remaining_s() > 0.0
        assert work.remaining_s() == 0.0


def test_without_a_margin_it_is_a_tenth_of_the_ttl():
    work = Lease(3.0).ownership.guard_work()
    assert work.remaining_s() == pytest.approx(2.0, abs=0.2)


def test_a_renewal_in_time_lets_the_work_go_on():
    lease = Lease(0.4)
    with lease.ownership.guard_work(margin_s=0.1) as work:
        lease.until += 100.0
        assert not work.wait(0.6)
        work.raise_if_stopped()


def test_a_renewal_after_the_margin_does_not_take_the_stop_back():
    lease = Lease(0.2)
    with lease.ownership.guard_work(margin_s=0.1) as work:
        assert work.wait(5.0)
        lease.until += 100.0
        assert work.is_stopped
        with pytest.raises(LockLost):
            work.raise_if_stopped()


def test_a_stop_that_the_work_has_seen_is_not_taken_back_though_its_thread_saw_the_renewal_only():
    lease = Lease(100.0)
    with lease.ownership.guard_work(margin_s=10.0) as work:
        lease.until -= 95.0
        assert work.is_stopped
        lease.until += 95.0
        assert work.is_stopped
        assert work.stopped.is_set()


@pytest.mark.parametrize("error", [LockLost, NotLeader])
def test_check_raises_what_the_ownership_is_and_says_how_long_it_lasts(error):
    lease = Lease(50.0, error)
    with lease.ownership.guard_work(margin_s=100.0) as work, pytest.raises(error, match=r"ends in .* stop the work"):
        work.raise_if_stopped()
    lease.ownership.end()
    with pytest.raises(error, match="lock 'orders' is not ours any more"):
        work.raise_if_stopped()


def test_an_ownership_that_ends_stops_all_its_work_at_once():
    lease = Lease(100.0)
    with lease.ownership.guard_work() as first, lease.ownership.guard_work() as second:
        threading.Timer(0.05, lease.ownership.end).start()
        assert first.wait(5.0)
        assert second.wait(5.0)


def test_work_that_begins_after_the_end_is_stopped_already():
    lease = Lease(100.0)
    lease.ownership.end()
    with lease.ownership.guard_work() as work:
        assert work.stopped.is_set()


def test_the_end_of_the_block_does_not_stop_it_and_ends_its_thread():
    with Lease(100.0).ownership.guard_work():
        pass  # the loop that drives it, if one does, is there now
    lease = Lease(100.0)
    before = threading.active_count()
    with lease.ownership.guard_work() as work:
        assert threading.active_count() == before + 1
    assert threading.active_count() == before
    assert not work.stopped.is_set()


def test_a_negative_margin_is_refused():
    with pytest.raises(ValueError, match="margin_s must be at least 0"):
        Lease(1.0).ownership.guard_work(margin_s=-1.0)
