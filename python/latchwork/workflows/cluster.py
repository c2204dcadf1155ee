"""The store, as those see it who neither are masters nor workers: they poke masters, and look who lives."""

from __future__ import annotations

from collections.abc import Mapping

from latchwork.primitives import Group, GroupMember
from latchwork.store import Store
from latchwork.workflows.desk import WorkerSeen
from latchwork.workflows.exchange import Running
from latchwork.workflows.keys import Keys


class StoreCluster:
    """What is asked of the store. Safe to share. The store stays the caller's."""

    def __init__(self, store: Store, keys: Keys) -> None:
        self._store = store
        self._keys = keys
        self._group = Group(store, keys.workers)

    def close(self) -> None:
        """Nothing of it stays in the store. Twice is fine."""
        self._group.close()

    def poke(self, shard: int) -> None:
        """Tell the owner of a shard to look now; a hint that may be lost."""
        self._store.put(self._keys.poke(shard), b"")

    def slots(self) -> dict[str, list[str]]:
        """The attempts that hold the slots of each group, by the keys of these."""
        found: dict[str, list[str]] = {}
        for entry in self._store.list(self._keys.slots, recursive=True):
            name, _, slot = entry.key[len(self._keys.slots) + 1 :].partition("/")
            if slot.isdecimal():
                found.setdefault(name, []).append(entry.value.decode("utf-8", "replace"))
        return found

    def workers(self) -> list[WorkerSeen]:
        """Those that live, by name."""
        busy: dict[str, int] = {}
        for entry in self._store.list(self._keys.shards, recursive=True):
            if "/running/" in entry.key:
                name = Running.of(entry.value).worker
                busy[name] = busy.get(name, 0) + 1
        return sorted(_seen(each, busy) for each in self._group.members())


def _seen(member: GroupMember, busy: Mapping[str, int]) -> WorkerSeen:
    labels = {name: each if isinstance(each, str) else "" for name, each in member.labels.items()}
    slots = labels.get("slots", "")
    return WorkerSeen(
        member.id,
        member.host,
        _list(labels.get("groups", "")),
        int(slots) if slots.isdecimal() else 0,
        busy.get(member.id, 0),
        _list(labels.get("types", "")),
        labels.get("version", ""),
        labels.get("state", "running"),
    )


def _list(text: str) -> tuple[str, ...]:
    return tuple(each for each in text.split(",") if each)
