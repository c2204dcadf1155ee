"""Stored records of work queues, tasks, executors, workers, plans and workflows: an example each, and what reads it."""

from __future__ import annotations

import json

from msgspec.structs import replace

from latchwork.errors import BadRecord
from latchwork.executor import finished, placement
from latchwork.executor.items import TaskItem, parse_blob_ref
from latchwork.executor.keys import Keys
from latchwork.executor.stored import DetachedTaskRecord
from latchwork.executor.targets import Label, Member, StoredTarget
from latchwork.plans import records as plans
from latchwork.primitives.queue.items import QueueItem
from latchwork.tasks import BlobRef, StoredRetry
from latchwork.types import Entry
from latchwork.worker_group import records as groups
from latchwork_workflows import messages
from latchwork_workflows.worker import attempt

BLOB = BlobRef("owner", "id", 5, "ab")
RETRY = StoredRetry(2, 0.1, 1.5, 10.0, 0.1, ("m:E",))
ITEM = TaskItem(
    "m:f", "s1", 7, ("any",), "s", "", BLOB, 3, StoredTarget.from_target(Label(zone="a")), RETRY, 5.0, is_kept=True
)
TASK = plans.TaskRecord(
    plans.TaskState.READY, 3, "m:f", ("a",), ("a",), ("b",), RETRY, 5.0, attempts=1, why="w", args_at=BLOB
)
PLAN = plans.PlanRecord(plans.PlanState.READY, 1, "t", failed=(("a", "why"),), keep_results_s=5.0)
WORKER = groups.WorkerInfo("127.0.0.1", {"http": 80}, "n", "r", "d", {"gpu": 2.0}, 3, "k", "running", 1, 1, "i")
GROUP = groups.GroupRecord("r1", 4, next_rank=2, created=5.0, labels={"team": "a"})
HEAD = messages.TaskHead(3, 42, 2, 7, 1, 5, "default.nightly", "load", "shell", "etl", 60.0)
SPEC = messages.TaskMessage(HEAD, {"script": "echo $day"}, {"TZ": "UTC"}, {"got.rows": 3}, 1.5e9, "Europe/Berlin")
ENDED = messages.AttemptResult(
    messages.Outcome.FAILURE, 9, "w1", "h", 1.0, 2.5, 47, -9, {"rows": 3}, "killed", "1/7.log"
)


def at(value, key="k"):
    """An entry with that value."""
    return Entry(key, value, 1, 1, 1)


def dumped(**body):
    return json.dumps(body).encode()


def read_letter(value):
    return QueueItem.from_dead_letter(at(value))


def read_outputs(value):
    try:
        return attempt._parse_json(value.decode("utf-8", "replace"), 1)
    except attempt.BadOutput as error:
        return str(error)


LETTER = QueueItem("a", 1, "why", 5, partition="p", sort_key="s")
#: By name: the module that reads it, a value as the product writes it, and the function that reads.
ROWS = {
    "dead letter of a work queue": ("primitives.queue.items", LETTER.to_dead_letter(), read_letter),
    "task of an executor": ("executor.items", ITEM.to_bytes(), TaskItem.from_bytes),
    "task of an executor with a target": (
        "executor.items",
        replace(ITEM, stored_target=StoredTarget.from_target(Member("m1", "any"))).to_bytes(),
        TaskItem.from_bytes,
    ),
    "load of a worker": (
        "executor.placement", dumped(running=1, queued=2, slots=3, number=4), placement.decode_load
    ),
    "functions of a worker": (
        "executor.placement", dumped(functions=["m:f"], allow_pickle=True, slots=4), placement.decode_member_functions
    ),
    "detached task": (
        "executor.stored",
        dumped(fn="m:f", on=["any"], sort="5-000000000001-d", digest="d", nonce="n", ttl=5.0),
        lambda value: finished.finished_key(
            Keys("e"), DetachedTaskRecord.from_entry(at(value)).to_location(Keys("e"), "d.t")
        ),
    ),
    "finished task": (
        "executor.finished",
        dumped(fn="m:f", phase="failed", at=5, ttl=5.0, why="w"),
        lambda value: getattr(finished._MARK.find(value), "expires_ms", None) or "kept",
    ),
    "large outcome": (
        "executor.items",
        BLOB.to_bytes(),
        lambda value: parse_blob_ref(value) or "here",
    ),
    "large value": ("tasks.blobs", BLOB.to_bytes(), BlobRef.from_bytes),
    "plan": ("plans.records", PLAN.to_bytes(), plans.PlanRecord.from_bytes),
    "task of a plan": ("plans.records", TASK.to_bytes(), plans.TaskRecord.from_bytes),
    "item of a plan": ("plans.records", dumped(timeout_s=5.0, **{"from": ["a"]}), plans.decode_item_settings),
    "worker": (
        "worker_group.records",
        WORKER.to_bytes(),
        lambda value: groups.WorkerInfo.from_entry(at(value)).to_bytes(),
    ),
    "worker group": (
        "worker_group.records",
        GROUP.to_bytes(),
        lambda value: groups.GroupRecord.from_entry(at(value)).to_bytes(),
    ),
    "event of workers": (
        "worker_group.records",
        groups.GroupEvent("lost", 3, 1, 2, 5.0, "why").to_bytes(),
        lambda value: groups.GroupEvent.decode_or_none(at(value)) or "no event",
    ),
    "lease of a worker": (
        "worker_group.records",
        groups.encode_lease(WORKER),
        lambda value: (groups.decode_incarnation(at(value)), groups.decode_worker_key(at(value))),
    ),
    "attempt of a workflow": ("workflows.messages", SPEC.to_bytes()[0], messages.TaskMessage.from_bytes),
    "who runs an attempt": (
        "workflows.messages",
        messages.RunningRecord("w1", "h", 5.0, "it was drained").to_bytes(),
        messages.RunningRecord.from_bytes,
    ),
    "result of an attempt": ("workflows.messages", ENDED.to_bytes(), messages.AttemptResult.from_bytes),
    "outputs of an attempt": ("workflows.worker.attempt", dumped(rows=17), read_outputs),
    "epoch of workers": (
        "worker_group.records",
        groups.encode_epoch(3),
        lambda value: groups.decode_epoch(at(value)) + 1,
    ),
}  # fmt: skip


def decode_result(value):
    """A result of a plan is marked by its first byte; JSON alone is none."""
    try:
        return plans.decode_result(b"@" + value)
    except BadRecord as error:
        return str(error)


ROWS["large result of a plan"] = ("plans.records", BLOB.to_bytes(), decode_result)
