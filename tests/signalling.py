"""Signals to the process of the tests, from another thread."""

from __future__ import annotations

import os
import threading


class signals_later:  # noqa: N801 - used like a function
    """Send this process signals once each condition holds; the first one half a second after it began to wait."""

    def __init__(self, *numbers, when=lambda: True):
        self.numbers, self.when = numbers, when

    def __enter__(self):
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._send, daemon=True)
        self.thread.start()

    def _send(self):
        for number in self.numbers:
            while not self.stopped.wait(0.3):
                if self.when():
                    os.kill(os.getpid(), number)
                    break

    def __exit__(self, *_):
        self.stopped.set()
        self.thread.join()
