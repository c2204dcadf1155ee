"""Every backend is linearizable while servers die, networks break and processes freeze: the short form.

`make check WHAT=history` records a hundred thousand calls on each.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from backends_table import BY_NAME
from latchwork_testkit.histories.checker import format_timeline, minimize_history
from trials.history.run import Run, Summary, repeated
from trials.history.setups import SERVER, setup_of

CALLS = 1_500
LIMIT_S = 100.0
SHORT_OUTAGES_S = (0.3, 0.4)
#: On a quick machine clients that call all the time make thousands of calls for each fault: too few would be unknown.
SERVER_THINK_S = 0.02


@pytest.mark.slow
@pytest.mark.timeout(3 * 180)
@pytest.mark.parametrize("backend", BY_NAME)
def test_eight_clients_under_faults_see_one_order_of_their_calls(backend, tmp_path):
    tries = itertools.count()

    def run() -> Summary:
        directory = tmp_path / str(next(tries))
        directory.mkdir()
        usual = setup_of(backend)
        mean_pause_s = SERVER_THINK_S if usual is SERVER else usual.mean_pause_s
        setup = replace(usual, outage_s=min(usual.outage_s, SHORT_OUTAGES_S), mean_pause_s=mean_pause_s)
        return Run(backend, directory, seed=1, round_s=2.0, setup=setup).until(CALLS, limit_s=LIMIT_S)

    summary = repeated(run)
    print(summary.as_json())
    shown = format_timeline(minimize_history(summary.bad)) if summary.bad is not None else ""
    assert summary.problems == [], shown
    assert not summary.spoilt
    assert summary.counts, f"not enough went wrong for this to mean something: {summary.as_json()}"
