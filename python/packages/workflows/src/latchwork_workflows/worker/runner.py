"""Runs one attempt in a child process: starts it, reads its output, and ends it with its time limit, claim or run.

The thread of a slot does all of it. It waits for output and the end of the child. Requests to end the child come from
other threads (``TaskContext``) or from the child's supervisor, which needs none of our threads.
"""

from __future__ import annotations

import math
import os
import select
import shutil
import stat
from functools import partial
from pathlib import Path

from latchwork.errors import BadRecord
from latchwork.store import Store
from latchwork.tasks import TaskContext, TaskStopped
from latchwork.tasks.children import DEVNULL, PIPE, STDOUT, CannotStart, Child, ChildEnd, DeadlineExtender
from latchwork_workflows.keys import Keys, rows_ref
from latchwork_workflows.logs import AttemptLog, Health, LogStore
from latchwork_workflows.messages import Result, Spec
from latchwork_workflows.state import Outcome
from latchwork_workflows.worker.attempt import (
    MOST_BYTES,
    Attempt,
    BadOutput,
    Ending,
    code_of,
    failure_of,
    outputs_of,
    result_of,
)
from latchwork_workflows.worker.options import WorkerOptions
from latchwork_workflows.worker.preparation import CannotRun, Preparation, Prepared

_READ_BYTES = 65_536
#: Maximum number of bytes of rows that are kept for a mail.
MOST_KEPT = 10_000_000


class AttemptRunner:
    """Runs attempts of one session. Thread-safe.

    Args:
        store: Store with the second parts of large specs.
        keys: The keys.
        logs: Log store to write to.
        health: Notified whether the log store works.
        preparing: Turns specs into commands.
        options: Options of the worker.
        leash: Limits the lifetime of children.
        folder: Parent of the folders of attempts.
        worker: Name of the worker.
        host: Name of the machine.
    """

    def __init__(
        self,
        store: Store,
        keys: Keys,
        logs: LogStore,
        health: Health,
        *,
        preparing: Preparation,
        options: WorkerOptions,
        leash: DeadlineExtender,
        folder: Path,
        worker: str,
        host: str,
    ) -> None:
        self._store = store
        self._keys = keys
        self._logs = logs
        self._health = health
        self._preparation = preparing
        self._options = options
        self._leash = leash
        self._folder = folder
        self.worker = worker
        self.host = host

    def perform(self, attempt: Attempt, context: TaskContext) -> Result:
        """Run an attempt to its end.

        Raises:
            TaskStopped: It was ended because of the worker. It does not count as a try and runs again.
            LatchworkError: Its spec could not be read from the store. It runs again.
        """
        log = AttemptLog(self._logs, attempt.log_ref, health=self._health, most_bytes=self._options.most_log_bytes)
        folder = self._folder / f"{attempt.x}.{attempt.token}"
        last = "the worker failed; the task runs again"
        try:
            ending = self._ending(attempt, context, log, folder)
            last = _last_words(ending)
        except TaskStopped as error:
            last = f"{error}; the task runs again, which does not count as a try"
            raise
        finally:
            log.end(last)
            shutil.rmtree(folder, ignore_errors=True)
        return result_of(attempt, ending, self.worker, self.host, has_log=True)

    def _ending(self, attempt: Attempt, context: TaskContext, log: AttemptLog, folder: Path) -> Ending:
        try:
            prepared = self._preparation.prepare(attempt, self._spec(attempt), folder)
        except BadRecord as error:
            return Ending(Outcome.FATAL, f"what the master wrote for this attempt cannot be read: {error}")
        except CannotRun as error:
            return Ending(Outcome.FATAL if error.is_final else Outcome.FAILURE, str(error))
        log.mask = prepared.mask
        if context.should_stop or attempt.is_cancelled or attempt.is_cut_off:
            return self._unless_released(attempt, context, None, log)
        try:
            child = self._start(prepared, attempt)
        except (CannotStart, ValueError, TypeError) as error:
            return Ending(Outcome.FAILURE, log.mask.text(str(error)))
        attempt.pid = child.pid
        try:
            end = self._heard_to_the_end(child, attempt, context, log)
        finally:
            self._leash.remove(child)
            child.close()
        if end.left:
            processes = "one process" if end.left == 1 else f"{end.left:,} processes"
            log.note(f"it had left {processes} behind, ended with it")
        if end.why == "exited":
            return self._kept(attempt, prepared, _exited(end, log, prepared))
        return self._unless_released(attempt, context, end, log)

    def _kept(self, attempt: Attempt, prepared: Prepared, ending: Ending) -> Ending:
        """Copy the rows that a task leaves for alerts into the log store, before its success is reported."""
        if not prepared.command.keeps or ending.outcome is not Outcome.SUCCESS:
            return ending
        try:
            data = _output(prepared.folder / prepared.command.keeps, MOST_KEPT)
            file = self._logs.create(rows_ref(attempt.log_ref))
            try:
                rest = memoryview(prepared.mask.whole(data[:MOST_KEPT]))
                while rest:
                    rest = rest[file.append(bytes(rest[:1_000_000])) :]
                file.end()
            finally:
                file.close()
        except (BadOutput, OSError) as error:
            return Ending(Outcome.FAILURE, f"its rows could not be kept for a mail: {error}", ending.exit_code)
        return ending

    def _spec(self, attempt: Attempt) -> Spec:
        body = self._store.get(self._keys.data(attempt.x)) if attempt.head.has_body else None
        return Spec.of(attempt.claim.value, None if body is None else body.value)

    def _start(self, prepared: Prepared, attempt: Attempt) -> Child:
        return Child(
            prepared.command.argv,
            env=prepared.env,
            folder=prepared.folder,
            stdin=DEVNULL if prepared.stdin is None else prepared.stdin,
            stdout=PIPE,
            stderr=STDOUT,
            until=self._leash.until,
            user=prepared.user,
            label=f"latchwork-task-{attempt.x}",
        )

    def _heard_to_the_end(self, child: Child, attempt: Attempt, context: TaskContext, log: AttemptLog) -> ChildEnd:
        """Read the output of a child until it has ended."""
        grace_s = self._options.stop_grace_s
        hard = math.inf if context.deadline is None else context.deadline + grace_s
        self._leash.add(child, hard)
        forget = context.on_stop(partial(child.stop, grace_s))
        if attempt.is_cancelled or attempt.is_cut_off:  # set after the check and before the callback was registered
            child.stop(grace_s)
        try:
            return _pumped(child, log)
        finally:
            forget()

    def _unless_released(self, attempt: Attempt, context: TaskContext, end: ChildEnd | None, log: AttemptLog) -> Ending:
        """Return the result of a run that was ended by a command, its time limit or from outside.

        Raises ``TaskStopped`` if the run was ended because of the worker.
        """
        code = None if end is None else code_of(end)
        if attempt.is_cancelled:
            return Ending(Outcome.KILLED, "it was stopped by a command", code)
        if attempt.is_cut_off:
            raise TaskStopped("the store was out of reach, and this worker does not wait for it")
        if context.is_overdue:
            allowed_s = attempt.head.timeout_s or 0.0
            last = f": {log.last_line}" if log.last_line else ""
            return Ending(Outcome.FAILURE, f"it took longer than {allowed_s:g} s, and was ended{last}", code)
        if end is not None and end.why == "unsupervised":
            return Ending(Outcome.FAILURE, f"it {failure_of(end, log.last_line)}", code)
        raise TaskStopped("its worker ends, or cannot be sure of its claim any more")


