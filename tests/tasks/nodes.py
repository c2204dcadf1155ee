"""Every kind of node that runs tasks, with one way to give it a task that waits."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from contextlib import ExitStack, suppress

from latchwork.executor import Executor, ExecutorWorker
from latchwork.plans import Plans, PlanWorker
from latchwork.tasks import Functions, TaskContext
from latchwork_workflows.worker import Worker
from workflows import working

FUNCTIONS = Functions()
BEGUN: list[str] = []
DEAF: list[str] = []
GATE = threading.Event()


@FUNCTIONS.task(name="waits")
def waits(name: str, context: TaskContext) -> str:
    """Go on until it is asked to stop, or until the gate is open."""
    BEGUN.append(name)
    while not GATE.wait(0.01):
        if context.should_stop and name not in DEAF:
            break
    return name


class Kind(ABC):
    """Makes nodes of one kind, and tasks for them.

    Args:
        store: what they share.
        folder: for files.
    """

    #: Where its keys are.
    prefix: str

    def __init__(self, store, folder):
        self.store = store
        self.folder = folder
        self.closing = ExitStack()
        BEGUN.clear()
        DEAF.clear()
        GATE.clear()

    @abstractmethod
    def node(self, store=None, **options):
        """Make a node of one slot; it is not started."""

    @abstractmethod
    def put(self, name):
        """Put a task that goes on until it is asked to stop, or until ``release``."""

    def put_deaf(self, name):
        """Put a task that goes on until ``release``."""
        DEAF.append(name)
        self.put(name)

    def bound_to_sessions(self):
        """Return the keys that vanish with the session of a node."""
        found = self.store.list(self.prefix, recursive=True)
        return [entry.key for entry in found if entry.owner is not None]

    def begun(self):
        """Return the names of the tasks that have begun, each as often as it has."""
        return list(BEGUN)

    def release(self):
        """Let all tasks end by themselves."""
        GATE.set()


class Executors(Kind):
    prefix = "@executor"

    def __init__(self, store, folder):
        super().__init__(store, folder)
        self.pool = Executor(store, functions=FUNCTIONS)
        self.closing.callback(self.pool.shutdown, cancel_futures=True)

    def node(self, store=None, **options):
        return ExecutorWorker(store or self.store, node_id="n1", slots=1, functions=FUNCTIONS, **options)

    def put(self, name):
        self.pool.detached("waits", name)


class PlanWorkers(Kind):
    prefix = "@plans"

    def node(self, store=None, **options):
        return PlanWorker(store or self.store, label="n1", slots=1, functions=FUNCTIONS, **options)

    def put(self, name):
        with Plans(self.store, functions=FUNCTIONS).new() as plan:
            plan.add("waits", name)


class WorkflowWorkers(Kind):
    prefix = "@workflows"

    def __init__(self, store, folder):
        super().__init__(store, folder)
        working.begun(store, folder)
        self.count = 0

    def node(self, store=None, **options):
        return Worker(
            store or self.store,
            logs=working.open_logs(self.folder / "logs"),
            name="n1",
            options=working.options(self.folder, slots=1, **options),
            secrets=working.Secrets(environ={}, providers=()),
        )

    def put(self, name, trap=""):
        self.count += 1
        script = f"{trap} echo {name} >> {self.folder}/begun; while [ ! -e {self.folder}/go ]; do sleep 0.02; done"
        working.shell(self.store, self.count, script)

    def put_deaf(self, name):
        self.put(name, "trap '' TERM;")

    def begun(self):
        with suppress(FileNotFoundError):
            return (self.folder / "begun").read_text().split()
        return []

    def release(self):
        (self.folder / "go").touch()


KINDS = {"executor": Executors, "plans": PlanWorkers, "workflows": WorkflowWorkers}
