"""The judge of the soak, and its short form."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from backends_table import BACKENDS
from trials.soak.soak import Sample, judge, prefix_of

SECONDS = 45
NAMES = [backend.name for backend in BACKENDS if backend.shared]


def samples(keys=lambda _at: 100, rss=lambda _at: 90_000_000):
    return [Sample(at, {"lock/N": keys(at)}, {"rss": rss(at)}) for at in range(60)]


def test_judge_accepts_what_varies_around_a_level():
    assert judge(samples(keys=lambda at: 100 + at % 9, rss=lambda at: 90_000_000 + at % 7 * 1_000_000)) == []


def test_judge_names_a_prefix_whose_keys_grow():
    assert judge(samples(keys=lambda at: 10 + at)) == ["keys lock/N grew from 24 to 60"]


def test_judge_names_memory_that_grows():
    (said,) = judge(samples(rss=lambda at: 90_000_000 + at * 1_000_000))
    assert said.startswith("rss grew from")


def test_judge_accepts_growth_up_to_a_stated_ceiling():
    def grows(last):
        return [Sample(at, {"@executor/default/group": at * last // 59}, {}) for at in range(60)]

    assert judge(grows(1_000)) == []
    assert judge(grows(2_000)) != []


def test_judge_refuses_too_few_samples():
    assert judge(samples()[:8]) == ["8 samples are too few to compare thirds"]


def test_names_that_differ_by_a_number_are_one_prefix():
    assert prefix_of("soak-lock-17/lock/t-0a1b2c3d4e/x") == prefix_of("soak-lock-8/lock/t-99aabbccdd/y")


@pytest.mark.slow
@pytest.mark.parametrize("backend_url", NAMES, indirect=True)
def test_nothing_grows_while_names_nodes_and_stores_come_and_go(backend_url):
    command = [sys.executable, Path(__file__).with_name("run_soak.py"), "--url", backend_url, "--seconds", str(SECONDS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS * 6, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
