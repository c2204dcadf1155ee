"""Plans while their workers are killed: each task has one result, and the plan comes to its end."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from latchwork.plans import Plans, PlanState, TaskState
from levels import LONG
from plans.remote_worker import FUNCTIONS, step

TASKS = 300 if LONG else 60
WORKERS, DEPS, WAIT_S = 3, 5, 120.0
REMOTE = Path(__file__).with_name("remote_worker.py")


def start(url):
    return subprocess.Popen([sys.executable, str(REMOTE), url], stdout=subprocess.DEVNULL)


@pytest.fixture
def crew(backend_url):
    if backend_url.startswith("memory"):
        pytest.skip("memory has one process")
    processes = [start(backend_url) for _ in range(WORKERS)]
    yield processes
    for each in processes:
        each.kill()
    for each in processes:
        each.wait()


def test_workers_that_are_killed_lose_no_task_and_run_none_twice(backend_url, store, crew):
    chance = random.Random(47)
    deps = {n: sorted(chance.sample(range(n), min(n, DEPS))) for n in range(TASKS)}
    with Plans(store, functions=FUNCTIONS).new("killed") as plan:
        refs = []
        for number, before in deps.items():
            refs.append(plan.add(step, number, [refs[each] for each in before]))
    handle = plan.handle
    until, kills = time.monotonic() + WAIT_S, 0
    while not handle.state().has_ended:
        assert time.monotonic() < until, handle.status()
        with suppress(Exception):
            handle.wait(1.5)
        if kills < 4:
            victim = chance.randrange(WORKERS)
            crew[victim].kill()
            crew[victim].wait()
            crew[victim] = start(backend_url)
            kills += 1
    assert handle.wait(0).state is PlanState.COMPLETED
    assert handle.status().tasks == {TaskState.DONE: TASKS}
    wanted = {}
    for number, before in deps.items():
        wanted[number] = (number + sum(wanted[each] for each in before)) % 1_000_003
    assert [handle.result(each, 0) for each in refs] == list(wanted.values())
