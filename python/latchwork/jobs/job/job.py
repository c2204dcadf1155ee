"""A job: what to run, on which work items, how often, on how many threads. Nothing here touches the network."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from latchwork.errors import LatchworkError
from latchwork.jobs.job.context import JobContext
from latchwork.jobs.stored.keys import check_id, check_item
from latchwork.schedules.schedule import FixedDelay, Schedule

DEFAULT_POOL_CHECK_PERIOD_S = 60.0
DEFAULT_SCHEDULE: Schedule = FixedDelay(60.0)
_CHANGEABLE = frozenset({"schedule", "initial_delay_s", "pool_check_period_s", "threads", "jitter_s"})


class InvalidJob(LatchworkError, ValueError):
    """A job is put together wrongly: its id, its options, or what its work pool returned."""


class WorkPoolFailed(LatchworkError):
    """A job's work pool raised; the original is the ``__cause__``. The items stored before stay as they are."""


@dataclass(frozen=True, slots=True)
class Threads:
    """How many runs a node's share of a job is cut into; each run has a thread of its own.

    Attributes:
        limit: most runs at a time on one node; 0 is one run per item.
    """

    limit: int

    def __post_init__(self) -> None:
        if type(self.limit) is not int or self.limit < 0:
            msg = f"Threads({self.limit!r}) cannot be used; give Threads.whole(), .per_item() or .at_most(n)"
            raise InvalidJob(msg)

    @classmethod
    def whole(cls) -> Threads:
        """One run with the node's whole share."""
        return cls(1)

    @classmethod
    def per_item(cls) -> Threads:
        """One run for each item, with just that item."""
        return cls(0)

    @classmethod
    def at_most(cls, limit: int) -> Threads:
        """Up to ``limit`` runs with disjoint parts of the share, of sizes within 1."""
        if type(limit) is not int or limit < 1:
            msg = f"Threads.at_most({limit!r}) cannot be used; give a whole number of at least 1"
            raise InvalidJob(msg)
        return cls(limit)

    def slices(self, items: Iterable[str]) -> list[tuple[str, ...]]:
        """The items cut into runs: sorted, disjoint, none empty."""
        ordered = sorted(items)
        if self.limit == 0:
            return [(item,) for item in ordered]
        count = min(self.limit, len(ordered))
        bounds = [len(ordered) * i // count for i in range(count + 1)] if count else []
        return [tuple(ordered[a:b]) for a, b in pairwise(bounds)]


WorkPool = Callable[[], Iterable[str]] | Sequence[str]
Run = Callable[[JobContext], Any]


class Job:
    """A job to be shared out over a cluster: construct one with functions, or subclass it.

    A subclass overrides ``work_pool`` and ``run``, and may give the options as class attributes::

        class Report(Job):
            id = "report"
            schedule = FixedRate(300.0)

            def work_pool(self):
                return ["north", "south"]

            def run(self, context):
                for region in context.work_share: ...

    Attributes:
        id: 1 to 120 characters of ``A-Za-z0-9._-``, unique in the cluster.
        schedule: when runs start; by default 60 s after the end of the run before.
        initial_delay_s: seconds before the first run; None is the schedule's own.
        pool_check_period_s: seconds between two reads of the work pool, 60 by default; 0 reads it once, at the start.
        threads: how many runs a node's share is cut into; one by default.
        jitter_s: runs start up to so many seconds later, at random, so that not all start at once; 0 by default. On a
            cron schedule always by the same part of it, which the first item of the run decides.
        requires: labels, with their values, that a node must have to get items of this job; none by default.

    All but the id may change while it runs: by ``change`` on one node, by settings in the whole cluster.
    """

    id: str = ""
    schedule: Schedule = DEFAULT_SCHEDULE
    initial_delay_s: float | None = None
    pool_check_period_s: float = DEFAULT_POOL_CHECK_PERIOD_S
    threads: Threads = Threads(1)
    jitter_s: float = 0.0
    requires: Mapping[str, str] = MappingProxyType({})
    _work_pool: WorkPool | None = None
    _run: Run | None = None

    def __init__(
        self,
        id: str | None = None,  # noqa: A002 - what it is called everywhere
        *,
        work_pool: WorkPool | None = None,
        run: Run | None = None,
        schedule: Schedule | None = None,
        initial_delay_s: float | None = None,
        pool_check_period_s: float | None = None,
        threads: Threads | None = None,
        jitter_s: float | None = None,
        requires: Mapping[str, str] | None = None,
    ) -> None:
        """Make a job; what is not given stays what the class says.

        Args:
            id: 1 to 120 characters of ``A-Za-z0-9._-``.
            work_pool: the items, or a function that returns them: texts of up to 512 UTF-8 bytes, unique, any order.
            run: called with a ``JobContext`` for each run; raising counts as a failure and it runs again next time.
            schedule: ``FixedDelay``, ``FixedRate``, ``Cron`` or your own.
            initial_delay_s: seconds before the first run on a node; None is the schedule's own.
            pool_check_period_s: seconds between two reads of the work pool; 0 for never after the first.
            threads: ``Threads.whole()``, ``Threads.per_item()`` or ``Threads.at_most(n)``.
            jitter_s: most seconds that a run starts later than it is due, at random; see the class.
            requires: labels that a node must have, with their values; a node without them gets no items of this job.
        Raises:
            InvalidJob: one of them cannot be used; the message says which and why.
        """
        self._work_pool = work_pool
        self._run = run
        given = {
            "id": id,
            "schedule": schedule,
            "initial_delay_s": initial_delay_s,
            "pool_check_period_s": pool_check_period_s,
            "threads": threads,
            "jitter_s": jitter_s,
            "requires": requires,
        }
        for name, value in given.items():
            if value is not None:
                setattr(self, name, value)
        self.validate()

    def __repr__(self) -> str:
        return f"<Job {self.id}>"

    def work_pool(self) -> Iterable[str]:
        """All items of this job, the same on every node. Called on a thread of its own, again every check period.

        Raises:
            NotImplementedError: neither given to the constructor nor overridden.
        """
        if self._work_pool is None:
            raise NotImplementedError
        return self._work_pool() if callable(self._work_pool) else self._work_pool

    def run(self, context: JobContext) -> Any:
        """Work on ``context.work_share`` until done or told to stop. What it returns is ignored.

        Raises:
            NotImplementedError: neither given to the constructor nor overridden.
        """
        if self._run is None:
            raise NotImplementedError
        return self._run(context)

    def pool_changed(self) -> None:
        """Have the nodes of this process read the work pool again at once. From any thread, also before they start."""
        self._tell("pool")

    def change(self, **options: Any) -> None:
        """Change options while the job runs; a wait under way is cut short. For this process: settings are for all.

        Args:
            options: ``schedule``, ``initial_delay_s``, ``pool_check_period_s``, ``threads``, ``jitter_s``, as in the
                constructor. What the cluster's settings say goes before them.
        Raises:
            InvalidJob: one of them is unknown or cannot be used; nothing is changed then.
        """
        unknown = sorted(set(options) - _CHANGEABLE)
        if unknown:
            msg = f"job {self.id}: {', '.join(unknown)} cannot change; what can is {', '.join(sorted(_CHANGEABLE))}"
            raise InvalidJob(msg)
        changed = copy(self)
        vars(changed).update(options)
        changed.validate()
        vars(self).update(options)
        self._tell("options")

    def subscribe(self, listener: Callable[[str], None]) -> Callable[[], None]:
        """Call this with ``pool`` or ``options`` when that changed; it must not block. For the job manager.

        Returns:
            A function that ends it; twice is fine.
        """
        listeners = vars(self).setdefault("_listeners", [])  # a subclass need not call our constructor
        listeners.append(listener)

        def end() -> None:
            if listener in listeners:
                listeners.remove(listener)

        return end

    def _tell(self, what: str) -> None:
        for listener in list(vars(self).get("_listeners", ())):
            listener(what)

    def validate(self) -> None:
        """Check every option again, class attributes included; the manager calls this for each job it is given.

        Raises:
            InvalidJob: one of them cannot be used; the message says which and why.
        """
        try:
            check_id("job", self.id)
        except ValueError as error:
            raise InvalidJob(str(error)) from None
        if type(self).work_pool is Job.work_pool:
            self._validate_pool()
        if type(self).run is Job.run and not callable(self._run):
            msg = f"job {self.id}: run is {self._run!r}; give run= a function of one argument, or override run()"
            raise InvalidJob(msg)
        if not all(callable(getattr(self.schedule, name, None)) for name in ("first_due", "next_due", "remaining_s")):
            msg = f"job {self.id}: schedule is {self.schedule!r}; give a FixedDelay, a FixedRate or a Cron"
            raise InvalidJob(msg)
        threads: object = self.threads
        if not isinstance(threads, Threads):
            msg = f"job {self.id}: threads is {threads!r}; give Threads.whole(), .per_item() or .at_most(n)"
            raise InvalidJob(msg)
        self._check_seconds("pool_check_period_s", self.pool_check_period_s)
        self._check_seconds("jitter_s", self.jitter_s)
        requires: object = self.requires
        if not isinstance(requires, Mapping) or not all(
            isinstance(text, str) for text in (*requires, *requires.values())
        ):
            msg = f"job {self.id}: requires is {requires!r}; give label names and values as str"
            raise InvalidJob(msg)
        if self.initial_delay_s is not None:
            self._check_seconds("initial_delay_s", self.initial_delay_s)

    def _validate_pool(self) -> None:
        if isinstance(self._work_pool, (str, bytes)) or not (
            callable(self._work_pool) or isinstance(self._work_pool, Iterable)
        ):
            msg = f"job {self.id}: work_pool is {self._work_pool!r}; give a list of texts or a function returning one"
            raise InvalidJob(msg)
        if not callable(self._work_pool):
            self._work_pool = tuple(self._work_pool)
            check_pool(self.id, self._work_pool)

    def _check_seconds(self, name: str, value: object) -> None:
        good = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
        if not good:
            msg = f"job {self.id}: {name} is {value!r}; give a finite number of seconds, 0 or more"
            raise InvalidJob(msg)


def check_pool(job_id: str, items: object) -> tuple[str, ...]:
    """What a work pool returned, checked: sorted and unique.

    Raises:
        InvalidJob: it is no collection, or an item is no text, too long or there twice.
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
    """Call the job's work pool and check what it returned: sorted and unique.

    Raises:
        WorkPoolFailed: it raised; the original is the cause.
        InvalidJob: it returned something that cannot be used.
    """
    try:
        items = job.work_pool()
        listed = items if isinstance(items, (str, bytes)) or not isinstance(items, Iterable) else list(items)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit too: user code must not end the thread that reads all pools
        reason = f"{type(error).__name__}: {error}".rstrip(": ")
        msg = f"work pool of job {job.id} raised {reason}; its stored items stay as they are, repair work_pool()"
        raise WorkPoolFailed(msg) from error
    return check_pool(job.id, listed)


def check_jobs(jobs: object) -> dict[str, Job]:
    """Jobs by id, in the order given.

    Raises:
        InvalidJob: not a collection of jobs, or two have one id.
    """
    listed = [jobs] if isinstance(jobs, Job) else list(jobs) if isinstance(jobs, Iterable) else [jobs]
    by_id: dict[str, Job] = {}
    for job in listed:
        if not isinstance(job, Job):
            msg = f"{job!r} is no Job; give a Job or a list of them"
            raise InvalidJob(msg)
        if job.id in by_id:
            msg = f"two jobs have the id {job.id!r}; give each job of a node an id of its own"
            raise InvalidJob(msg)
        job.validate()
        by_id[job.id] = job
    return by_id
