"""What a node and the processes of its tasks say to each other: frames on pipes. Nothing here touches the network."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from latchwork.tasks.errors import BadPayload, NotSerializable
from latchwork.tasks.functions import Registered, module_of
from latchwork.tasks.payloads.values import pack, unpack
from latchwork.tasks.running.calls import StoredCall
from latchwork.tasks.running.context import TaskContext
from latchwork.types import Absent, At, Exists, Fence, SessionAlive, SimpleCheck

_LENGTH = 8
#: A frame is longer than a payload by no more than this.
FRAME_ROOM = 1_000_000


@dataclass(frozen=True, slots=True)
class FunctionPlace:
    """Where a process finds a function: a module, and its name in it. Said by the node, never by the store."""

    name: str
    module: str
    qualname: str

    @classmethod
    def of(cls, registered: Registered) -> FunctionPlace:
        """Where a function of this process is."""
        return cls(registered.name, module_of(registered.fn), registered.fn.__qualname__)


def start_of() -> bytes:
    """What a new process has to know of this one: where modules are, and what its main one is."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    file = getattr(main, "__file__", None)
    name = spec.name if spec is not None else ""
    path = str(Path(file).resolve()) if file and not name and Path(file).is_file() else ""
    return pack([list(map(str, sys.path)), name, path, list(map(str, sys.argv))], "a start")


def call_frame(call: StoredCall, place: FunctionPlace | None, context: TaskContext) -> bytes:
    """A call for a process."""
    where = [place.name, place.module, place.qualname] if place is not None else None
    about = [context.task_id, context.attempt, _fence_parts(context.fence), context.node_id, context.deadline]
    return pack([call.function, call.payload, where, about], "a call")


def read_call(frame: bytes) -> tuple[StoredCall, FunctionPlace | None, TaskContext]:
    """A call that a node has sent."""
    function, payload, where, about = unpack(frame, "a call")
    task_id, attempt, fence, node_id, deadline = about
    context = TaskContext(task_id, attempt=attempt, fence=_fence(fence), node_id=node_id, deadline=deadline)
    return StoredCall(function, payload), None if where is None else FunctionPlace(*where), context


_CHECKS: dict[str, type[SimpleCheck]] = {"absent": Absent, "exists": Exists, "session": SessionAlive}


def _fence_parts(fence: Fence) -> list[Any]:
    checks = []
    for check in fence.checks:
        match check:
            case At(key, version):
                checks.append(("at", key, version))
            case Absent(key):
                checks.append(("absent", key, None))
            case Exists(key):
                checks.append(("exists", key, None))
            case SessionAlive(session_id):
                checks.append(("session", session_id, None))
    try:
        pack(checks, "a fence")
    except NotSerializable:  # a backend's version that is no plain value: then the token alone goes there
        checks = []
    return [fence.token, checks]


def _fence(parts: list[Any]) -> Fence:
    token, checks = parts
    made = [At.of(key, version) if kind == "at" else _CHECKS[kind](key) for kind, key, version in checks]
    return Fence(token, tuple(made))


def write_frame(fd: int, data: bytes) -> None:
    """Write a frame whole.

    Raises:
        BrokenPipeError: nobody reads.
    """
    rest = memoryview(len(data).to_bytes(_LENGTH, "big") + data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def read_frame(read: Callable[[int], bytes], most: int) -> bytes | None:
    """Read a frame whole; None at the end.

    Raises:
        BadPayload: it would be longer than that.
    """
    head = _exactly(read, _LENGTH)
    if head is None:
        return None
    length = int.from_bytes(head, "big")
    if length > most:
        raise BadPayload(f"a task's process answered with {length:,} bytes, and at most {most:,} are read")
    return _exactly(read, length)


def _exactly(read: Callable[[int], bytes], count: int) -> bytes | None:
    parts, left = [], count
    while left:
        part = read(min(left, 1 << 20))
        if not part:
            return None
        parts.append(part)
        left -= len(part)
    return b"".join(parts)
