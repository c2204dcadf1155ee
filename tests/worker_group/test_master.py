"""The master of a group: found by all, one at a time, and told as restarted when it is another one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from latchwork.errors import WaitTimeout
from latchwork.store.steps import run
from latchwork.types import Exists
from latchwork.worker_group import GroupMaster, find, find_master, wait_for_master


def test_a_group_has_no_master_until_one_is_started(connect, in_thread, store):
    assert find_master(store, "train") is None
    with pytest.raises(WaitTimeout, match="has no master"):
        wait_for_master(store, "train", 0.1)
    waiting = in_thread(lambda: wait_for_master(store, "train", 60.0))
    with GroupMaster(connect(), "train", "10.0.0.1:80") as one:
        one.wait(30.0)
        assert waiting.outcome().address == "10.0.0.1:80"


def test_the_record_of_a_live_master_is_left_as_it_is(connect, store):
    with GroupMaster(connect(), "train", "first") as one, GroupMaster(connect(), "train", "second") as other:
        one.wait(30.0)
        with pytest.raises(WaitTimeout):
            other.wait(0.2)
        assert find_master(store, "train").address == "first"


def test_another_master_is_told_to_the_group_and_open_barriers_go_on(team, connect, all_at_once, in_thread, eventually):
    a, b = team(2)
    events = []
    a.on_event(lambda event: events.append(event.kind))
    all_at_once(lambda one: one.initialize(60.0), (a, b))
    first = GroupMaster(connect(), "train", "first")
    first.wait(30.0)
    waiting = in_thread(lambda: a.barrier(timeout_s=60.0))
    first.close()
    with GroupMaster(connect(), "train", "second") as second:
        second.wait(30.0)
        assert eventually(lambda: "master_restarted" in events)
        assert b.barrier(timeout_s=60.0) == 0
        assert waiting.outcome() == 0
    assert events.count("master_restarted") == 1
    assert events.count("all_joined") == 1


def test_a_master_whose_term_ended_unnoticed_tells_no_restart(team, connect, store, in_thread):
    (worker,) = team(1)
    events = []
    worker.on_event(lambda event: events.append(event.kind))
    with GroupMaster(connect(), "train", "first") as one:
        one.wait(30.0)
    unnoticed = SimpleNamespace(is_leader=True, fence=store.fence(1, Exists("nothing-here")))
    in_thread(lambda: run(one._record_restart(unnoticed))).outcome()  # it would try for ever
    assert "master_restarted" not in events


def test_a_master_tells_a_loss_when_no_worker_is_left_to(team, connect, store, eventually):
    members = team(2)
    with GroupMaster(connect(), "train", "first") as one:
        one.wait(30.0)
        for each in members:
            each._core.require_membership().session.close()
        assert eventually(lambda: [info.status for info in _members(store)] == ["LOST", "LOST"])


def _members(store):
    from latchwork.worker_group import inspect_group

    found = inspect_group(store, "train")
    assert find(store, "train") is not None
    return found.workers
