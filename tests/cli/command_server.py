"""Runs commands of the console script, each in a forked copy of this process, which has imported them already.

A command is a line of JSON on stdin: its arguments, working directory, environment, and the files that its output goes
to; the answer is its exit code, as a line on stdout. One command at a time. What has to hold when the interpreter
starts is not tested this way.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from importlib.metadata import entry_points
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def warm_up(main: Callable[[], object], program: str) -> None:
    """Import what all commands import, by two that are refused: the name of none imports each."""
    for words in (["no-such-command"], ["status", "--url", "nowhere://"]):
        sys.argv = [program, *words]
        with (
            Path(os.devnull).open("w") as nowhere,
            redirect_stdout(nowhere),
            redirect_stderr(nowhere),
            suppress(SystemExit),
        ):
            main()


def serve(program: str) -> list[str] | None:
    """Answer until stdin ends; the arguments of a command in the process that is to run it."""
    libc = ctypes.CDLL(None)
    for line in sys.stdin:
        wanted = json.loads(line)
        child = os.fork()
        if not child:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            become(wanted)
            return [program, *wanted["args"]]
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(code, flush=True)
    return None


def become(wanted: dict) -> None:
    """Take the working directory, environment and files of a command."""
    os.chdir(wanted["cwd"])
    os.environ.clear()
    os.environ.update(wanted["env"])
    for number, file in enumerate((os.devnull, wanted["out"], wanted["err"])):
        opened = os.open(file, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(opened, number)
        os.close(opened)


if __name__ == "__main__":
    (script,) = entry_points(group="console_scripts", name="latchwork")
    main, path = script.load(), sys.argv[1]
    sys.path[0] = str(Path(path).parent)
    warm_up(main, path)
    gc.freeze()  # what is never collected is not copied either
    arguments = serve(path)
    if arguments is not None:
        sys.argv = arguments
        sys.exit(main())
