"""The event loop for the ``async def`` tasks of a node. All of them share one loop, in a separate thread.

So tasks can share objects that belong to a loop: connections, locks, caches. A task that blocks delays the others: use
a plain function for it. Nothing here touches the network. ``asyncio`` is imported with the first task.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from latchwork._base.interrupts import mutex
from latchwork.errors import Closed
from latchwork.tasks.running.calls import cancel_soon
from latchwork.tasks.running.context import TaskContext

if TYPE_CHECKING:
    import asyncio

_log = logging.getLogger(__name__)


class TaskLoop:
    """Runs the coroutines of many threads on one event loop. Thread-safe. Its thread starts with the first coroutine.

    Args:
        label: Name of the node, for the name of the thread.
    """

    def __init__(self, label: str) -> None:
        self._name = f"latchwork-task-loop-{label}"
        self._mutex = mutex()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def run(self, body: Coroutine[Any, Any, Any], context: TaskContext) -> Any:
        """Run a coroutine on the loop, and wait in this thread for its result. A request to stop the task cancels it.

        Args:
            body: The coroutine.
            context: Context of the task.
        Raises:
            asyncio.CancelledError: It was canceled.
            Closed: The loop was closed.
            BaseException: Raised by the coroutine.
        """
        ended: Future[Any] = Future()
        with self._mutex:
            begins = not self._is_closed
            if begins:  # with the mutex: so it is before the end of the loop
                self._ensure_started().call_soon_threadsafe(self._start, body, context, ended)
        if not begins:
            body.close()
            raise Closed(f"task {context.task_id} does not start, because its node is closing")
        return ended.result()

    def close(self, timeout_s: float) -> bool:
        """Cancel the remaining coroutines, and wait for their end. Idempotent.

        Args:
            timeout_s: Seconds to wait.
        Returns:
            Whether they have ended; False after the timeout.
        """
        with self._mutex:
            loop, thread = self._loop, self._thread
            if loop is not None and not self._is_closed:
                loop.call_soon_threadsafe(self._end)
            self._is_closed = True
        if thread is None:
            return True
        if thread is not threading.current_thread():
            thread.join(timeout_s)
        return not thread.is_alive()

    def _ensure_started(self) -> asyncio.AbstractEventLoop:
        import asyncio

        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._serve, args=(self._loop,), name=self._name, daemon=True)
            self._thread.start()
        return self._loop

    # In the thread

    @staticmethod
    def _serve(loop: asyncio.AbstractEventLoop) -> None:
        import asyncio

        asyncio.set_event_loop(loop)
        try:
            while True:
                try:
                    loop.run_forever()
                except (SystemExit, KeyboardInterrupt):  # of what a task has left running: it ends itself
                    _log.exception("a callback that a task left on its node's event loop raised SystemExit")
                else:
                    return
        finally:
            loop.close()

    def _start(self, body: Coroutine[Any, Any, Any], context: TaskContext, ended: Future[Any]) -> None:
        import asyncio

        whole = _run_to_end(body, context, ended)
        task = asyncio.get_running_loop().create_task(whole, name=f"task {context.task_id}")
        self._tasks.add(task)
        task.add_done_callback(partial(self._on_task_done, body, ended))

    def _on_task_done(self, body: Coroutine[Any, Any, Any], ended: Future[Any], task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        import asyncio

        if not ended.done():  # canceled before it began
            body.close()
            ended.set_exception(asyncio.CancelledError())

    def _end(self) -> None:
        import asyncio

        loop = asyncio.get_running_loop()
        self._ending = loop.create_task(_cancel_all())
        self._ending.add_done_callback(lambda _: loop.stop())


async def _run_to_end(body: Coroutine[Any, Any, Any], context: TaskContext, ended: Future[Any]) -> None:
    """Run a coroutine and complete its future. No exception of the coroutine ends the loop or other tasks.

    Args:
        body: The coroutine.
        context: Context of the task.
        ended: Future that gets its result.
    """
    import asyncio

    loop, me = asyncio.get_running_loop(), asyncio.current_task()
    remove = context.on_stop(lambda: cancel_soon(loop, me))
    try:
        value = await body
    except BaseException as error:
        ended.set_exception(error)
        if isinstance(error, GeneratorExit):
            raise
    else:
        ended.set_result(value)
    finally:
        remove()


async def _cancel_all() -> None:
    """Cancel all asyncio tasks on the loop, including those that coroutines have left running, and wait for their
    end.
    """
    import asyncio

    while left := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in left:
            task.cancel()
        await asyncio.wait(left)
    await asyncio.get_running_loop().shutdown_asyncgens()
