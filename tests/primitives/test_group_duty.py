"""When a view has to be written, and by whom."""

from __future__ import annotations

import pytest

from latchwork.primitives.group.follower import CHECK_S, GATHER_S, WriteSchedule
from latchwork.primitives.waiting.deadline import RANK_DELAY_S


def test_a_writer_writes_at_once_and_what_comes_soon_after_together():
    duty = WriteSchedule(is_writer=True)
    assert duty.next_action(10.0, is_behind=True) == "write"
    duty.record_write(10.0)
    assert duty.next_action(10.0 + GATHER_S / 2, is_behind=True) == ""
    assert duty.pause_s(10.0 + GATHER_S / 2, is_behind=True) == pytest.approx(GATHER_S / 2)
    assert duty.next_action(10.0 + GATHER_S, is_behind=True) == "write"


def test_a_deputy_looks_for_the_writer_then_stands_in():
    duty = WriteSchedule(is_writer=False)
    assert duty.next_action(10.0, is_behind=True) == ""
    assert duty.pause_s(10.0, is_behind=True) == pytest.approx(CHECK_S)
    assert duty.next_action(10.0 + CHECK_S, is_behind=True) == "check"
    assert duty.next_action(10.0 + CHECK_S, is_behind=True) == ""
    assert duty.pause_s(10.0 + CHECK_S, is_behind=True) == pytest.approx(RANK_DELAY_S - CHECK_S)
    assert duty.next_action(10.0 + RANK_DELAY_S, is_behind=True) == "write"


def test_a_deputy_does_nothing_about_what_was_written_meanwhile():
    duty = WriteSchedule(is_writer=False)
    duty.next_action(10.0, is_behind=True)
    assert duty.next_action(10.0 + CHECK_S, is_behind=False) == ""
    assert duty.pause_s(10.0 + CHECK_S, is_behind=False) is None
    assert duty.next_action(20.0, is_behind=True) == ""  # another change has its own time


def test_a_deputy_without_a_writer_writes_at_once():
    duty = WriteSchedule(is_writer=False)
    duty.next_action(10.0, is_behind=True)
    assert duty.next_action(10.0 + CHECK_S, is_behind=True) == "check"
    duty.is_writer = True
    assert duty.next_action(10.0 + CHECK_S, is_behind=True) == "write"
