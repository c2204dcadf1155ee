"""A store that is away: each call says so, waits go on once it is back, and who was away for too long joins again."""

from __future__ import annotations

import time

import pytest

from latchwork.errors import SessionLost, Unavailable
from latchwork.testing.faults import Fault, FaultyStore
from latchwork.worker_group import GroupMaster, GroupWorker, find, list_events, submit
from patience import eventually
from primitives.conftest import list_arrived
from worker_group.conftest import PATIENCE_S


@pytest.fixture
def away(connect):
    """A store that can be cut off, and its session."""
    with FaultyStore(connect()) as opened:
        yield opened


def test_who_cannot_join_because_the_store_is_away_is_told_so_and_joins_once_it_is_back(away, store):
    submit(store, "train", 1)
    session = away.open_session(30.0)
    with GroupWorker(away, "train", key="a", session=session) as first:
        assert first.rank == 0
    submit(store, "train", 1)
    away.cut_off()
    one = GroupWorker(away, "train", key="a", session=session)
    with pytest.raises(Unavailable, match="train"):
        one.join(0.3)
    assert find(store, "train").status().joined == 0
    away.reconnect()
    assert one.join(PATIENCE_S).rank == 0
    one.close()


def test_a_barrier_is_passed_by_who_was_away_for_a_moment(away, worker, in_thread):
    session = away.open_session(60.0)
    a, b = GroupWorker(away, "train", workers=2, key="a", session=session), worker("b", workers=2)
    a.join(PATIENCE_S)
    initialized = in_thread(lambda: b.initialize(PATIENCE_S))
    a.initialize(PATIENCE_S)
    initialized.outcome(PATIENCE_S)
    waiting = in_thread(lambda: a.barrier(timeout_s=PATIENCE_S))
    eventually(lambda: find(b._core.store, "train").status().running == 2, PATIENCE_S, "both are there")
    away.cut_off()
    meeting = in_thread(lambda: b.barrier(timeout_s=PATIENCE_S))
    away.reconnect()
    assert (waiting.outcome(PATIENCE_S), meeting.outcome(PATIENCE_S)) == (0, 0)
    a.close()


def test_who_was_away_for_longer_than_its_session_is_told_and_comes_back_with_its_id(away, worker, in_thread, store):
    session = away.open_session(2.0)
    a, b = GroupWorker(away, "train", workers=2, key="a", session=session), worker("b", workers=2)
    number = a.join(PATIENCE_S).rank
    waiting = in_thread(lambda: a.initialize(PATIENCE_S))
    init = f"default/groups/train/runs/{a.run_id}/barriers/0/init"
    eventually(lambda: list_arrived(store, init), PATIENCE_S, "it has arrived")
    away.cut_off()
    assert a.lost.wait(PATIENCE_S)
    assert not a.is_alive
    with pytest.raises(SessionLost, match="join again"):
        a.barrier()
    with pytest.raises(SessionLost, match="join again"):
        waiting.outcome(PATIENCE_S)
    away.reconnect()
    a.close()
    eventually(lambda: [each.kind for each in list_events(store, "train")][-1] == "lost", PATIENCE_S, "b tells it")
    again = worker("a", store=away)
    assert (again.rank, again.restarts) == (number, 1)
    assert b.is_alive


@pytest.mark.parametrize(
    "call",
    [
        lambda store: submit(store, "other", 1),
        lambda store: find(store, "train"),
        lambda store: find(store, "train").status(),
        lambda store: list_events(store, "train"),
    ],
    ids=["submit", "find", "status", "events"],
)
def test_a_look_at_a_group_says_that_the_store_is_away(away, call):
    submit(away, "train", 1)
    away.cut_off()
    with pytest.raises(Unavailable, match=r"train|other"):
        call(away)
    away.reconnect()
    assert find(away, "train") is not None


#: No watch reports a first state.
SILENT = Fault("cut_watch", op="event", times=None, delay_s=600.0)


def test_who_saw_nothing_of_its_group_yet_is_told_that_its_session_has_ended(away):
    submit(away, "train", 1)
    away.add(SILENT)
    with GroupWorker(away, "train", key="a", session=away.open_session(2.0)) as one:
        away.cut_off()
        assert one.lost.wait(10.0)
        away.reconnect()


def test_a_master_that_saw_nothing_of_its_group_yet_ends_at_once(away):
    submit(away, "train", 1)
    with GroupMaster(away, "train", "here") as one:
        away.add(SILENT)
        one.wait(PATIENCE_S)
        begun = time.monotonic()
        one.close()
        assert time.monotonic() - begun < 10.0
