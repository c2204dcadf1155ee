"""Short demonstrations of the executor, plans and worker groups: each kills a process and shows that nothing is lost.

A worker is a process that runs this module: ``python -m latchwork.demo.systems SYSTEM URL NUMBER``.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, as_completed
from contextlib import contextmanager
from pathlib import Path

import latchwork
from latchwork.demo.tasks import add_up, count, list_source_files
from latchwork.executor import Executor, ExecutorWorker
from latchwork.plans import Plans, PlanWorker, TaskState
from latchwork.store import Store
from latchwork.tasks.children import DEVNULL, Child
from latchwork.types import Put
from latchwork.worker_group import GroupWorker

Say = Callable[[str], None]

_FILES = 60
_WORKERS = 3
#: A killed process counts as dead after this time.
_TTL_S = 2.0
_TIMEOUT_S = 60.0
_STEPS = 12
_STEP_S = 0.1


def run_executor(say: Say) -> bool:
    """Demonstrate the executor: submit calls to processes, kill one of them, and compare the results with a serial run.

    Args:
        say: Prints a line.
    Returns:
        True if the results are equal.
    """
    names = list_source_files(_FILES)
    with _start_workers("executor") as (store, workers), Executor(store) as pool:
        say(f"submitted {len(names)} calls to {_WORKERS} worker processes")
        futures: dict[Future[dict[str, int]], str] = {pool.submit(count, name): name for name in names}
        found: dict[str, dict[str, int]] = {}
        for future in as_completed(futures, timeout=_TIMEOUT_S):
            found[futures[future]] = future.result()
            if len(found) == _FILES // 3:
                workers[0].kill()
                say(f"killed a worker with kill -9 when {len(found)} calls had ended")
    total = add_up(list(found.values()))
    say(f"{len(found)} results: {_counts(total)}")
    return total == _serially(names)


def run_plans(say: Say) -> bool:
    """Demonstrate plans: run a graph of calls on processes, kill one of them, and compare the result with a serial run.

    Args:
        say: Prints a line.
    Returns:
        True if the results are equal.
    """
    names = list_source_files(_FILES)
    with _start_workers("plans") as (store, workers):
        with Plans(store).new("demo") as plan:
            counted = plan.map(count, names)
            batches = [plan.add(add_up, counted[at : at + 10]) for at in range(0, len(counted), 10)]
            plan.add(add_up, batches, name="total")
        handle = plan.handle
        say(f"started a plan of {len(names)} files, {len(batches)} sums and a total on {_WORKERS} worker processes")
        while (done := handle.status().tasks.get(TaskState.DONE, 0)) < _FILES // 3:
            time.sleep(_STEP_S)
        workers[0].kill()
        say(f"killed a worker with kill -9 when {done} tasks were done")
        handle.wait(timeout_s=_TIMEOUT_S)
        total = handle.result("total")
    say(f"the plan is done: {_counts(total)}")
    return bool(total == _serially(names))


def run_workers(say: Say) -> bool:
    """Demonstrate worker groups: run a computation in steps on several processes, and kill and restart one of them.

    Args:
        say: Prints a line.
    Returns:
        True if the result is correct.
    """
    with _start_workers("workers") as (store, workers):
        say(f"started {_WORKERS} processes that meet at a barrier after each of {_STEPS} steps")
        _wait_until(lambda: _step(store) >= _STEPS // 3)
        workers[1].close()
        say(f"killed worker 1 with kill -9 after step {_step(store)}, and restarted it with the same key")
        workers[1] = _start("workers", store.url, 1)
        ends = [process.wait(_TIMEOUT_S) for process in workers]
        say(f"all {_WORKERS} workers have completed step {_step(store)}; the group went back to the last saved step")
        return all(end.is_success for end in ends) and _step(store) == _STEPS


def run_worker(system: str, url: str, number: int) -> None:
    """Run a worker process of a demonstration until it is ended.

    Args:
        system: The demonstrated system.
        url: URL of the store.
        number: Number of the process.
    """
    with latchwork.connect(url) as store:
        if system == "executor":
            with ExecutorWorker(store, slots=1) as worker:
                worker.run_forever()
        elif system == "plans":
            with PlanWorker(store, slots=1) as plan_worker:
                plan_worker.run_forever()
        else:
            key = f"w{number}"
            with GroupWorker(store, "demo", workers=_WORKERS, key=key, replace=True) as group_worker:
                group_worker.run(lambda each: _compute(each, store))


def _compute(worker: GroupWorker, store: Store) -> None:
    worker.wait_for_all(timeout_s=_TIMEOUT_S)
    for step in range(_step(store), _STEPS):
        time.sleep(_STEP_S)
        worker.barrier(timeout_s=_TIMEOUT_S)
        if worker.rank == 0:
            store.commit([worker.fence], [Put("demo-step", str(step + 1).encode())])
        worker.barrier(timeout_s=_TIMEOUT_S)


def _step(store: Store) -> int:
    saved = store.get("demo-step")
    return 0 if saved is None else int(saved.value)


@contextmanager
def _start_workers(system: str) -> Iterator[tuple[Store, list[Child]]]:
    """Open a store in a temporary folder and start worker processes for a ``with`` block, which ends them.

    Args:
        system: The demonstrated system.
    Yields:
        The store and the processes.
    """
    with tempfile.TemporaryDirectory(prefix="latchwork-demo-") as folder:
        url = f"sqlite:///{Path(folder) / 'store.db'}?session_ttl_s={_TTL_S:g}"
        with latchwork.connect(url) as store:
            workers = [_start(system, url, number) for number in range(_WORKERS)]
            try:
                yield store, workers
            finally:
                for each in workers:
                    each.stop()
                for each in workers:
                    each.wait()
                    each.close()


def _start(system: str, url: str, number: int) -> Child:
    command = [sys.executable, "-m", "latchwork.demo.systems", system, url, str(number)]
    return Child(command, stderr=DEVNULL, label=f"{system} {number}")


def _serially(names: list[str]) -> dict[str, int]:
    return add_up([count(name) for name in names])


def _counts(total: dict[str, int]) -> str:
    return ", ".join(f"{total[kind]:,} {kind}" for kind in ("files", "lines", "functions", "classes"))


def _wait_until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while not is_true():
        if time.monotonic() > deadline:
            raise TimeoutError(f"no progress within {_TIMEOUT_S:g} s")
        time.sleep(_STEP_S)


if __name__ == "__main__":
    run_worker(sys.argv[1], sys.argv[2], int(sys.argv[3]))
