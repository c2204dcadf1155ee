"""The order of tasks, and the cycles that forbid one. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter


def in_order(after: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """The tasks, each after those that it waits for, else in the order given.

    Raises:
        ValueError: some wait for each other; its argument is the cycle, the first named again at the end.
    """
    place = {name: index for index, name in enumerate(after)}
    sorter = TopologicalSorter(after)
    try:
        sorter.prepare()
    except CycleError as error:
        raise ValueError(tuple(reversed(error.args[1]))) from None
    found: list[str] = []
    while sorter.is_active():
        ready = sorted(sorter.get_ready(), key=place.__getitem__)
        found += ready
        sorter.done(*ready)
    return tuple(found)


def ancestors(after: Mapping[str, Sequence[str]], order: Sequence[str]) -> dict[str, frozenset[str]]:
    """All that each task waits for, also through others."""
    found: dict[str, frozenset[str]] = {}
    for name in order:
        found[name] = frozenset(after[name]).union(*(found[before] for before in after[name]))
    return found
