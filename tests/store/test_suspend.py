"""A laptop that was suspended: the clock says how long it slept, and no thread has noticed yet."""

from __future__ import annotations

import pytest

import latchwork
from latchwork.clock import SystemClock
from latchwork.errors import OwnershipLost
from latchwork.primitives import Lock, PersistentLock


class Sleeper(SystemClock):
    """A clock that counts the time of a suspend, as the system's does, while waits do not."""

    def __init__(self):
        self.slept_s = 0.0

    def now(self):
        return SystemClock.now() + self.slept_s


def test_nothing_is_held_at_the_moment_a_suspended_machine_wakes(backend_url):
    clock = Sleeper()
    with latchwork.connect(backend_url, clock=clock, session_ttl_s=5) as store:
        lock, lasting = Lock(store, "lock"), PersistentLock(store, "lasting", ttl_s=5)
        fence = lock.acquire(timeout_s=20)
        lasting.acquire(timeout_s=20)
        session = store.session
        clock.slept_s = 3600.0
        assert not lock.is_held
        assert not lasting.is_held
        assert session.remaining_s() == 0.0
        with pytest.raises(OwnershipLost):
            lock.guard_work()
        assert session.lost.wait(10.0)
        again = Lock(store, "lock")
        assert again.acquire(timeout_s=60).token > fence.token
        lock.close()
        lasting.close()
