"""The twins of an executor and of what it gives: futures of the loop, which a task in the cluster ends.

What is submitted goes into the store and comes back by the executor's own threads, as ever; a loop is woken once for
all results that come meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import islice
from typing import Any, TypeVar, cast

from latchwork import executor
from latchwork.aio.registry import Twin, twin_of, twins
from latchwork.aio.stores import in_thread
from latchwork.aio.table import Row
from latchwork.aio.turns import Turn
from latchwork.aio.twinning import twin
from latchwork.callers import acting
from latchwork.errors import LatchworkError
from latchwork.executor import AllFailed, Call
from latchwork.store.driving.helper import drive, spawn
from latchwork.store.driving.loop import LoopMailbox
from latchwork.store.steps import steps_of

_log = logging.getLogger(__name__)

T = TypeVar("T")


class TaskFuture(asyncio.Future[T]):
    """What ``Executor.submit`` returns: a future of this loop, for ``await``, ``asyncio.gather`` and the like.

    A task that is cancelled while it awaits this cancels it, as with any future; ``asyncio.shield`` keeps it.
    """

    def __init__(self, task: executor.TaskFuture[T]) -> None:
        arrivals = LoopMailbox.here()
        super().__init__(loop=arrivals.loop)
        self._task = task
        task.call_at_once(lambda ended: arrivals.post(self._end, ended))

    @classmethod
    def around(cls, task: executor.TaskFuture[T]) -> TaskFuture[T]:
        """The future of a task that there is."""
        return cls(task)

    @property
    def id(self) -> str:
        """The id of the task, by which people and other processes know it; empty until it is first sent."""
        return self._task.id

    def cancel(self, msg: object = None) -> bool:
        """Wait for it no more, and take the task back in the background; one that runs is told to stop.

        Use ``take_back`` to learn what became of it.
        """
        if not super().cancel(msg):
            return False
        if not self._task.done():
            spawn(self._take_back_quietly, "taking a task back")
        return True

    async def take_back(self, *, interrupt: bool = False) -> bool:
        """Take the task back, everywhere; what ``cancel`` of ``latchwork.executor.TaskFuture`` does.

        Args:
            interrupt: also when it runs: it is told to stop, and what it returns is dropped. Nobody waits for it.
        Returns:
            True: it has not run, or its run counts for nothing. False: it runs, or it is over.
        Raises:
            Unavailable, OutcomeUnknown: the store could not be reached; ask again.
        """
        return await drive(partial(steps_of(self._task.cancel), interrupt=interrupt))

    async def state(self) -> executor.TaskState:
        """What the store says of the task now: queued, running and where, or how it ended.

        Raises:
            Unavailable: the store could not be reached.
        """
        return await drive(steps_of(self._task.state))

    async def _take_back_quietly(self) -> None:
        try:
            await steps_of(self._task.cancel)(interrupt=True)
        except LatchworkError as error:
            _log.warning("task %s is not cancelled: %s", self.id, error)

    def _end(self, ended: Future[T]) -> None:
        if self.done():
            return
        if ended.cancelled():
            super().cancel()
            return
        error = ended.exception()
        if error is None:
            self.set_result(ended.result())
        else:
            self.set_exception(error)


twins[executor.TaskFuture] = cast("Any", TaskFuture)


class ExecutorTwin(Twin):
    """What of an executor is not made from its methods."""

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(self, *raised: object) -> None:
        """Shut down. After Ctrl-C, by which ``asyncio.run`` cancels its task, cancel what does not run; do not wait."""
        is_interrupted = bool(raised) and isinstance(raised[1], (KeyboardInterrupt, asyncio.CancelledError))
        await self.shutdown(wait=not is_interrupted, cancel_futures=is_interrupted)

    def submit(self, fn: Callable[..., T] | str, /, *args: Any, **kwargs: Any) -> TaskFuture[T]:
        """Submit a call; it is stored a moment later, with others. See ``latchwork.executor.Executor.submit``.

        Returns:
            Its future; of the target ``All()``: one with a dictionary of results by member.
        """
        if isinstance(self._of._options.target, executor.All):  # noqa: SLF001 - of its twin
            return cast("TaskFuture[T]", asyncio.ensure_future(self._for_all(fn, args, kwargs)))
        with acting(None):  # its threads are its own
            return TaskFuture(self._of.submit(fn, *args, **kwargs))

    def map(
        self,
        fn: Callable[..., T] | str,
        /,
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
    ) -> AsyncIterator[T]:
        """The results of a call for each of the arguments, in their order; ``async for``.

        Submitting begins with the first step, and lets others have the loop. Results that nobody fetches are cancelled.

        Args:
            fn: as for ``submit``.
            iterables: read as far as the shortest goes.
            timeout: seconds from the first step on, after which ``TimeoutError`` is raised.
            chunksize: it changes nothing: tasks are stored and fetched many at a time anyway.
            buffersize: so many tasks at most whose results were not asked for; the arguments are read as needed then.
        Raises:
            ValueError: ``chunksize`` or ``buffersize`` is below 1.
        """
        if chunksize < 1:
            raise ValueError("chunksize must be >= 1.")
        if buffersize is not None and (type(buffersize) is not int or buffersize < 1):
            raise ValueError(f"buffersize must be None or a whole number from 1, not {buffersize!r}")
        calls = zip(*iterables, strict=False)
        return self._mapped(partial(self.submit, fn), calls, timeout, buffersize)

    async def call(self, fn: Callable[..., T] | str, /, *args: Any, timeout_s: float, **kwargs: Any) -> T:
        """Submit a call and wait for its value; when the time is over, or it is cancelled, the task is removed.

        Raises:
            TimeoutError: it did not end in that time; it is told to stop if it runs.
            Exception: the task's own; and what ``submit`` raises.
        """
        future = self.submit(fn, *args, **kwargs)
        return await self._within(future, timeout_s, f"task {getattr(future, 'id', '')} did not end")

    async def first(self, calls: Iterable[Call], timeout_s: float | None = None) -> Any:
        """The value of the first of these calls that succeeds; the others are cancelled.

        Args:
            calls: at least one.
            timeout_s: seconds to wait; None waits for ever.
        Raises:
            AllFailed: none succeeded.
            TimeoutError: none succeeded in that time; all are cancelled.
            ValueError: there are no calls.
        """
        futures = [self.submit(call.fn, *call.args, **call.kwargs) for call in calls]
        if not futures:
            raise ValueError("first needs at least one call")
        try:
            one = asyncio.ensure_future(_first_of(futures))
            return await self._within(one, timeout_s, f"none of {len(futures)} calls succeeded")
        finally:
            for future in futures:
                future.cancel()

    async def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more tasks; wait for those that were submitted, and end.

        Args:
            wait: False returns soon; the rest goes on in the background, and the interpreter waits for it.
            cancel_futures: cancel all that does not run yet.
        """
        await in_thread(partial(self._of.shutdown, wait, cancel_futures=cancel_futures))

    async def _for_all(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        whole = await in_thread(partial(self._of.submit, fn, *args, **kwargs), _cancel_all)
        parts = [twin_of(part) for part in whole.parts.values()]
        try:
            if parts:
                await asyncio.wait(parts)
        finally:
            for part in parts:
                part.cancel()
                part.cancelled() or part.exception()  # they are told as one
        return await asyncio.wrap_future(whole)

    async def _mapped(
        self, submit: Callable[..., asyncio.Future[T]], calls: Any, timeout_s: float | None, buffersize: int | None
    ) -> AsyncIterator[T]:
        loop, turn = asyncio.get_running_loop(), Turn()
        until = None if timeout_s is None else loop.time() + timeout_s
        futures: list[asyncio.Future[T]] = []
        try:
            for args in calls if buffersize is None else islice(calls, buffersize):
                futures.append(submit(*args))
                await turn.over()
            futures.reverse()
            while futures:
                left_s = None if until is None else max(0.0, until - loop.time())
                value = await self._within(futures.pop(), left_s, "a result did not come")
                args = next(calls, None)
                if args is not None:
                    futures.insert(0, submit(*args))
                yield value
                del value
        finally:
            for future in futures:
                future.cancel()

    async def _within(self, future: asyncio.Future[T], seconds: float | None, story: str) -> T:
        """Return the result of a future, which is cancelled when the time is over, or with us."""
        try:
            await asyncio.wait([future], timeout=seconds)
            if not future.done():
                why = self._of._submitter.why_nothing_runs()  # noqa: SLF001 - of its twin
                raise TimeoutError(f"{story} within {seconds or 0:g} s{why}; it was cancelled")
            return future.result()
        finally:
            future.cancel()


async def _first_of(futures: Sequence[asyncio.Future[Any]]) -> Any:
    left: set[asyncio.Future[Any]] = set(futures)
    while left:
        done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
        for future in done:
            if not future.cancelled() and future.exception() is None:
                return future.result()
    errors = tuple(_error_of(future) for future in futures)
    raise AllFailed(f"none of {len(futures)} calls succeeded; the first raised {errors[0]!r}", errors)


def _error_of(future: asyncio.Future[Any]) -> BaseException:
    return asyncio.CancelledError() if future.cancelled() else future.exception() or LatchworkError("none")


def _cancel_all(whole: Any) -> None:
    try:
        whole.cancel(interrupt=True)
    except LatchworkError as error:
        _log.warning("tasks for all members are not cancelled: %s", error)


ROWS = (
    Row(executor.Executor, ExecutorTwin),
    Row(executor.TaskRef),
)
Executor, TaskRef = (twin(row.kind, row.by_hand, row.hidden) for row in ROWS)
