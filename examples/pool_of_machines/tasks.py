"""A task for the pool: count the primes in a range of numbers."""

from __future__ import annotations

from latchwork.tasks import TaskContext, task


@task(name="primes.count")
def count(first: int, last: int, context: TaskContext) -> int:
    """Count the primes from ``first`` to ``last - 1``. Return early if the task should stop."""
    found = 0
    for number in range(max(2, first), last):
        if number % 1000 == 0 and context.should_stop:
            break
        if all(number % each for each in range(2, int(number**0.5) + 1)):
            found += 1
    return found
