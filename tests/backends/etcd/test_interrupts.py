"""No interrupt of the main thread, at any moment or line, harms an etcd store; and its close always ends.

gRPC's compiled code is in no trace of ours: the signals of the first test are what hits it.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import grpc
import pytest

import latchwork
from latchwork.errors import LatchworkError, ReentrantCall, Unavailable
from levels import LONG
from patience import eventually
from trials.interrupts.harness import Interrupt, Interrupter

PLAY = Path(__file__).parent / "signals_play.py"
FOR_S = 30.0 if LONG else 3.0
STEP = 1 if LONG else 7
#: What the main thread waits with, and gRPC's own code with what it uses.
WAITS = (
    threading.__file__,
    contextlib.__file__,
    str(Path(concurrent.futures.__file__).parent),
    str(Path(grpc.__file__).parent),
)


def refused(store):
    with pytest.raises(LatchworkError):
        store.create("there", b"")


CALLS = {
    "put": lambda store: store.put("k", b"v"),
    "get": lambda store: store.get("k"),
    "list": lambda store: store.list("k"),
    "pipeline": lambda store: store.pipeline().put("k", b"v").result(5.0),
    "session": lambda store: store.open_session(2.0).close(),
    "watch": lambda store: store.watch("k").close(),
    "refused": refused,
}


@pytest.fixture
def url(etcd35, root):
    return etcd35.url(root)


def test_random_signals_leave_a_store_that_serves_and_closes_in_time(url):
    command = [sys.executable, str(PLAY), url, str(FOR_S), str(random.randrange(1000))]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=FOR_S + 40.0, check=False)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["hits"] > 20 * FOR_S
    assert found["put_s"] < 2.0
    assert [took for took in found["other_s"] if took < 2.0]
    assert found["close_s"] < 5.0
    assert found["left"] == []


@pytest.mark.parametrize("name", CALLS)
def test_interrupt_at_any_line_of_a_call_leaves_a_store_that_serves(name, url):
    interrupter = Interrupter(also=WAITS)
    with latchwork.connect(url) as store:
        store.put("there", b"v")
        line, hit = random.randrange(STEP) + 1, True
        while hit:
            hit = interrupter.call(lambda: CALLS[name](store), line)
            began = time.monotonic()
            assert store.put("after", b"%d" % line).value == b"%d" % line
            assert time.monotonic() - began < 2.0, interrupter.where
            line += STEP
        assert line > 20, "hardly a line was seen"
        backend = store._core.backend.inner
        assert not backend._writer.settling.unsettled
        assert all(reads._in_flight == 0 for reads in backend._reader._merged.values())


def test_store_whose_close_was_interrupted_at_any_line_is_closed_by_another(url):
    interrupter = Interrupter(also=WAITS)
    line, hit = random.randrange(2 * STEP) + 1, True
    while hit:
        store = latchwork.connect(url)
        store.put("k", b"v")
        hit = interrupter.call(store.close, line)
        store.close()
        line += 2 * STEP
    threads = [each for each in threading.enumerate() if each.name.startswith("latchwork-etcd")]
    eventually(lambda: not any(each.is_alive() for each in threads), 5.0, f"the end of {threads}")


@pytest.mark.parametrize("outer", ["put", "get", "pipeline"])
def test_call_in_a_signal_handler_is_served_or_refused_at_once_at_any_line(outer, url):
    took = []
    refused = []

    def inner():
        began = time.monotonic()
        try:
            store.put("handler", b"1")
        except ReentrantCall:
            refused.append(interrupter.where)
        took.append(time.monotonic() - began)

    with latchwork.connect(url) as store:
        store.put("k", b"v")
        interrupter = Interrupter(inner, also=WAITS)
        line = random.randrange(STEP) + 1
        while interrupter.call(lambda: CALLS[outer](store), line):
            line += STEP
    assert took
    assert max(took) < 2.0
    assert len(refused) < len(took), "none was served"


def test_close_ends_in_time_although_the_channel_does_not(backend, monkeypatch, caplog):
    backend.commit([], [])
    go_on = threading.Event()
    close = backend._link.close
    monkeypatch.setattr(backend._link, "close", lambda: (go_on.wait(20.0), close()))
    began = time.monotonic()
    backend.close()
    assert time.monotonic() - began < 5.0
    assert "did not close within" in caplog.text
    go_on.set()


def test_open_that_was_interrupted_closes_what_it_opened(monkeypatch):
    from latchwork.backends.offload import OffloadedBackend

    closed, go_on = threading.Event(), threading.Event()

    class Opened:
        def close(self):
            closed.set()

    def opening():
        go_on.wait(10.0)
        return Opened()

    def interrupted(*_):
        go_on.set()
        raise Interrupt

    monkeypatch.setattr("latchwork.backends.futures.Outcome._wait", interrupted)
    with pytest.raises(Interrupt):
        OffloadedBackend(opening, "latchwork-test", 5.0)
    assert closed.wait(5.0)


def test_call_that_does_not_return_in_time_is_unavailable():
    from latchwork.backends.offload import Lane

    go_on = threading.Event()
    lane = Lane("latchwork-test", in_order=True)
    with pytest.raises(Unavailable, match=r"within 0\.05 s"):
        lane.made(lambda: go_on.wait(10.0), 0.05)
    go_on.set()
    lane.close(5.0)
