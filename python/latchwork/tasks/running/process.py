"""A process that runs calls, one at a time, and is ended by force when a call has to end."""

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
from latchwork.tasks.functions import Registered
from latchwork.tasks.payloads.codec import Payloads
from latchwork.tasks.payloads.outcome import Outcome
from latchwork.tasks.running.body import FRAME_ROOM, FunctionPlace, call_frame, read_frame, start_of, write_frame
from latchwork.tasks.running.calls import PICKLED, StoredCall
from latchwork.tasks.running.context import SESSION_ENDS, TaskContext

#: The module search path, for the process itself and not for processes that a task starts.
_PATH = "LATCHWORK_TASK_PATH"
_BOOT = f"""
import os, sys
sys.path[:] = os.environ.pop("{_PATH}").split(os.pathsep)
from latchwork.tasks.running.body import main
main()
"""


class TaskProcess:
    """The process of one slot: started at the first call, and restarted after it was ended. Single-threaded.

    Args:
        payloads: encodes and decodes arguments and results.
        leash: limits how long it may run; None: until this process ends.
        stop_grace_s: seconds between a stop and its kill.
        label: its name in a list of processes.
    """

    def __init__(self, payloads: Payloads, leash: DeadlineExtender | None, *, stop_grace_s: float, label: str) -> None:
        self._payloads = payloads
        self._leash = leash
        self._grace_s = stop_grace_s
        self._label = label
        self._child: Child | None = None
        self._calls = self._answers = -1

    def run(self, call: StoredCall, registered: Registered | None, context: TaskContext) -> Outcome:
        """Run a call in the process. Return its outcome, also if the process died."""
        try:
            child = self._child or self._start()
        except (CannotStart, OSError) as error:
            return Outcome.failed(error)
        hard = math.inf if context.deadline is None else context.deadline + self._grace_s
        self._allow(child, hard)
        remove = context.on_stop(partial(child.stop, self._grace_s))
        try:
            answer = self._exchange(call, registered, context)
        except Exception as error:
            self.close()  # its next answer would be unpredictable
            return Outcome.failed(error)
        finally:
            remove()
        if context.should_stop:  # it was stopped, though it may have answered before
            end = child.wait() if answer is None else None
            self.close()
            return answer if answer is not None else self._died(end, context)
        if answer is None:
            outcome = self._died(child.wait(), context)
            self.close()
            return outcome
        self._allow(child, math.inf)
        return answer

    def _allow(self, child: Child, deadline: float) -> None:
        if self._leash is not None:
            self._leash.add(child, deadline)
        else:
            child.allow(deadline)

    def _exchange(self, call: StoredCall, registered: Registered | None, context: TaskContext) -> Outcome | None:
        place = None if call.function == PICKLED or registered is None else FunctionPlace.for_function(registered)
        most = self._payloads.max_payload_bytes + FRAME_ROOM
        try:
            write_frame(self._calls, call_frame(call, place, context))
            frame = read_frame(partial(os.read, self._answers), most)
        except BrokenPipeError:
            return None
        return None if frame is None else Outcome.from_bytes(frame)

    def _died(self, end: ChildEnd | None, context: TaskContext) -> Outcome:
        now = SYSTEM_CLOCK.now()
        if context.deadline is not None and now >= context.deadline:
            return Outcome.failed(TaskTimeout(f"task {context.task_id} was ended by force: its time was over"))
        if context.should_stop:
            return Outcome.failed(TaskStopped(f"task {context.task_id} was stopped, and ended by force"))
        if end is not None and end.why == "deadline":  # not extended in time, although the session may go on
            text = f"task {context.task_id} was ended by force: {SESSION_ENDS}"
            return Outcome.failed(TaskStopped(text), why_cut=SESSION_ENDS)
        return Outcome.failed(TaskProcessDied(f"the process of task {context.task_id} {end or 'ended'}"))

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
        self._allow(child, math.inf)
        with suppress(BrokenPipeError):  # it ended immediately: the call notices
            write_frame(self._calls, start_of())
        return child

    def close(self) -> None:
        """End the process. The next call starts another one."""
        child, self._child = self._child, None
        if child is None:
            return
        if self._leash is not None:
            self._leash.remove(child)
        self._close_pipes()
        child.close()

    def _close_pipes(self) -> None:
        for fd in (self._calls, self._answers):
            if fd >= 0:
                os.close(fd)
        self._calls = self._answers = -1
