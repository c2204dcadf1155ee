"""The main thread's calls are made by other threads, and closing ends although gRPC's channel does not."""

from __future__ import annotations

import threading
import time

import pytest

from latchwork.errors import Unavailable


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
        raise KeyboardInterrupt

    monkeypatch.setattr("latchwork.backends.futures.Outcome._wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
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
