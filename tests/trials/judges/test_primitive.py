"""The rules of primitives find nothing where all is well, and what each is there for."""

from __future__ import annotations

from trials.judges.primitive import Views, gaps, late_writes, miscounted, too_many


def test_a_write_after_one_with_a_newer_fence_is_found():
    assert late_writes([(5, 2, "a"), (9, 7, "b"), (6, 2, "a"), (10, 7, "b")]) == []
    assert late_writes([(9, 7, "b"), (10, 2, "a")]) == ["a wrote at 10 with token 2, after a write with token 7"]


def test_a_change_that_is_lost_or_counted_twice_is_found():
    assert [miscounted(total, known=3, unknown=1) for total in (3, 4)] == [[], []]
    assert all(miscounted(total, known=3, unknown=1) for total in (2, 5))


def test_a_number_that_is_missing_or_given_twice_is_found():
    assert gaps([2, 1, 3], 3) == []
    assert all(gaps(numbers, 3) for numbers in ([1, 3], [1, 2, 2, 3], [1, 2, 3, 4]))


def test_more_permits_than_the_limit_within_any_interval_are_found():
    assert too_many([0.0, 0.1, 1.0, 1.1], 2, 1.0) == []
    assert too_many([1.0, 0.0, 0.1, 0.9], 2, 1.0) == ["3 within 0.900 s, not 1.0 s", "3 within 0.900 s, not 1.0 s"]


def test_views_that_go_backwards_or_differ_are_found():
    views = Views()
    assert [views.told(who, number, "ab") for who in "xy" for number in (1, 3)] == [[]] * 4
    assert views.told("x", 3, "ab") == ["x saw view 3 after view 3"]
    assert views.told("x", 4, "a") == []
    assert views.told("y", 4, "ab") == ["view 4 is ab to y, and a to x"]
