"""The process of a slot: runs one call after the other, in its main thread. Started under a supervisor, with two pipes.

It imports what the node tells it to, and nothing that a payload names.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import types
from functools import partial, reduce
from typing import Any

from latchwork.tasks.errors import UnknownFunction
from latchwork.tasks.functions import Functions, Registered
from latchwork.tasks.payloads.codec import Payloads
from latchwork.tasks.payloads.outcome import Outcome
from latchwork.tasks.payloads.values import unpack
from latchwork.tasks.running.calls import perform
from latchwork.tasks.running.context import TaskContext
from latchwork.tasks.running.frames import FRAME_ROOM, FunctionPlace, read_call, read_frame, write_frame

#: The main module of the node is this one here, so that what it runs behind ``if __name__ == "__main__"`` does not.
MAIN = "__latchwork_main__"


class Body:
    """The loop of one process.

    Args:
        reading: where calls come from.
        writing: where outcomes go to.
        payloads: how they are read and written.
    """

    def __init__(self, reading: int, writing: int, payloads: Payloads) -> None:
        self._writing = writing
        self._payloads = payloads
        self._read = partial(read_frame, partial(os.read, reading), payloads.max_payload_bytes + FRAME_ROOM)
        self._functions = Functions()
        self._main = ("", "")
        self._context: TaskContext | None = None

    def run(self) -> None:
        """Run calls until the node closes the pipe."""
        signal.signal(signal.SIGTERM, self._told_to_stop)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        start = self._read()
        if start is None:
            return
        sys.path[:], *main, sys.argv[:] = unpack(start, "a start")
        self._main = (main[0], main[1])
        while (frame := self._read()) is not None:
            write_frame(self._writing, self._answer(frame).to_bytes())

    def _answer(self, frame: bytes) -> Outcome:
        call, place, self._context = read_call(frame)
        try:
            if place is not None and place.name not in self._functions:
                self._functions.add(Registered(place.name, self._find(place)))
            return perform(call, self._functions, self._payloads, self._context)
        except BaseException as error:  # of the import of a module
            return Outcome.failed(error)
        finally:
            self._context = None

    def _find(self, place: FunctionPlace) -> Any:
        if "<" in place.qualname:
            raise UnknownFunction(f"{place.name!r} is a function inside another: a process of its own cannot import it")
        try:
            return reduce(getattr, place.qualname.split("."), self._module(place.module))
        except AttributeError:
            raise UnknownFunction(
                f"module {place.module!r} has no {place.qualname!r} in a process of its own"
            ) from None

    def _module(self, name: str) -> Any:
        main_name, main_path = self._main
        is_main = name == main_name or (main_path and name == os.path.splitext(os.path.basename(main_path))[0])  # noqa: PTH119, PTH122
        if not is_main:
            return importlib.import_module(name)
        if MAIN not in sys.modules:
            import runpy  # few need it, and this process is to be there soon

            sys.modules[MAIN] = made = types.ModuleType(MAIN)
            run = partial(runpy.run_path, main_path) if main_path else partial(runpy.run_module, main_name)
            made.__dict__.update(run(run_name=MAIN))
        return sys.modules[MAIN]

    def _told_to_stop(self, *_: object) -> None:
        context = self._context
        if context is not None:
            threading.Thread(target=context.stop, name="latchwork-task-stop", daemon=True).start()
        else:
            raise SystemExit(0)


def main() -> None:
    """Take the numbers of the pipes, and the rules, from the command line."""
    reading, writing, allow_pickle, most = (int(each) for each in sys.argv[1:5])
    for fd in (reading, writing):
        os.set_inheritable(fd, False)  # what a task starts does not keep them open
    Body(reading, writing, Payloads(allow_pickle=bool(allow_pickle), max_payload_bytes=most)).run()
