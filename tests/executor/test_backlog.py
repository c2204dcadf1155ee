"""Tasks that were queued long before the first worker came."""

from __future__ import annotations

import time

import pytest

from executor.work import WORK, square
from latchwork.executor import Executor, ExecutorWorker
from levels import LONG

TASKS = 100_000 if LONG else 2_000
FIRST_S = 20.0
ALL_S = TASKS / 100


@pytest.mark.slow
@pytest.mark.timeout(3600 if LONG else 240)
def test_the_first_of_many_waiting_tasks_is_not_slower_than_of_a_few(store):
    with Executor(store, functions=WORK) as pool:
        futures = [pool.submit(square, number) for number in range(TASKS)]
        pool.flush(ALL_S)
        began = time.monotonic()
        with ExecutorWorker(store, functions=WORK, slots=8):
            assert futures[0].result(timeout=FIRST_S) == 0
            assert time.monotonic() - began < FIRST_S
            assert [future.result(timeout=ALL_S) for future in futures] == [number**2 for number in range(TASKS)]
