"""Requests to end a process, as items of a queue: the signals SIGTERM and SIGINT, and requests of the program itself.

A signal handler runs between any two bytecodes of the main thread, so it must not take a lock that its thread may hold.
``SimpleQueue.put`` is safe there.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from types import FrameType

from latchwork.clock import SIGNALS_S

_log = logging.getLogger(__name__)

_NUMBERS = (signal.SIGTERM, signal.SIGINT)
#: The request that ends the listening thread.
_LEFT = ""


@contextmanager
def end_signals(requests: SimpleQueue[str]) -> Iterator[None]:
    """Context manager that puts the names of the first two SIGTERM or SIGINT signals into a queue.

    The third signal has its default effect. Only the main thread can handle signals. In any other thread this does
    nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen: list[int] = []

    def handle(number: int, _frame: FrameType | None) -> None:
        seen.append(number)
        requests.put(signal.Signals(number).name)
        if len(seen) == 2:
            restore()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    before = {number: signal.signal(number, handle) for number in _NUMBERS}
    try:
        yield
    finally:
        restore()


def next_request(requests: SimpleQueue[str]) -> str:
    """Wait for the next request in the queue and return it.

    Waits with short timeouts, so that the main thread can run signal handlers in between. A signal that another thread
    receives would otherwise not end the wait.
    """
    while True:
        try:
            return requests.get(timeout=SIGNALS_S)
        except Empty:
            continue


@contextmanager
def on_end_signals(first: Callable[[], object], second: Callable[[], object]) -> Iterator[None]:
    """Context manager that calls ``first`` at the first SIGTERM or SIGINT and ``second`` at the second, in a separate
    thread.

    For programs whose main thread does not wait for requests, because it may be starting or closing something.
    """
    requests: SimpleQueue[str] = SimpleQueue()

    def listen() -> None:
        for call in (first, second):
            name = requests.get()
            if name == _LEFT:
                return
            _log.info("stopping because of signal %s", name)
            call()

    thread = threading.Thread(target=listen, name="latchwork-signals", daemon=True)
    with end_signals(requests):
        thread.start()
        try:
            yield
        finally:
            requests.put(_LEFT)
            thread.join()
