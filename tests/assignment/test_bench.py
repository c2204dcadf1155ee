"""The benchmark measures what it says, at any size."""

from __future__ import annotations

import pytest

from latchwork_testkit.assign_bench import bench


def test_a_run_times_every_hasher_and_strategy():
    result = bench.run_benchmark(workers=5, items=200, repeats=1)
    assert [row["name"] for row in result["hashing"]] == ["fast", "compat", "python, blake2b"]
    assert [row["name"] for row in result["stateful"]][:3] == [
        "plain assign, one thread",
        "a worker joins",
        "a worker leaves",
    ]
    assert all(row["ratio"] > 0 for row in result["stateful"])
    assert all(row["items_per_s"] > 0 and row["seconds"] > 0 for row in result["hashing"] + result["strategies"])
    moves = {row["name"]: row["moves"] for row in result["strategies"]}
    assert moves["balanced"] == 200
    assert moves["balanced, one worker left"] == moves["evenly-spread, one worker left"] == 40


def test_candidates_take_turns_and_the_least_time_counts():
    calls = []
    rows = bench.measure([bench.Candidate(n, 1, lambda n=n: calls.append(n)) for n in "ab"], repeats=3)
    assert calls == ["a", "b"] * 3
    assert [row["name"] for row in rows] == ["a", "b"]


@pytest.mark.parametrize(("workers", "items", "repeats"), [(1, 1, 1), (2, 0, 1), (2, 1, 0)])
def test_sizes_that_make_no_sense_are_refused(workers, items, repeats):
    with pytest.raises(ValueError, match="it must be at least"):
        bench.run_benchmark(workers, items, repeats)


def test_progress_is_reported_as_often_as_announced():
    reported = []
    bench.run_benchmark(workers=3, items=50, repeats=2, progress=reported.append)
    assert len(reported) == bench.count_progress_calls(2)
