"""Removal of the records of unused primitives."""

from __future__ import annotations

import re
from collections.abc import Sequence

from latchwork._base.validation import check_store
from latchwork.errors import Conflict
from latchwork.primitives.fair.tickets import is_ticket
from latchwork.primitives.leased.inspect import read_state
from latchwork.primitives.leased.table import LockTable
from latchwork.primitives.numbers.shared_number import is_number
from latchwork.primitives.waiting.arguments import check_name
from latchwork.store.steps import ask, blocking
from latchwork.store.store import Store
from latchwork.types import At, Delete, Entry, Exists

_TOGETHER = 50
#: Keys directly below a name that outlive its users. The head of a group's views is removed before the views.
_RECORDS = ("views", "barrier", "capacity", "opening", "outcome", "permits", "starts", "tail")
#: Prefixes below a name with records and with traces of users: which is which, by the rest of the key.
_PREFIXES = (
    "base",
    "consumers",
    "data",
    "dead",
    "evicted",
    "leases",
    "log",
    "members",
    "partitions",
    "producers",
    "queue",
)
#: Consumers of a queue that may have claims. They end with their sessions, and matter only while there are items.
_HOLDER = re.compile(r"partitions/[^/]+/holders/")
#: Records that are still needed, though no session owns them: arrivals at a barrier, items and dead letters.
_NEEDED = re.compile(r"arrived-|dead/|partitions/[^/]+/items/")


@blocking
async def forget(store: Store, name: str) -> int:
    """Delete all stored keys of a primitive that is no longer used, such as a lock, a counter or a queue.

    Works for every primitive, and for several that share a name. If a client begins to use the name at the same time,
    it starts with new state: a counter at 0, a group with its first view, a semaphore with the size that it was given.
    Other keys below the name stay. The counters of sequential keys stay too, so that their numbers never repeat.

    Args:
        store: The store, or a namespace of it.
        name: The name of the primitive.
    Returns:
        The number of keys removed; 0 if there was nothing.
    Raises:
        Conflict: The name is in use: it is held, waited for, has members, items or dead letters, or was written during
            this call. Some records may be removed already, but none that is in use.
        InvalidKey: The name is not valid for a primitive.
        Unavailable, OutcomeUnknown: The server could not be reached; call again.
    """
    check_store(store, "forget")
    check_name(name, "primitive")
    found = await _list_records(store, name)
    below = [await ask(store.list, f"{name}/{prefix}", recursive=True) for prefix in _PREFIXES]
    if found != await _list_records(store, name):
        raise _build_conflict(
            name, ()
        )  # what is below may belong to another state: items of a new tail, views of a new head
    found += [entry for entries in below for entry in entries if not _HOLDER.match(entry.key[len(name) + 1 :])]
    _raise_if_used(name, found)
    records = sorted(found, key=lambda entry: (entry.key.count("/"), entry.key != f"{name}/views", entry.key))
    return await _remove(store, name, records) + await _forget_persistent(store, name)


async def _list_records(store: Store, name: str) -> list[Entry]:
    """Return the entries of a primitive one level below its name, and that of the counter stored at the name itself."""
    direct = await ask(store.list, name)
    rests = {entry.key: entry.key[len(name) + 1 :] for entry in direct}
    found = [
        entry
        for entry in direct
        if is_ticket(entry.key) or rests[entry.key] in _RECORDS or _NEEDED.match(rests[entry.key])
    ]
    number = await ask(store.get, name)
    return [*found, number] if number is not None and is_number(number.value) else found


def _build_conflict(name: str, failed: Sequence[object]) -> Conflict:
    return Conflict(
        f"{name!r} is in use: it was written while its records were removed; try again when nobody uses it", failed
    )


def _raise_if_used(name: str, found: Sequence[Entry]) -> None:
    for entry in found:
        rest = entry.key[len(name) + 1 :]
        if entry.owner is not None or _NEEDED.match(rest):
            by = f"a session has {entry.key!r}" if entry.owner is not None else f"{entry.key!r} is still needed"
            raise Conflict(
                f"{name!r} is in use: {by}; try again after they have left, or remove its keys with delete_tree",
                [Exists(entry.key)],
            )


async def _remove(store: Store, name: str, records: Sequence[Entry]) -> int:
    for at in range(0, len(records), _TOGETHER):
        some = records[at : at + _TOGETHER]
        try:
            await ask(store.commit, [At(entry) for entry in some], [Delete(entry.key) for entry in some])
        except Conflict as error:
            raise _build_conflict(name, error.failed) from error
    return len(records)


async def _forget_persistent(store: Store, name: str) -> int:
    """Remove the record of the persistent lock with this name if it is free. Return the number of keys removed."""
    table = LockTable(store)
    entry = await ask(table.store.get, table.lock_key(name))
    if entry is None:
        return 0
    holder = (await read_state(table, name)).holder
    if holder is not None:
        raise Conflict(f"{name!r} is in use: {holder} holds the persistent lock", [Exists(entry.key)])
    return await _remove(table.store, name, [entry])
