"""Execution of one call: decode its arguments, call its function, and encode its result.

A function, a codec or a class of the user may raise any exception, which becomes the outcome of the call. Nothing here
touches the network.
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
from latchwork.tasks.functions import Functions, RegisteredFunction
from latchwork.tasks.payloads.codec import Arguments, Payloads
from latchwork.tasks.payloads.outcome import DeferredResult, Outcome
from latchwork.tasks.running.context import TaskContext, running

if TYPE_CHECKING:
    import asyncio

#: The name of a call whose function is in its payload: pickled.
PICKLED = ""
#: Runs the coroutine of an ``async def`` task to its end, and cancels it when its context is stopped.
RunAsync = Callable[[Coroutine[Any, Any, Any], TaskContext], Any]


def run_async(body: Coroutine[Any, Any, Any], context: TaskContext) -> Any:
    """Run a coroutine on a new event loop in this thread, and return its result. A request to stop the task cancels it.

    Args:
        body: The coroutine.
        context: Context of the task.
    """
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
    """Cancel an asyncio task from another thread. Does nothing if its event loop has ended."""
    if task is None:
        return
    with suppress(RuntimeError):  # the loop has ended
        loop.call_soon_threadsafe(task.cancel)


class StoredCall(Struct, frozen=True):
    """A call as it is stored: the name of a function, and its encoded arguments.

    Attributes:
        function: Name of a registered function, or ``PICKLED``.
        payload: The arguments; for a pickled call a tuple of function, arguments and keyword arguments.
    """

    function: str
    payload: bytes


def run_call(
    call: StoredCall, functions: Functions, payloads: Payloads, context: TaskContext, run_loop: RunAsync = run_async
) -> Outcome:
    """Run a call in this thread and return its outcome. Every exception becomes part of the outcome.

    Args:
        call: The call.
        functions: The registered functions.
        payloads: Decodes the arguments and encodes the result.
        context: Context of the run.
        run_loop: Runs the coroutine of an ``async def`` function.
    """
    try:
        registered, arguments = resolve_call(call, functions, payloads)
    except (UnknownFunction, BadPayload) as error:
        unknown = isinstance(error, UnknownFunction)
        return Outcome.from_exception(error, is_final=not unknown, is_refusal=unknown)
    except BaseException as error:
        return Outcome.from_exception(error)
    token = running.set(context)
    try:
        value = _call_function(registered, arguments, context, run_loop)
    except TaskRefused as error:
        return Outcome.from_exception(error, is_refusal=True)
    except BaseException as error:
        return Outcome.from_exception(_without_our_frames(error))
    finally:
        running.reset(token)
    return _build_outcome(call, registered, value, payloads)


def resolve_call(call: StoredCall, functions: Functions, payloads: Payloads) -> tuple[RegisteredFunction, Arguments]:
    """Return the function and the decoded arguments of a call.

    Raises:
        UnknownFunction: The function is not registered here.
        BadPayload: The arguments cannot be decoded.
    """
    if call.function == PICKLED:
        match payloads.decode(call.payload, tuple[Any, ...], "a pickled call"):
            case (fn, tuple(args), dict(kwargs)) if callable(fn):
                return RegisteredFunction("<pickled>", fn), Arguments(args, kwargs)
        raise BadPayload("a pickled call contains something else")
    registered = functions.get(call.function)
    return registered, payloads.decode_call(registered, call.payload)


def _call_function(
    registered: RegisteredFunction, arguments: Arguments, context: TaskContext, run_loop: RunAsync
) -> Any:
    args, kwargs = _add_context(registered, arguments, context)
    if registered.is_async:
        return _await_result(_call_coroutine_function(registered, args, kwargs), context, run_loop)
    with _ForkExit():
        value = registered.fn(*args, **kwargs)
    late = deferred_result_kind(value)
    if late is not None:
        raise NotSerializable(f"the result of {registered.name!r} is {late}, whose body would never run")
    return value


class _ForkExit:
    """A context manager that ends a forked child of this process when the child leaves the ``with`` block.

    Otherwise the forked child would run the rest of the task too, and report an outcome through its parent's pipes.
    """

    __slots__ = ("_process",)

    def __enter__(self) -> None:
        self._process = os.getpid()

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if os.getpid() == self._process:
            return
        code = None if error is None else error.code if isinstance(error, SystemExit) else 1
        os._exit(0 if code is None else code if isinstance(code, int) else 1)


async def _call_coroutine_function(
    registered: RegisteredFunction, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    with _ForkExit():
        return await registered.fn(*args, **kwargs)


def _await_result(body: Coroutine[Any, Any, Any], context: TaskContext, run_loop: RunAsync) -> Any:
    """Run a coroutine and return its result. If a request to stop canceled it, raise the errors that a plain function
    would raise.

    Args:
        body: The coroutine.
        context: Context of the task.
        run_loop: Runs the coroutine.
    """
    try:
        return run_loop(body, context)
    except BaseException as error:
        if not isinstance(error, cancellations()) or not context.should_stop:
            raise
        if context.is_overdue:
            raise TaskTimeout(f"task {context.task_id} was canceled: its timeout had passed") from error
        raise TaskStopped(f"task {context.task_id} was stopped, and canceled") from error


def _add_context(
    registered: RegisteredFunction, arguments: Arguments, context: TaskContext
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Add the task's context to the arguments, for the parameters that are annotated with it.

    Args:
        registered: The function.
        arguments: The decoded arguments.
        context: Context of the task.
    Returns:
        The positional and the keyword arguments.
    """
    if not registered.context_parameters:  # also for most built-in functions, whose parameters are unknown
        return arguments
    names = registered.context_parameters & registered.all_parameters
    if not names:
        return arguments
    bound = registered.signature.bind(*arguments.args, **arguments.kwargs).arguments
    return registered.to_call_arguments({**bound, **dict.fromkeys(names, context)})


def _build_outcome(call: StoredCall, registered: RegisteredFunction, value: Any, payloads: Payloads) -> Outcome:
    what = f"the result of {registered.name!r}"
    if isinstance(value, DeferredResult):
        return Outcome(deferred=value.to_bytes())
    try:
        hint = registered.hints.get("return", Any)
        return Outcome(payloads.encode(value, what, hint, like=call.payload))
    except BaseException as error:
        return Outcome.from_exception(error, is_final=True)


def _without_our_frames(error: BaseException) -> BaseException:
    """Remove the frames of this module from an exception's traceback, so that it begins in the function of the task."""
    trace = error.__traceback__
    for _ in range(2):
        trace = trace.tb_next if trace is not None and trace.tb_next is not None else trace
    return error.with_traceback(trace)
