"""What a node tells those who watch it: starts and ends, rebalances, reads of work pools. No network here.

An observer is called in the thread where the thing happens, so it must not block. One that raises disturbs nothing:
that is logged once for each of its methods.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from latchwork.jobs.options.kinds import InvalidSetting

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from latchwork.jobs.node.node import JobManager

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunInfo:
    """One run.

    Attributes:
        node: the node's id.
        job: the job's id.
        items: its share.
        lag_s: seconds that it starts after it was due.
        fire_time_s: its fire time on a cron schedule, in seconds since the epoch.
    """

    node: str
    job: str
    items: tuple[str, ...]
    lag_s: float
    fire_time_s: float | None = None


@dataclass(frozen=True, slots=True)
class RebalanceInfo:
    """One rebalance by this node as the manager.

    Attributes:
        node: the node's id.
        seconds: how long it took.
        shares: shares that were written; 0 when all was as it should be.
        moves: items that changed their node.
        error: why it has to be tried again; None when it went well.
        written_bytes: keys and values that were written for it.
    """

    node: str
    seconds: float
    shares: int = 0
    moves: int = 0
    error: BaseException | None = None
    written_bytes: int = 0


@dataclass(frozen=True, slots=True)
class PoolInfo:
    """One read of a work pool.

    Attributes:
        node: the node's id.
        job: the job's id.
        seconds: how long it took.
        items: how many items it has; None when it could not be read.
    """

    node: str
    job: str
    seconds: float
    items: int | None


class Observer:
    """Override what you want to know. Methods may be called from several threads at a time."""

    def attached(self, node: JobManager) -> None:
        """The node is about to start; ask it for ``stats`` and ``health`` whenever you like from now on."""

    def detached(self, node: JobManager) -> None:
        """The node is closed."""

    def started(self, node_id: str, seconds: float) -> None:
        """The node is registered, which took so long."""

    def closed(self, node_id: str, seconds: float) -> None:
        """The node has left, which took so long."""

    def run(self, info: RunInfo) -> AbstractContextManager[Any] | None:  # noqa: ARG002 - for those who override it
        """A run starts: what is returned is entered before it, and left after it, with its exception if it raised."""
        return None

    def rebalanced(self, info: RebalanceInfo) -> None:
        """A rebalance has ended, well or not."""

    def pool_read(self, info: PoolInfo) -> None:
        """A work pool was read, or could not be."""


class Observers:
    """Tells all of them, and is disturbed by none. Safe to share between threads."""

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        self._observers = tuple(observers)
        for each in self._observers:
            if not isinstance(each, Observer):
                raise InvalidSetting(f"observer {each!r} is none; give objects of subclasses of Observer")
        self._failed: set[tuple[int, str]] = set()

    def tell(self, method: str, *args: Any) -> None:
        """Call this method of each."""
        for each in self._observers:
            self._guarded(each, method, lambda each=each: getattr(each, method)(*args))  # type: ignore[misc]

    @contextmanager
    def run(self, info: RunInfo) -> Iterator[None]:
        """Around one run."""
        with ExitStack() as stack:
            for each in self._observers:
                around = self._guarded(each, "run", lambda each=each: each.run(info))  # type: ignore[misc]
                if around is not None:
                    self._guarded(each, "run", lambda around=around: self._enter(stack, each, around))  # type: ignore[misc] # noqa: B023
            yield

    def _enter(self, stack: ExitStack, observer: Observer, around: AbstractContextManager[Any]) -> None:
        around.__enter__()

        def leave(kind: Any, error: Any, trace: Any) -> bool:
            self._guarded(observer, "run", lambda: around.__exit__(kind, error, trace))
            return False  # an observer hides no error of a run

        stack.push(leave)

    def _guarded(self, observer: Observer, method: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception:
            if (id(observer), method) not in self._failed:
                self._failed.add((id(observer), method))
                log.exception("observer %r raised in %s; further ones are not logged", observer, method)
            return None


NOBODY = Observers()
