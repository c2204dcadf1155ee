"""Runs one call: decodes its arguments, calls its function, and encodes its result. Raises nothing.

A function, a codec or a class of the user may raise any exception, which becomes the outcome. Nothing here touches the
network.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from latchwork._base.user_code import cancellations
from latchwork._base.validation import deferred_result_kind
from latchwork.tasks.errors import (
    BadPayload,
    NotSerializable,
    TaskRefused,
    TaskStopped,
    TaskTimeout,
    UnknownFunction,
)
from latchwork.tasks.functions import Functions, Registered
from latchwork.tasks.payloads.codec import Arguments, Payloads
from latchwork.tasks.payloads.outcome import Instead, Outcome
from latchwork.tasks.running.context import TaskContext, running

if TYPE_CHECKING:
    import asyncio

#: The name of a call whose function is in its payload: pickled.
PICKLED = ""
#: Runs the coroutine of an ``async def`` task to its end, and cancels it when its context is stopped.
RunAsync = Callable[[Coroutine[Any, Any, Any], TaskContext], Any]


def run_async(body: Coroutine[Any, Any, Any], context: TaskContext) -> Any:
    """Run a coroutine on a new event loop in this thread."""
    import asyncio  # each process of a task imports this module, but few need asyncio

    async def main() -> Any:
        inner = asyncio.ensure_future(body)
        loop = asyncio.get_running_loop()
        remove = context.on_stop(lambda: cancel_soon(loop, inner))
        try:
            return await inner
        finally:
            remove()

    return asyncio.run(main())


def cancel_soon(loop: asyncio.AbstractEventLoop, task: asyncio.Future[Any] | None) -> None:
    """Cancel a task of a loop from another thread."""
    if task is None:
        return
    with suppress(RuntimeError):  # the loop has ended
        loop.call_soon_threadsafe(task.cancel)


class StoredCall(Struct, frozen=True):
    """A stored call.

    Attributes:
        function: the name of a registered function, or ``PICKLED``.
        payload: the arguments; for a pickled call a tuple of function, arguments and keyword arguments.
    """

    function: str
    payload: bytes


def perform(
    call: StoredCall, functions: Functions, payloads: Payloads, context: TaskContext, run_loop: RunAsync = run_async
) -> Outcome:
    """Run a call in this thread. Errors of any kind become its outcome."""
    try:
        registered, arguments = resolved(call, functions, payloads)
    except (UnknownFunction, BadPayload) as error:
        unknown = isinstance(error, UnknownFunction)
        return Outcome.failed(error, is_final=not unknown, is_refusal=unknown)
    except BaseException as error:
        return Outcome.failed(error)
    token = running.set(context)
    try:
        value = _called(registered, arguments, context, run_loop)
    except TaskRefused as error:
        return Outcome.failed(error, is_refusal=True)
    except BaseException as error:
        return Outcome.failed(_without_our_frames(error))
    finally:
        running.reset(token)
    return _answer(call, registered, value, payloads)


def resolved(call: StoredCall, functions: Functions, payloads: Payloads) -> tuple[Registered, Arguments]:
    """Return the function and the arguments of a call.

    Raises:
        UnknownFunction: the function is not registered here.
        BadPayload: the arguments cannot be used.
    """
    if call.function == PICKLED:
        match payloads.decode(call.payload, tuple[Any, ...], "a pickled call"):
            case (fn, tuple(args), dict(kwargs)) if callable(fn):
                return Registered("<pickled>", fn), Arguments(args, kwargs)
        raise BadPayload("a pickled call holds something else")
    registered = functions.get(call.function)
    return registered, payloads.decode_call(registered, call.payload)


def _called(registered: Registered, arguments: Arguments, context: TaskContext, run_loop: RunAsync) -> Any:
    args, kwargs = _with_context(registered, arguments, context)
    if registered.is_async:
        return _awaited(_coroutine(registered, args, kwargs), context, run_loop)
    with _EndsForks():
        value = registered.fn(*args, **kwargs)
    late = deferred_result_kind(value)
    if late is not None:
        raise NotSerializable(f"the result of {registered.name!r} is {late}, whose body would never run")
    return value


class _EndsForks:
    """Ends a process that the code inside has forked, when it leaves that code: only the parent reports the outcome.

    Otherwise a forked child that returns would run the rest of the task, too, and answer through its parent's pipes.
    """

    __slots__ = ("_process",)

    def __enter__(self) -> None:
        self._process = os.getpid()

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if os.getpid() == self._process:
            return
        code = None if error is None else error.code if isinstance(error, SystemExit) else 1
        os._exit(0 if code is None else code if isinstance(code, int) else 1)


async def _coroutine(registered: Registered, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    with _EndsForks():
        return await registered.fn(*args, **kwargs)


def _awaited(body: Coroutine[Any, Any, Any], context: TaskContext, run_loop: RunAsync) -> Any:
    """Return the result of a coroutine. If it was cancelled by a stop, raise the same errors as for other tasks."""
    try:
        return run_loop(body, context)
    except BaseException as error:
        if not isinstance(error, cancellations()) or not context.should_stop:
            raise
        if context.is_overdue:
            raise TaskTimeout(f"task {context.task_id} was cancelled: its time was over") from error
        raise TaskStopped(f"task {context.task_id} was stopped, and cancelled") from error


def _with_context(
    registered: Registered, arguments: Arguments, context: TaskContext
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Add the context to the arguments, by name, after positional ones."""
    if not registered.context_names:  # also for most built-in functions, whose parameters are unknown
        return arguments
    names = registered.context_names & registered.all_parameters
    if not names:
        return arguments
    bound = registered.signature.bind(*arguments.args, **arguments.kwargs).arguments
    return registered.spread({**bound, **dict.fromkeys(names, context)})


def _answer(call: StoredCall, registered: Registered, value: Any, payloads: Payloads) -> Outcome:
    what = f"the result of {registered.name!r}"
    if isinstance(value, Instead):
        return Outcome(instead=value.to_bytes())
    try:
        hint = registered.hints.get("return", Any)
        return Outcome(payloads.encode(value, what, hint, like=call.payload))
    except BaseException as error:
        return Outcome.failed(error, is_final=True)


def _without_our_frames(error: BaseException) -> BaseException:
    """Remove our frames from the traceback, so that it begins in the task's function."""
    trace = error.__traceback__
    for _ in range(2):
        trace = trace.tb_next if trace is not None and trace.tb_next is not None else trace
    return error.with_traceback(trace)
