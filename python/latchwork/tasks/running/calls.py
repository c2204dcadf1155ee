"""One call: its payload to arguments, its function, its result to a payload. Raises nothing.

A function may raise anything, and so may a codec or a class of the user: whatever it is, the outcome names it.
Nothing here touches the network.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from latchwork.checks import late_result
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
from latchwork.user_code import cancellations

if TYPE_CHECKING:
    import asyncio

#: The name of a call whose function is in its payload: pickled.
PICKLED = ""
#: Runs the coroutine of an ``async def`` task to its end, and cancels it when its context is told to stop.
RunAsync = Callable[[Coroutine[Any, Any, Any], TaskContext], Any]


def run_async(body: Coroutine[Any, Any, Any], context: TaskContext) -> Any:
    """Run a coroutine on an event loop of its own, in this thread."""
    import asyncio  # each process of a task imports this module, and few need that one

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


@dataclass(frozen=True, slots=True)
class StoredCall:
    """A call that is stored.

    Attributes:
        function: the name of a registered function, or ``PICKLED``.
        payload: the arguments; of a pickled one a tuple of function, arguments and keyword arguments.
    """

    function: str
    payload: bytes


def perform(
    call: StoredCall, functions: Functions, payloads: Payloads, context: TaskContext, run_loop: RunAsync = run_async
) -> Outcome:
    """Run a call in this thread. Whatever is wrong with it is its outcome."""
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
    """The function and the arguments of a call.

    Raises:
        UnknownFunction: it is not registered here.
        BadPayload: its arguments cannot be used.
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
    late = late_result(value)
    if late is not None:
        raise NotSerializable(f"the result of {registered.name!r} is {late}, whose body would never run")
    return value


class _EndsForks:
    """Ends a process that the code inside has forked, where it leaves that code: the outcome is its parent's.

    Otherwise a child that returns goes on as a second runner of the task, and answers through its parent's pipes.
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
    """What a coroutine returns; that it was cancelled because it was told to stop is said as of any other task."""
    try:
        return run_loop(body, context)
    except BaseException as error:
        if not isinstance(error, cancellations()) or not context.should_stop:
            raise
        if context.is_overdue:
            raise TaskTimeout(f"task {context.task_id} was cancelled: its time was over") from error
        raise TaskStopped(f"task {context.task_id} was told to stop, and cancelled") from error


def _with_context(
    registered: Registered, arguments: Arguments, context: TaskContext
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments as the function takes them: with the context by name, behind what is positional."""
    if not registered.context_names:  # as of most functions that are built in, whose parameters are not known
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
    """The error with the traceback as the task's function sees it."""
    trace = error.__traceback__
    for _ in range(2):
        trace = trace.tb_next if trace is not None and trace.tb_next is not None else trace
    return error.with_traceback(trace)
