"""Tasks in processes of a node that dies or freezes: each is gone before the session of its claim can end."""

from __future__ import annotations

import signal
import time

import pytest

from latchwork.primitives import WorkQueue
from latchwork.tasks.children import DeadlineExtender
from processes import lives

from . import examples
from .feeding import Node, end_process, node_process, put, result_of
from .test_children import eventually, pid_in

PATIENCE_S = 30.0
TTL_S = 4.0


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_task_in_a_process_is_gone_before_the_session_of_its_node(backend_url, store, how, tmp_path):
    if backend_url.startswith("memory"):
        pytest.skip("needs a second process")
    put(store, examples.tells_and_is_deaf, str(tmp_path / "pid"), 300.0, id="long")
    node = node_process(backend_url, TTL_S, run_in="process")
    try:
        pid = pid_in(tmp_path / "pid")
        time.sleep(TTL_S / 2)  # renewals move its moment on
        assert lives(pid)
        node.send_signal(how)
        began = time.monotonic()
        while lives(pid):
            assert time.monotonic() < began + PATIENCE_S, "it lives on"
            time.sleep(0.005)
        assert WorkQueue(store, "work").claims(), "the claim is there: nobody else can have begun"
        took_s = time.monotonic() - began
        assert took_s < (TTL_S if how == signal.SIGSTOP else 1.5)
    finally:
        end_process(node)


def test_a_task_that_its_node_ended_runs_again_when_the_session_goes_on(store, tmp_path):
    """The deadline of the process was not extended in time, but the session was renewed after all."""
    left_s = [300.0]
    with DeadlineExtender(lambda: left_s[0], margin_s=0.0, every_s=0.05) as deadline_extender:
        put(store, examples.tells_and_is_deaf, str(tmp_path / "pid"), 3.0, id="long")
        with Node(store, run_in="process", deadline_extender=deadline_extender):
            first = pid_in(tmp_path / "pid")
            left_s[0] = 0.0
            eventually(lambda: not lives(first))
            left_s[0] = 300.0
            assert result_of(store, "long").is_success
    assert pid_in(tmp_path / "pid") != first
