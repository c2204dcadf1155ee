"""A child process that runs calls, one at a time. It is killed if a call must end and does not."""

from __future__ import annotations

import math
import os
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

from latchwork.clock import SYSTEM_CLOCK
from latchwork.tasks.children import DEVNULL, CannotStart, Child, ChildEnd, DeadlineExtender
from latchwork.tasks.errors import TaskProcessDied, TaskStopped, TaskTimeout
from latchwork.tasks.functions import RegisteredFunction
from latchwork.tasks.payloads.codec import Payloads
from latchwork.tasks.payloads.outcome import Outcome
from latchwork.tasks.running.calls import PICKLED, StoredCall
from latchwork.tasks.running.context import SESSION_ENDS, TaskContext
from latchwork.tasks.running.process_main import (
    MAX_FRAME_OVERHEAD,
    FunctionLocation,
    encode_call_frame,
    encode_start_message,
    read_frame,
    write_frame,
)

#: The module search path, for the process itself and not for processes that a task starts.
_PATH = "LATCHWORK_TASK_PATH"
_BOOT = f"""
import os, sys
sys.path[:] = os.environ.pop("{_PATH}").split(os.pathsep)
from latchwork.tasks.running.process_main import main
main()
"""


class TaskProcess:
    """The child process of one slot. It starts with the first call, and again after it was ended. Not thread-safe.

    Args:
        payloads: Encodes and decodes arguments and results.
        deadline_extender: Limits how long the process may run; None lets it run until this process ends.
        stop_grace_s: Seconds between a request to stop and the kill.
        label: Name of the process in process lists.
    """

    def __init__(
        self, payloads: Payloads, deadline_extender: DeadlineExtender | None, *, stop_grace_s: float, label: str
    ) -> None:
        self._payloads = payloads
        self._deadlines = deadline_extender
        self._grace_s = stop_grace_s
        self._label = label
        self._child: Child | None = None
        self._calls = self._answers = -1

    def run(self, call: StoredCall, registered: RegisteredFunction | None, context: TaskContext) -> Outcome:
        """Run a call in the process, and return its outcome. If the process has died, the outcome says why.

        Args:
            call: The call.
            registered: The function, if the call names a registered one; otherwise None.
            context: Context of the run.
        """
        try:
            child = self._child or self._start()
        except (CannotStart, OSError) as error:
            return Outcome.from_exception(error)
        hard = math.inf if context.deadline is None else context.deadline + self._grace_s
        self._set_deadline(child, hard)
        remove = context.on_stop(partial(child.stop, self._grace_s))
        try:
            answer = self._exchange(call, registered, context)
        except Exception as error:
            self.close()  # its next answer would be unpredictable
            return Outcome.from_exception(error)
        finally:
            remove()
        if context.should_stop:  # it was stopped, though it may have answered before
            end = child.wait() if answer is None else None
            self.close()
            return answer if answer is not None else self._build_death_outcome(end, context)
        if answer is None:
            outcome = self._build_death_outcome(child.wait(), context)
            self.close()
            return outcome
        self._set_deadline(child, math.inf)
        return answer

    def _set_deadline(self, child: Child, deadline: float) -> None:
        if self._deadlines is not None:
            self._deadlines.add(child, deadline)
        else:
            child.set_deadline(deadline)

    def _exchange(
        self, call: StoredCall, registered: RegisteredFunction | None, context: TaskContext
    ) -> Outcome | None:
        place = None if call.function == PICKLED or registered is None else FunctionLocation.for_function(registered)
        most = self._payloads.max_payload_bytes + MAX_FRAME_OVERHEAD
        try:
            write_frame(self._calls, encode_call_frame(call, place, context))
            frame = read_frame(partial(os.read, self._answers), most)
        except BrokenPipeError:
            return None
        return None if frame is None else Outcome.from_bytes(frame)

    def _build_death_outcome(self, end: ChildEnd | None, context: TaskContext) -> Outcome:
        now = SYSTEM_CLOCK.now()
        if context.deadline is not None and now >= context.deadline:
            return Outcome.from_exception(TaskTimeout(f"task {context.task_id} was killed: its time was over"))
        if context.should_stop:
            return Outcome.from_exception(TaskStopped(f"task {context.task_id} was stopped, and ended by force"))
        if end is not None and end.why == "deadline":  # not extended in time, although the session may go on
            text = f"task {context.task_id} was killed: {SESSION_ENDS}"
            return Outcome.from_exception(TaskStopped(text), stop_reason=SESSION_ENDS)
        return Outcome.from_exception(TaskProcessDied(f"the process of task {context.task_id} {end or 'ended'}"))

    def _start(self) -> Child:
        theirs_in, self._calls = os.pipe()
        self._answers, theirs_out = os.pipe()
        keep = (theirs_in, theirs_out)
        rules = (int(self._payloads.allow_pickle), self._payloads.max_payload_bytes)
        try:
            argv = [sys.executable, "-c", _BOOT, *map(str, keep), *map(str, rules)]
            env = {**os.environ, _PATH: os.pathsep.join(each or str(Path.cwd()) for each in sys.path)}
            child = Child(argv, env=env, stdin=DEVNULL, keep=keep, label=self._label)
        except BaseException:
            self._close_pipes()
            raise
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        self._child = child
        self._set_deadline(child, math.inf)
        with suppress(BrokenPipeError):  # it ended immediately: the call notices
            write_frame(self._calls, encode_start_message())
        return child

    def close(self) -> None:
        """End the process. The next call starts another one."""
        child, self._child = self._child, None
        if child is None:
            return
        if self._deadlines is not None:
            self._deadlines.remove(child)
        self._close_pipes()
        child.close()

    def _close_pipes(self) -> None:
        for fd in (self._calls, self._answers):
            if fd >= 0:
                os.close(fd)
        self._calls = self._answers = -1
