"""Step coroutines that run in the background, each in a separate thread or many in one event loop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from latchwork._base.event import Signal
from latchwork._base.execution_context import Caller, current_task_caller
from latchwork.store.steps import ConditionWait, StepCoroutine, run


class Background(ConditionWait):
    """A coroutine that runs in the background. Awaiting this object waits until the coroutine has ended.

    It runs in a separate thread. If a task of an event loop created the object, it runs in the background event loop.

    Args:
        create_coroutine: Called without arguments in the background to create the coroutine.
        name: Name of the thread.
        made_by: The task that created the object. None detects it.
    """

    __slots__ = ("_driver", "_ended")

    def __init__(
        self, create_coroutine: Callable[[], StepCoroutine[object]], name: str, made_by: Caller | None = None
    ) -> None:
        self._ended = Signal()
        super().__init__(None, self._ended.wait, self._ended.call_when_set, self._ended.is_set)
        caller = made_by or current_task_caller()
        self._driver: Caller | threading.Thread
        if caller is not None:
            self._driver = caller.spawn(partial(self._steps, create_coroutine), name)
        else:
            self._driver = threading.Thread(target=self._run, args=(create_coroutine,), name=name, daemon=True)
            self._driver.start()

    @property
    def is_running_here(self) -> bool:
        """Whether the caller is the background coroutine itself, which would deadlock if it waited for its own end."""
        return self._driver in {current_task_caller(), threading.current_thread()}

    @property
    def is_alive(self) -> bool:
        """Whether the coroutine is still running."""
        return self._driver.is_alive() if isinstance(self._driver, threading.Thread) else not self._ended.is_set()

    def block(self) -> bool:
        """Block until the coroutine and its thread have ended. Return True."""
        if isinstance(self._driver, threading.Thread):
            self._driver.join()
            return True
        return self._ended.wait()

    def join(self, timeout_s: float) -> bool:
        """Block until the coroutine has ended. Return False after ``timeout_s`` seconds."""
        if isinstance(self._driver, threading.Thread):
            self._driver.join(timeout_s)
            return not self._driver.is_alive()
        return self._ended.wait(timeout_s)

    def _run(self, create_coroutine: Callable[[], StepCoroutine[object]]) -> None:
        try:
            run(create_coroutine())
        finally:
            self._ended.set()

    async def _steps(self, create_coroutine: Callable[[], StepCoroutine[object]]) -> None:
        try:
            await create_coroutine()
        finally:
            self._ended.set()
