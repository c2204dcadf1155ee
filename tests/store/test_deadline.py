"""The session deadline: counted from the send, and with a gap from the send of the one before."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latchwork.store.lease import Lease


def test_the_deadline_counts_from_the_send_of_the_last_confirmed_renewal():
    lease = Lease(opened_at=100.0, ttl_s=2.0, confirm_gap_s=0.0)
    assert lease.expires_at == 102.0
    lease.record_confirmation(101.0, now=-math.inf)
    assert lease.expires_at == 103.0


def test_an_answer_that_comes_late_and_out_of_order_never_moves_the_deadline_back():
    lease = Lease(100.0, 2.0)
    lease.record_confirmation(101.5, now=-math.inf)
    lease.record_confirmation(101.0, now=-math.inf)
    assert lease.expires_at == 103.5


def test_with_a_gap_a_renewal_counts_only_when_a_later_one_was_confirmed():
    lease = Lease(100.0, 2.0, confirm_gap_s=0.5)
    lease.record_confirmation(100.25, now=-math.inf)
    lease.record_confirmation(100.5, now=-math.inf)
    assert lease.expires_at == 102.0, "nothing confirmed half a second after any of them"
    lease.record_confirmation(100.75, now=-math.inf)
    assert lease.expires_at == 102.25
    lease.record_confirmation(101.0, now=-math.inf)
    assert lease.expires_at == 102.5


@given(
    st.lists(st.floats(0, 50, allow_nan=False), max_size=40),
    st.sampled_from([0.0, 0.25, 1.0]),
)
def test_the_deadline_equals_the_definition_whatever_the_order(sends, gap_s):
    lease = Lease(0.0, 2.0, confirm_gap_s=gap_s)
    for sent in sends:
        lease.record_confirmation(sent, now=-math.inf)
    counted = [one for one in sends if any(one + gap_s <= two for two in sends)]
    assert lease.expires_at == pytest.approx(max([0.0, *counted]) + 2.0)


def test_a_touch_makes_the_renewal_before_it_count():
    lease = Lease(100.0, 2.0, confirm_gap_s=0.5)
    lease.record_confirmation(100.6, now=-math.inf)
    lease.record_touch_answer(101.0, now=-math.inf)
    assert lease.expires_at == 102.0, "less than the gap later"
    lease.record_touch_answer(101.1, now=-math.inf)
    assert lease.expires_at == 102.6


def test_a_touch_counts_with_a_renewal_behind_it_and_never_with_a_touch():
    lease = Lease(100.0, 2.0, confirm_gap_s=0.5)
    lease.record_touch_answer(100.2, now=-math.inf)
    lease.record_touch_answer(101.0, now=-math.inf)
    assert lease.expires_at == 102.0
    lease.record_confirmation(100.7, now=-math.inf)
    assert lease.expires_at == pytest.approx(102.2)


def test_touches_are_due_between_a_confirmed_renewal_and_the_next_one():
    lease = Lease(0.0, 3.0, touch_after_s=(0.2, 0.8))
    assert lease.next_touch_at() == pytest.approx(0.2)
    lease.record_touch_sent(0.3)
    assert lease.next_touch_at() == pytest.approx(0.8)
    lease.record_touch_sent(0.8)
    assert lease.next_touch_at() == math.inf
    lease.record_renewal_sent(1.0)
    assert lease.next_touch_at() == math.inf, "a renewal is under way, which says more"
    lease.record_confirmation(1.0, 1.1)
    assert lease.next_touch_at() == pytest.approx(1.2)


def test_a_lease_that_is_never_late_keeps_close_to_half_of_its_ttl():
    """The margin that everything else allows for: a third between renewals, and a quarter until one counts."""
    lease, least = Lease(0.0, 12.0, confirm_gap_s=3.0, touch_after_s=(0.6, 0.96, 3.024)), math.inf
    for tick in range(1, 4000):
        now = tick / 50
        if now > 12.0:
            least = min(least, lease.remaining_s(now))
        if now >= lease.next_renewal_at():
            lease.record_renewal_sent(now)
            assert lease.record_confirmation(now, now)
        elif now >= lease.next_touch_at():
            lease.record_touch_sent(now)
            lease.record_touch_answer(now, now)
    assert least > 0.48 * 12.0


def test_a_resumed_lease_counts_from_its_handshake_once_a_later_renewal_is_confirmed():
    lease = Lease(0.0, 12.0, confirm_gap_s=3.0)
    lease.record_renewal_sent(7.0)
    assert lease.record_confirmation(7.0, 8.1, resumed_at=8.0)  # sent on the connection before
    assert lease.expires_at == 12.0
    lease.record_renewal_sent(8.2)
    assert lease.record_confirmation(8.2, 8.3, resumed_at=8.0)
    assert lease.expires_at == 20.0


def test_the_time_at_which_a_lease_was_ended_is_kept():
    lease = Lease(0.0, 2.0)
    lease.end(1.5)
    lease.end(1.8)
    assert (lease.expires_at, lease.remaining_s(1.6)) == (1.5, 0.0)
    assert not lease.record_confirmation(1.4, 1.4 + 0.2)


def test_a_lease_that_others_renew_waits_for_them_a_little_longer_than_for_itself():
    lease = Lease(0.0, 12.0)
    lease.record_renewal_by_others(1.0)
    assert lease.record_confirmation(1.0, 1.1)
    assert lease.next_renewal_at() == pytest.approx(1.0 + 4.5)
    lease.record_renewal_sent(5.5)
    assert lease.record_confirmation(5.5, 5.6)
    assert lease.next_renewal_at() == pytest.approx(5.5 + 4.0)
