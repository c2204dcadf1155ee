"""The asyncio forms of the executor and its futures.

The executor's own threads store tasks and collect results. The loop is woken once for all results that have arrived.
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
from latchwork._base.execution_context import acting_for
from latchwork.aio.factory import create_async_class
from latchwork.aio.steps import LoopTurn
from latchwork.aio.store import run_in_thread
from latchwork.aio.table import Row
from latchwork.aio.wrapper import AsyncWrapper, async_classes, wrap_async
from latchwork.errors import LatchworkError
from latchwork.executor import AllFailed, Call
from latchwork.store.driving.background_loop import run_in_task, spawn
from latchwork.store.driving.loop import LoopMailbox
from latchwork.store.steps import coroutine_of

_log = logging.getLogger(__name__)

T = TypeVar("T")


class TaskFuture(asyncio.Future[T]):
    """The asyncio future of a submitted task. It can be awaited and passed to ``asyncio.gather``.

    As with any asyncio future, canceling the coroutine that awaits it cancels it. ``asyncio.shield`` prevents that.
    """

    def __init__(self, task: executor.TaskFuture[T]) -> None:
        mailbox = LoopMailbox.for_running_loop()
        super().__init__(loop=mailbox.loop)
        self._task = task
        task.add_internal_callback(lambda ended: mailbox.post(self._end, ended))

    @classmethod
    def wrap(cls, task: executor.TaskFuture[T]) -> TaskFuture[T]:
        """Create an asyncio future from the executor's future of a task."""
        return cls(task)

    @property
    def id(self) -> str:
        """The ID of the task, which other processes can use. Empty until the task is first sent."""
        return self._task.id

    def cancel(self, msg: object = None) -> bool:
        """Cancel this future at once, and the task in the background. A running task is requested to stop.

        ``cancel_and_wait`` returns whether the task was canceled.

        Args:
            msg: The message of the ``CancelledError``.
        """
        if not super().cancel(msg):
            return False
        if not self._task.done():
            spawn(self._cancel_in_background, "canceling a task")
        return True

    async def cancel_and_wait(self, *, interrupt: bool = False) -> bool:
        """Cancel the task like ``cancel``, and wait for the result from the store. See ``TaskFuture.cancel``.

        Args:
            interrupt: Also cancel a running task: it is requested to stop, and its result is dropped.
        Returns:
            True if the task will not run, or its result is dropped. False if it is running or has ended.
        Raises:
            Unavailable, OutcomeUnknown: The store could not be reached. Call this again.
        """
        return await run_in_task(partial(coroutine_of(self._task.cancel), interrupt=interrupt))

    async def state(self) -> executor.TaskState:
        """Read the state of the task from the store: queued, running and where, or how it ended.

        Raises:
            Unavailable: The store could not be reached.
        """
        return await run_in_task(coroutine_of(self._task.state))

    async def _cancel_in_background(self) -> None:
        try:
            await coroutine_of(self._task.cancel)(interrupt=True)
        except LatchworkError as error:
            _log.warning("task %s is not canceled: %s", self.id, error)

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


async_classes[executor.TaskFuture] = cast("Any", TaskFuture)


