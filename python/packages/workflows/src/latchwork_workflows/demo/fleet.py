"""The fleet of the demonstration: a master in this process, and two worker processes.

A worker is ``python -m latchwork_workflows.demo.fleet FOLDER NAME``.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from latchwork.store import connect
from latchwork_workflows import Home, Serve, ServeOptions, WorkflowClient
from latchwork_workflows.demo.flow import PARTS, demo
from latchwork_workflows.logs import open_logs
from latchwork_workflows.worker import Secrets, Worker, WorkerOptions

_SLOTS = 2
#: A killed worker counts as dead after this time.
_TTL_S = 2.0
_TIMEOUT_S = 60.0
_LOOK_S = 0.1


def run_while_killing_worker(say: Callable[[str], None]) -> bool:
    """Run a workflow on two workers, kill one of them meanwhile, and check that the result is correct.

    Args:
        say: Prints a line.
    Returns:
        Whether the result is correct.
    """
    with _run_fleet() as (client, workers):
        client.workflows.apply(demo)
        run = client.runs.start(demo.name).id(_TIMEOUT_S)
        say(f"started run {run} of a workflow of {PARTS + 2} tasks on {len(workers)} workers")
        victim, killed = next(iter(workers.items()))
        while not (interrupted := _running(client, victim)) or (done := _count_done(client, run)) < PARTS // 3:
            time.sleep(_LOOK_S)
        killed.kill()
        say(f"killed {victim} with kill -9 when {done} of {PARTS} parts were counted; it ran {', '.join(interrupted)}")
        found = client.runs.wait(run, _TIMEOUT_S)
        took_over = {each.name for each in client.runs.attempts(run) if each.worker != victim and each.outcome}
        again = sorted(took_over.intersection(interrupted))
        say(f"ran again on the other worker, as the same attempts: {', '.join(again)}")
        outputs = next(each.outputs for each in found.tasks if each.name == "total")
    say(f"run {run} is a {found.state.value}: {outputs['lines']:,} lines, {outputs['functions']:,} functions")
    return bool(outputs == demo.test().check().outputs["total"] and all(each.n == 1 for each in found.tasks))


def run_worker(folder: Path, name: str) -> None:
    """Run a worker until the process gets SIGTERM.

    Args:
        folder: Folder of the installation.
        name: Name of the worker.
    """
    home = _home(folder)
    with connect(home.store) as store:
        options = WorkerOptions(slots=_SLOTS, work_dir=folder / "work")
        logs, secrets = open_logs(home.logs), Secrets(home.secrets)
        Worker(store, logs=logs, name=name, options=options, secrets=secrets).run_forever()


def _home(folder: Path) -> Home:
    store = f"sqlite:///{folder}/store.db?session_ttl_s={_TTL_S:g}"
    return Home.of(folder, store=store, environ={})


@contextmanager
def _run_fleet() -> Iterator[tuple[WorkflowClient, dict[str, subprocess.Popen[bytes]]]]:
    """Run a master in this process and two worker processes, in a temporary folder, and stop them at the end."""
    with tempfile.TemporaryDirectory(prefix="latchwork-demo-") as name:
        home = _home(Path(name))
        with Serve(home, ServeOptions(has_pages=False)), WorkflowClient.local(home) as client:
            workers = {each: _start(home.folder, each) for each in ("worker-1", "worker-2")}
            try:
                yield client, workers
            finally:
                for each in workers.values():
                    each.terminate()
                for each in workers.values():
                    each.wait()


def _start(folder: Path, name: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "latchwork_workflows.demo.fleet", str(folder), name]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)  # noqa: S603


def _running(client: WorkflowClient, worker: str) -> list[str]:
    return [each.name for found in client.workers.list() if found.name == worker for each in found.running]


def _count_done(client: WorkflowClient, run: int) -> int:
    (counted,) = (each for each in client.runs.tasks(run) if each.name == "count" and each.map_index < 0)
    return client.tasks.get(counted.id).elements.get("success", 0)


if __name__ == "__main__":
    run_worker(Path(sys.argv[1]), sys.argv[2])
