"""The store of a job cluster, as the commands that look at one, or change it, open it."""

from __future__ import annotations

from latchwork.cli.options import missing_file, wanted_url
from latchwork.cli.outcome import NoCluster, quiet_logs
from latchwork.jobs import ClusterState, inspect
from latchwork.store import Store, connect


def open_store(url: str | None) -> Store:
    """Open the store of a command's URL, keeping the library's log off the terminal.

    Raises:
        UsageError: there is no URL.
        NoCluster: it names a file that does not exist: a command must not create it.
    """
    quiet_logs()
    where = wanted_url(url)
    if file := missing_file(where):
        raise NoCluster(
            f"no cluster: store file {file} does not exist; correct the URL, or start a node with latchwork run"
        )
    return connect(where)


def state_of(store: Store) -> ClusterState:
    """The state of the job cluster.

    Raises:
        NoCluster: there is none.
    """
    state = inspect(store)
    if state is None:
        raise NoCluster(f"no cluster under {store.url}; start a node with latchwork run")
    return state
