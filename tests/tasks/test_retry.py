"""Retries and their pauses: pure."""

from __future__ import annotations

import pytest

from latchwork.tasks import BadPayload, Outcome, Retry, backoff_s, retry_pause_s


@pytest.mark.parametrize(
    ("count", "initial_s", "increase", "max_s", "expected"),
    [
        (0, 0.1, 1.5, 10.0, 0.1),
        (1, 0.1, 1.5, 10.0, 0.15),
        (8, 1, 2, 1000, 256),
        (100, 0.1, 1.5, 10.0, 10.0),
        (10**9, 0.1, 1.5, 10.0, 10.0),
        (-3, 0.1, 1.5, 10.0, 0.1),
        (10**9, 0.0, 1.5, 10.0, 0.0),
    ],
)
def test_a_pause_grows_to_its_bound_and_no_count_is_too_great(count, initial_s, increase, max_s, expected):
    assert backoff_s(count, initial_s, increase, max_s) == pytest.approx(expected)


@pytest.mark.parametrize(
    "options", [{"attempts": 0}, {"attempts": True}, {"increase": 0.5}, {"jitter": 2}, {"max_s": -1}]
)
def test_a_retry_that_cannot_be_is_refused(options):
    with pytest.raises(ValueError, match="must be"):
        Retry(**options)


def test_a_retry_on_what_is_no_exception_is_refused():
    with pytest.raises(TypeError, match="tuple of exception classes"):
        Retry(on=(int,))


def test_jitter_lengthens_or_shortens_a_pause_by_its_part():
    retry = Retry(attempts=9, initial_s=1.0, jitter=0.1)
    assert [retry.pause_s(1, chance) for chance in (0.0, 0.5, 1.0)] == pytest.approx([0.9, 1.0, 1.1])


def test_a_failure_of_a_wanted_class_is_tried_again_until_the_attempts_are_used_up():
    retry = Retry(attempts=3, initial_s=1.0, jitter=0.0, on=(LookupError,))
    failed = Outcome.from_exception(KeyError("x"))
    assert [retry_pause_s(retry, attempt, failed) for attempt in (1, 2, 3)] == [1.0, 1.5, None]
    assert retry_pause_s(retry, 1, Outcome.from_exception(OSError("x"))) is None


def test_a_failure_of_a_class_that_is_unknown_here_counts_as_one_of_any():
    class Local(Exception): ...

    assert retry_pause_s(Retry(attempts=2, on=(LookupError,)), 1, Outcome.from_exception(Local())) is not None


def test_success_and_a_call_that_is_wrong_are_never_tried_again():
    retry = Retry(attempts=9)
    assert retry_pause_s(retry, 1, Outcome(b"plain:")) is None
    assert retry_pause_s(retry, 1, Outcome.from_exception(BadPayload("no"), is_final=True)) is None
