"""Where the keys of a job cluster are."""

from __future__ import annotations

from latchwork.store import Store, system_namespace


def cluster_store(store: Store, namespace: str | None = None) -> Store:
    """The store in which a cluster has its keys: below ``@jobs`` at the root, or in a namespace.

    Args:
        store: the store; that of a cluster is returned as it is.
        namespace: the cluster's namespace below it, as given to its job managers.
    """
    return system_namespace(store.namespace(namespace) if namespace else store, "jobs")
