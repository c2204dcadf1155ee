"""``Executor``: a ``concurrent.futures.Executor`` whose workers are processes of a cluster.

``keys.py`` lists its keys. A submitter need not run tasks, and workers may start after tasks are submitted.

docs/design/executor.md describes the protocol and its races.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import logging
import os
import sys
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, CancelledError
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any, TypeVar, cast

from msgspec import structs

from latchwork._base.interrupts import call_after_finalizer
from latchwork._base.validation import is_number
from latchwork.errors import LatchworkError
from latchwork.executor.errors import AllFailed
from latchwork.executor.futures import AllFuture, CallbackFuture, TaskFuture
from latchwork.executor.items import DEFAULT_PRIORITY, TaskItem
from latchwork.executor.keys import DETACHED, NAME, PRIORITIES, Keys, check_task_id, executor_store, make_detached_id
from latchwork.executor.pickers import Picker, Pull
from latchwork.executor.refs import DetachedTasks, TaskRef
from latchwork.executor.submitter import OnSessionLost, Submitter
from latchwork.executor.submitter_session import PlacementRequest
from latchwork.executor.targets import All, Member, StoredTarget, Target
from latchwork.primitives import Group
from latchwork.store import Store
from latchwork.store import session_ttl_s as ttl_s
from latchwork.store.driving.background import Background
from latchwork.store.keys import validate_name
from latchwork.store.steps import blocking, run
from latchwork.tasks import (
    DEFAULT,
    PICKLED,
    Codec,
    Functions,
    Payloads,
    PickleCodec,
    RegisteredFunction,
    Retry,
    StoredRetry,
    UnknownFunction,
)

T = TypeVar("T")

_MOST_COPIES = 30

_log = logging.getLogger(__name__)

#: Seconds of waiting for tasks at the end, after which it is said what is waited for.
_QUIET_S = 2.0

#: Seconds for which the result of a detached task is kept by default.
RESULT_TTL_S = 86_400.0
#: Default TTL of a submitter's session, in seconds.
SESSION_TTL_S = 30.0
_LIVE: weakref.WeakSet[Submitter] = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class Call:
    """A call for ``Executor.first``: ``Call(fetch, "https://a", timeout=3)``.

    Attributes:
        fn: A registered function, or its name.
        args: Positional arguments.
        kwargs: Keyword arguments.
    """

    fn: Callable[..., Any] | str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def __init__(self, fn: Callable[..., Any] | str, /, *args: Any, **kwargs: Any) -> None:
        object.__setattr__(self, "fn", fn)
        object.__setattr__(self, "args", args)
        object.__setattr__(self, "kwargs", kwargs)


@dataclass(frozen=True, slots=True)
class SubmitOptions:
    """Options for submitted tasks, as set by ``with_options``.

    Attributes:
        picker: Chooses the preferred member.
        priority: 0 runs before 9.
        retry: Retry policy; None uses the function's.
        timeout_s: Seconds after which a run is stopped; None uses the function's.
        copies: How many copies may run at a time, each on a different member.
        target: Members that may run the task; None allows all.
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
            raise TypeError(f"a picker must have a method pick(task, view, load), but {self.picker!r} has none")


def iterate_results(
    futures: list[TaskFuture[T]],
    more: Iterator[tuple[Any, ...]],
    submit: Callable[..., TaskFuture[T]],
    drop: Callable[[list[TaskFuture[T]]], object],
    *,
    until: float | None,
    now: Callable[[], float],
) -> Iterator[T]:
    """Yield the results of futures in order. At the end, cancel the remaining futures.

    Args:
        futures: The futures in reverse order: the last item is the first future. The list is emptied.
        more: Arguments of further calls. One call is submitted after each result.
        submit: Submits a call.
        drop: Cancels futures.
        until: The time at which a ``TimeoutError`` is raised; None for never.
        now: Returns the current time.
    """
    try:
        while futures:
            yield _get_result_and_drop(futures.pop(), drop, None if until is None else max(0.0, until - now()))
            args = next(more, None)
            if args is not None:
                futures.insert(0, submit(*args))
    finally:
        drop(futures)


def _get_result_and_drop(
    future: TaskFuture[T], drop: Callable[[list[TaskFuture[T]]], object], timeout_s: float | None
) -> T:
    """Wait for a future and return its result, without keeping a reference to the future.

    The future is always passed to ``drop`` afterwards, which cancels it if it has not ended.

    Args:
        future: The future.
        drop: Cancels futures that have not ended.
        timeout_s: Seconds to wait; None waits forever.
    """
    try:
        try:
            return future.result(timeout_s)
        finally:
            drop([future])
    finally:
        del future


