"""A job made of a command line: `latchwork run --command "backup.sh {item}" --item a --item b --cron "0 3 * * *"`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from latchwork.cli.outcome import UsageError
from latchwork.cli.processes.child import Child, ChildFailed
from latchwork.errors import LatchworkError
from latchwork.jobs import Job, JobContext, Schedule, Threads

#: A command that was told to stop is killed after so long, and before the lock of its item can run out.
_STOP_S = 10.0
#: What is left of the locks when it is killed at the latest.
_LAST_S = 0.5
_ONE_ITEM = "main"
_ITEM = "{item}"


class CommandFailed(LatchworkError):
    """A command ended with another code than 0, for one item or several."""


def command_job(text: str, *, job_id: str | None, items: Sequence[str], schedule: Schedule | None, threads: int) -> Job:
    """The job that runs a command for each item.

    Args:
        text: the command; words as a shell splits them, but no shell runs it. `{item}` in a word is the item.
        job_id: its id; by default the name of the program.
        items: the work items; one called `main` without any.
        schedule: when it runs; None is the default of jobs.
        threads: how many commands run at a time on a node; 0 is one for each item.
    Raises:
        UsageError: the command cannot be read, or names `{item}` and there are no items.
        InvalidJob: the id or an item cannot be used.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--command {text!r} cannot be read: {error}") from None
    if not words:
        raise UsageError('--command is empty; give a command, as --command "backup.sh {item}"')
    if not items and _ITEM in text:
        raise UsageError(f"--command names {_ITEM}, but there are no items; add --item NAME")
    name = job_id or re.sub(r"[^A-Za-z0-9._-]", "-", Path(words[0]).name)
    return Job(
        name,
        work_pool=list(items) or [_ONE_ITEM],
        run=lambda context: _run_items(words, context),
        schedule=schedule,
        threads=Threads(threads),
    )


def _run_items(words: Sequence[str], context: JobContext) -> None:
    """Run it for one item after the other; those that fail do not keep the others from running."""
    failed = {}
    for item in context.work_share:
        if context.should_stop:
            break
        try:
            code = _run_item([word.replace(_ITEM, item) for word in words], item, context)
            if code:
                failed[item] = f"exit code {code}"
        except ChildFailed as error:
            failed[item] = str(error)
    if failed:
        told = "; ".join(f"{item}: {why}" for item, why in failed.items())
        raise CommandFailed(f"{len(failed)} of {len(context.work_share)} items failed: {told}")


def _run_item(words: Sequence[str], item: str, context: JobContext) -> int:
    env = {"LATCHWORK_JOB": context.job_id, "LATCHWORK_ITEM": item, "LATCHWORK_NODE": context.node_id}
    env["LATCHWORK_TOKEN"] = str(context.fence(item).token)
    if context.fire_time_s is not None:
        env["LATCHWORK_FIRE_TIME_S"] = f"{context.fire_time_s:.0f}"
    child = Child(words, env, own_group=True)
    forget = context.on_stop(lambda: child.stop(max(0.0, min(_STOP_S, context.remaining_s() - _LAST_S))))
    try:
        return child.wait()
    finally:
        forget()
