"""The asyncio form of the context of a job's run, for runs that are ``async def`` functions."""

from __future__ import annotations

from collections.abc import Callable

from latchwork import jobs
from latchwork._base.event import Signal
from latchwork.aio.callbacks import wrap_listener
from latchwork.aio.factory import create_async_class
from latchwork.aio.steps import await_step
from latchwork.aio.store import run_in_thread
from latchwork.aio.table import Row
from latchwork.aio.wrapper import AsyncWrapper
from latchwork.clock import SYSTEM_CLOCK
from latchwork.store.driving.background_loop import run_in_task
from latchwork.store.steps import Pause


class AsyncJobContext(AsyncWrapper):
    """The hand-written methods of the asyncio form of ``JobContext``. The others are generated.

    When the run has to stop, its task is canceled. A run that must finish something first catches the
    ``CancelledError`` or shields what it awaits. It has ``remaining_s`` seconds until its locks expire.
    """

    async def wait_for_stop(self, timeout_s: float | None = None) -> bool:
        """Wait until this run has to stop. Use it in tasks that the run has started: the run's own task is canceled at
        that time.

        Args:
            timeout_s: Seconds to wait. None waits forever.
        Returns:
            True when the run has to stop, False after the timeout.
        """
        stopped = Signal()
        remove_listener = self._of.on_stop(stopped.set)
        try:
            return await run_in_task(lambda: await_step(Pause(SYSTEM_CLOCK, stopped, timeout_s)))
        finally:
            remove_listener()

    def on_stop(self, listener: Callable[[], object]) -> Callable[[], None]:
        """Register a listener that is called once in this event loop when this run has to stop.

        Args:
            listener: A plain or an ``async def`` function.
        Returns:
            A function that removes the listener.
        """
        remove: Callable[[], None] = self._of.on_stop(wrap_listener(listener, "JobContext.on_stop"))
        return remove

    async def stop(self) -> None:
        """Stop the run and wait for its listeners. For tests. Idempotent."""
        await run_in_thread(self._of.stop)


ROWS = (Row(jobs.JobContext, AsyncJobContext, ("stop_signal",)),)
JobContext = create_async_class(ROWS[0].kind, ROWS[0].base, ROWS[0].hidden)
