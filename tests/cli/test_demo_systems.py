"""`latchwork demo executor`, `plans`, `workers` and `workflows`: a process is killed, and the result is right."""

from __future__ import annotations

import pytest


@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.parametrize("part", ["executor", "plans", "workers", "workflows"])
def test_a_demo_of_a_part_kills_a_process_and_has_the_right_result(cli, part):
    done = cli("demo", part, "--json", timeout_s=100.0)
    assert done.code == 0, done
    report = done.json
    assert report["ok"]
    assert any("kill -9" in line for line in report["lines"])
    assert report["seconds"] > 0


def test_a_demo_says_what_to_try_next(cli):
    assert "next: latchwork executor run" in cli("demo", "executor").out


def test_a_part_that_does_not_exist_is_a_usage_error(cli):
    done = cli("demo", "nothing")
    assert done.code == 2
    assert "executor" in done.err
