"""The shared layer of all systems that run tasks: registered functions, safe payloads, slots and group commit.

Encoding of values, transport of exceptions and child processes are private to this package. Import supervised commands
from ``latchwork.tasks.children``.
"""

from typing import TYPE_CHECKING

from latchwork._base.lazy import lazy_getattr

if TYPE_CHECKING:
    from latchwork.tasks.blobs import BlobRef, Blobs
    from latchwork.tasks.errors import (
        BadPayload,
        NotSerializable,
        PayloadTooLarge,
        PickleRefused,
        RemoteError,
        RemoteTraceback,
        TaskProcessDied,
        TaskRefused,
        TaskStopped,
        TaskTimeout,
        UnknownFunction,
    )
    from latchwork.tasks.functions import DEFAULT, Functions, RegisteredFunction, RunIn, task
    from latchwork.tasks.group_commit import GroupCommit
    from latchwork.tasks.payloads.codec import MAX_PAYLOAD_BYTES, Arguments, Codec, Payloads, PickleCodec, PlainCodec
    from latchwork.tasks.payloads.outcome import DeferredResult, Failure, Outcome
    from latchwork.tasks.payloads.template import Placeholder, encode_template, fill_template, find_placeholders
    from latchwork.tasks.retry import ONCE, Retry, StoredRetry, backoff_s, type_name
    from latchwork.tasks.running.calls import PICKLED, RunAsync, StoredCall, run_async, run_call
    from latchwork.tasks.running.context import TaskContext, current_task
    from latchwork.tasks.running.slots import Slots
    from latchwork.tasks.running.task_loop import TaskLoop
    from latchwork.tasks.running.worker_hooks import (
        DeadLetter,
        Done,
        Release,
        Run,
        Settlement,
        WorkerHooks,
        retry_pause_s,
    )
    from latchwork.tasks.running.worker_loop import WorkerLoop
else:
    __getattr__ = lazy_getattr(
        __name__,
        {
            "latchwork.tasks.blobs": (
                "BlobRef",
                "Blobs",
            ),
            "latchwork.tasks.errors": (
                "BadPayload",
                "NotSerializable",
                "PayloadTooLarge",
                "PickleRefused",
                "RemoteError",
                "RemoteTraceback",
                "TaskProcessDied",
                "TaskRefused",
                "TaskStopped",
                "TaskTimeout",
                "UnknownFunction",
            ),
            "latchwork.tasks.functions": (
                "DEFAULT",
                "Functions",
                "RegisteredFunction",
                "RunIn",
                "task",
            ),
            "latchwork.tasks.group_commit": ("GroupCommit",),
            "latchwork.tasks.payloads.codec": (
                "MAX_PAYLOAD_BYTES",
                "Arguments",
                "Codec",
                "Payloads",
                "PickleCodec",
                "PlainCodec",
            ),
            "latchwork.tasks.payloads.outcome": (
                "Failure",
                "DeferredResult",
                "Outcome",
            ),
            "latchwork.tasks.payloads.template": (
                "Placeholder",
                "encode_template",
                "fill_template",
                "find_placeholders",
            ),
            "latchwork.tasks.retry": (
                "ONCE",
                "Retry",
                "StoredRetry",
                "backoff_s",
                "type_name",
            ),
            "latchwork.tasks.running.context": (
                "TaskContext",
                "current_task",
            ),
            "latchwork.tasks.running.worker_loop": ("WorkerLoop",),
            "latchwork.tasks.running.worker_hooks": (
                "DeadLetter",
                "Done",
                "Settlement",
                "WorkerHooks",
                "Release",
                "Run",
                "retry_pause_s",
            ),
            "latchwork.tasks.running.task_loop": ("TaskLoop",),
            "latchwork.tasks.running.calls": (
                "PICKLED",
                "StoredCall",
                "RunAsync",
                "run_call",
                "run_async",
            ),
            "latchwork.tasks.running.slots": ("Slots",),
        },
    )

__all__ = [
    "DEFAULT",
    "MAX_PAYLOAD_BYTES",
    "ONCE",
    "PICKLED",
    "Arguments",
    "BadPayload",
    "BlobRef",
    "Blobs",
    "Codec",
    "DeadLetter",
    "DeferredResult",
    "Done",
    "Failure",
    "Functions",
    "GroupCommit",
    "NotSerializable",
    "Outcome",
    "PayloadTooLarge",
    "Payloads",
    "PickleCodec",
    "PickleRefused",
    "Placeholder",
    "PlainCodec",
    "RegisteredFunction",
    "Release",
    "RemoteError",
    "RemoteTraceback",
    "Retry",
    "Run",
    "RunAsync",
    "RunIn",
    "Settlement",
    "Slots",
    "StoredCall",
    "StoredRetry",
    "TaskContext",
    "TaskLoop",
    "TaskProcessDied",
    "TaskRefused",
    "TaskStopped",
    "TaskTimeout",
    "UnknownFunction",
    "WorkerHooks",
    "WorkerLoop",
    "backoff_s",
    "current_task",
    "encode_template",
    "fill_template",
    "find_placeholders",
    "retry_pause_s",
    "run_async",
    "run_call",
    "task",
    "type_name",
]
