"""A job: what to run, on which work items, how often, and on how many threads; and the context of its runs.

No I/O.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from copy import copy
from itertools import pairwise
from typing import Any

from latchwork._base.text import reason
from latchwork._base.user_code import is_interrupt
from latchwork._base.validation import deferred_kind
from latchwork.clock import SYSTEM_CLOCK, Clock
from latchwork.errors import LatchworkError, LockLost
from latchwork.jobs.options import InvalidJob, JobRows, ScheduleOption, Threads, document_options, get_option_rows
from latchwork.jobs.settings import JobOptions
from latchwork.jobs.stored.keys import check_id, check_item
from latchwork.primitives.waiting import StopSignal
from latchwork.store import Store
from latchwork.types import Fence

_CHANGEABLE = frozenset(each.name for each in get_option_rows(JobRows))
WorkPool = Callable[[], Iterable[str]] | Sequence[str]


def _raise_lock_lost(item: str) -> Fence:
    msg = f"no lock protects item {item!r} in this context; construct it with `fence=` to test code that needs one"
    raise LockLost(msg)


class JobContext:
    """The argument of each run of a job. Thread-safe. Tests may construct one with plain arguments.

    A run that ignores ``should_stop`` does not end, because threads cannot be killed. Pass ``fence(item)`` to every
    write that matters.
    """

    def __init__(
        self,
        items: Iterable[str] = (),
        *,
        job_id: str = "job",
        node_id: str = "node",
        remaining_s: Callable[[], float] = lambda: math.inf,
        fence: Callable[[str], Fence] = _raise_lock_lost,
        store: Store | None = None,
        clock: Clock = SYSTEM_CLOCK,
        fire_time_s: float | None = None,
    ) -> None:
        """Create the context of a run. Nothing is started.

        Args:
            items: Items of this run.
            job_id: ID of the job.
            node_id: ID of the node that runs it.
            remaining_s: Returns the seconds for which the locks of this run are held; by default infinity.
            fence: Returns the fence of an item; by default raises ``LockLost``.
            store: Store of the cluster, if there is one.
            clock: Clock for ``wait_for_stop``.
            fire_time_s: Fire time of a cron schedule that this run is for, in seconds since the epoch.
        """
        self._items = tuple(items)
        self._item_set = frozenset(self._items)
        self._job_id = job_id
        self._node_id = node_id
        self._remaining_s = remaining_s
        self._fence = fence
        self._store = store
        self._fire_time_s = fire_time_s
        #: Asks this run to stop; for the job manager.
        self.stop_signal = StopSignal(f"job {job_id}", clock)

    def __repr__(self) -> str:
        state = ", stopping" if self.should_stop else ""
        return f"<JobContext of {self._job_id} on {self._node_id}, {len(self._items)} items{state}>"

    @property
    def items(self) -> tuple[str, ...]:
        """The items of this run: sorted, unique, unchanged until the run ends."""
        return self._items

    @property
    def job_id(self) -> str:
        """The ID of the job."""
        return self._job_id

    @property
    def node_id(self) -> str:
        """The ID of the node on which this run is executed."""
        return self._node_id

    @property
    def fire_time_s(self) -> float | None:
        """The fire time of this run in seconds since the epoch; None if the job has no cron schedule."""
        return self._fire_time_s

    @property
    def store(self) -> Store:
        """The store of the job manager, in its namespace, for reads and fenced writes. Do not close it.

        It is valid during this run only: no call waits longer than the run's locks last, and once they are lost every
        call raises ``LockLost``; see ``Store.within``.

        Raises:
            LookupError: This context was constructed without a store.
        """
        if self._store is None:
            msg = "this context has no store; construct it with `store=` to test code that uses one"
            raise LookupError(msg)
        return self._store

    @property
    def should_stop(self) -> bool:
        """True once this run was asked to stop. The run should then finish its current step and return."""
        return self.stop_signal.should_stop

    def wait_for_stop(self, timeout_s: float | None = None) -> bool:
        """Wait until this run is asked to stop, like a sleep that can be interrupted.

        Args:
            timeout_s: Seconds to wait; None waits forever.
        Returns:
            True if the run was asked to stop, False after the timeout.
        """
        return self.stop_signal.wait_for_stop(timeout_s)

    def on_stop(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Register a listener that is called once when this run is asked to stop, or at once if it was already.

        Listeners are called in the order of registration, on one thread. An exception is logged and does not stop the
        others.

        Args:
            listener: The function to call.
        Returns:
            A function that removes the listener; idempotent.
        """
        return self.stop_signal.on_stop(listener)

    def remaining_s(self) -> float:
        """Return the seconds for which this run certainly holds its locks by the local clock; 0 if they are lost."""
        return max(0.0, self._remaining_s())

    def fence(self, item: str) -> Fence:
        """Return a fence that proves that this node holds the lock of an item. Include it in every write that matters.

        Args:
            item: An item of this run.
        Raises:
            KeyError: The item is not in this run.
            LockLost: The lock has expired or was released; stop the work.
        """
        if item not in self._item_set:
            msg = f"item {item!r} is not among the items of this run of {self._job_id}"
            raise KeyError(msg)
        return self._fence(item)

    def stop(self) -> None:
        """Ask the run to stop, and call the listeners in this thread. For tests; idempotent."""
        self.stop_signal.stop()


