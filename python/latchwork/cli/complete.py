"""What a shell completes by a look into the store: ids of jobs and of nodes. Nothing where it cannot look."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import typer

from latchwork.cli.cluster import open_store
from latchwork.errors import LatchworkError
from latchwork.jobs import Control, inspect
from latchwork.store import Store

#: A shell puts what it completes into the line as it is: what it would take for more than a word is not offered.
_HARMLESS = re.compile(r"[A-Za-z0-9._@:+=,%][A-Za-z0-9._@:+=,%~/-]*\Z")
#: Somebody waits at a prompt.
_LOOK_S = 2.0


def job_ids(context: typer.Context, incomplete: str) -> list[str]:
    """The known jobs, and those with settings."""
    return _offered(context, incomplete, _jobs)


def node_ids(context: typer.Context, incomplete: str) -> list[str]:
    """The living nodes, and those that are drained or being restarted."""
    return _offered(context, incomplete, _nodes)


def _jobs(store: Store) -> Iterable[str]:
    state = inspect(store)
    known = () if state is None else (job.job_id for job in state.jobs())
    return {*known, *Control(store).settings().jobs}


def _nodes(store: Store) -> Iterable[str]:
    state = inspect(store)
    return () if state is None else {*state.nodes, *state.marks}


def _offered(context: typer.Context, incomplete: str, find: Callable[[Store], Iterable[str]]) -> list[str]:
    try:
        with open_store(context.params.get("url"), look_s=_LOOK_S) as store:
            found = sorted(find(store))
    except LatchworkError:
        return []
    given = set(context.params.get("job_ids") or ())
    return [each for each in found if each.startswith(incomplete) and each not in given and _HARMLESS.match(each)]
