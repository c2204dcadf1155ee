"""The session's thread against a backend session that does what the test tells it."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import Future

import pytest

from latchwork.clock import SYSTEM_CLOCK, SystemClock
from latchwork.errors import ForkedProcess, SessionLost, Unavailable
from latchwork.store.dispatch import callback_scope, is_in_callback
from latchwork.store.session import Session
from patience import eventually


class Scripted:
    """A backend session whose renewals end as the test says."""

    id = "abcdef0123"
    token = 7
    confirm_gap_s = 0.0

    def __init__(self, ttl_s=0.6, answer="ok"):
        self.ttl_s = ttl_s
        self.renew_every_s = ttl_s / 6
        self.opened_at = SYSTEM_CLOCK.now()
        self.answer = answer
        self.renewals = 0
        self.closed = threading.Event()
        self.hanging: list[tuple[float, Future[float]]] = []

    def renew(self):
        self.renewals += 1
        future: Future[float] = Future()
        if self.answer == "ok":
            future.set_result(SYSTEM_CLOCK.now())
        elif self.answer == "hang":
            self.hanging.append((SYSTEM_CLOCK.now(), future))
        else:
            future.set_exception(SessionLost("gone") if self.answer == "gone" else Unavailable("down"))
        return future

    def close(self):
        self.closed.set()
        future: Future[None] = Future()
        future.set_result(None)
        return future


class JumpingClock(SystemClock):
    """The machine's clock, which the test sets forward; who sleeps does not notice."""

    clock_offset_s = 0.0

    def now(self):
        return super().now() + self.clock_offset_s


def opened(scripted):
    return begun(scripted, SYSTEM_CLOCK)


def begun(scripted, clock):
    session = Session(scripted, clock, lambda _session: None)
    session.start()
    return session


def test_it_is_lost_at_its_deadline_when_renewals_fail_and_is_closed_actively():
    scripted = Scripted(answer="down")
    began = SYSTEM_CLOCK.now()
    session = opened(scripted)
    assert session.lost.wait(20)
    assert SYSTEM_CLOCK.now() - began >= 0.55
    assert session.state == "lost"
    assert scripted.closed.wait(1)
    assert scripted.renewals >= 3, "failed renewals are tried again"


def test_it_is_suspect_while_renewals_fail_and_active_again_after():
    scripted = Scripted(ttl_s=6.0)
    session = opened(scripted)
    scripted.answer = "down"
    eventually(lambda: session.state == "suspect")
    scripted.answer = "ok"
    eventually(lambda: session.state == "active")
    session.close()


def test_a_renewal_that_fails_is_tried_again_before_the_usual_interval():
    scripted = Scripted(ttl_s=24.0)  # renewed every 4 s
    session = opened(scripted)
    scripted.answer = "down"
    eventually(lambda: scripted.renewals >= 1, 30.0)
    first = time.monotonic()
    eventually(lambda: scripted.renewals >= 3, 30.0)
    assert time.monotonic() - first < 6.0
    session.close()


def test_a_session_whose_opening_took_long_is_renewed_at_once():
    scripted = Scripted(ttl_s=60.0)
    scripted.renew_every_s = 20.0
    scripted.opened_at -= 50.0
    session = opened(scripted)
    deadline = SYSTEM_CLOCK.now() + 8.0
    while not scripted.renewals and SYSTEM_CLOCK.now() < deadline:
        threading.Event().wait(0.01)
    assert scripted.renewals == 1
    session.close()


def test_a_renewal_that_hangs_keeps_no_later_one_from_being_sent():
    scripted = Scripted(answer="hang")
    session = opened(scripted)
    tick = threading.Event()
    tick.wait(0.25)
    scripted.answer = "ok"
    assert not session.lost.wait(1)
    session.close()