class WorkPoolFailed(LatchworkError):
    """A job's work pool raised an exception, which is the ``__cause__``. The stored items are kept."""


#: A plain function gets a ``JobContext``, an ``async def`` a ``latchwork.aio.JobContext``.
Run = Callable[[JobContext], Any] | Callable[[Any], Coroutine[Any, Any, object]]


@document_options(JobOptions)
class Job:
    """A job to be distributed over a cluster. Construct one with functions, or subclass it.

    A subclass overrides ``work_pool`` and ``run``, and may set options as class attributes::

        class Report(Job):
            id = "report"
            schedule = FixedRate(300.0)

            def work_pool(self):
                return ["north", "south"]

            def run(self, context):
                for region in context.items: ...

    Options may change while the job runs: by ``change`` on one node, or by settings in the whole cluster. The rows of
    ``latchwork.jobs.options`` describe them. At run time they are part of this docstring.

    Attributes:
        id: 1 to 120 characters of ``A-Za-z0-9._-``, unique in the cluster.
    """

    id: str = ""
    requires: Mapping[str, str]
    schedule: ScheduleOption
    initial_delay_s: float | None
    jitter_s: float
    pool_check_period_s: float
    threads: Threads
    _work_pool: WorkPool | None = None
    _run: Run | None = None

    def __init__(
        self,
        id: str | None = None,  # noqa: A002 - the public name
        *,
        work_pool: WorkPool | None = None,
        run: Run | None = None,
        requires: Mapping[str, str] | None = None,
        schedule: ScheduleOption | None = None,
        initial_delay_s: float | None = None,
        jitter_s: float | None = None,
        pool_check_period_s: float | None = None,
        threads: Threads | None = None,
    ) -> None:
        """Create a job. Options that are not given keep the value of the class.

        ``work_pool`` is a list of items or a function that returns one: unique texts of up to 512 UTF-8 bytes, in any
        order. ``run`` is called with a ``JobContext`` for each run. An exception counts as a failure, and the job runs
        again at its next time. An ``async def`` runs as a task of the node's event loop, with a
        ``latchwork.aio.JobContext``; the task is canceled when the run is asked to stop. All such runs of a node share
        the loop, so a blocking one stops them all.

        Raises:
            InvalidJob: An argument is invalid; the message says which and why.
        """
        given = locals()
        self._work_pool = work_pool
        self._run = run
        for name in ("id", *(each.name for each in get_option_rows(JobOptions))):
            if given[name] is not None:
                setattr(self, name, given[name])
        self.validate()

    def __repr__(self) -> str:
        return f"<Job {self.id}>"

    def work_pool(self) -> Iterable[str]:
        """Return all items of this job. Each node must return the same items.

        The node calls this method in a separate thread, once per check period.

        Raises:
            NotImplementedError: No work pool was given to the constructor, and this method is not overridden.
        """
        if self._work_pool is None:
            raise NotImplementedError
        return self._work_pool() if callable(self._work_pool) else self._work_pool

    def run(self, context: Any) -> Any:
        """Work on ``context.items`` until done or asked to stop. The return value is ignored.

        A subclass may use an ``async def``.

        Args:
            context: The ``JobContext`` of this run.
        Raises:
            NotImplementedError: No function was given to the constructor, and this method is not overridden.
        """
        if self._run is None:
            raise NotImplementedError
        return self._run(context)

    @property
    def is_async(self) -> bool:
        """Whether ``run`` is an ``async def``. For the job manager."""
        return deferred_kind(self._get_run_function) == "an async function"

    @property
    def _get_run_function(self) -> Any:
        return self._run if type(self).run is Job.run else self.run

    def refresh_pool(self) -> None:
        """Call the job's work pool function again at once on all nodes of this process, because its items may have
        changed.

        Callable from any thread, also before the nodes start.
        """
        self._notify_listeners("pool")

    def change(self, **options: Any) -> None:
        """Change options of this job in this process while the job runs. If the job is waiting for its next run, the
        new options apply to that wait too.

        Args:
            options: New values by option name, for options that settings may change too. The cluster's settings
                override them.
        Raises:
            InvalidJob: An option is unknown or invalid; nothing is changed.
        """
        unknown = sorted(set(options) - _CHANGEABLE)
        if unknown:
            msg = f"job {self.id}: {', '.join(unknown)} cannot change; use {', '.join(sorted(_CHANGEABLE))}"
            raise InvalidJob(msg)
        changed = copy(self)
        vars(changed).update(options)
        changed.validate()
        vars(self).update({name: getattr(changed, name) for name in options})
        self._notify_listeners("options")

    def subscribe(self, listener: Callable[[str], None]) -> Callable[[], None]:
        """Register a listener for changes of this job. For the job manager.

        Args:
            listener: Called with ``pool`` or ``options`` when that has changed. It must not block.
        Returns:
            A function that removes the listener; idempotent.
        """
        listeners = vars(self).setdefault("_listeners", [])  # a subclass may not call the base constructor
        listeners.append(listener)

        def end() -> None:
            if listener in listeners:
                listeners.remove(listener)

        return end

    def _notify_listeners(self, what: str) -> None:
        for listener in list(vars(self).get("_listeners", ())):
            listener(what)

    def validate(self) -> None:
        """Check every option, including class attributes. The job manager calls this for each job.

        Raises:
            InvalidJob: An option is invalid; the message says which and why.
        """
        try:
            check_id("job", self.id)
        except ValueError as error:
            raise InvalidJob(str(error)) from None
        self._validate_pool()
        self._validate_run()
        for option in get_option_rows(JobOptions):
            value = getattr(self, option.name)
            try:
                kept = option.check(value)
            except ValueError as error:
                raise InvalidJob(f"job {self.id}: {error}") from None
            if kept is not value:  # for example a schedule given as text
                setattr(self, option.name, kept)

    def _validate_run(self) -> None:
        run = self._get_run_function
        if not callable(run):
            msg = f"job {self.id}: run is {run!r}; give run= a function of one argument, or override run()"
            raise InvalidJob(msg)
        late = deferred_kind(run)
        if late not in {None, "an async function"}:
            raise InvalidJob(
                f"job {self.id}: run is {late}, whose body would never run; give a plain function or an async def"
            )

    def _validate_pool(self) -> None:
        own = type(self).work_pool is Job.work_pool
        late = deferred_kind(self._work_pool if own else self.work_pool)
        if late is not None and late != "a generator":  # a generator's items are read
            raise InvalidJob(
                f"job {self.id}: work_pool is {late}; give a list of texts or a plain function returning one"
            )
        if not own:
            return
        if isinstance(self._work_pool, (str, bytes)) or not (
            callable(self._work_pool) or isinstance(self._work_pool, Iterable)
        ):
            msg = f"job {self.id}: work_pool is {self._work_pool!r}; give a list of texts or a function returning one"
            raise InvalidJob(msg)
        if not callable(self._work_pool):
            self._work_pool = tuple(self._work_pool)
            check_pool(self.id, self._work_pool)


