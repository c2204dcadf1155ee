"""`latchwork bench cluster`: small, on a store that is a file."""

from __future__ import annotations

import pytest

import latchwork
from latchwork_testkit.cluster_bench.model import (
    BenchOptions,
    Figures,
    Goal,
    StepFigures,
    compare_with_goals,
    compute_checksum,
)

SMALL = ("--workers", "12", "--items", "240", "--jobs", "4", "--deaths", "1", "--idle-s", "3.6", "--debounce-s", "0.05")


def step_figures(**changes):
    given = {
        "seconds": 1.0,
        "quiet_s": 0.3,
        "rebalance_s": 0.5,
        "assignments": 3,
        "moves": 2,
        "moved_bytes": 30,
        "written_bytes": 300,
    }
    return StepFigures(**{**given, **changes})


@pytest.mark.slow
def test_bench_cluster_measures_every_step_and_leaves_nothing_behind(cli, tmp_path):
    url = f"sqlite:///{tmp_path}/bench.db"
    done = cli("bench", "cluster", "--url", url, *SMALL, "--json")
    assert done.code == 0, done
    figures = done.json
    assert (figures["workers"], figures["items"], figures["jobs"]) == (12, 240, 4)
    assert figures["cold_start"]["moves"] == 240
    assert [step["moves"] for step in figures["deaths"]] == [20]
    assert all(step["assignments"] == 1 and step["moves"] == 1 for step in figures["added"])
    assert figures["takeover_s"] > 0
    idle = figures["idle"]
    assert (idle["changes"], idle["lock_owners"], idle["locks"]) == (0, 11, 220)
    assert idle["renewals"] >= 11, "each owner is renewed every third of its TTL of 10 s"
    assert {goal["what"] for goal in figures["goals"]} >= {"cold start", "a worker dies", "an item is added"}
    with latchwork.connect(url) as store:
        assert store.children("") == []


def test_bench_cluster_refuses_a_store_of_one_process(cli):
    cli("bench", "cluster", "--url", "memory://bench", *SMALL).refused(2, "memory", "one process")


def test_bench_cluster_refuses_to_let_every_worker_die(cli, tmp_path):
    args = ("--url", f"sqlite:///{tmp_path}/bench.db", "--workers", "3", "--deaths", "3")
    cli("bench", "cluster", *args).refused(2, "--deaths", "at least one worker")


def test_checksum_changes_when_an_item_is_lost_or_doubled():
    whole = compute_checksum(["a", "b", "c"])
    assert compute_checksum(["c"]) + compute_checksum(["b", "a"]) == whole
    assert compute_checksum(["a", "b"]) != whole
    assert compute_checksum(["a", "b", "b"]) != whole


def test_every_item_of_the_bench_is_in_one_pool_and_every_worker_in_one_process():
    options = BenchOptions("-", workers=7, items=100, jobs=3, processes=2, deaths=3)
    items = [item for pool in options.pools().values() for item in pool]
    assert len(set(items)) == len(items) == 100
    crews = options.workers_by_process()
    assert sorted(worker for crew in crews for worker in crew) == options.worker_ids()


def test_the_slowest_death_counts_against_the_goal():
    figures = Figures(BenchOptions("-"), "x", deaths=[step_figures(), step_figures(seconds=3.0), step_figures()])
    assert Goal("a worker dies", 3.0, 2.0, "s") in compare_with_goals(figures)
    assert not next(goal for goal in compare_with_goals(figures) if goal.what == "a worker dies").is_met


def test_an_added_item_is_held_to_its_goal_without_the_quiet_time():
    figures = Figures(
        BenchOptions("-"),
        "x",
        added=[step_figures(seconds=0.34), step_figures(seconds=0.35), step_figures(seconds=0.9)],
    )
    goal = next(goal for goal in compare_with_goals(figures) if goal.what == "an item is added")
    assert abs(goal.found - 0.05) < 1e-9
    assert goal.is_met


def test_jobs_get_several_strategies_in_turn_and_the_first_is_named_once():
    options = BenchOptions("-", jobs=4, strategies=("balanced", "rendezvous"))
    by_job = options.strategy_by_job()
    assert by_job == {"*": "balanced", "job-0001": "rendezvous", "job-0003": "rendezvous"}
    assert set(by_job) - {"*"} < set(options.pools())
