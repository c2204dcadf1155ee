"""Creates the asyncio form of a class: a wrapper that runs the methods of the original in the event loop.

An asyncio form has no logic or state of its own. A method that waits becomes a coroutine. Other methods are called
directly, on behalf of the task. Arguments are unwrapped and results are wrapped.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial, wraps
from typing import Any, TypeVar, cast

from latchwork._base.execution_context import acting_for
from latchwork.aio.callbacks import wrap_listener, wrap_predicate, wrap_work
from latchwork.aio.steps import ThreadStep, await_step
from latchwork.aio.wrapper import AsyncWrapper, async_classes, unwrap, wrap_async
from latchwork.errors import Closed
from latchwork.store.driving.background_loop import run_in_task, spawn
from latchwork.store.driving.loop import get_or_create_caller
from latchwork.store.steps import StepCoroutine, is_blocking

T = TypeVar("T")

#: How to adapt arguments that are user functions, by method and parameter.
_FUNCTIONS: dict[tuple[str, str], Callable[..., Any]] = {
    ("run", "fn"): wrap_work,
    ("transact", "fn"): wrap_work,
    ("wait_until", "predicate"): wrap_predicate,
    ("wait_free", "accept"): wrap_predicate,
    ("wait_items", "accept"): wrap_predicate,
    ("take_items", "accept"): wrap_predicate,
    ("take", "accept"): wrap_predicate,
    ("try_take", "accept"): wrap_predicate,
    **{
        (method, "fn"): wrap_listener
        for method in (
            "on_change", "on_elected", "on_end", "on_lost", "on_renewal_failed", "on_revoked", "on_state", "on_view",
            "subscribe", "when_free",
        )
    },
    ("subscribe", "on_error"): wrap_listener,
}  # fmt: skip


def as_current_task() -> acting_for:
    """Return a context manager that makes the current asyncio task the owner of locks, instead of the current thread.

    So two tasks of one thread exclude each other. Without a running event loop, the thread remains the owner.
    """
    try:
        return acting_for(get_or_create_caller(spawn))
    except RuntimeError:
        return acting_for(None)


async def run_and_wrap(create_coroutine: Callable[[], StepCoroutine[T]], *, is_shielded: bool = False) -> T:
    """Run the step coroutine of a synchronous method in the event loop. Return the asyncio wrapper of its result.

    Step coroutines are described in ``latchwork.store.steps``.

    Args:
        create_coroutine: Called without arguments to create the coroutine.
        is_shielded: Whether the coroutine runs to its end even if the awaiting task is canceled.
    """
    return cast("T", wrap_async(await run_in_task(create_coroutine, is_shielded=is_shielded)))


def create_async_class(
    kind: type, base: type[AsyncWrapper] = AsyncWrapper, hidden: Collection[str] = ()
) -> type[AsyncWrapper]:
    """Create the asyncio form of a class.

    Args:
        kind: The class.
        base: Base class of the result, with its hand-written members. All other public members are generated.
        hidden: Public names that are left out.
    """
    body: dict[str, Any] = {"__doc__": kind.__doc__, "__module__": "latchwork.aio", "__init__": _init(kind)}
    for name in dir(kind):
        target = _SPECIAL.get(name, name)
        if (name.startswith("_") and target == name) or name in hidden or hasattr(base, target):
            continue
        if name == "__iter__" and not hasattr(kind, "__next__"):  # a mapping: nothing to await
            continue
        member = _member(name, inspect.getattr_static(kind, name))
        if member is not None:
            body[target] = member
    made = async_classes[kind] = cast("type[AsyncWrapper]", type(kind.__name__, (base,), body))
    return made


def create_async_function(function: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    """Create the asyncio form of a function whose first argument is a store."""
    make_coroutine: Callable[..., StepCoroutine[Any]] = getattr(
        function, "make_coroutine", None
    ) or _make_thread_function(function)

    @wraps(function)
    async def awaited(*args: Any, **options: Any) -> Any:
        given = {name: unwrap(value) for name, value in options.items()}
        return await run_and_wrap(partial(make_coroutine, *map(unwrap, args), **given))

    return awaited


def _make_thread_function(function: Callable[..., Any]) -> Callable[..., StepCoroutine[Any]]:
    return lambda *args, **options: await_step(ThreadStep(partial(function, *args, **options)))


_SPECIAL = {"__enter__": "__aenter__", "__exit__": "__aexit__", "__iter__": "__aiter__", "__next__": "__anext__"}


def _member(name: str, found: object) -> object | None:
    if is_blocking(found):
        return _awaited(found)
    if isinstance(found, property):
        return property(_read(cast("Callable[[Any], Any]", found.fget)), doc=found.__doc__)
    if name in {"__enter__", "__iter__"}:
        return _itself if name == "__iter__" else _itself_awaited
    if name == "__next__":
        return _next
    if name == "__exit__":
        return _close_awaited
    return _called(found) if inspect.isfunction(found) else None


def _init(kind: type) -> Callable[..., None]:
    @wraps(kind.__init__)  # type: ignore[misc]
    def init(self: AsyncWrapper, *args: Any, **options: Any) -> None:
        with as_current_task():
            self._of = kind(*map(unwrap, args), **{name: _unwrap_argument(name, options[name]) for name in options})

    return init


def _unwrap_argument(name: str, value: Any) -> Any:
    """Convert an argument of a constructor: replace an asyncio form by its original.

    If the argument is a function that returns a session, wrap the function so that its result is converted.

    Args:
        name: Name of the argument.
        value: The argument.
    """
    return (lambda: unwrap(value())) if name == "session" and inspect.isfunction(value) else unwrap(value)


def _awaited(found: Any) -> Callable[..., Awaitable[Any]]:
    original: Callable[..., StepCoroutine[Any]] = found.__wrapped__
    make_coroutine: Callable[..., StepCoroutine[Any]] = found.make_coroutine
    is_shielded: bool = found.is_shielded
    adapt = _adapter(original)

    @wraps(original)
    async def awaited(self: AsyncWrapper, *args: Any, **options: Any) -> Any:
        args, options = adapt(self, args, options)
        result = await run_in_task(partial(make_coroutine, self._of, *args, **options), is_shielded=is_shielded)
        return self if result is self._of else wrap_async(result)

    return awaited


def _called(function: Callable[..., Any]) -> Callable[..., Any]:
    adapt = _adapter(function)

    @wraps(function)
    def called(self: AsyncWrapper, *args: Any, **options: Any) -> Any:
        args, options = adapt(self, args, options)
        with as_current_task():
            result = getattr(self._of, function.__name__)(*args, **options)
        return self if result is self._of else wrap_async(result)

    return called


def _read(get: Callable[[Any], Any]) -> Callable[[AsyncWrapper], Any]:
    def read(self: AsyncWrapper) -> Any:
        with as_current_task():
            return wrap_async(get(self._of))

    return read


_Adapted = tuple[tuple[Any, ...], Mapping[str, Any]]


def _adapter(function: Callable[..., object]) -> Callable[[AsyncWrapper, tuple[Any, ...], dict[str, Any]], Any]:
    """Create a function that converts the arguments of an asyncio method to those of the synchronous method.

    Args:
        function: The synchronous method.
    """
    names = list(inspect.signature(function).parameters)[1:]
    made = {name: _FUNCTIONS[function.__name__, name] for name in names if (function.__name__, name) in _FUNCTIONS}

    def plain(_self: AsyncWrapper, args: tuple[Any, ...], options: dict[str, Any]) -> _Adapted:
        return tuple(map(unwrap, args)), {name: unwrap(value) for name, value in options.items()}

    def with_functions(self: AsyncWrapper, args: tuple[Any, ...], options: dict[str, Any]) -> _Adapted:
        what = f"{type(self).__name__}.{function.__name__}"

        def adapt_argument(name: str, value: Any) -> Any:
            return made[name](value, what) if name in made and value is not None else value

        positional = tuple(adapt_argument(name, value) for name, value in zip(names, args, strict=False))
        return plain(
            self, positional + args[len(names) :], {name: adapt_argument(name, options[name]) for name in options}
        )

    return with_functions if made else plain


def _itself(self: AsyncWrapper) -> AsyncWrapper:
    return self


async def _itself_awaited(self: AsyncWrapper) -> AsyncWrapper:
    return self


async def _close_awaited(self: Any, *_: object) -> None:
    closing = self.close()
    if inspect.isawaitable(closing):
        await closing


async def _next(self: Any) -> Any:
    try:
        return await self.next()
    except Closed:
        raise StopAsyncIteration from None
