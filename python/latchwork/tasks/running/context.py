"""The context of a running task: its identity, its stop signal, and the fence of its claim.

Nothing here touches the network.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, MutableMapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from latchwork._base.cancellation import StopSignal
from latchwork.clock import SYSTEM_CLOCK, Clock
from latchwork.errors import LatchworkError
from latchwork.tasks.errors import TaskRefused
from latchwork.types import Fence

if TYPE_CHECKING:
    from latchwork.store import Store

_log = logging.getLogger("latchwork.tasks.run")

#: Why a run is stopped before another node can claim its item.
SESSION_ENDS = "the session of its node was about to end"


class TaskContext(StopSignal):
    """The context of a running task: its identity, its stop signal, and the fence of its claim. Thread-safe.

    A function gets it by a parameter annotated ``TaskContext``, or from ``current_task()``. Its stop signal
    (``should_stop``, ``wait_for_stop``, ``on_stop``) is set when the task is canceled, its ``timeout_s`` has passed,
    its claim is about to end, or its node closes. A run in a separate process is killed then, and has no store.

    Attributes:
        takes_task_context: Marks this class as the annotation of a parameter that gets the context.
        task_id: ID of the task, unique within its system.
        attempt: Number of this attempt, from 1.
        node_id: ID of the node that runs it.
        context: The object that the node was given for its tasks.
        deadline: The time on the machine's boot clock at which the run is stopped; None for no limit.
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
        """The fence of this run, whose ``token`` grows with each attempt.

        Add it to the checks of every write that must not happen twice.
        """
        if callable(self._fence):
            self._fence = self._fence()
        return Fence(0, ()) if self._fence is None else self._fence

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose messages begin with the ID of the task."""
        return _TaskLog(_log, {"task": self.task_id})

    @property
    def store(self) -> Store:
        """The store of the node, for keys of the task.

        Raises:
            LatchworkError: The task runs in a separate process. Open a connection there.
        """
        if self._store is None:
            raise LatchworkError(f"task {self.task_id} runs in a separate process; connect to the store there")
        return self._store

    def remaining_s(self) -> float:
        """Return the seconds for which the run may safely continue; infinity if there is no limit. Does no I/O."""
        if self.should_stop:
            return 0.0
        left_s = float("inf") if self.deadline is None else max(0.0, self.deadline - self._clock.now())
        return left_s if self._left is None else min(left_s, self._left())

    @property
    def is_overdue(self) -> bool:
        """Whether the ``timeout_s`` of the run has passed. Does no I/O."""
        return self.deadline is not None and self._clock.now() >= self.deadline

    def refuse(self, why: str) -> NoReturn:
        """Refuse to run the task on this node. This does not count as an attempt, and another node may take the task.

        Args:
            why: The reason, for messages.
        Raises:
            TaskRefused: Always.
        """
        raise TaskRefused(why)


class _TaskLog(logging.LoggerAdapter[logging.Logger]):
    """A logger adapter that prefixes each message with the ID of a task."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return f"task {(self.extra or {}).get('task')}: {msg}", kwargs


running: ContextVar[TaskContext | None] = ContextVar("latchwork_task", default=None)


def current_task() -> TaskContext:
    """Return the context of the task that this thread is running.

    Raises:
        LatchworkError: The thread is not running a task.
    """
    found = running.get()
    if found is None:
        raise LatchworkError(
            "no task runs in this thread; call this in the function of the task itself, or pass its context on"
        )
    return found
