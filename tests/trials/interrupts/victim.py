"""A process that is interrupted: calls a store until SIGINT ends the call, then looks at what the interrupt left.

Run with a URL, a number of rounds and a seed. Each round writes a line ``ready`` when its call may be interrupted, and
a line of JSON with what was found. The last round catches nothing, so the interrupt ends the process.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any

import latchwork
from latchwork import Put, Store
from latchwork.errors import LatchworkError, LockLost, SessionLost
from latchwork.primitives import Lock

#: Seconds within which an interrupted wait leaves nothing, and for which a claim that is not waited for may stay.
SOON_S = 20.0


def say(**what: Any) -> None:
    """Write one line."""
    print(json.dumps(what), flush=True)


def until(true: Callable[[], bool], timeout_s: float) -> bool:
    """Ask again until it is true, or the time has passed."""
    deadline = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


class Victim:
    """Makes the calls of the rounds, with a store that is replaced when an interrupt left it unusable."""

    def __init__(self, url: str, name: str) -> None:
        self.url = url
        self.name = name
        self.other = latchwork.connect(url)  # the main thread uses it only between the rounds
        self.store = latchwork.connect(url)
        self.store.session  # noqa: B018 - opened here
        self.names: list[str] = []
        self.numbers = count(1)
        self.replaced = 0

    def once(self, kind: str) -> None:
        """Call until an interrupt ends it, then check."""
        check: Callable[[], None] = getattr(self, kind)(self.store, f"{self.name}-{next(self.numbers)}")
        check()
        if not self._is_usable():
            self.replaced += 1
            self.store.close()
            self.store = latchwork.connect(self.url)

    def _is_usable(self) -> bool:
        number = b"%d" % next(self.numbers)
        try:
            self.store.put("after", number)
            found = self.store.get("after")
        except LatchworkError:
            return False
        assert found is not None
        assert found.value == number, "a read before a write that was answered"
        return True

    def put(self, store: Store, name: str) -> Callable[[], None]:
        """Nothing that was interrupted overtakes the next write of the same key."""

        def check() -> None:
            with suppress(LatchworkError):
                store.put(name, b"last")
                assert self.other.get(name).value == b"last"  # type: ignore[union-attr]

        interrupted(lambda: [store.put(name, b"%d" % n) for n in range(1000)])
        return check

    def get(self, store: Store, name: str) -> Callable[[], None]:
        """A read has no effect."""
        interrupted(lambda: store.get(name))
        return lambda: None

    def list(self, store: Store, _name: str) -> Callable[[], None]:
        """A read has no effect."""
        interrupted(lambda: store.list("", recursive=True))
        return lambda: None

    def commit(self, store: Store, name: str) -> Callable[[], None]:
        """Both keys have the same value, whichever commit was the last one."""
        interrupted(lambda: [store.commit([], [Put(f"{name}/{k}", b"%d" % n) for k in "ab"]) for n in range(1000)])
        return lambda: _assert_same(self.other, name)

    def acquire(self, store: Store, name: str) -> Callable[[], None]:
        """The lock is held and known, or its ticket ends with the session."""
        lock = Lock(store, name)
        self.names.append(name)

        def use() -> None:
            lock.acquire(SOON_S)
            lock.release()

        def check() -> None:
            with suppress(LatchworkError):
                if lock.is_held:
                    with suppress(LockLost):
                        lock.release()
                lock.close()

        interrupted(use)
        return check

    def wait(self, store: Store, name: str) -> Callable[[], None]:
        """An interrupt while the lock is waited for leaves no ticket, although the session goes on."""
        held, lock = Lock(self.other, name), Lock(store, name)
        self.names.append(name)

        def ready_once_it_waits() -> None:
            until(lambda: bool(held.waiters()), SOON_S)
            say(ready=True)

        with held:
            threading.Thread(target=ready_once_it_waits).start()
            interrupted(lock.acquire, announce=False)
            assert until(lambda: not held.waiters(), SOON_S), "the ticket of an interrupted wait is still there"
        assert not lock.is_held
        lock.close()
        return lambda: None

    def close(self) -> None:
        """Close the store; no ticket of a lock is left, within one TTL."""
        began = time.monotonic()
        self.store.close()
        took_s = time.monotonic() - began
        left: list[str] = []

        def none_left() -> bool:
            left[:] = [f"{each.key} of {each.owner}" for name in self.names for each in self.other.list(name)]
            return not left

        ttl_s = self.store._core.session_ttl_s
        assert until(none_left, ttl_s + SOON_S), f"tickets are left: {left}"
        self.other.close()
        say(close_s=took_s, replaced=self.replaced)


def _assert_same(store: Store, name: str) -> None:
    found = {entry.value for entry in store.list(name)}
    assert len(found) <= 1, f"half of a commit was applied: {found}"


class Interrupts:
    """Raises KeyboardInterrupt while a call is made, and ignores a signal that comes later."""

    is_inside = False

    def __call__(self, *_: Any) -> None:
        if self.is_inside:
            raise KeyboardInterrupt


INTERRUPTS = Interrupts()


def interrupted(call: Callable[[], object], *, announce: bool = True) -> None:
    """Make the call again and again until an interrupt ends it."""
    try:
        INTERRUPTS.is_inside = True
        if announce:
            say(ready=True)
        while True:
            with suppress(SessionLost):  # on a machine that is too slow for its renewals
                call()
    except KeyboardInterrupt:
        INTERRUPTS.is_inside = False


def end(url: str) -> None:
    """Call a store with a lock until an interrupt ends the process."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with latchwork.connect(url) as store:
        lock = Lock(store, "end")
        with suppress(LatchworkError):
            lock.acquire(0.0)
        say(ready=True)
        while True:
            store.put("end-value", b"v")


def main() -> None:
    """Make so many rounds, then end by an interrupt."""
    url, rounds, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    logging.disable(logging.CRITICAL)
    random.seed(seed)
    signal.signal(signal.SIGINT, INTERRUPTS)
    victim = Victim(url, f"seed{seed}")
    for _ in range(rounds):
        kind = random.choice(["get", "put", "commit", "list", "acquire", "wait"])
        victim.once(kind)
        say(kind=kind)
    victim.close()
    end(url)


if __name__ == "__main__":
    main()
