"""The processes of the demo: started, frozen, killed, and all ended at the end."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from latchwork._base.event import Signal
from latchwork.clock import SYSTEM_CLOCK
from latchwork.demo import records
from latchwork.store import URL_VARIABLE, Store
from latchwork.tasks.children import DEVNULL, STDOUT, Child

_GRACE_S = 8.0
_TAIL_LINES = 8
#: What a frozen process had sent before has arrived after this time.
_SETTLE_S = 0.05


class NodeProcess:
    """A worker process and its log. It ends with this process, however that ends. For one thread."""

    def __init__(self, node: str, url: str, arguments: Sequence[str], log: Path) -> None:
        self.node = node
        self.log = log
        self.killed = False
        command = [sys.executable, "-m", "latchwork.demo.node", "--node-id", node, *arguments]
        env = {**os.environ, URL_VARIABLE: url}
        self._child = Child(command, env=env, stdin=DEVNULL, stdout=log, stderr=STDOUT, label=node)

    @property
    def pid(self) -> int:
        """The process ID."""
        return self._child.pid

    @property
    def has_died(self) -> bool:
        """Whether the process has ended by itself."""
        return not self.killed and self._child.poll() is not None

    def freeze(self) -> None:
        """Stop the process temporarily with SIGSTOP, so that its state can be read."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let the stopped process continue."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kill the process with SIGKILL, and wait until it has ended."""
        self.killed = True
        self._child.close()

    def terminate(self) -> None:
        """Ask the process with SIGTERM to hand over its items and end. It is killed if that takes too long."""
        self.killed = True
        self._child.stop(_GRACE_S)

    def wait(self) -> None:
        """Wait until the process has ended."""
        self._child.wait()
        self._child.close()

    def tail(self) -> str:
        """Return the last lines of the process's log, joined to one line."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return " | ".join(line.strip() for line in lines[-_TAIL_LINES:] if line.strip()) or "it wrote nothing"


class Processes:
    """All processes of a demo. Leaving the context ends all of them."""

    def __init__(self, url: str, arguments: Sequence[str], folder: Path) -> None:
        self._url = url
        self._arguments = arguments
        self._folder = folder
        self._by_node: dict[str, NodeProcess] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __iter__(self) -> Iterator[NodeProcess]:
        return iter(self._by_node.values())

    def __getitem__(self, node: str) -> NodeProcess:
        return self._by_node[node]

    def start(self, node: str) -> None:
        """Start another process.

        Args:
            node: ID of its node.
        """
        self._by_node[node] = NodeProcess(node, self._url, self._arguments, self._folder / f"{node}.log")

    def stop(self) -> None:
        """Ask the running processes to end, and kill those that do not. Idempotent."""
        for process in self:
            process.terminate()
        for process in self:
            process.wait()


@dataclass(frozen=True, slots=True)
class Kill:
    """The kill of a process that was running an item.

    Attributes:
        was_leader: Whether it was also the manager.
        at_s: The time on the machine's clock since boot.
        done: The number of items that were done by then.
        owned: Its items that were not done, including the interrupted one; sorted.
    """

    node: str
    pid: int
    was_leader: bool
    item: str
    at_s: float
    done: int
    owned: tuple[str, ...]


def kill_if_counting(store: Store, process: NodeProcess, *, is_leader: bool) -> Kill | None:
    """Kill a process if it is counting an item. Otherwise let it continue, and return None.

    Args:
        store: Store of the demo.
        process: The process.
        is_leader: Whether the process manages the cluster.
    Returns:
        What the process was doing when it was killed.
    """
    process.freeze()
    SYSTEM_CLOCK.wait(Signal(), _SETTLE_S)
    running = records.decode_running(store.get(f"{records.RUNNING}/{process.node}"))
    if running.item is None or running.pid != process.pid or store.get(f"{records.RESULTS}/{running.item}") is not None:
        process.thaw()
        return None
    at_s = SYSTEM_CLOCK.now()
    process.kill()
    done = {entry.key.rpartition("/")[2] for entry in store.list(records.RESULTS)}
    assignments = [records.decode_assignment(entry) for entry in store.list(f"{records.ASSIGNED}/{process.node}")]
    owned = sorted(set(assignments[-1].items if assignments else ()) - done)
    return Kill(process.node, process.pid, is_leader, running.item, at_s, len(done), tuple(owned))
