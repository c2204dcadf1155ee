"""Calls in a child of a fork."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Mapping

#: Seconds for all calls of a child before it counts as hanging: none of them does any I/O.
HANG_S = 20


def in_child(calls: Mapping[str, Callable[[], object]]) -> dict[str, str]:
    """Fork, make the calls in the child, and return the repr of each result or the name of its error."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            signal.alarm(HANG_S)  # a hang ends the child
            said: dict[str, str] = {}
            for name, call in calls.items():
                try:
                    said[name] = repr(call())
                except BaseException as error:
                    said[name] = type(error).__name__
            os.write(writer, json.dumps(said).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        heard = pipe.read()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, "the child hung"
    answers: dict[str, str] = json.loads(heard)
    return answers