def get_error(future: TaskFuture[Any]) -> BaseException:
    """Return the exception of a future that has ended without a result."""
    return CancelledError() if future.cancelled() else future.exception() or LatchworkError("none")


class Executor(concurrent.futures.Executor):
    """Submits calls to the cluster's workers: ``with Executor(store) as pool: pool.submit(square, 7).result()``.

    Implements ``concurrent.futures.Executor``, and works with ``as_completed``, ``wait`` and ``loop.run_in_executor``.
    A task runs at least once, even if workers die, and has one result. Not promised: that a task whose worker dies runs
    only once. Construction does no I/O. Thread-safe.

    Args:
        store: A store, or a namespace of one. The caller closes it.
        name: The executor's name, shared with its workers.
        functions: Functions that may be submitted; defaults to those registered by ``task``.
        codec: How arguments are stored. ``PickleCodec()`` takes any function and any value, if the workers allow it.
        allow_pickle: Whether to read pickled results. Any client that can write to the store can then run code in this
            process.
        picker: Chooses the preferred member; by default, any member with a free slot.
        priority: 0 runs before 9.
        session_ttl_s: Seconds without contact after which workers drop our tasks. None uses the URL's, or 30.
        on_session_lost: ``fail`` fails the futures of stored tasks with ``SessionLost``. ``resubmit`` submits them
            again, so they may run twice.
        label: Label shown to other clients.
        wait_at_exit_s: Seconds for which the interpreter waits for tasks at exit. Tasks that are left then do not
            begin, and running ones are asked to stop. None, the default, waits for all, as a thread pool does.
            ``shutdown`` and ``with`` always wait for all.
    """

    def __init__(
        self,
        store: Store,
        name: str = NAME,
        *,
        functions: Functions = DEFAULT,
        codec: Codec | None = None,
        allow_pickle: bool = False,
        picker: Picker | None = None,
        priority: int = DEFAULT_PRIORITY,
        session_ttl_s: float | None = None,
        on_session_lost: OnSessionLost = "fail",
        label: str = "",
        wait_at_exit_s: float | None = None,
    ) -> None:
        store = executor_store(store, "an executor")
        if wait_at_exit_s is not None and not is_number(wait_at_exit_s, 0.0):
            raise ValueError(f"wait_at_exit_s must be None or at least 0 seconds, not {wait_at_exit_s!r}")
        if on_session_lost not in ("fail", "resubmit"):
            raise ValueError(f"on_session_lost must be 'fail' or 'resubmit', not {on_session_lost!r}")
        self.name = validate_name(name)
        self._store = store
        self._keys = Keys(name)
        self._functions = functions
        self._payloads = Payloads(codec, allow_pickle=allow_pickle)
        self._options = SubmitOptions(picker or Pull(), priority)
        self._submitter = Submitter(
            store,
            self._keys,
            self._payloads,
            session_ttl_s=ttl_s(store, session_ttl_s, SESSION_TTL_S),
            on_session_lost=on_session_lost,
            label=label,
            wait_at_exit_s=wait_at_exit_s,
        )
        self._detached = DetachedTasks(store, self._keys, self._payloads, partial(_result_annotation, functions))
        self._end = weakref.finalize(self, _end_when_idle, self._submitter)
        self._end.atexit = False
        _LIVE.add(self._submitter)

    def __repr__(self) -> str:
        return f"<Executor {self.name!r}>"

    # Submitting

    def submit(self, fn: Callable[..., T] | str, /, *args: Any, **kwargs: Any) -> TaskFuture[T]:
        """Submit a call, to be stored shortly afterwards in a batch. Does no I/O.

        Args:
            fn: A registered function, or its name.
            args: Positional arguments, checked against the annotations.
            kwargs: Keyword arguments, checked against the annotations.
        Returns:
            The future of the call. With the target ``All()``, its result is a dictionary of results by member.
        Raises:
            UnknownFunction: The function is neither registered nor may be pickled.
            NotSerializable, PayloadTooLarge: An argument cannot be stored. The message names it.
            TypeError: The function does not accept these arguments.
            RuntimeError: The executor was shut down.
        """
        item, hint, what = self._build_item(fn, args, kwargs)
        if isinstance(self._options.target, All):
            return cast("TaskFuture[T]", self._submit_to_all(item, hint, what))
        return self._submitter.add(item, hint, what, PlacementRequest(self._options.picker, self._options.copies))

    def map(
        self,
        fn: Callable[..., T] | str,
        /,
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
    ) -> Iterator[T]:
        """Call a function with the items of iterables, and return an iterator over the results in order.

        Works like ``concurrent.futures.Executor.map``.

        Args:
            fn: A registered function, or its name.
            iterables: Read immediately, up to the end of the shortest.
            timeout: Seconds after this call until ``TimeoutError`` is raised.
            chunksize: Has no effect, as for threads. Tasks are always stored and fetched in batches.
            buffersize: Maximum number of tasks whose results were not yet consumed; arguments are then read as needed.
        Raises:
            ValueError: ``chunksize`` or ``buffersize`` is below 1.
        """
        if chunksize < 1:
            raise ValueError("chunksize must be >= 1.")
        if buffersize is not None and (type(buffersize) is not int or buffersize < 1):
            raise ValueError(f"buffersize must be None or a whole number from 1, not {buffersize!r}")
        clock = self._store.clock
        until = None if timeout is None else clock.now() + timeout
        calls = zip(*iterables, strict=False)
        first = [self.submit(fn, *args) for args in (calls if buffersize is None else islice(calls, buffersize))]
        first.reverse()
        more = calls if buffersize is not None else iter(())
        drop = partial(self._cancel_in_background, interrupt=False)
        return iterate_results(first, more, partial(self.submit, fn), drop, until=until, now=clock.now)

    def call(self, fn: Callable[..., T] | str, /, *args: Any, timeout_s: float, **kwargs: Any) -> T:
        """Submit a call, wait for its result and return it. After the timeout, cancel and remove the task.

        Args:
            fn: A registered function, or its name.
            args: Positional arguments.
            timeout_s: Seconds to wait.
            kwargs: Keyword arguments.
        Raises:
            TimeoutError: The task did not end in time. If it is running, it is signaled to stop.
            Exception: The task's error, or an error of ``submit``.
        """
        future = self.submit(fn, *args, **kwargs)
        try:
            return future.result(timeout_s)
        except BaseException as error:
            if not future.done():
                self._cancel_in_background([future])
                if isinstance(error, TimeoutError):
                    why = self._submitter.missing_worker_hint()
                    late = f"task {future.id} did not end within {timeout_s:g} s{why}; it was cancelled"
                    raise TimeoutError(late) from None
            raise

    def first(self, calls: Iterable[Call], timeout_s: float | None = None) -> Any:
        """Return the result of the first call that succeeds, and cancel the others.

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
        clock = self._store.clock
        until = None if timeout_s is None else clock.now() + timeout_s
        left: set[concurrent.futures.Future[Any]] = set(futures)
        try:
            while left:
                left_s = None if until is None else max(0.0, until - clock.now())
                done, others = concurrent.futures.wait(left, left_s, FIRST_COMPLETED)
                if not done:
                    why = self._submitter.missing_worker_hint()
                    late = f"none of {len(futures)} calls succeeded within {timeout_s or 0:g} s{why}; all are cancelled"
                    raise TimeoutError(late)
                for future in done:
                    if not future.cancelled() and future.exception() is None:
                        return future.result()
                left = others
        finally:
            self._cancel_in_background([future for future in futures if not future.done()])
        errors = tuple(get_error(future) for future in futures)
        raise AllFailed(f"none of {len(futures)} calls succeeded; the first raised {errors[0]!r}", errors)

    @blocking
    async def detached(
        self,
        fn: Callable[..., Any] | str,
        /,
        *args: Any,
        id: str | None = None,  # noqa: A002 - as everywhere here
        result_ttl_s: float | None = RESULT_TTL_S,
        **kwargs: Any,
    ) -> TaskRef:
        """Submit a task that outlives this process, and wait until it is stored.

        Args:
            fn: As for ``submit``.
            args: Positional arguments, as for ``submit``.
            id: Task ID. Submitting the same call again with this ID returns the same task. None generates an ID.
            result_ttl_s: Seconds after its end for which its record and result are kept, by the clocks of the workers;
                one day by default. A worker deletes them within a minute. None keeps them until they are forgotten.
            kwargs: Keyword arguments, as for ``submit``.
        Returns:
            A reference with which any process can read the task's state and result.
        Raises:
            TaskExists: The ID belongs to a different call.
            InvalidKey, ValueError: The ID cannot be part of a key, or the time to keep is invalid.
            NoSuchMember, Unavailable, OutcomeUnknown: The task is not stored, or its status is unknown.
        """
        if result_ttl_s is not None and not is_number(result_ttl_s, 0.0):
            raise ValueError(f"result_ttl_s must be None or a number of seconds, not {result_ttl_s!r}")
        item, _, _ = self._build_item(fn, args, kwargs)
        if isinstance(self._options.target, All):
            raise LatchworkError("a detached task is run once; submit one for each member, with target=Member(id)")
        task_id = make_detached_id(check_task_id(uuid.uuid4().hex if id is None else id))
        return await self._detached.put(
            structs.replace(item, own_id=task_id, result_ttl_s=result_ttl_s), self._options.picker, self._options.copies
        )

    def ref(self, id: str) -> TaskRef:  # noqa: A002 - as everywhere here
        """Return a reference to a detached task, given its ID or a ``TaskRef.id``. Does no I/O."""
        given = id.removeprefix(f"{DETACHED}.")
        return TaskRef(self._detached, make_detached_id(check_task_id(given)))

    def with_options(
        self,
        *,
        picker: Picker | None = None,
        priority: int | None = None,
        retry: Retry | None = None,
        timeout_s: float | None = None,
        copies: int | None = None,
        target: Target | None = None,
    ) -> Executor:
        """Return a view of this executor that submits tasks with other options. None keeps an option.

        Args:
            picker: Chooses the preferred member.
            priority: 0 runs before 9.
            retry: Retry policy; by default the function's.
            timeout_s: Seconds after which a run is stopped; by default the function's.
            copies: Number of copies that run at a time, each on a different member. The first to end counts.
            target: Members that may run the task.
        """
        given: dict[str, Any] = {
            "picker": picker,
            "priority": priority,
            "retry": retry,
            "timeout_s": timeout_s,
            "copies": copies,
            "target": target,
        }
        view = object.__new__(type(self))
        view.__dict__.update(self.__dict__, _whole=self)  # keeps the executor alive, and thus its submitter
        view._options = replace(self._options, **{name: value for name, value in given.items() if value is not None})
        return view

    @blocking
    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until all tasks submitted before are stored. If this process dies afterwards, the tasks are dropped.

        Args:
            timeout_s: Seconds to wait; None waits forever.
        Raises:
            TimeoutError: Not all tasks are stored in time.
        """
        if not await self._submitter.flush(timeout_s):
            raise TimeoutError(f"not all tasks of executor {self.name!r} are stored within {timeout_s or 0:g} s")

    # The end

    def __exit__(self, *raised: object) -> bool | None:
        """Shut down. After Ctrl-C, cancel tasks that are not running yet and do not wait.

        Does nothing in a forked child: the tasks belong to its parent.
        """
        is_interrupted = bool(raised) and isinstance(raised[1], KeyboardInterrupt)
        if not self._submitter.is_foreign:
            self.shutdown(wait=not is_interrupted, cancel_futures=is_interrupted)
        return None

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more tasks, wait for the submitted ones, and close.

        Args:
            wait: False returns immediately. Shutdown continues in the background, and the interpreter waits for it.
            cancel_futures: Cancel all tasks that are not running yet; stored tasks are canceled in the background.
        Raises:
            ForkedProcess: This process is a fork of the one that created the executor.
        """
        tickets = self._submitter.begin_close()
        if cancel_futures:
            self._submitter.cancel_soon(tickets, interrupt=False)
        self._end.detach()
        self._detached.close()
        if wait:
            run(_finish(self._submitter))
        else:
            Background(partial(_finish, self._submitter), f"latchwork-closes-{self.name}")

    # Inside

    def _submit_to_all(self, item: TaskItem, hint: Any, what: str) -> AllFuture[Any]:
        """Submit one task for each current member, and return a future of all results.

        Args:
            item: The task.
            hint: Annotation of its result.
            what: Description of the call for error messages.
        """
        wanted = PlacementRequest(Pull())
        with closing(Group(self._store, self._keys.group)) as group:
            ids = [member.id for member in group.members()]
        items = {
            member: structs.replace(item, stored_target=StoredTarget.from_target(Member(member))) for member in ids
        }
        parts = {member: self._submitter.add(each, hint, what, wanted) for member, each in items.items()}
        made: AllFuture[Any] = AllFuture(parts, f"task {what} for all members", self._submitter.callbacks)
        self._submitter.all_futures.add(made)
        return made

    def _build_item(
        self, fn: Callable[..., Any] | str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[TaskItem, Any, str]:
        """Build the queue item of a call.

        Returns:
            The item, the annotation of the result, and a description of the call for error messages.
        """
        registered = self._find_registered(fn)
        if registered is None:
            payload = self._payloads.encode((fn, args, dict(kwargs)), "a pickled call")
            name, hint, what = PICKLED, Any, getattr(fn, "__qualname__", repr(fn)[:80])
        else:
            payload = self._payloads.encode_call(registered, args, kwargs)
            name, hint, what = registered.name, registered.hints.get("return", Any), repr(registered.name)
        options = self._options
        item = TaskItem(
            function=name,
            submitter_id=DETACHED,
            number=0,
            partitions=(),
            sort_key="",
            payload=payload,
            priority=options.priority,
            stored_target=StoredTarget.from_target(options.target),
            retry=None if options.retry is None else StoredRetry.from_retry(options.retry),
            timeout_s=options.timeout_s,
            is_kept=bool(getattr(options.picker, "keeps", False)),
        )
        return item, hint, what

    def _find_registered(self, fn: Callable[..., Any] | str) -> RegisteredFunction | None:
        """Return the registration of a function, or None if the function will be pickled."""
        try:
            return self._functions.resolve(fn)
        except UnknownFunction:
            if isinstance(self._payloads.codec, PickleCodec) and callable(fn):
                return None
            raise

    def _cancel_in_background(self, futures: Iterable[CallbackFuture[Any]], *, interrupt: bool = True) -> None:
        """Cancel the tasks of futures in the background, so that a slow store does not delay the caller.

        Args:
            futures: The futures.
            interrupt: Also cancel running tasks.
        """
        tickets = [each for future in futures for each in future.tickets]
        self._submitter.cancel_soon(tickets, interrupt=interrupt)


def _result_annotation(functions: Functions, name: str) -> Any:
    """Return the annotation of a function's result, or ``Any`` if the function is not registered here."""
    return functions.get(name).hints.get("return", Any) if name in functions else Any


