"""Runs functions in a forked child process."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Mapping

#: Seconds after which a child counts as hanging. Its calls do no I/O.
HANG_S = 20


def run_in_fork(calls: Mapping[str, Callable[[], object]]) -> dict[str, str]:
    """Fork this process and call functions in the child.

    Args:
        calls: Functions without arguments, by name.
    Returns:
        For each name, the repr of the result, or the class name of the error that was raised.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            signal.alarm(HANG_S)  # the signal ends a child that hangs
            results: dict[str, str] = {}
            for name, call in calls.items():
                try:
                    results[name] = repr(call())
                except BaseException as error:
                    results[name] = type(error).__name__
            os.write(writer, json.dumps(results).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        output = pipe.read()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, "the child hung"
    answers: dict[str, str] = json.loads(output)
    return answers
