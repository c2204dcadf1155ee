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
    lease.confirmed(101.0, now=-math.inf)
    assert lease.expires_at == 103.0


def test_an_answer_that_comes_late_and_out_of_order_never_moves_the_deadline_back():
    lease = Lease(100.0, 2.0)
    lease.confirmed(101.5, now=-math.inf)
    lease.confirmed(101.0, now=-math.inf)
    assert lease.expires_at == 103.5


def test_with_a_gap_a_renewal_counts_only_when_a_later_one_was_confirmed():
    lease = Lease(100.0, 2.0, confirm_gap_s=0.5)
    lease.confirmed(100.25, now=-math.inf)
    lease.confirmed(100.5, now=-math.inf)
    assert lease.expires_at == 102.0, "nothing confirmed half a second after any of them"
    lease.confirmed(100.75, now=-math.inf)
    assert lease.expires_at == 102.25
    lease.confirmed(101.0, now=-math.inf)
    assert lease.expires_at == 102.5


@given(
    st.lists(st.floats(0, 50, allow_nan=False), max_size=40),
    st.sampled_from([0.0, 0.25, 1.0]),
)
def test_the_deadline_equals_the_definition_whatever_the_order(sends, gap_s):
    lease = Lease(0.0, 2.0, confirm_gap_s=gap_s)
    for sent in sends:
        lease.confirmed(sent, now=-math.inf)
    counted = [one for one in sends if any(one + gap_s <= two for two in sends)]
    assert lease.expires_at == pytest.approx(max([0.0, *counted]) + 2.0)
