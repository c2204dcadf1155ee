"""Open the store of a job cluster for a command, and complete IDs of jobs and nodes in a shell.

Completion offers nothing if it cannot read the cluster.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

import typer

from latchwork.backends.url import find_spec, parse_url
from latchwork.cli.options import require_url
from latchwork.cli.outcome import NoCluster, UsageError, quiet_logs
from latchwork.errors import LatchworkError
from latchwork.jobs import ClusterState, Control, inspect
from latchwork.store import Store, connect

#: A shell inserts completions unquoted, so only single words are offered.
_HARMLESS = re.compile(r"[A-Za-z0-9._@:+=,%][A-Za-z0-9._@:+=,%~/-]*\Z")
#: Short, because a person waits at a prompt.
_LOOK_S = 2.0


def open_store(url: str | None, *, of_cluster: bool = True, timeout_s: float | None = None) -> Store:
    """Open the store for a command's URL. The library's log is hidden on the terminal.

    Args:
        url: The URL from the command line; None uses the environment.
        of_cluster: Whether the command is about a job cluster.
        timeout_s: Seconds after which a silent server counts as unreachable; None uses the timeouts of the URL.
    Raises:
        UsageError: There is no URL, or it names a missing file for a command that is not about a cluster.
        NoCluster: The URL of a cluster command names a file that does not exist.
    """
    quiet_logs()
    where = require_url(url)
    parsed = parse_url(where)
    if find_spec(parsed.scheme).location == "file" and parsed.path and not Path(parsed.path).exists():
        told = f"store file {parsed.path} does not exist; correct the URL"
        raise NoCluster(f"no cluster: {told}, or start a node with latchwork run") if of_cluster else UsageError(told)
    return (
        connect(where) if timeout_s is None else connect(where, connect_timeout_s=timeout_s, call_timeout_s=timeout_s)
    )


def read_cluster_state(store: Store) -> ClusterState:
    """Read the state of the job cluster.

    Raises:
        NoCluster: The store contains no job cluster.
    """
    state = inspect(store)
    if state is None:
        raise NoCluster(f"no cluster under {store.url}; start a node with latchwork run")
    return state


def complete_job_ids(context: typer.Context, incomplete: str) -> list[str]:
    """Return the job IDs that complete a word in the shell: those of known jobs and of jobs with settings.

    Args:
        context: Context of the command.
        incomplete: Beginning of the word.
    """
    return _complete_ids(context, incomplete, _list_job_ids)


def complete_node_ids(context: typer.Context, incomplete: str) -> list[str]:
    """Return the node IDs that complete a word in the shell: those of running, drained and restarting nodes.

    Args:
        context: Context of the command.
        incomplete: Beginning of the word.
    """
    return _complete_ids(context, incomplete, _list_node_ids)


def _list_job_ids(store: Store) -> Iterable[str]:
    state = inspect(store)
    known = () if state is None else (job.job_id for job in state.jobs())
    return {*known, *Control(store).settings().jobs}


def _list_node_ids(store: Store) -> Iterable[str]:
    state = inspect(store)
    return () if state is None else {*state.nodes, *state.maintenance}


def _complete_ids(context: typer.Context, incomplete: str, find: Callable[[Store], Iterable[str]]) -> list[str]:
    try:
        with open_store(context.params.get("url"), timeout_s=_LOOK_S) as store:
            found = sorted(find(store))
    except LatchworkError:
        return []
    given = set(context.params.get("jobs") or ())
    return [each for each in found if each.startswith(incomplete) and each not in given and _HARMLESS.match(each)]