class AsyncExecutor(AsyncWrapper):
    """The hand-written methods of the asyncio form of ``Executor``. The others are generated."""

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(self, *raised: object) -> None:
        """Shut down the executor. After a cancellation or Ctrl-C, cancel queued tasks and do not wait."""
        is_interrupted = bool(raised) and isinstance(raised[1], (KeyboardInterrupt, asyncio.CancelledError))
        await self.shutdown(wait=not is_interrupted, cancel_futures=is_interrupted)

    def submit(self, fn: Callable[..., T] | str, /, *args: Any, **kwargs: Any) -> TaskFuture[T]:
        """Submit a call. It is stored soon, together with others. See ``latchwork.executor.Executor.submit``.

        Returns:
            The future of its result. With the target ``All()``, the result is a dictionary from members to results.
        """
        if isinstance(self._of._options.target, executor.All):  # noqa: SLF001 - of the wrapped object
            return cast("TaskFuture[T]", asyncio.ensure_future(self._submit_to_all(fn, args, kwargs)))
        with acting_for(None):  # the executor has threads of its own
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
        """Submit a call per argument and iterate over the results in the order of the arguments, with ``async for``.

        Tasks are submitted from the first iteration on. Tasks whose results are not fetched are canceled.

        Args:
            fn: As for ``submit``.
            iterables: Arguments, up to the end of the shortest iterable.
            timeout: Seconds from the first iteration after which ``TimeoutError`` is raised. None waits forever.
            chunksize: Has no effect: tasks are always stored and fetched in batches.
            buffersize: The maximum number of submitted tasks whose results were not fetched. The arguments are then
                read on demand. None submits all.
        Raises:
            ValueError: ``chunksize`` or ``buffersize`` is less than 1.
        """
        if chunksize < 1:
            raise ValueError("chunksize must be >= 1.")
        if buffersize is not None and (type(buffersize) is not int or buffersize < 1):
            raise ValueError(f"buffersize must be None or a whole number from 1, not {buffersize!r}")
        calls = zip(*iterables, strict=False)
        return self._iterate_results(partial(self.submit, fn), calls, timeout, buffersize)

    async def call(self, fn: Callable[..., T] | str, /, *args: Any, timeout_s: float, **kwargs: Any) -> T:
        """Submit a call and return its value. The task is canceled after the timeout, or when this call is canceled.

        Args:
            fn: As for ``submit``.
            args: Its positional arguments.
            timeout_s: Seconds to wait.
            kwargs: Its keyword arguments.
        Raises:
            TimeoutError: The task did not end in time. It is asked to stop if it is running.
            Exception: The task raised it, or ``submit`` did.
        """
        future = self.submit(fn, *args, **kwargs)
        return await self._within(future, timeout_s, f"task {getattr(future, 'id', '')} did not end")

    async def first(self, calls: Iterable[Call], timeout_s: float | None = None) -> Any:
        """Submit several calls, return the value of the first one that succeeds, and cancel the others.

        Args:
            calls: At least one call.
            timeout_s: Seconds to wait. None waits forever.
        Raises:
            AllFailed: No call succeeded.
            TimeoutError: No call succeeded in time. All are canceled.
            ValueError: There are no calls.
        """
        futures = [self.submit(call.fn, *call.args, **call.kwargs) for call in calls]
        if not futures:
            raise ValueError("first needs at least one call")
        try:
            one = asyncio.ensure_future(_await_first(futures))
            return await self._within(one, timeout_s, f"none of {len(futures)} calls succeeded")
        finally:
            for future in futures:
                future.cancel()

    async def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more tasks, wait for the submitted ones, and close the executor.

        Args:
            wait: Whether to wait for the tasks. If False, they continue in the background, and the interpreter waits
                for them at its exit.
            cancel_futures: Cancel tasks that are not running yet.
        """
        await run_in_thread(partial(self._of.shutdown, wait, cancel_futures=cancel_futures))

    async def _submit_to_all(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        whole = await run_in_thread(partial(self._of.submit, fn, *args, **kwargs), _cancel_all)
        parts = [wrap_async(part) for part in whole.parts.values()]
        try:
            if parts:
                await asyncio.wait(parts)
        finally:
            for part in parts:
                part.cancel()
                part.cancelled() or part.exception()  # mark as retrieved: the whole raises them as one
        return await asyncio.wrap_future(whole)

    async def _iterate_results(
        self, submit: Callable[..., asyncio.Future[T]], calls: Any, timeout_s: float | None, buffersize: int | None
    ) -> AsyncIterator[T]:
        loop, turn = asyncio.get_running_loop(), LoopTurn()
        until = None if timeout_s is None else loop.time() + timeout_s
        futures: list[asyncio.Future[T]] = []
        try:
            for args in calls if buffersize is None else islice(calls, buffersize):
                futures.append(submit(*args))
                await turn.yield_if_due()
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

    async def _within(self, future: asyncio.Future[T], timeout_s: float | None, failure: str) -> T:
        """Return the result of a future. After the timeout, or when this call is canceled, cancel the future.

        Args:
            future: The future.
            timeout_s: Seconds to wait. None waits forever.
            failure: The message of the ``TimeoutError``.
        """
        try:
            await asyncio.wait([future], timeout=timeout_s)
            if not future.done():
                why = self._of._submitter.missing_worker_hint()  # noqa: SLF001 - of the wrapped object
                raise TimeoutError(f"{failure} within {timeout_s or 0:g} s{why}; it was canceled")
            return future.result()
        finally:
            future.cancel()


async def _await_first(futures: Sequence[asyncio.Future[Any]]) -> Any:
    left: set[asyncio.Future[Any]] = set(futures)
    while left:
        done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
        for future in done:
            if not future.cancelled() and future.exception() is None:
                return future.result()
    errors = tuple(_get_error(future) for future in futures)
    raise AllFailed(f"none of {len(futures)} calls succeeded; the first raised {errors[0]!r}", errors)


def _get_error(future: asyncio.Future[Any]) -> BaseException:
    return asyncio.CancelledError() if future.cancelled() else future.exception() or LatchworkError("none")


def _cancel_all(whole: Any) -> None:
    try:
        whole.cancel(interrupt=True)
    except LatchworkError as error:
        _log.warning("tasks for all members are not canceled: %s", error)


ROWS = (
    Row(executor.Executor, AsyncExecutor),
    Row(executor.TaskRef),
)
Executor, TaskRef = (create_async_class(row.kind, row.base, row.hidden) for row in ROWS)
