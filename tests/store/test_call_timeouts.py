"""How long the answer to a call is waited for, and what a caller is told who got none."""

from __future__ import annotations

from concurrent.futures import Future
from threading import Timer

import pytest

from latchwork.clock import SYSTEM_CLOCK
from latchwork.errors import LockLost, OutcomeUnknown, Unavailable
from latchwork.store import call_timeouts
from latchwork.store.call_timeouts import CallTimeouts, OwnershipLimit

#: Longer than any test here may wait.
LONG_S = 20.0
SHORT_S = 0.2


@pytest.fixture(autouse=True)
def no_grace(monkeypatch):
    monkeypatch.setattr(call_timeouts, "_GRACE_S", 0.0)


@pytest.fixture
def impatient():
    """Waits for no answer longer than a moment."""
    return CallTimeouts("test://", SYSTEM_CLOCK, SHORT_S)


def ownership(seconds):
    until = SYSTEM_CLOCK.now() + seconds
    return OwnershipLimit(lambda: max(0.0, until - SYSTEM_CLOCK.now()), LockLost)


def test_a_write_without_an_answer_is_unknown_and_a_read_is_unavailable(impatient):
    with pytest.raises(OutcomeUnknown, match=r"put 'k'.*may have been applied"):
        impatient.wait_for_write(Future(), "put 'k'")
    with pytest.raises(Unavailable, match=r"get 'k'.*try again"):
        impatient.wait_for_read(Future(), "get 'k'")


def test_an_answer_is_waited_for_no_longer_than_the_ownership_lasts():
    patient = CallTimeouts("test://", SYSTEM_CLOCK, LONG_S).with_limit(ownership(SHORT_S))
    began = SYSTEM_CLOCK.now()
    with pytest.raises(OutcomeUnknown, match="while the ownership lasted"):
        patient.wait_for_write(Future(), "put 'k'")
    with pytest.raises(LockLost, match="stop the work"):
        patient.wait_for_read(Future(), "get 'k'")
    assert SYSTEM_CLOCK.now() - began < LONG_S / 2


def test_an_answer_is_waited_for_on_when_the_ownership_is_renewed_meanwhile():
    left = [SHORT_S, SHORT_S, LONG_S]
    renewed = OwnershipLimit(lambda: left.pop(0) if len(left) > 1 else left[0], LockLost)
    future: Future[bytes] = Future()
    late = Timer(3 * SHORT_S, future.set_result, [b"late"])
    late.start()
    assert CallTimeouts("test://", SYSTEM_CLOCK, LONG_S).with_limit(renewed).wait_for_read(future, "get 'k'") == b"late"
    late.join()


def test_an_error_of_the_call_that_is_a_timeout_is_no_missing_answer(impatient):
    future: Future[None] = Future()
    future.set_exception(TimeoutError("the call's own"))
    for wait in (impatient.wait_for_read, impatient.wait_for_write):
        with pytest.raises(TimeoutError, match="the call's own"):
            wait(future, "call")
