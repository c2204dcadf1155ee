"""The workers of one host: each a process of any program, held by this one.

A process ends with its worker: when another worker is lost, when its session cannot be renewed, when this process is
killed or frozen. In the next epoch it is started again.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from latchwork.checks import check_store
from latchwork.errors import LatchworkError
from latchwork.interrupts import mutex
from latchwork.primitives.waiting import Patience
from latchwork.store.backoff import Backoff
from latchwork.store.forks import Home
from latchwork.store.store import Store
from latchwork.workers.crews.decisions import Order, SlotState
from latchwork.workers.crews.slot import Slot
from latchwork.workers.errors import JobAlreadyRunning, WrongRun
from latchwork.workers.submitting import NAMESPACE, JobHandle, JobStatus, find, submit

if TYPE_CHECKING:
    from typing import Self


class Crew:
    """The workers of one host, as processes: ``with Crew(store, "train", order) as crew: crew.wait()``.

    ``with`` joins and starts them, and ends what still runs. A thread of its own holds each. Safe to share between
    threads.

    Not promised: that a failing process is told from those that fail because of it on other hosts. Those that fail on
    one host at the same time count as one restart; on another host the connection that breaks may count as a second.

    Args:
        store: the store. It stays the caller's.
        job: the job's name. It is created if there is none that runs; one that has ended, and that nobody is in any
            more, is replaced.
        order: what to run.
        namespace: groups jobs: those of different namespaces may have the same name.
    """

    def __init__(self, store: Store, job: str, order: Order, *, namespace: str = NAMESPACE) -> None:
        check_store(store, "a crew")
        self._store = store
        self._job = job
        self._order = order
        self._namespace = namespace
        self._home = Home(f"crew of job {job!r}", made="started")
        self._failing = threading.Lock()
        self._mutex = mutex()
        self._slots: list[Slot] = []
        self._changes: SimpleQueue[SlotState] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._handle: JobHandle | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def handle(self) -> JobHandle:
        """The job."""
        if self._handle is None:
            raise LatchworkError(f"crew of job {self._job!r} was not started; use it in a with")
        return self._handle

    @property
    def slots(self) -> list[SlotState]:
        """The processes, by slot. Does no I/O."""
        return [slot.state for slot in self._slots]

    def changes(self) -> list[SlotState]:
        """What the processes went through since the last call, in order; each is given once."""
        found = []
        with suppress(Empty):
            while True:
                found.append(self._changes.get_nowait())
        return found

    @property
    def errors(self) -> list[LatchworkError | OSError]:
        """Why workers of ours are out of the job, by slot."""
        return [slot.error for slot in self._slots if slot.error is not None]

    def start(self) -> None:
        """Join the job with all workers of this host, and start them once all of the job are there.

        Raises:
            JobAlreadyRunning: a run of the job has ended, and has live workers.
            WrongRun: the job is in another run.
            JobFull, NodeIdInUse, RestartsExceeded, WaitTimeout: as for ``Worker.join``.
            LatchworkError: the job has another number of workers.
        """
        self._handle = self._found_or_submitted()
        if self._order.logs is not None:
            self._order.logs.mkdir(parents=True, exist_ok=True)
        for number in range(self._order.share):  # one after the other: ids are as the slots on the first host
            slot = Slot(
                self._store,
                self._job,
                namespace=self._namespace,
                run=self._handle.run,
                order=self._order,
                number=number,
                failing=self._failing,
                on_change=self._changes.put,
            )
            self._slots.append(slot)
            slot.join()
        for slot in self._slots:
            thread = threading.Thread(target=slot.run, name=f"latchwork-crew-{self._job}-{slot.state.slot}")
            self._threads.append(thread)
            thread.start()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until no process of ours runs, or will; False when the time is over."""
        patience = Patience(self._store.clock, timeout_s)
        for thread in self._threads:
            thread.join(patience.left_s())
        return not any(thread.is_alive() for thread in self._threads)

    def outcome(self, timeout_s: float | None = None) -> JobStatus:
        """Wait until the job has ended, on all hosts.

        Raises:
            WaitTimeout: it still runs.
            WrongRun: nothing is known about this run any more.
        """
        return self.handle.wait(timeout_s)

    def close(self) -> None:
        """End what runs: SIGTERM, SIGKILL after the grace; then leave the job. Twice is fine."""
        if self._home.is_foreign:
            return
        for slot in self._slots:
            with suppress(LatchworkError):
                slot.stop()
        for thread in self._threads:
            thread.join()
        if not self._threads:  # it was not started whole: nobody holds what has joined
            for slot in self._slots:
                slot.run()

    def _found_or_submitted(self) -> JobHandle:
        patience, backoff = Patience(self._store.clock, self._order.join_s), Backoff()
        while True:
            handle = find(self._store, self._job, namespace=self._namespace)
            if handle is not None and self._is_on(handle):
                return handle
            if self._order.run is not None:
                raise WrongRun(f"job {self._job!r} is not in run {self._order.run} any more; do not start it again")
            try:
                return self._submitted()
            except JobAlreadyRunning:  # another host was faster; or its last run is about to leave
                if patience.is_over:
                    raise
            self._store.clock.wait(threading.Event(), backoff.next_s())

    def _submitted(self) -> JobHandle:
        order = self._order
        return submit(
            self._store,
            self._job,
            order.workers,
            namespace=self._namespace,
            max_restarts=order.max_restarts,
            max_executions=order.max_executions,
        )

    def _is_on(self, handle: JobHandle) -> bool:
        try:
            status = handle.status()
        except WrongRun:
            return False
        if status.ended is not None:
            return False
        if self._order.run not in {None, handle.run}:
            raise WrongRun(f"job {self._job!r} is in run {handle.run}, not in {self._order.run}; do not start it again")
        if status.n != self._order.workers:
            raise LatchworkError(
                f"job {self._job!r} runs with {status.n} workers, not {self._order.workers}; scale it, terminate it, "
                "or use another name"
            )
        return True