for _option in get_option_rows(JobOptions):  # the defaults of the class attributes
    setattr(Job, _option.name, _option.default)


def check_pool(job_id: str, items: object) -> tuple[str, ...]:
    """Check the items that a work pool function has returned.

    Args:
        job_id: ID of the job, for error messages.
        items: The returned value.
    Returns:
        The items: sorted, unique.
    Raises:
        InvalidJob: The value is not a collection, or an item is not a text, is too long, or occurs twice.
    """
    if isinstance(items, (str, bytes)) or not isinstance(items, Iterable):
        msg = f"work pool of job {job_id} returned {items!r:.80}; return a list of texts"
        raise InvalidJob(msg)
    listed = list(items)
    for item in listed:
        try:
            check_item(item)
        except ValueError as error:
            msg = f"work pool of job {job_id}: {error}"
            raise InvalidJob(msg) from None
    ordered = sorted(listed)
    twice = next((a for a, b in pairwise(ordered) if a == b), None)
    if twice is not None:
        msg = f"work pool of job {job_id} returned item {twice!r} twice; return each item once"
        raise InvalidJob(msg)
    return tuple(ordered)


def read_pool(job: Job) -> tuple[str, ...]:
    """Call the job's work pool function.

    Returns:
        The items: sorted, unique.
    Raises:
        WorkPoolFailed: The function raised an exception, which is the cause.
        InvalidJob: Its result is invalid.
    """
    try:
        items = job.work_pool()
        listed = items if isinstance(items, (str, bytes)) or not isinstance(items, Iterable) else list(items)
    except BaseException as error:
        if is_interrupt(error):
            raise
        msg = f"work pool of job {job.id} raised {reason(error)}; its stored items are kept; fix work_pool()"
        raise WorkPoolFailed(msg) from error
    return check_pool(job.id, listed)


def check_jobs(jobs: object) -> dict[str, Job]:
    """Check the jobs that were given to a node.

    Args:
        jobs: One job or a collection of jobs.
    Returns:
        The jobs by ID, in the given order.
    Raises:
        InvalidJob: The value is not a collection of jobs, or two jobs have the same ID.
    """
    listed = [jobs] if isinstance(jobs, Job) else list(jobs) if isinstance(jobs, Iterable) else [jobs]
    by_id: dict[str, Job] = {}
    for job in listed:
        if not isinstance(job, Job):
            msg = f"{job!r} is not a Job; pass a Job or a list of jobs"
            raise InvalidJob(msg)
        if job.id in by_id:
            msg = f"two jobs have the id {job.id!r}; give each job of a node a unique ID"
            raise InvalidJob(msg)
        job.validate()
        by_id[job.id] = job
    return by_id
