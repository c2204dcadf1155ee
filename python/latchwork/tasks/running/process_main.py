"""The main program of the child process of a slot: runs one call after the other in its main thread.

The process is started under a supervisor, with two pipes over which it exchanges frames with its node. It imports only
modules that the node names, never modules that a payload names. Nothing here touches the network.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import types
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path
from typing import Any

from latchwork.tasks.errors import BadPayload, NotSerializable, UnknownFunction
from latchwork.tasks.functions import Functions, RegisteredFunction, importable_module
from latchwork.tasks.payloads.codec import Payloads
from latchwork.tasks.payloads.outcome import Outcome
from latchwork.tasks.payloads.values import pack, unpack
from latchwork.tasks.running.calls import StoredCall, run_call
from latchwork.tasks.running.context import TaskContext
from latchwork.types import Absent, At, Exists, Fence, SessionAlive, SimpleCheck

_LENGTH = 8
#: Maximum number of bytes by which a frame is longer than its payload.
MAX_FRAME_OVERHEAD = 1_000_000


@dataclass(frozen=True, slots=True)
class FunctionLocation:
    """The location of a function: its module, and its qualified name there. Sent by the node, never read from the
    store.
    """

    name: str
    module: str
    qualname: str

    @classmethod
    def for_function(cls, registered: RegisteredFunction) -> FunctionLocation:
        """Return the location of a registered function of this process."""
        return cls(registered.name, importable_module(registered.fn), registered.fn.__qualname__)


def encode_start_message() -> bytes:
    """Encode the first message to a new process: the module search path, the main module, and the command-line
    arguments.
    """
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    file = getattr(main, "__file__", None)
    name = spec.name if spec is not None else ""
    path = str(Path(file).resolve()) if file and not name and Path(file).is_file() else ""
    return pack([list(map(str, sys.path)), name, path, list(map(str, sys.argv))], "a start")


def encode_call_frame(call: StoredCall, place: FunctionLocation | None, context: TaskContext) -> bytes:
    """Encode a call, the location of its function, and its context, for the process that runs it.

    Args:
        call: The call.
        place: Location of its function; None for a pickled function.
        context: Context of the task.
    """
    where = [place.name, place.module, place.qualname] if place is not None else None
    about = [context.task_id, context.attempt, _encode_fence(context.fence), context.node_id, context.deadline]
    return pack([call.function, call.payload, where, about], "a call")


def decode_call_frame(frame: bytes) -> tuple[StoredCall, FunctionLocation | None, TaskContext]:
    """Decode a call, the location of its function, and its context, from a frame that ``encode_call_frame`` has
    created.
    """
    function, payload, where, about = unpack(frame, "a call")
    task_id, attempt, fence, node_id, deadline = about
    context = TaskContext(task_id, attempt=attempt, fence=_decode_fence(fence), node_id=node_id, deadline=deadline)
    return StoredCall(function, payload), None if where is None else FunctionLocation(*where), context


_CHECKS: dict[str, type[SimpleCheck]] = {"absent": Absent, "exists": Exists, "session": SessionAlive}


def _encode_fence(fence: Fence) -> list[Any]:
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


def _decode_fence(parts: list[Any]) -> Fence:
    token, checks = parts
    made = [At.of(key, version) if kind == "at" else _CHECKS[kind](key) for kind, key, version in checks]
    return Fence(token, tuple(made))


def write_frame(fd: int, data: bytes) -> None:
    """Write a frame to a descriptor: the length of the data, followed by the data.

    Raises:
        BrokenPipeError: The reading end is closed.
    """
    rest = memoryview(len(data).to_bytes(_LENGTH, "big") + data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def read_frame(read: Callable[[int], bytes], max_bytes: int) -> bytes | None:
    """Read a frame and return its data. Return None at the end of the pipe.

    Args:
        read: Returns up to the given number of bytes, like ``os.read``.
        max_bytes: Maximum length of the data.
    Raises:
        BadPayload: The frame is longer than ``max_bytes``.
    """
    head = _read_exactly(read, _LENGTH)
    if head is None:
        return None
    length = int.from_bytes(head, "big")
    if length > max_bytes:
        raise BadPayload(f"a task's process answered with {length:,} bytes, and at most {max_bytes:,} are read")
    return _read_exactly(read, length)


def _read_exactly(read: Callable[[int], bytes], count: int) -> bytes | None:
    parts, left = [], count
    while left:
        part = read(min(left, 1 << 20))
        if not part:
            return None
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


#: The name of the node's main module here, so that its code under ``if __name__ == "__main__"`` does not run.
MAIN = "__latchwork_main__"


class TaskProcessMain:
    """The main loop of a child process that runs the calls of one slot.

    Args:
        reading: Descriptor to read calls from.
        writing: Descriptor to write outcomes to.
        payloads: Encodes and decodes arguments and results.
    """

    def __init__(self, reading: int, writing: int, payloads: Payloads) -> None:
        self._writing = writing
        self._payloads = payloads
        self._read = partial(read_frame, partial(os.read, reading), payloads.max_payload_bytes + MAX_FRAME_OVERHEAD)
        self._functions = Functions()
        self._main = ("", "")
        self._context: TaskContext | None = None

    def run(self) -> None:
        """Run calls until the node closes the pipe."""
        signal.signal(signal.SIGTERM, self._on_stop_signal)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        start = self._read()
        if start is None:
            return
        sys.path[:], *main, sys.argv[:] = unpack(start, "a start")
        self._main = (main[0], main[1])
        while (frame := self._read()) is not None:
            write_frame(self._writing, self._run_frame(frame).to_bytes())

    def _run_frame(self, frame: bytes) -> Outcome:
        call, place, self._context = decode_call_frame(frame)
        try:
            if place is not None and place.name not in self._functions:
                self._functions.add(RegisteredFunction(place.name, self._load_function(place)))
            return run_call(call, self._functions, self._payloads, self._context)
        except BaseException as error:  # of the import of a module
            return Outcome.from_exception(error)
        finally:
            self._context = None

    def _load_function(self, place: FunctionLocation) -> Any:
        if "<" in place.qualname:
            raise UnknownFunction(f"{place.name!r} is a function inside another: a separate process cannot import it")
        try:
            return reduce(getattr, place.qualname.split("."), self._import_module(place.module))
        except AttributeError:
            raise UnknownFunction(f"module {place.module!r} has no {place.qualname!r} in a separate process") from None

    def _import_module(self, name: str) -> Any:
        main_name, main_path = self._main
        is_main = name == main_name or (main_path and name == os.path.splitext(os.path.basename(main_path))[0])  # noqa: PTH119, PTH122
        if not is_main:
            return importlib.import_module(name)
        if MAIN not in sys.modules:
            import runpy  # rarely needed, and this process must start fast

            sys.modules[MAIN] = made = types.ModuleType(MAIN)
            run = partial(runpy.run_path, main_path) if main_path else partial(runpy.run_module, main_name)
            made.__dict__.update(run(run_name=MAIN))
        return sys.modules[MAIN]

    def _on_stop_signal(self, *_: object) -> None:
        context = self._context
        if context is not None:
            threading.Thread(target=context.stop, name="latchwork-task-stop", daemon=True).start()
        else:
            raise SystemExit(0)


def main() -> None:
    """Run the child process of a slot: read calls from a pipe, and write their outcomes to another pipe.

    The command line contains the descriptors of the pipes and the limits for payloads.
    """
    reading, writing, allow_pickle, most = (int(each) for each in sys.argv[1:5])
    for fd in (reading, writing):
        os.set_inheritable(fd, False)  # processes that a task starts must not keep them open
    TaskProcessMain(reading, writing, Payloads(allow_pickle=bool(allow_pickle), max_payload_bytes=most)).run()
