"""Where the keys of a job cluster are."""

from __future__ import annotations

from latchwork.jobs.stored import keys
from latchwork.store import Store, refuse_old_layout, system_namespace


def cluster_store(store: Store, namespace: str | None = None) -> Store:
    """The store in which a cluster has its keys: below ``@jobs`` at the root, or in a namespace.

    Args:
        store: the store; that of a cluster is returned as it is.
        namespace: the cluster's namespace below it, as given to its job managers.
    """
    return system_namespace(store.namespace(namespace) if namespace else store, "jobs")


def refuse_old_cluster(store: Store, namespace: str | None = None) -> None:
    """Refuse a root, or a namespace, with a job cluster of a version that had no reserved segments.

    Raises:
        LatchworkError: there is one.
    """
    where = store.namespace(namespace) if namespace else store
    # Every node bumped both, when it registered itself and its pools.
    refuse_old_layout(where, "a job cluster", dict.fromkeys((keys.GUARD_WORKER, keys.GUARD_POOL), b"{}".__eq__))
