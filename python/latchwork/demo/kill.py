"""Killing a process of the demo while it runs an item, for certain.

The process is frozen, the store is asked what it was doing, and only if it was inside an item is it killed; else it
goes on as if nothing had happened, and the next try comes a moment later.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from latchwork.clock import SYSTEM_CLOCK
from latchwork.demo import records
from latchwork.demo.processes import NodeProcess
from latchwork.store import Store

#: What a frozen process had sent before has arrived after this time.
_SETTLE_S = 0.05


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill of a node's process, which was running an item.

    Attributes:
        was_leader: whether it managed the cluster too.
        at_s: when, by the machine's clock since boot.
        done: how many items were done at that moment.
        owned: items it had and had not done, the interrupted one included; sorted.
    """

    node: str
    pid: int
    was_leader: bool
    item: str
    at_s: float
    done: int
    owned: tuple[str, ...]


def try_kill(store: Store, process: NodeProcess, *, is_leader: bool) -> Kill | None:
    """Kill the process if it is inside an item at this moment; None if it was not, and lives."""
    process.freeze()
    SYSTEM_CLOCK.wait(threading.Event(), _SETTLE_S)
    running = records.running(store.get(f"{records.RUNNING}/{process.node}"))
    if running.item is None or running.pid != process.pid or store.get(f"{records.RESULTS}/{running.item}") is not None:
        process.thaw()
        return None
    at_s = SYSTEM_CLOCK.now()
    process.kill()
    done = {entry.key.rpartition("/")[2] for entry in store.list(records.RESULTS)}
    shares = [records.share(entry) for entry in store.list(f"{records.SHARES}/{process.node}")]
    owned = sorted(set(shares[-1].items if shares else ()) - done)
    return Kill(process.node, process.pid, is_leader, running.item, at_s, len(done), tuple(owned))
