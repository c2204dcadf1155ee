"""Random signals while the main thread uses a store; prints what became of it as JSON. Run with a URL and seconds.

A process of its own: a store that hangs is ended with it.
"""

from __future__ import annotations

import json
import logging
import random
import signal
import sys
import threading
import time
from typing import Any

import latchwork
from latchwork.errors import LatchworkError


class Alarm(KeyboardInterrupt):
    """The one that we raised."""


def interrupted_calls(store: latchwork.Store, for_s: float) -> int:
    """Make calls of every kind, each of them hit by a signal at some moment; how many were cut short."""
    hits = 0

    def hit(*_: Any) -> None:
        raise Alarm

    def watch_and_leave() -> None:
        with store.watch("w") as watch:
            watch.next(timeout_s=1.0)

    calls = [
        lambda: store.put("k", b"v"),
        lambda: store.get("k"),
        lambda: store.list("k"),
        lambda: store.pipeline().put("p", b"v").result(5.0),
        lambda: store.open_session(2.0).close(),
        watch_and_leave,
    ]
    signal.signal(signal.SIGALRM, hit)
    until = time.monotonic() + for_s
    number = 0
    while time.monotonic() < until:
        number += 1
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0001, 0.003))
                calls[number % len(calls)]()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except Alarm:
            hits += 1
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    return hits


def timed(call: Any) -> float:
    """Seconds that a call takes, and 99 if it fails."""
    began = time.monotonic()
    try:
        call()
    except LatchworkError:
        return 99.0
    return time.monotonic() - began


def main() -> None:
    """Interrupt, then look whether the store is of use, from this thread and from another, and closes."""
    url, for_s, seed = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    random.seed(seed)
    logging.disable(logging.CRITICAL)
    store = latchwork.connect(url)
    hits = interrupted_calls(store, for_s)
    slowest_s = max(timed(lambda: store.put("after", b"v")) for _ in range(20))
    of_others: list[float] = []
    other = threading.Thread(target=lambda: of_others.append(timed(lambda: store.put("other", b"v"))), daemon=True)
    other.start()
    other.join(20)
    close_s = timed(store.close)
    left = sorted(t.name for t in threading.enumerate() if t.name.startswith("latchwork"))
    print(json.dumps({"hits": hits, "put_s": slowest_s, "other_s": of_others, "close_s": close_s, "left": left}))


if __name__ == "__main__":
    main()