async def _finish(submitter: Submitter, timeout_s: float | None = None) -> None:
    """Wait for the tasks of a submitter, and close it. If this takes long, log which tasks are waited for.

    Args:
        submitter: The submitter.
        timeout_s: Seconds to wait; None waits for all tasks.
    """
    quiet_s = _QUIET_S if timeout_s is None else min(_QUIET_S, timeout_s)
    if not await submitter.wait_until_ended(quiet_s):
        why = submitter.missing_worker_hint()
        message = (
            "waiting for %s%s; press Ctrl-C to leave; shutdown(cancel_futures=True) does not wait for queued tasks"
        )
        _log.log(logging.WARNING if why else logging.INFO, message, submitter.describe_active_tasks(), why)
        if not await submitter.wait_until_ended(None if timeout_s is None else timeout_s - quiet_s):
            left = "gave up %s after %g s: they do not begin, or are asked to stop if they are running"
            _log.warning(left, submitter.describe_active_tasks(), timeout_s)
    await submitter.close()
    await submitter.callbacks.wait_idle()
    _LIVE.discard(submitter)


def _end_when_idle(submitter: Submitter) -> None:
    """Close a submitter in the background when its tasks have ended. Called after its executor was
    garbage-collected.
    """
    if not submitter.is_foreign:
        call_after_finalizer(partial(_close_when_idle, submitter), "latchwork-closes-executor")


def _close_when_idle(submitter: Submitter) -> None:
    submitter.begin_close()
    run(_finish(submitter))


def _fail_in_child() -> None:
    """Fail all futures in a forked child process, because the tasks belong to its parent."""
    for submitter in list(_LIVE):
        submitter.fail_in_child()
    _LIVE.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_fail_in_child)


@atexit.register
def _wait_at_exit() -> None:
    """Wait for submitted tasks when the interpreter exits, as thread pools do. Ctrl-C ends the wait."""
    is_interrupted = isinstance(getattr(sys, "last_value", None), KeyboardInterrupt)
    for submitter in list(_LIVE):
        submitter.begin_close()
        run(submitter.close() if is_interrupted else _finish(submitter, submitter.wait_at_exit_s))
