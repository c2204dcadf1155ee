"""Registered functions: the functions that a node may run, by name.

No other function is called, whatever the store contains. Names are ``module:qualname`` by default. Nothing here touches
the network.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import typing
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar, overload

from latchwork._base.interrupts import mutex
from latchwork._base.validation import deferred_kind, is_number
from latchwork.tasks.errors import UnknownFunction
from latchwork.tasks.retry import ONCE, Retry

F = TypeVar("F", bound=Callable[..., Any])
RunIn = Literal["thread", "process"]

#: A name is part of records, and at most so many characters.
MAX_NAME_CHARS = 300


@dataclass(frozen=True, eq=False)
class RegisteredFunction:
    """A function that nodes may run, with its name and default options.

    Attributes:
        name: Its name in the store.
        fn: The function itself.
        retry: Its retry policy.
        timeout_s: Seconds after which a run is stopped; None for no limit.
        run_in: ``thread`` or ``process``; None lets the node decide.
    """

    name: str
    fn: Callable[..., Any]
    retry: Retry = field(default=ONCE)
    timeout_s: float | None = None
    run_in: RunIn | None = None

    @cached_property
    def is_async(self) -> bool:
        """Whether the function is an ``async def``."""
        return inspect.iscoroutinefunction(self.fn)

    @cached_property
    def hints(self) -> Mapping[str, Any]:
        """The resolved annotations by parameter name. ``return`` is the annotation of the result."""
        return _resolve_hints(self.fn)

    @cached_property
    def context_parameters(self) -> frozenset[str]:
        """Names of the parameters that get the ``TaskContext``, because they are annotated with it."""
        return frozenset(name for name, hint in self.hints.items() if getattr(hint, "takes_task_context", False))

    @cached_property
    def signature(self) -> inspect.Signature:
        """The signature that callers use: all parameters except those that get the ``TaskContext``."""
        whole = inspect.signature(self.fn)
        kept = [each for each in whole.parameters.values() if each.name not in self.context_parameters]
        return whole.replace(parameters=kept)

    @cached_property
    def all_parameters(self) -> frozenset[str]:
        """Names of all parameters, including those that get the ``TaskContext``."""
        return frozenset(inspect.signature(self.fn).parameters)

    @cached_property
    def positional_parameters(self) -> tuple[tuple[str, ...], int] | None:
        """The names of the parameters, and the number of required ones. None if some parameters cannot be passed by
        position.
        """
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        all_ = self.signature.parameters.values()
        least = sum(each.default is inspect.Parameter.empty for each in all_)
        return (tuple(each.name for each in all_), least) if all(each.kind in kinds for each in all_) else None

    def to_call_arguments(self, bound: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Convert values by parameter name into positional arguments and keyword arguments.

        Args:
            bound: Value of each parameter, by name.
        """
        whole = inspect.signature(self.fn)
        found = inspect.BoundArguments(whole, OrderedDict((n, bound[n]) for n in whole.parameters if n in bound))
        return found.args, found.kwargs

    def check_arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Check that the function accepts these arguments.

        Raises:
            TypeError: It does not accept them. The message contains the function's name.
        """
        if (
            not kwargs
            and self.positional_parameters is not None
            and self.positional_parameters[1] <= len(args) <= len(self.positional_parameters[0])
        ):
            return
        try:
            self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"function {self.name!r}: {error}") from None


class Functions:
    """A registry of the functions that a node may run, by name. Thread-safe.

    A node calls no other function. Any other name in the store raises ``UnknownFunction``.
    """

    def __init__(self) -> None:
        self._mutex = mutex()
        self._by_name: dict[str, RegisteredFunction] = {}
        self._by_fn: dict[Callable[..., Any], RegisteredFunction] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[RegisteredFunction]:
        return iter(sorted(self._by_name.values(), key=lambda each: each.name))

    def __len__(self) -> int:
        return len(self._by_name)

    @overload
    def task(self, fn: F) -> F: ...
    @overload
    def task(
        self,
        fn: None = None,
        *,
        name: str | None = None,
        retry: Retry | None = None,
        timeout_s: float | None = None,
        run_in: RunIn | None = None,
    ) -> Callable[[F], F]: ...

    def task(
        self,
        fn: F | None = None,
        *,
        name: str | None = None,
        retry: Retry | None = None,
        timeout_s: float | None = None,
        run_in: RunIn | None = None,
    ) -> F | Callable[[F], F]:
        """Register a function and return it unchanged: ``@task`` or ``@task(timeout_s=60)``.

        Args:
            fn: A plain or an ``async`` function.
            name: Its name in the store; ``module:qualname`` by default.
            retry: Its retry policy; one attempt by default.
            timeout_s: Seconds after which a run is stopped; no limit by default.
            run_in: ``thread`` or ``process``; by default the node decides.
        Raises:
            TypeError: It is not a function whose body runs when it is called, for example a generator function.
            ValueError: Another function has the name, or a lambda or a local function was given without a name.
        """
        if timeout_s is not None and (not is_number(timeout_s) or timeout_s <= 0):
            raise ValueError(f"timeout_s must be None or a number of seconds above 0, not {timeout_s!r}")
        if run_in not in (None, "thread", "process"):
            raise ValueError(f"run_in must be 'thread' or 'process', not {run_in!r}")

        def register(given: F) -> F:
            _check_runs(given)
            self.add(RegisteredFunction(name or default_name(given), given, retry or ONCE, timeout_s, run_in))
            return given

        return register if fn is None else register(fn)

    def add(self, function: RegisteredFunction) -> None:
        """Add a registered function, for example from another registry.

        Raises:
            ValueError: Another function has its name.
        """
        _check_name(function.name)
        with self._mutex:
            there = self._by_name.get(function.name)
            if there is not None and not _are_same_function(there.fn, function.fn):
                raise ValueError(f"another function is registered as {function.name!r}; give one of them another name=")
            self._by_name[function.name] = function
            self._by_fn[function.fn] = function

    def load(self, *modules: str) -> Functions:
        """Import modules, and add all of their functions that were registered with ``@task``.

        Pass only names from a program or its command line, because importing a module runs its code.

        Args:
            modules: Names of the modules.
        Returns:
            This registry.
        Raises:
            ModuleNotFoundError: A module does not exist.
            UnknownFunction: A module contains no registered function.
        """
        for module in modules:
            imported = importlib.import_module(module)
            found = [DEFAULT.find(each) for each in vars(imported).values() if callable(each)]
            mine = [each for each in found if each is not None]
            if not mine and not any(importable_module(each.fn) == module for each in (*self, *DEFAULT)):
                raise UnknownFunction(
                    f"module {module!r} has no function with @task; decorate the functions that nodes may run"
                )
            for each in mine:
                self.add(each)
        return self

    def get(self, name: str) -> RegisteredFunction:
        """Return the registered function with this name.

        Raises:
            UnknownFunction: There is none. The message lists similar names.
        """
        try:
            return self._by_name[name]
        except (KeyError, TypeError):
            raise UnknownFunction.for_name(str(name), self._by_name) from None

    def find(self, fn: Callable[..., Any]) -> RegisteredFunction | None:
        """Find the registration of a function. Return None if it is not registered."""
        try:
            return self._by_fn.get(fn)
        except TypeError:  # not hashable, so not registered
            return None

    def resolve(self, fn: Callable[..., Any] | str) -> RegisteredFunction:
        """Return the registration of a function, given the function or its name.

        Raises:
            UnknownFunction: It is not registered. The message says what to do.
        """
        if isinstance(fn, str):
            return self.get(fn)
        found = self.find(fn)
        if found is None:
            shown = getattr(fn, "__qualname__", None) or repr(fn)[:100]
            raise UnknownFunction(f"{shown} is not registered; decorate it with @task, or allow pickled functions")
        return found


#: Where ``@task`` registers.
DEFAULT = Functions()
task = DEFAULT.task


def default_name(fn: Callable[..., Any]) -> str:
    """Return the name under which a function is registered by default: ``module:qualname``.

    For a function of the main script, the module is the file name of the script, by which other processes import it.

    Raises:
        ValueError: The function is a lambda or a local function, so other processes could not find it by name.
    """
    qualname = str(getattr(fn, "__qualname__", "<object>"))
    if "<" in qualname:
        raise ValueError(f"{qualname} has no name that other processes could use; give it one with task(name=...)")
    return f"{importable_module(fn)}:{qualname}"


def importable_module(fn: Callable[..., Any]) -> str:
    """Return the name by which other processes import the module of a function."""
    module = str(getattr(fn, "__module__", None) or "__main__")
    if module != "__main__":
        return module
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return str(spec.name)
    file = getattr(main, "__file__", None)
    return Path(file).stem if file else module


def _check_runs(fn: Callable[..., Any]) -> None:
    if not callable(fn):
        raise TypeError(f"a task must be a function, not {fn!r}")
    late = deferred_kind(fn)
    if late not in (None, "an async function"):
        raise TypeError(f"a task was given {late}, whose body would never run; pass a plain or async function")


def _check_name(name: str) -> None:
    given: object = name
    if not isinstance(given, str) or not 1 <= len(given) <= MAX_NAME_CHARS or not given.isprintable():
        raise ValueError(f"a task's name must be 1 to {MAX_NAME_CHARS} printable characters, not {str(given)[:100]!r}")


def _are_same_function(first: Callable[..., Any], second: Callable[..., Any]) -> bool:
    """Return whether two functions are the same function, possibly from two imports of the same file."""
    if first is second:
        return True
    mine, theirs = getattr(first, "__code__", None), getattr(second, "__code__", None)
    same_place = mine is not None and theirs is not None and mine.co_filename == theirs.co_filename
    return same_place and getattr(first, "__qualname__", first) == getattr(second, "__qualname__", second)


def _resolve_hints(fn: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the annotations of a function that can be resolved at run time, by parameter name."""
    plain = inspect.unwrap(fn)
    try:
        return typing.get_type_hints(plain, include_extras=True)
    except Exception:
        return _hints_one_by_one(plain)


def _hints_one_by_one(fn: Callable[..., Any]) -> Mapping[str, Any]:
    found: dict[str, Any] = {}
    space = getattr(fn, "__globals__", {})
    for name, annotation in getattr(fn, "__annotations__", {}).items():
        holder = type("holder", (), {"__annotations__": {name: annotation}})
        try:
            found.update(typing.get_type_hints(holder, space, include_extras=True))
        except Exception:  # noqa: S112 - then nothing is known of this one
            continue
    return found
