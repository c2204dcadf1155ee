"""What a running task can ask: who it is, whether it has to stop, what proves that it is still the one.

Nothing here touches the network.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, MutableMapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from latchwork.clock import SYSTEM_CLOCK, Clock
from latchwork.errors import LatchworkError
from latchwork.stops import StopSignal
from latchwork.tasks.errors import TaskRefused
from latchwork.types import Fence

if TYPE_CHECKING:
    from latchwork.store import Store

_log = logging.getLogger("latchwork.tasks.run")


class TaskContext(StopSignal):
    """The run that this is: of a parameter annotated ``TaskContext``, or ``current_task()``. Safe to share.

    It is told to stop (``should_stop``, ``wait_stop``, ``on_stop``) when the task is cancelled, its time is over, its
    claim is about to end, or its node closes. A run in a process of its own is ended by force then, and has no store.

    Attributes:
        takes_task_context: what a parameter's class says to get the context.
        task_id: the task, unique among those of its system.
        attempt: which try this is, from 1.
        node_id: the node that runs it.
        context: what the node was given for its tasks.
        deadline: when the run is stopped, on the machine's boot clock; None for never.
    """

    takes_task_context: ClassVar[bool] = True

    def __init__(
        self,
        task_id: str,
        *,
        attempt: int = 1,
        fence: Fence | Callable[[], Fence] | None = None,
        store: Store | None = None,
        node_id: str = "",
        deadline: float | None = None,
        context: object = None,
        remaining_s: Callable[[], float] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        super().__init__(f"task {task_id}", clock)
        self.task_id = task_id
        self.attempt = attempt
        self._fence = fence
        self.node_id = node_id
        self.context = context
        self.deadline = deadline
        self._store = store
        self._left = remaining_s

    def __repr__(self) -> str:
        return f"<TaskContext {self.task_id} attempt {self.attempt}>"

    @property
    def fence(self) -> Fence:
        """Put it among the checks of every write that must not come twice; its ``token`` grows with each try."""
        if callable(self._fence):
            self._fence = self._fence()
        return Fence(0, ()) if self._fence is None else self._fence

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose lines begin with the task's id."""
        return _TaskLog(_log, {"task": self.task_id})

    @property
    def store(self) -> Store:
        """The store of the node, for the task's own keys.

        Raises:
            LatchworkError: the task runs in a process of its own: connect there.
        """
        if self._store is None:
            raise LatchworkError(f"task {self.task_id} runs in a process of its own; connect to the store there")
        return self._store

    def remaining_s(self) -> float:
        """Seconds for which the run may surely go on; infinity when nothing ends it. Does no I/O."""
        if self.should_stop:
            return 0.0
        left_s = float("inf") if self.deadline is None else max(0.0, self.deadline - self._clock.now())
        return left_s if self._left is None else min(left_s, self._left())

    @property
    def is_overdue(self) -> bool:
        """Whether the time of the run, its ``timeout_s``, is over. Does no I/O."""
        return self.deadline is not None and self._clock.now() >= self.deadline

    def refuse(self, why: str) -> NoReturn:
        """End this run as "not here": it counts as no try, and another node may take the task.

        Raises:
            TaskRefused: always.
        """
        raise TaskRefused(why)


class _TaskLog(logging.LoggerAdapter[logging.Logger]):
    """Begins each line with the task's id."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return f"task {(self.extra or {}).get('task')}: {msg}", kwargs


running: ContextVar[TaskContext | None] = ContextVar("latchwork_task", default=None)


def current_task() -> TaskContext:
    """The context of the task that this thread runs.

    Raises:
        LatchworkError: it runs none.
    """
    found = running.get()
    if found is None:
        raise LatchworkError("no task runs in this thread; ask in the function itself, or pass its context on")
    return found
