"""How tasks are submitted: a call, options, and the results of many in their order. Nothing here does I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from typing import Any, TypeVar

from latchwork.checks import is_number
from latchwork.errors import LatchworkError
from latchwork.executor.futures import TaskFuture
from latchwork.executor.items import DEFAULT_PRIORITY
from latchwork.executor.keys import PRIORITIES
from latchwork.executor.placing.pickers import Picker, Pull
from latchwork.executor.placing.targets import Target
from latchwork.tasks import Retry

T = TypeVar("T")

_MOST_COPIES = 30


@dataclass(frozen=True, slots=True)
class Call:
    """A call for ``Executor.first``: ``Call(fetch, "https://a", timeout=3)``.

    Attributes:
        fn: a registered function, or its name.
        args: its arguments.
        kwargs: its named arguments.
    """

    fn: Callable[..., Any] | str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def __init__(self, fn: Callable[..., Any] | str, /, *args: Any, **kwargs: Any) -> None:
        object.__setattr__(self, "fn", fn)
        object.__setattr__(self, "args", args)
        object.__setattr__(self, "kwargs", kwargs)


@dataclass(frozen=True, slots=True)
class Options:
    """How tasks are submitted: what ``with_options`` changes.

    Attributes:
        picker: who is asked first.
        priority: 0 runs before 9.
        retry: how often a task is tried; None: as its function says.
        timeout_s: seconds after which a run is stopped; None: as its function says.
        copies: how many may run at a time, each on another member.
        target: who may run it; None: all.
    """

    picker: Picker = field(default_factory=Pull)
    priority: int = DEFAULT_PRIORITY
    retry: Retry | None = None
    timeout_s: float | None = None
    copies: int = 1
    target: Target | None = None

    def __post_init__(self) -> None:
        if type(self.priority) is not int or self.priority not in PRIORITIES:
            raise ValueError(f"priority must be a whole number from 0 (first) to 9 (last), not {self.priority!r}")
        if type(self.copies) is not int or not 1 <= self.copies <= _MOST_COPIES:
            raise ValueError(f"copies must be a whole number from 1 to {_MOST_COPIES}, not {self.copies!r}")
        if self.timeout_s is not None and (not is_number(self.timeout_s) or self.timeout_s <= 0):
            raise ValueError(f"timeout_s must be None or a number of seconds above 0, not {self.timeout_s!r}")
        if not callable(getattr(self.picker, "pick", None)):
            raise TypeError(f"a picker needs a method pick(task, view, load), and {self.picker!r} has none")


def results_of(
    futures: list[TaskFuture[T]],
    more: Iterator[tuple[Any, ...]],
    submit: Callable[..., TaskFuture[T]],
    drop: Callable[[list[TaskFuture[T]]], object],
    *,
    until: float | None,
    now: Callable[[], float],
) -> Iterator[T]:
    """The results in order, the first future being the last of the list; ``drop`` cancels those left over."""
    try:
        while futures:
            yield _result_or_drop(futures.pop(), drop, None if until is None else max(0.0, until - now()))
            args = next(more, None)
            if args is not None:
                futures.insert(0, submit(*args))
    finally:
        drop(futures)


def _result_or_drop(future: TaskFuture[T], drop: Callable[[list[TaskFuture[T]]], object], timeout_s: float | None) -> T:
    """The result, of which nothing here keeps hold."""
    try:
        try:
            return future.result(timeout_s)
        finally:
            drop([future])
    finally:
        del future


def error_of(future: TaskFuture[Any]) -> BaseException:
    """What a future that is over has raised."""
    return CancelledError() if future.cancelled() else future.exception() or LatchworkError("none")
