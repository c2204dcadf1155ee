"""The loop around a worker's function: to the start line, run it, again after a fault, to the finish, complete."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol, TypeVar

from latchwork.errors import OutcomeUnknown, SessionLost, Unavailable
from latchwork.store.steps import called
from latchwork.user_code import is_ending, is_interrupt
from latchwork.words import reason
from latchwork.workers.errors import JobFaulty, JobTerminated, Removed

_log = logging.getLogger(__name__)

T = TypeVar("T")

#: What is no failure of a function: the store could not be reached, or our session ended. As when its process dies, the
#: worker comes back by its key, and all begin again.
PASSING = (Unavailable, OutcomeUnknown, SessionLost)


class ComesBack(Exception):
    """The function's process has died; the job goes on, and who held the worker comes back with its key."""


class Runs(Protocol):
    """What the loop needs of a worker."""

    async def enter(self, prepare: Callable[[], object] | None) -> bool:
        """Go to the start line of the epoch there is; False if there is nothing to run any more."""

    async def finish(self) -> None:
        """Meet all others at the finish."""

    async def complete(self) -> None:
        """Our part is done."""

    async def count_execution(self) -> None:
        """The function is run once more; raises when that is too often."""

    async def give_up(self, why: str) -> None:
        """This worker has failed for good; raises ``JobFaulty`` if the epoch is over, and that does not count."""


async def run_through(
    worker: Runs, call: Callable[[], T], prepare: Callable[[], object] | None, *, final_barrier: bool
) -> T | None:
    """Run a function of the user's to its end in an epoch that lasts so long; None if there is nothing to run."""
    is_first = True
    while True:
        try:
            result: T | None = None
            if await worker.enter(prepare):
                if not is_first:
                    await worker.count_execution()
                is_first = False
                result = await _run(worker, call)
                if final_barrier:
                    await worker.finish()
            await worker.complete()
        except JobFaulty as error:
            _log.warning("%s", error)
        else:
            return result


async def _run(worker: Runs, call: Callable[[], T]) -> T:
    try:
        return await called(call)
    except BaseException as error:
        if is_failure(error):
            await worker.give_up(reason(error))
        raise


def is_failure(error: BaseException) -> bool:
    """Return whether a worker has failed for good when its code raises this, whatever else it is."""
    is_of_the_job = isinstance(error, (JobFaulty, JobTerminated, Removed, ComesBack, *PASSING))
    return not (is_of_the_job or is_interrupt(error) or is_ending(error))
