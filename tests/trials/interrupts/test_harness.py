"""The harness raises nothing where no interpreter would: what it finds is what a user can meet."""

from __future__ import annotations

import concurrent.futures
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from trials.interrupts.harness import Interrupter


def test_a_lock_of_the_standard_library_is_free_after_an_interrupt_at_any_line_under_it():
    """The line of a ``try`` may stand outside what leaves the ``with`` around it: a trace sees it, no signal does."""
    interrupter = Interrupter(also=(str(Path(concurrent.futures.__file__).parent),))
    line, hit = 1, True
    while hit:
        pool = ThreadPoolExecutor(1)
        hit = interrupter.call(lambda pool=pool: pool.shutdown(cancel_futures=True), line)
        assert pool._shutdown_lock.acquire(timeout=1.0), interrupter.where
        line += 1
    assert line > 5, "hardly a line was seen"
