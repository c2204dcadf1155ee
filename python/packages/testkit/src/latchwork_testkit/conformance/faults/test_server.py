"""Server faults: the server is killed and started again."""

from __future__ import annotations

import contextlib
import time

import pytest

import latchwork
from latchwork.errors import ConnectFailed, LatchworkError

BACK_S = 30.0


def test_acknowledged_writes_survive_a_crash_of_the_server(server, store):
    if store.capabilities.survives not in {"crash", "power loss"}:
        pytest.skip(f"survives={store.capabilities.survives!r}: a crash may lose the last writes")
    for number in range(20):
        store.put(f"kept/{number}", b"v")
    server.kill()
    server.start()
    until = time.monotonic() + BACK_S
    found = []
    while len(found) < 20 and time.monotonic() < until:
        with contextlib.suppress(LatchworkError):
            found = store.list("kept")
    assert len(found) == 20


def test_tokens_keep_growing_after_a_restart(server, store):
    before = store.put("k", b"1").token
    server.kill()
    server.start()
    until = time.monotonic() + BACK_S
    after = None
    while after is None and time.monotonic() < until:
        with contextlib.suppress(LatchworkError):
            after = store.put("k", b"2")
    assert after.token > before


def test_a_server_that_does_not_run_is_reported_in_time(server, backend_url, store):
    store.put("k", b"v")
    server.kill()
    began = time.monotonic()
    with pytest.raises(ConnectFailed):
        latchwork.connect(backend_url, connect_timeout_s=1.0)
    assert time.monotonic() - began < 6.0
    server.start()
