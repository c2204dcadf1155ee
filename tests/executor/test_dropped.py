"""An executor that its user dropped without ``shutdown``."""

from __future__ import annotations

import threading

import pytest

from executor.work import WORK
from latchwork.executor import Executor

pytestmark = pytest.mark.threads


@pytest.fixture
def dropped(store, workers):
    """The only reference to an executor that has run a task, in a list, and its submitter."""
    workers()
    held = [Executor(store, "default", functions=WORK)]
    assert held[0].submit("square", 7).result(100) == 49
    return held, held[0]._submitter


def test_executor_that_is_collected_inside_its_own_mutex_ends_its_threads(dropped, eventually):
    held, submitter = dropped
    with submitter._changed.mutex:
        held.clear()
    eventually(lambda: not submitter._background.is_alive)


def test_executor_that_is_collected_inside_a_lock_of_threading_ends_its_threads(dropped, eventually):
    held, submitter = dropped
    with threading._active_limbo_lock:
        held.clear()
    eventually(lambda: not submitter._background.is_alive)