def test_the_deadline_counts_from_the_send_though_the_answer_comes_late():
    scripted = Scripted(ttl_s=60.0, answer="hang")
    scripted.renew_every_s = 0.05
    session = opened(scripted)
    threading.Event().wait(0.5)
    sent, future = scripted.hanging[0]
    while SYSTEM_CLOCK.now() < sent + 0.5:
        pass
    future.set_result(sent)
    assert 0.0 < session.remaining_s() <= 59.5
    session.close()


def test_an_answer_that_comes_after_the_deadline_does_not_bring_it_back():
    scripted = Scripted(answer="hang")
    session = opened(scripted)
    assert session.lost.wait(2)
    for sent, future in scripted.hanging:
        future.set_result(sent + 10)
    assert session.state == "lost"
    assert session.remaining_s() == 0


def test_an_answer_between_the_deadline_and_the_turn_of_its_thread_does_not_bring_it_back():
    clock = JumpingClock()
    scripted = Scripted(ttl_s=60.0, answer="hang")
    session = begun(scripted, clock)
    clock.clock_offset_s = 50.0
    session._wake()
    while not scripted.hanging:
        threading.Event().wait(0.001)
    clock.clock_offset_s = 61.0  # its thread sleeps until the next renewal
    sent, future = scripted.hanging[0]
    assert session.state == "lost"
    future.set_result(sent + 50.0)
    assert session.state == "lost"
    assert session.remaining_s() == 0
    assert session.lost.wait(2)


def test_the_server_saying_it_is_gone_loses_it_at_once():
    scripted = Scripted(ttl_s=6.0, answer="gone")
    session = opened(scripted)
    assert session.lost.wait(2)


def test_a_backend_that_learns_of_the_end_loses_it_at_once():
    scripted = Scripted(ttl_s=30.0)
    session = opened(scripted)
    session.mark_ended()
    assert session.lost.wait(1)


def test_the_state_is_lost_from_the_deadline_on_even_before_its_thread_has_run():
    scripted = Scripted(ttl_s=30.0)
    session = opened(scripted)
    session._renewer._lease._counted -= 31
    assert session.state == "lost"
    assert session.remaining_s() == 0
    session.close()


@pytest.mark.parametrize("end", ["loss", "close"])
def test_what_waits_is_told_of_either_end_exactly_once(end):
    session = opened(Scripted(ttl_s=30.0))
    told = []
    session.on_end(lambda: told.append("kept"))
    session.on_end(lambda: told.append("cancelled"))()
    if end == "loss":
        session.mark_ended()
        assert session.lost.wait(2)
    session.close()
    session.on_end(lambda: told.append("late"))
    assert told == ["kept", "late"]


def test_a_listener_that_was_taken_back_is_not_called():
    session = opened(Scripted(ttl_s=30.0))
    told, heard = [], threading.Event()
    session.on_lost(lambda: told.append("first"))()
    session.on_lost(heard.set)
    session.mark_ended()
    assert heard.wait(2)
    assert told == []


def test_listeners_run_as_callbacks_and_their_thread_does_not_stay_one():
    session = opened(Scripted(ttl_s=30.0))
    marks, heard = [], threading.Event()
    session.on_lost(lambda: marks.append(is_in_callback()))
    session.on_lost(heard.set)
    session.mark_ended()
    assert heard.wait(2)
    assert marks == [True]
    assert not is_in_callback()
    with callback_scope():
        assert is_in_callback()
    assert not is_in_callback()


def test_in_a_child_of_a_fork_it_is_over():
    session = opened(Scripted(ttl_s=30.0))
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            session.ensure_usable()
        except ForkedProcess:
            status = 0 if session.remaining_s() == 0.0 else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert session.remaining_s() > 0.0
    session.close()


def test_an_end_that_the_server_does_not_answer_has_a_reason_in_the_log(caplog, monkeypatch):
    class Silent(Scripted):
        def close(self):
            return Future()

    monkeypatch.setattr("latchwork.store.session._CLOSE_TIMEOUT_S", 0.05)
    with caplog.at_level("INFO"):
        opened(Silent()).close()
    assert "will expire there: no answer within 0.05 s" in caplog.text