def _pumped(child: Child, log: AttemptLog) -> ChildEnd:
    out = child.stdout.fileno() if child.stdout is not None else -1
    os.set_blocking(out, False)
    poll = select.poll()
    for fd in (out, child.fileno()):
        poll.register(fd, select.POLLIN)
    while True:
        due_s = log.due_s
        ready = {fd for fd, _ in poll.poll(None if due_s is None else due_s * 1000 + 1)}
        if out in ready and _read(out, log) == b"":
            poll.unregister(out)
        if log.due_s == 0.0:
            log.flush()
        if child.fileno() in ready and (end := child.poll()) is not None:
            while _read(out, log):  # no writer is left
                pass
            return end


def _read(fd: int, log: AttemptLog) -> bytes | None:
    """Read available output and write it to the log. Empty: end of the output. None: no output now."""
    try:
        data = os.read(fd, _READ_BYTES)
    except BlockingIOError:
        return None
    log.write(data)
    return data


def _exited(end: ChildEnd, log: AttemptLog, prepared: Prepared) -> Ending:
    """Return the result of a child that exited."""
    code = code_of(end)
    if code != 0:
        return Ending(Outcome.FAILURE, failure_of(end, log.last_line), code)
    try:
        return Ending(Outcome.SUCCESS, "", code, outputs_of(prepared.mask.whole(_output(prepared.output))))
    except (BadOutput, OSError) as error:
        return Ending(Outcome.FAILURE, str(error), code)


def _output(path: Path, most: int = MOST_BYTES) -> bytes:
    """Return what the task wrote to a file.

    It must be a regular file: we may be root, and the task may have replaced it by a link.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise BadOutput(f"$LATCHWORK_OUTPUT is no file any more: {error}") from None
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise BadOutput("$LATCHWORK_OUTPUT is no file any more")
        return file.read(most + 1)


def _last_words(ending: Ending) -> str:
    code = "" if ending.exit_code is None else f", exit code {ending.exit_code}"
    return f"{ending.outcome.value}{code}{': ' + ending.error if ending.error else ''}"
