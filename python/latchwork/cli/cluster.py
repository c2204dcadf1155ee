"""The store of a job cluster, as the commands that look at one, or change it, open it."""

from __future__ import annotations

from pathlib import Path

from latchwork.backends.url import find_spec, parse_url
from latchwork.cli.options import wanted_url
from latchwork.cli.outcome import NoCluster, UsageError, quiet_logs
from latchwork.jobs import ClusterState, inspect
from latchwork.store import Store, connect


def open_store(url: str | None, *, of_cluster: bool = True, look_s: float | None = None) -> Store:
    """Open the store of a command's URL, keeping the library's log off the terminal.

    Args:
        url: as given on the command line.
        of_cluster: whether the command is about a cluster.
        look_s: seconds for which the servers may be silent; None for what the URL says.
    Raises:
        UsageError: there is no URL.
        NoCluster: it names a file that does not exist, and a command must not create it; ``UsageError`` for a command
            that is not about a cluster.
    """
    quiet_logs()
    where = wanted_url(url)
    parsed = parse_url(where)
    if find_spec(parsed.scheme).location == "file" and parsed.path and not Path(parsed.path).exists():
        told = f"store file {parsed.path} does not exist; correct the URL"
        raise NoCluster(f"no cluster: {told}, or start a node with latchwork run") if of_cluster else UsageError(told)
    return connect(where) if look_s is None else connect(where, connect_timeout_s=look_s, call_timeout_s=look_s)


def state_of(store: Store) -> ClusterState:
    """The state of the job cluster.

    Raises:
        NoCluster: there is none.
    """
    state = inspect(store)
    if state is None:
        raise NoCluster(f"no cluster under {store.url}; start a node with latchwork run")
    return state
