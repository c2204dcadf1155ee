"""Fixtures for several clients with the same root. Each has a separate session."""

from __future__ import annotations

import contextlib
import threading

import pytest

import latchwork


@pytest.fixture
def client(backend_url):
    """A function that opens a store with the root of the test and a session of 1 s, until the test ends."""
    with contextlib.ExitStack() as opened:
        yield lambda: opened.enter_context(latchwork.connect(backend_url, session_ttl_s=1.0))


@pytest.fixture
def run_concurrently():
    """A function that runs the given functions in parallel threads and returns their results, in the same order."""

    def call(*functions, timeout_s=60.0):
        results = [None] * len(functions)

        def run(at):
            try:
                results[at] = functions[at]()
            except BaseException as error:
                results[at] = error

        threads = [threading.Thread(target=run, args=(at,), daemon=True) for at in range(len(functions))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout_s)
        assert not any(thread.is_alive() for thread in threads), f"no answer in {timeout_s} s"
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return results

    return call
