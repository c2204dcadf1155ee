"""Nested conditions that combine leaf conditions with all-of and any-of. Each is true, false or not known yet. Pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

L = TypeVar("L", bound=Hashable)


@dataclass(frozen=True, slots=True)
class AllOf:
    """True if every condition is true, or if there is none."""

    conditions: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """True if at least one condition is true."""

    conditions: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class TaskEnded:
    """Leaf of a ``conditions`` task: how an upstream task ended.

    Attributes:
        task: Name of the task.
        failed: True if a failure makes the leaf true, False if a success does.
    """

    task: str
    failed: bool = False


@dataclass(frozen=True, slots=True)
class RunSucceeded:
    """Leaf of a ``dependent`` task: the state of another workflow.

    Attributes:
        workflow: ``project.name``.
        task: A task of that workflow. Empty: the run as a whole. ``*``: each of its tasks.
        window: Time window of the runs, relative to the schedule time of the dependent. See ``windows``.
    """

    workflow: str
    task: str = ""
    window: str = "today"


Condition: TypeAlias = AllOf | AnyOf | TaskEnded | RunSucceeded


def evaluate_condition(condition: Condition, evaluate_leaf: Callable[[Condition], bool | None]) -> bool | None:
    """Return whether a nested condition is true, or None while this depends on leaves whose values are unknown.

    Args:
        condition: The condition.
        evaluate_leaf: Returns the value of a leaf condition, or None if it is unknown.
    """
    if not isinstance(condition, (AllOf, AnyOf)):
        return evaluate_leaf(condition)
    decides = isinstance(condition, AnyOf)
    found = [evaluate_condition(each, evaluate_leaf) for each in condition.conditions]
    if decides in found:
        return decides
    return None if None in found else not decides


def iter_leaves(condition: Condition) -> Iterator[TaskEnded | RunSucceeded]:
    """Yield the leaf conditions of a nested condition, from left to right."""
    if isinstance(condition, (AllOf, AnyOf)):
        for each in condition.conditions:
            yield from iter_leaves(each)
    else:
        yield condition
