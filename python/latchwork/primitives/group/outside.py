"""Which groups there are, for those who are in none."""

from __future__ import annotations

from latchwork.checks import check_store
from latchwork.store.store import Store


def list_groups(store: Store, prefix: str = "") -> list[str]:
    """The names of the groups directly below a prefix, sorted: those that have members, or views of earlier ones."""
    check_store(store, "list_groups")
    names = [f"{prefix}/{name}" if prefix else name for name in store.children(prefix)]
    kept = {"members", "views"}
    with store.pipeline() as pipeline:
        found = [(name, pipeline.children(name)) for name in names]
        return [name for name, below in found if kept.intersection(below.result())]
