"""A small system on a worker loop: items are calls, results are keys. For tests, and for processes that are killed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import ExitStack, closing
from pathlib import Path

import latchwork
from latchwork.primitives import WorkQueue
from latchwork.tasks import (
    DEFAULT,
    ONCE,
    DeadLetter,
    Done,
    GroupCommit,
    Outcome,
    Payloads,
    Release,
    Run,
    Slots,
    StoredCall,
    WorkerHooks,
    WorkerLoop,
    retry_pause_s,
)
from latchwork.types import Create, Exists

PAYLOADS = Payloads()


def put(store, fn, *args, id, lane="any", shelf="s1", owner="", **about):  # noqa: A002
    one = DEFAULT.resolve(fn)
    body = {"fn": one.name, "args": PAYLOADS.encode_call(one, args, {}).hex(), "owner": owner, **about}
    WorkQueue(store, "work").put(lane, shelf, id, json.dumps(body).encode())


class System(WorkerHooks):
    """Results are created with the end of their items, so that each can be only once."""

    def __init__(self, *, retry=ONCE, lanes=("any",), accepts=None):
        self.retry, self.all_lanes, self.accepts = retry, list(lanes), accepts
        self.refusals, self.losses, self.finished = [], [], []

    def select_partitions(self):
        return self.all_lanes

    def should_claim(self, item):
        return self.accepts is None or self.accepts(item)

    def build_claim_ops(self, item):
        owner = json.loads(item.value)["owner"] if item.value else ""  # a large value is not in the item
        return ([Exists(f"owners/{owner}")] if owner else []), []

    def on_claim_refused(self, item):
        self.refusals.append(item.id)
        return False

    def on_claim_lost(self, claim):
        self.losses.append(claim.item.id)

    def prepare_run(self, claim):
        body = json.loads(claim.value)
        if body.get("ends"):
            return Done(ops=(Create(f"results/{claim.item.id}", b"at once"),))
        if body.get("broken"):
            raise ValueError("broken")
        return Run(StoredCall(body["fn"], bytes.fromhex(body["args"])), claim.item.id, timeout_s=body.get("timeout_s"))

    def handle_outcome(self, claim, outcome):
        self.finished.append(claim.item.id)
        pause_s = retry_pause_s(self.retry, claim.attempts, outcome)
        if pause_s is not None:
            return Release(outcome.failure.summary, after_s=pause_s)
        if outcome.failure is not None and "bury" in outcome.failure.text:
            return DeadLetter("dead_lettered", (Create(f"results/{claim.item.id}", outcome.to_bytes()),))
        return Done(ops=(Create(f"results/{claim.item.id}", outcome.to_bytes()),))


class Node(ExitStack):
    """One node: a worker loop and all that it needs."""

    def __init__(self, store, system=None, *, slots=2, name="n1", max_attempts=5, session=None, **options):
        super().__init__()
        self.system = system or System()
        slot_options = {
            key: options.pop(key) for key in ("run_in", "stop_grace_s", "deadline_extender") if key in options
        }
        self.commits = self.enter_context(GroupCommit(store, label=name))
        self.slots = self.enter_context(Slots(slots, DEFAULT, PAYLOADS, label=name, **slot_options))
        backlog = WorkQueue(store, "work", max_attempts=max_attempts, session=session, label=name)
        self.worker_loop = self.enter_context(
            WorkerLoop(backlog, self.slots, self.commits, self.system, store=store, node_id=name, **options)
        )


def result_of(store, id, patience_s=45.0):  # noqa: A002
    end = time.monotonic() + patience_s
    while (entry := store.get(f"results/{id}")) is None:
        assert time.monotonic() < end, f"{id} has no result"
        time.sleep(0.01)
    return Outcome.from_bytes(entry.value)


def node_process(url, ttl_s, name="n1", run_in="thread"):
    """A node in a process of its own, which takes tasks already: it knows the functions of ``examples``."""
    root, module = Path(__file__).parents[2], f"{__package__}.feeding"
    code = f"import sys, runpy; sys.path[:0] = [{str(root)!r}]; runpy.run_module({module!r}, run_name='__main__')"
    node = subprocess.Popen(
        [sys.executable, "-c", code, url, str(ttl_s), name, run_in], stdout=subprocess.PIPE, text=True
    )
    assert node.stdout.readline() == "ready\n"
    return node


def end_process(node):
    """Kill a node's process, frozen or not."""
    node.kill()
    node.wait()
    node.stdout.close()


if __name__ == "__main__":
    from latchwork.tasks.children import DeadlineExtender

    from . import examples  # what is registered there is what it runs

    assert examples.square(2) == 4
    told_url, told_ttl_s, told_name, told_run_in = sys.argv[1:5]
    with latchwork.connect(told_url, session_ttl_s=float(told_ttl_s)) as opened:
        deadline_extender = DeadlineExtender(opened.session.remaining_s)
        with (
            closing(deadline_extender),
            Node(opened, name=told_name, run_in=told_run_in, deadline_extender=deadline_extender),
        ):
            print("ready", flush=True)
            time.sleep(300)
