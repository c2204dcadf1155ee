"""The store, as those see it who neither are masters nor workers: they poke masters, and look who lives."""

from __future__ import annotations

from collections.abc import Sequence

from latchwork.primitives import Group, GroupMember
from latchwork.store import Store
from latchwork_workflows.exchange import Running, cancel_sent_at
from latchwork_workflows.keys import Keys, workflows_store
from latchwork_workflows.services import Line, WorkerSeen

#: A lane of which more items are taken is not read to its end: nothing is said of it.
_MOST_TAKEN = 1000
#: So many shelves are read at once.
_TOGETHER = 16


class StoreCluster:
    """What is asked of the store. Safe to share. The store stays the caller's."""

    def __init__(self, store: Store, keys: Keys) -> None:
        self._store = store = workflows_store(store)
        self._keys = keys
        self._group = Group(store, keys.workers)

    def close(self) -> None:
        """Nothing of it stays in the store. Twice is fine."""
        self._group.close()

    def poke(self, shard: int) -> None:
        """Tell the owner of a shard to look now; a hint that may be lost."""
        self._store.put(self._keys.poke(shard), b"")

    def slots(self) -> dict[str, list[str]]:
        """Return the attempts that hold slots, by the names that these have in keys."""
        found: dict[str, list[str]] = {}
        for entry in self._store.list(self._keys.slots, recursive=True):
            name, _, slot = entry.key[len(self._keys.slots) + 1 :].partition("/")
            if slot.isdecimal():
                found.setdefault(name, []).append(entry.value.decode("utf-8", "replace"))
        return found

    def line(self, lane: str, most: int) -> Line | None:
        """The first so many that nobody has taken; None: too many are taken to say.

        Claims are read first: what is taken meanwhile counts as free, and nothing that is free as taken.
        """
        prefix = f"{self._keys.backlog}/partitions/{lane}"
        taken = set(self._names(f"{prefix}/claims", _MOST_TAKEN, recursive=True))
        if len(taken) == _MOST_TAKEN:
            return None
        wanted = most + len(taken) + 1
        shelves = self._names(f"{prefix}/sort_keys", wanted)
        names = self._head(f"{prefix}/items", shelves, wanted)
        free = [each for each in names if each not in taken]
        return Line(tuple(free[:most]), is_whole=max(len(names), len(shelves)) < wanted and len(free) <= most)

    def _head(self, prefix: str, shelves: Sequence[str], wanted: int) -> list[str]:
        """The first items of some shelves, as ``<shelf>/<id>``: so many, or a few more; fewer if these are all.

        Shelf by shelf: etcd counts all that is in the range of a list, however few of it are asked for.
        """
        found: list[str] = []
        for at in range(0, len(shelves), _TOGETHER):
            if len(found) >= wanted:
                break
            part = [f"{prefix}/{each}" for each in shelves[at : at + _TOGETHER]]
            begun = [self._store.begin("list", each, limit=wanted - len(found)) for each in part]
            found += [entry.key[len(prefix) + 1 :] for each in begun for entry in each.result()]
        return found

    def _names(self, prefix: str, most: int, *, recursive: bool = False) -> list[str]:
        """The first keys below a prefix, without it."""
        return [each.key[len(prefix) + 1 :] for each in self._store.list(prefix, recursive=recursive, limit=most)]

    def cancelled(self, attempts: Sequence[str]) -> dict[str, float]:
        """Of these attempts those whose cancel was sent, with when; 0: not known when."""
        entries = self._store.get_many([self._keys.cancel(each) for each in attempts])
        pairs = zip(attempts, entries, strict=True)
        return {x: cancel_sent_at(entry.value) for x, entry in pairs if entry is not None}

    def workers(self) -> list[WorkerSeen]:
        """Those that live, by name."""
        running: dict[str, list[str]] = {}
        for entry in self._store.list(self._keys.shards, recursive=True):
            _, is_running, x = entry.key.rpartition("/running/")
            if is_running:
                running.setdefault(Running.of(entry.value).worker, []).append(x)
        return sorted(_seen(each, running.get(each.id, ())) for each in self._group.members())


def _seen(member: GroupMember, running: Sequence[str]) -> WorkerSeen:
    labels = {name: each if isinstance(each, str) else "" for name, each in member.labels.items()}
    slots = labels.get("slots", "")
    return WorkerSeen(
        member.id,
        member.host,
        _list(labels.get("groups", "")),
        int(slots) if slots.isdecimal() else 0,
        len(running),
        _list(labels.get("types", "")),
        labels.get("version", ""),
        labels.get("state", "running"),
        tuple(sorted(running)),
        _list(labels.get("tenants", "")),
    )


def _list(text: str) -> tuple[str, ...]:
    return tuple(each for each in text.split(",") if each)
