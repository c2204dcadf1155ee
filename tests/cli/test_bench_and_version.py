"""`latchwork bench assign` and `latchwork --version`."""

from __future__ import annotations

import latchwork


def test_bench_assign_prints_figures_for_people_and_programs(cli):
    text = cli("bench", "assign", "--workers", "10", "--items", "1000", "--repeats", "1")
    assert text.code == 0, text.err
    for name in ("1,000 items, 10 workers", "fast", "compat", "balanced", "evenly-spread"):
        assert name in text.out
    figures = cli("bench", "assign", "--workers", "10", "--items", "1000", "--repeats", "1", "--json").json
    assert figures["workers"] == 10
    assert all(row["seconds"] > 0 for row in figures["hashing"] + figures["strategies"])


def test_version_is_the_packages(cli):
    assert cli("--version").out == f"latchwork {latchwork.__version__}\n"
