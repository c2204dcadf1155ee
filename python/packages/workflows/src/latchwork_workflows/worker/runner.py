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
from latchwork_workflows.keys import Keys, build_result_file_name
from latchwork_workflows.logs import AttemptLog, LogStore, LogStoreHealth
from latchwork_workflows.messages import AttemptResult, TaskMessage
from latchwork_workflows.state import Outcome
from latchwork_workflows.worker.attempt import (
    MAX_BYTES,
    ActiveAttempt,
    BadOutput,
    RunOutcome,
    build_failure_message,
    build_result,
    get_exit_code,
    parse_outputs,
)
from latchwork_workflows.worker.options import WorkerOptions
from latchwork_workflows.worker.preparation import AttemptPreparer, CannotRun, PreparedAttempt

_READ_BYTES = 65_536
#: Maximum number of bytes of rows that are kept for a mail.
MAX_KEPT = 10_000_000


class AttemptRunner:
    """Runs attempts of one session. Thread-safe.

    Args:
        store: Store with the second parts of large specs.
        keys: The keys.
        logs: Log store to write to.
        health: Notified whether the log store works.
        preparer: Turns specs into commands.
        options: Options of the worker.
        deadline_extender: Ends child processes before the claim can be lost.
        folder: Parent of the folders of attempts.
        worker: Name of the worker.
        host: Name of the machine.
    """

    def __init__(
        self,
        store: Store,
        keys: Keys,
        logs: LogStore,
        health: LogStoreHealth,
        *,
        preparer: AttemptPreparer,
        options: WorkerOptions,
        deadline_extender: DeadlineExtender,
        folder: Path,
        worker: str,
        host: str,
    ) -> None:
        self._store = store
        self._keys = keys
        self._logs = logs
        self._health = health
        self._preparation = preparer
        self._options = options
        self._deadlines = deadline_extender
        self._folder = folder
        self.worker = worker
        self.host = host

    def run(self, attempt: ActiveAttempt, context: TaskContext) -> AttemptResult:
        """Run an attempt until its process has ended, and return the result to report.

        Raises:
            TaskStopped: The worker stopped the attempt, for example because it shuts down. The attempt runs again
                without being counted as a try.
            LatchworkError: The task spec could not be read from the store. The attempt runs again.
        """
        log = AttemptLog(self._logs, attempt.log_ref, health=self._health, most_bytes=self._options.most_log_bytes)
        folder = self._folder / f"{attempt.attempt_key}.{attempt.token}"
        last = "the worker failed; the task runs again"
        try:
            ending = self._run_attempt(attempt, context, log, folder)
            last = _final_log_line(ending)
        except TaskStopped as error:
            last = f"{error}; the task runs again, and this attempt does not count"
            raise
        finally:
            log.end(last)
            shutil.rmtree(folder, ignore_errors=True)
        return build_result(attempt, ending, self.worker, self.host, has_log=True)

    def _run_attempt(self, attempt: ActiveAttempt, context: TaskContext, log: AttemptLog, folder: Path) -> RunOutcome:
        """Prepare an attempt, run its process to the end, and return the outcome.

        Args:
            attempt: The attempt.
            context: Context of the worker task, which may be asked to stop.
            log: Log that gets the output of the process.
            folder: Folder of the attempt.
        """
        try:
            prepared = self._preparation.prepare(attempt, self._spec(attempt), folder)
        except BadRecord as error:
            return RunOutcome(Outcome.FATAL, f"what the master wrote for this attempt cannot be read: {error}")
        except CannotRun as error:
            return RunOutcome(Outcome.FATAL if error.is_final else Outcome.FAILURE, str(error))
        log.mask = prepared.mask
        if context.should_stop or attempt.is_cancelled or attempt.is_disconnected:
            return self._get_stop_outcome(attempt, context, None, log)
        try:
            child = self._start(prepared, attempt)
        except (CannotStart, ValueError, TypeError) as error:
            return RunOutcome(Outcome.FAILURE, log.mask.mask_text(str(error)))
        attempt.pid = child.pid
        try:
            end = self._read_to_end(child, attempt, context, log)
        finally:
            self._deadlines.remove(child)
            child.close()
        if end.left:
            processes = "one process" if end.left == 1 else f"{end.left:,} processes"
            log.note(f"stopped {processes} that it left running")
        if end.why == "exited":
            return self._store_query_result(attempt, prepared, _build_outcome(end, log, prepared))
        return self._get_stop_outcome(attempt, context, end, log)

    def _store_query_result(self, attempt: ActiveAttempt, prepared: PreparedAttempt, ending: RunOutcome) -> RunOutcome:
        """Copy the query result of a task that is mailed later to the log store. This happens before the task counts as
        successful.

        Args:
            attempt: The attempt.
            prepared: The command, which names the file of the rows.
            ending: How the process ended.
        Returns:
            How the attempt ended, which is a failure if the copy failed.
        """
        if not prepared.command.keeps or ending.outcome is not Outcome.SUCCESS:
            return ending
        try:
            data = _read_output_file(prepared.folder / prepared.command.keeps, MAX_KEPT)
            file = self._logs.create(build_result_file_name(attempt.log_ref))
            try:
                rest = memoryview(prepared.mask.mask_bytes(data[:MAX_KEPT]))
                while rest:
                    rest = rest[file.append(bytes(rest[:1_000_000])) :]
                file.end()
            finally:
                file.close()
        except (BadOutput, OSError) as error:
            return RunOutcome(Outcome.FAILURE, f"its rows could not be stored for a mail: {error}", ending.exit_code)
        return ending

    def _spec(self, attempt: ActiveAttempt) -> TaskMessage:
        """Read and decode the message of the master for an attempt."""
        body = self._store.get(self._keys.data_key(attempt.attempt_key)) if attempt.head.has_body else None
        return TaskMessage.from_bytes(attempt.claim.value, None if body is None else body.value)

    def _start(self, prepared: PreparedAttempt, attempt: ActiveAttempt) -> Child:
        """Start the process of an attempt."""
        return Child(
            prepared.command.argv,
            env=prepared.env,
            folder=prepared.folder,
            stdin=DEVNULL if prepared.stdin is None else prepared.stdin,
            stdout=PIPE,
            stderr=STDOUT,
            until=self._deadlines.until,
            user=prepared.user,
            label=f"latchwork-task-{attempt.attempt_key}",
        )

    def _read_to_end(self, child: Child, attempt: ActiveAttempt, context: TaskContext, log: AttemptLog) -> ChildEnd:
        """Copy the output of a task process to the log until the process has ended, and return how it ended."""
        grace_s = self._options.stop_grace_s
        hard = math.inf if context.deadline is None else context.deadline + grace_s
        self._deadlines.add(child, hard)
        forget = context.on_stop(partial(child.stop, grace_s))
        if (
            attempt.is_cancelled or attempt.is_disconnected
        ):  # set after the check and before the callback was registered
            child.stop(grace_s)
        try:
            return _copy_output(child, log)
        finally:
            forget()

    def _get_stop_outcome(
        self, attempt: ActiveAttempt, context: TaskContext, end: ChildEnd | None, log: AttemptLog
    ) -> RunOutcome:
        """Return the outcome of an attempt that was stopped by a user, by its time limit or from outside.

        Args:
            attempt: The attempt.
            context: The context of the task, which knows why it was stopped.
            end: How the process ended. None: it was never started.
            log: The log of the attempt.
        Raises:
            TaskStopped: The worker itself stopped the attempt, which will run again.
        """
        code = None if end is None else get_exit_code(end)
        if attempt.is_cancelled:
            return RunOutcome(Outcome.KILLED, "it was stopped on request", code)
        if attempt.is_disconnected:
            raise TaskStopped("the store was out of reach, and this worker does not wait for it")
        if context.is_overdue:
            allowed_s = attempt.head.timeout_s or 0.0
            last = f": {log.last_line}" if log.last_line else ""
            return RunOutcome(Outcome.FAILURE, f"it took longer than {allowed_s:g} s and was stopped{last}", code)
        if end is not None and end.why == "unsupervised":
            return RunOutcome(Outcome.FAILURE, f"it {build_failure_message(end, log.last_line)}", code)
        raise TaskStopped("its worker shuts down or is no longer certain of its claim")


