"""Conditions that are nested: all of, any of, and what a leaf says; true, false, or not known yet. Pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

L = TypeVar("L", bound=Hashable)


@dataclass(frozen=True, slots=True)
class All:
    """Each of these; of none: true."""

    of: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """One of these at least; of none: false."""

    of: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Ended:
    """Leaf of conditions: how a task before has ended.

    Attributes:
        task: its name.
        failed: whether a failure is what makes it true.
    """

    task: str
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Other:
    """Leaf of a dependent: what has become of another workflow.

    Attributes:
        workflow: ``project.name``.
        task: of it; empty: its run as a whole; ``*``: each of its tasks.
        window: which runs, counted from the schedule time of who depends; see ``windows``.
    """

    workflow: str
    task: str = ""
    window: str = "today"


Condition: TypeAlias = All | AnyOf | Ended | Other


def verdict(condition: Condition, leaf: Callable[[Condition], bool | None]) -> bool | None:
    """Whether it is true; None: that is not known yet, and cannot be told without what is missing."""
    if not isinstance(condition, (All, AnyOf)):
        return leaf(condition)
    decides = isinstance(condition, AnyOf)
    found = [verdict(each, leaf) for each in condition.of]
    if decides in found:
        return decides
    return None if None in found else not decides


def leaves(condition: Condition) -> Iterator[Ended | Other]:
    """All leaves, from left to right."""
    if isinstance(condition, (All, AnyOf)):
        for each in condition.of:
            yield from leaves(each)
    else:
        yield condition
