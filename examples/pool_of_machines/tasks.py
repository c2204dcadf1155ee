"""What the pool runs: how many primes there are in a stretch of numbers."""

from __future__ import annotations

from latchwork.tasks import TaskContext, task


@task(name="primes.count")
def count(first: int, last: int, context: TaskContext) -> int:
    """Primes from ``first`` up to, not with, ``last``. Ends early when it is told to stop."""
    found = 0
    for number in range(max(2, first), last):
        if number % 1000 == 0 and context.should_stop:
            break
        if all(number % each for each in range(2, int(number**0.5) + 1)):
            found += 1
    return found