def _copy_output(child: Child, log: AttemptLog) -> ChildEnd:
    out = child.stdout.fileno() if child.stdout is not None else -1
    os.set_blocking(out, False)
    poll = select.poll()
    for fd in (out, child.fileno()):
        poll.register(fd, select.POLLIN)
    while True:
        flush_delay_s = log.flush_delay_s
        ready = {fd for fd, _ in poll.poll(None if flush_delay_s is None else flush_delay_s * 1000 + 1)}
        if out in ready and _read_available_output(out, log) == b"":
            poll.unregister(out)
        if log.flush_delay_s == 0.0:
            log.flush()
        if child.fileno() in ready and (end := child.poll()) is not None:
            while _read_available_output(out, log):  # no writer is left
                pass
            return end


def _read_available_output(fd: int, log: AttemptLog) -> bytes | None:
    """Read the output of a process that is available now, and write it to the log.

    Args:
        fd: File descriptor of the output.
        log: The log of the attempt.
    Returns:
        The output. Empty at its end, and None if there is none now.
    """
    try:
        data = os.read(fd, _READ_BYTES)
    except BlockingIOError:
        return None
    log.write(data)
    return data


def _build_outcome(end: ChildEnd, log: AttemptLog, prepared: PreparedAttempt) -> RunOutcome:
    """Return the outcome of an attempt from the exit code of its process."""
    code = get_exit_code(end)
    if code != 0:
        return RunOutcome(Outcome.FAILURE, build_failure_message(end, log.last_line), code)
    try:
        return RunOutcome(
            Outcome.SUCCESS, "", code, parse_outputs(prepared.mask.mask_bytes(_read_output_file(prepared.output)))
        )
    except (BadOutput, OSError) as error:
        return RunOutcome(Outcome.FAILURE, str(error), code)


def _read_output_file(path: Path, limit: int = MAX_BYTES) -> bytes:
    """Return the contents of a file that a task wrote, up to a limit.

    Only a regular file is read: this process may be root, and the task may have replaced the file by a link.

    Args:
        path: The file.
        limit: The maximum number of bytes.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise BadOutput(f"$LATCHWORK_OUTPUT is no longer a file: {error}") from None
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise BadOutput("$LATCHWORK_OUTPUT is no longer a file")
        return file.read(limit + 1)


def _final_log_line(ending: RunOutcome) -> str:
    code = "" if ending.exit_code is None else f", exit code {ending.exit_code}"
    return f"{ending.outcome.value}{code}{': ' + ending.error if ending.error else ''}"
