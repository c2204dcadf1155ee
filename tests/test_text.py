"""Words and numbers for people: harmless text, one format of moments, the right plural."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latchwork._base.text import counted, normalize_utc_text, printable, reason, utc_text


@given(st.text())
def test_printable_text_has_no_control_no_bidi_mark_no_surrogate_and_stays_as_it_was_otherwise(text):
    shown = printable(text)
    assert shown.isprintable()
    shown.encode()
    assert shown == text or not text.isprintable()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J", r"\x1b[2J"),
        ("a\nb\tc", r"a\nb\tc"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("\u2066x\u2069\u200b", r"\u2066x\u2069\u200b"),
        ("\ud800", r"\ud800"),
        ("\x9b31m", r"\x9b31m"),
        ("Zürich 東京 🦀", "Zürich 東京 🦀"),
    ],
)
def test_what_moves_a_cursor_or_turns_text_around_is_escaped(text, shown):
    assert printable(text) == shown


@given(st.one_of(st.floats(), st.integers(-(10**400), 10**400)))
def test_any_number_is_a_moment_or_said_to_be_far_away(number):
    assert utc_text(number).isprintable()


def test_a_moment_has_one_format():
    assert utc_text(1_795_338_610.9) == "2026-11-22T09:10:10Z"
    assert utc_text(-1.0) == "1969-12-31T23:59:59Z"
    assert utc_text(1e300) == utc_text(-(10**400)) == utc_text(float("nan")) == "a time out of reach"
    assert utc_text(-6e10) == "0068-09-03T13:20:00Z"
    for stored in ("2026-11-22T09:10:10+00:00", "2026-11-22T09:10:10.123+00:00", "2026-11-22T10:10:10+01:00"):
        assert normalize_utc_text(stored) == "2026-11-22T09:10:10Z"
    for other in ("", "yesterday", "2026-11-22T09:10:10", "2026-11-22T09:10:10Z"):
        assert normalize_utc_text(other) == other


def test_one_thing_has_no_plural():
    assert [counted(number, "item") for number in (0, 1, 2, 1000)] == ["0 items", "1 item", "2 items", "1,000 items"]


def test_an_error_without_a_message_is_named_by_its_type():
    assert reason(ValueError("a\n b\x1b")) == "ValueError: a b\\x1b"
    assert reason(ValueError()) == "ValueError, without a message"
