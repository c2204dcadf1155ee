"""Attempts and their logs: read in parts, whole, or as they grow."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any, NamedTuple

import anyio
import sqlalchemy as sa
from starlette.concurrency import run_in_threadpool

from latchwork.errors import Unavailable
from latchwork_workflows.db import run_queries
from latchwork_workflows.logs import LogMissing, LogPart, LogStore, clean_text
from latchwork_workflows.schemas.tasks import Attempt, LogText
from latchwork_workflows.services import tasks
from latchwork_workflows.services.context import ServiceContext
from latchwork_workflows.services.errors import object_not_found
from latchwork_workflows.services.runs import to_attempt
from latchwork_workflows.web import HttpProblem, Identity, run_in_stream_thread

_PART = 65_536
_PERIOD_S = 0.5
#: After this many reads without new text, the database is queried, or a ping is sent.
_OVER_EACH, _PING_EACH = 4, 30


class FoundAttempt(NamedTuple):
    """An attempt with the data of its task and run that pages show.

    Attributes:
        attempt: The attempt.
        log_ref: Location of its log.
        task: The row of its task.
    """

    attempt: Attempt
    log_ref: str
    task: sa.Row[Any]


def find_attempt(context: ServiceContext, user: Identity, name: str) -> FoundAttempt:
    """Return an attempt of a task, if the account may see it.

    Args:
        context: The service context of this process.
        user: The requesting account.
        name: ``<task>.<attempt number>.<claim>``, as in addresses of pages.
    Raises:
        HttpProblem: 404 (not found) if there is no such attempt or the account may not see it.
    """
    task, n, claim = (int(each) for each in name.split("."))
    if max(task, claim) >= 2**63 or n >= 2**31:
        raise object_not_found(f"there is no attempt {name}")
    row = tasks.find_task_row(context, user, task)
    with context.database.read() as connection:
        found = run_queries.find_attempt(connection, task, n, claim)
    if found is None:
        raise object_not_found(f"there is no attempt {name}")
    return FoundAttempt(to_attempt(found), found.log_ref, row)


async def find_attempt_async(context: ServiceContext, user: Identity, name: str) -> FoundAttempt:
    """Call ``find_attempt`` in a thread and return its result, for asynchronous callers."""
    return await run_in_threadpool(find_attempt, context, user, name)


def read_log(context: ServiceContext, attempt: FoundAttempt, offset: int, limit: int = _PART) -> LogText:
    """Return a part of an attempt's log as text for display. Empty if there is no log yet.

    Raises:
        HttpProblem: 503 (unavailable) if this process has no access to logs.
    """
    try:
        data, after, ended = _log_store(context).read(attempt.log_ref, offset, limit)
    except LogMissing:
        return LogText(text="", offset=offset, next=offset, ended=attempt.attempt.ended_at is not None)
    except OSError as error:
        raise HttpProblem(
            503, f"the log cannot be read now: {error.strerror or error}", headers={"Retry-After": "5"}
        ) from None
    kept = _count_complete_bytes(data) if not ended and len(data) > 4 else len(data)
    after -= len(data) - kept
    return LogText(
        text=clean_text(data[:kept]),
        offset=after - kept,
        next=after,
        ended=ended or (not data and attempt.attempt.ended_at is not None),
    )


def read_log_tail(context: ServiceContext, attempt: FoundAttempt, limit: int = _PART) -> LogText:
    """Return the last lines of an attempt's log."""
    try:
        size = _log_store(context).size(attempt.log_ref)
    except (LogMissing, OSError):
        return read_log(context, attempt, 0, limit)
    start = max(0, size - limit)
    part = read_log(context, attempt, start, limit)
    if not start or "\n" not in part.text:
        return part
    return part.model_copy(update={"text": part.text.partition("\n")[2]})


def read_raw_log(context: ServiceContext, attempt: FoundAttempt, offset: int, limit: int) -> LogPart:
    """Return a part of an attempt's log as the bytes that were written. Empty if there is no log yet.

    Raises:
        HttpProblem: 503 (unavailable) if this process has no access to logs.
    """
    try:
        data, after, ended = _log_store(context).read(attempt.log_ref, offset, limit)
    except LogMissing:
        data, after, ended = b"", offset, False
    except OSError as error:
        why = error.strerror or error
        raise HttpProblem(503, f"the log of attempt {attempt.attempt.id} cannot be read now: {why}") from None
    return LogPart(data, after, ended or (not data and attempt.attempt.ended_at is not None))


def download_log(context: ServiceContext, attempt: FoundAttempt) -> Iterator[bytes]:
    """Yield the whole log of an attempt in chunks, as the bytes that were written."""
    logs, offset = _log_store(context), 0

    def chunks(offset: int) -> Iterator[bytes]:
        while True:
            try:
                data, offset, _ = logs.read(attempt.log_ref, offset, _PART * 4)
            except (LogMissing, OSError):
                return
            if not data:
                return
            yield data

    return chunks(offset)


async def follow_log(
    context: ServiceContext, attempt: FoundAttempt, offset: int, is_closed: Callable[[], bool]
) -> AsyncGenerator[bytes, None]:
    """Yield the log of an attempt as server-sent events while the log grows.

    Text that could not be read because of an error is sent later.

    Args:
        context: The service context of this process.
        attempt: The attempt.
        offset: The first offset in the log, in bytes.
        is_closed: Returns whether the client has disconnected.
    """
    idle = 0
    yield b"retry: 3000\n\n"
    while not is_closed():
        # The end of the attempt is checked less often, and before the log is read, so that its last output is included.
        part, is_over = await run_in_stream_thread(_read_new_text, context, attempt, offset, idle % _OVER_EACH == 0)
        if part.text:
            idle, offset = 1, part.next
            yield f"id: {offset}\ndata: {json.dumps({'text': part.text, 'next': offset})}\n\n".encode()
            continue
        if part.ended or is_over:
            yield b"event: end\ndata: {}\n\n"
            return
        idle += 1
        if idle % _PING_EACH == 0:
            yield b": ping\n\n"
        await anyio.sleep(_PERIOD_S)


def _read_new_text(context: ServiceContext, attempt: FoundAttempt, offset: int, is_asked: bool) -> tuple[LogText, bool]:
    """Return the new text of a log, and whether the attempt has ended.

    The database decides whether it has ended, because the log of a dead worker is never marked as complete.
    """
    nothing = LogText(text="", offset=offset, next=offset, ended=False)
    try:
        is_over = is_asked and _has_ended(context, attempt)
        return read_log(context, attempt, offset), is_over
    except (HttpProblem, Unavailable):
        return nothing, False


def _has_ended(context: ServiceContext, attempt: FoundAttempt) -> bool:
    task, n, claim = (int(each) for each in attempt.attempt.id.split("."))
    with context.database.read() as connection:
        now = run_queries.find_attempt(connection, task, n, claim)
    return now is None or now.ended_at is not None


def _log_store(context: ServiceContext) -> LogStore:
    if context.logs is None:
        raise HttpProblem(503, "this server cannot read logs; start it with the --logs of the workers")
    return context.logs


def _count_complete_bytes(data: bytes) -> int:
    """Return the number of leading bytes that form complete UTF-8 characters. The remaining bytes belong to the next
    part.
    """
    for back in range(1, 4):
        lead = data[-back]
        if lead >= 0xC0:
            wanted = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
            return len(data) - back if wanted > back else len(data)
        if lead < 0x80:
            break
    return len(data)
