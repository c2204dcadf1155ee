"""What a run knows."""

from __future__ import annotations

import logging
import math

import pytest

from latchwork.errors import LockLost
from latchwork.jobs.job import JobContext
from latchwork.types import Exists, Fence


def test_a_context_is_made_with_plain_arguments():
    context = JobContext(["a", "b"], job_id="report", node_id="n1")
    assert (context.items, context.job_id, context.node_id) == (("a", "b"), "report", "n1")
    assert not context.should_stop
    assert context.remaining_s() == math.inf


def test_stop_ends_a_wait_at_once():
    context = JobContext()
    assert context.wait_for_stop(0.0) is False
    context.stop()
    assert context.should_stop
    assert context.wait_for_stop() is True


def test_listeners_are_called_once_in_the_order_they_were_added():
    context, calls = JobContext(), []
    for name in "abc":
        context.on_stop(lambda name=name: calls.append(name))
    context.stop()
    context.stop()
    assert calls == ["a", "b", "c"]


def test_a_listener_added_late_fires_at_once():
    context, calls = JobContext(), []
    context.stop()
    context.on_stop(lambda: calls.append("late"))
    assert calls == ["late"]


def test_a_removed_listener_is_not_called_and_may_be_removed_twice():
    context, calls = JobContext(), []
    remove = context.on_stop(lambda: calls.append("removed"))
    remove()
    remove()
    context.stop()
    assert calls == []


def test_a_listener_that_raises_stops_no_other_and_is_logged(caplog):
    context, calls = JobContext(job_id="report"), []
    context.on_stop(lambda: 1 / 0)
    context.on_stop(lambda: calls.append("second"))
    with caplog.at_level(logging.ERROR):
        context.stop()
    assert calls == ["second"]
    assert "report" in caplog.text


def test_a_listener_may_remove_another_and_add_one():
    context, calls = JobContext(), []
    removers = []
    context.on_stop(lambda: (removers[0](), context.on_stop(lambda: calls.append("added"))))
    removers.append(context.on_stop(lambda: calls.append("removed")))
    context.stop()
    assert calls == ["added"]


def test_the_fence_of_a_foreign_item_is_refused_and_that_of_an_own_one_given():
    fence = Fence(7, (Exists("locks/report/a"),))
    context = JobContext(["a"], fence=lambda item: fence)
    assert context.fence("a") is fence
    with pytest.raises(KeyError, match="not among the items"):
        context.fence("b")


def test_a_context_without_locks_or_store_says_how_to_get_them():
    context = JobContext(["a"])
    with pytest.raises(LockLost, match="fence="):
        context.fence("a")
    with pytest.raises(LookupError, match="store="):
        _ = context.store


def test_remaining_seconds_never_go_below_zero():
    assert JobContext(remaining_s=lambda: -3.0).remaining_s() == 0.0
