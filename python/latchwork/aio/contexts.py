"""The twin of the context that a run of a job gets, if the run is an ``async def``."""

from __future__ import annotations

from collections.abc import Callable

from latchwork import jobs
from latchwork.aio.registry import Twin
from latchwork.aio.stores import in_thread
from latchwork.aio.table import Row
from latchwork.aio.threads import one
from latchwork.aio.twinning import twin
from latchwork.aio.users import as_listener
from latchwork.clock import SYSTEM_CLOCK
from latchwork.store.driving.helper import drive
from latchwork.store.steps import Pause, Signal


class ContextTwin(Twin):
    """What of a context is not made from its methods.

    The run's task is cancelled when the run is told to stop. One that has to come to an end first catches the
    ``CancelledError``, or shields what it awaits; from then on the locks last as long as ``remaining_s`` says.
    """

    async def wait_stop(self, timeout_s: float | None = None) -> bool:
        """Wait until this run is told to stop: True then, False when the time, in seconds, was over.

        The run's own task is cancelled at that moment: this is for other tasks.
        """
        told = Signal()
        take_back = self._of.on_stop(told.set)
        try:
            return await drive(lambda: one(Pause(SYSTEM_CLOCK, told, timeout_s)))
        finally:
            take_back()

    def on_stop(self, listener: Callable[[], object]) -> Callable[[], None]:
        """Have ``listener`` called in this loop once when this run is told to stop; it may be an ``async def``."""
        take_back: Callable[[], None] = self._of.on_stop(as_listener(listener, "JobContext.on_stop"))
        return take_back

    async def stop(self) -> None:
        """Tell the run to stop, and await the listeners; for tests. Twice is fine."""
        await in_thread(self._of.stop)


ROWS = (Row(jobs.JobContext, ContextTwin, ("stop_signal",)),)
JobContext = twin(ROWS[0].kind, ROWS[0].by_hand, ROWS[0].hidden)
