"""Listeners of a session's state, and a TTL that the server does not grant."""

from __future__ import annotations

import logging
import threading

import pytest

import latchwork
from store.test_session_thread import Scripted, opened


@pytest.fixture
def said():
    """What a listener was told, and a wait for it."""

    class Said:
        def __init__(self):
            self.states, self._changed = [], threading.Condition()

        def __call__(self, state):
            with self._changed:
                self.states.append(state)
                self._changed.notify_all()

        def wait_for(self, *states):
            with self._changed:
                assert self._changed.wait_for(lambda: self.states == list(states), 10), self.states

    return Said()


@pytest.mark.parametrize("trouble", ["down", "hang"])
def test_a_listener_is_told_that_it_is_suspect_active_again_and_lost_in_this_order(said, trouble):
    scripted = Scripted(ttl_s=3.0)
    session = opened(scripted)
    session.on_state(said)
    scripted.answer = trouble
    said.wait_for("suspect")
    scripted.answer = "ok"
    for _, future in scripted.hanging:
        future.set_result(session._clock.now())
    scripted.hanging.clear()
    said.wait_for("suspect", "active")
    scripted.answer = "gone"
    said.wait_for("suspect", "active", "lost")
    session.close()


def test_a_session_that_is_closed_says_so_and_nothing_after(said):
    session = opened(Scripted())
    session.on_state(said)
    session.close()
    session.close()
    said.wait_for("closed")


def test_a_listener_that_raises_or_is_removed_stops_no_other(said):
    def bad(_state):
        raise RuntimeError

    removed = []
    scripted = Scripted()
    session = opened(scripted)
    session.on_state(bad)
    session.on_state(removed.append)()
    session.on_state(said)
    scripted.answer = "gone"
    said.wait_for("lost")
    assert removed == []
    session.close()


def test_a_listener_that_exits_silences_no_later_state(said):
    def exits(_state):
        raise SystemExit

    scripted = Scripted(ttl_s=3.0)
    session = opened(scripted)
    session.on_state(exits)
    session.on_state(said)
    scripted.answer = "down"
    said.wait_for("suspect")
    scripted.answer = "gone"
    said.wait_for("suspect", "lost")
    session.close()


def test_a_listener_of_a_loss_that_is_added_late_is_called_after_the_earlier_ones():
    called, may_end = [], threading.Event()

    def slow():
        may_end.wait(10)
        called.append("slow")

    scripted = Scripted()
    session = opened(scripted)
    session.on_lost(slow)
    scripted.answer = "gone"
    assert session.lost.wait(10)
    late = threading.Event()
    session.on_lost(lambda: (called.append("late"), late.set()))
    assert not late.wait(0.2)
    may_end.set()
    assert late.wait(10)
    assert called == ["slow", "late"]
    session.close()


@pytest.mark.parametrize("lost", [True, False], ids=["lost", "closed"])
def test_a_listener_that_is_added_while_a_session_ends_is_called_after_the_earlier_ones(lost):
    called, done = [], threading.Event()
    scripted = Scripted()
    session = opened(scripted)
    session.on_lost(lambda: called.append("first"), or_closed=True)
    session.on_end(lambda: session.on_lost(lambda: (called.append("second"), done.set()), or_closed=True))
    if lost:
        scripted.answer = "gone"
    else:
        session.close()
    assert done.wait(10)
    assert called == ["first", "second"]
    session.close()


def test_listeners_of_a_loss_are_called_if_no_thread_can_be_started(monkeypatch):
    called = []
    session = opened(Scripted())
    session.on_lost(lambda: called.append("closed"), or_closed=True)

    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        session.close()
    assert called == ["closed"]


def test_the_first_session_of_a_store_has_state_listeners_too(store, said):
    store.session.on_state(said)
    store.session.close()
    said.wait_for("closed")


def test_a_ttl_that_the_server_shortens_is_warned_of(zookeeper, caplog):
    with latchwork.connect(zookeeper.url("short")) as store, caplog.at_level(logging.WARNING):
        session = store.open_session(90.0)
    assert session.ttl_s == 60.0
    (warning,) = [each.message for each in caplog.records if "asked for a ttl" in each.message]
    assert "asked for a ttl of 90 s, the server grants 60 s at most" in warning
