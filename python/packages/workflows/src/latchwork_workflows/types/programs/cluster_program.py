"""Process of a task that submits a job to a cluster: kills earlier jobs of the task, submits the job, and waits.

Imports no other module of latchwork.
"""

# ruff: noqa: T201 - printed text is the log of the task

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

_JOB = re.compile(r"application_\d+_\d+")
#: Time limit for listing jobs and for killing one, in seconds.
_YARN_S = 60


class StopRequested(Exception):
    """The process received a signal to stop."""


def main(path: str) -> int:
    """Submit the job that a file describes, and wait until it has ended."""
    sys.path.pop(0)  # the folder of this file contains other programs
    call = json.loads(Path(path).read_text(encoding="utf-8"))  # noqa: TID251 - written by the worker for this process
    kill_tagged_jobs(call["yarn"], call["tag"], "left by an attempt before this one")

    def tell(_number: int, _frame: FrameType | None) -> None:
        raise StopRequested

    signal.signal(signal.SIGTERM, tell)
    print("+", " ".join(call["argv"]), flush=True)
    try:
        code = subprocess.run(call["argv"], check=False).returncode  # noqa: S603 - its purpose
    except OSError as error:
        print(f"{call['argv'][0]!r} cannot be started: {error}", file=sys.stderr)
        return 127
    except StopRequested:  # the submitting program got the signal too: it is in our process group
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        kill_tagged_jobs(call["yarn"], call["tag"], "stopped with its task")
        return 143
    return code if code >= 0 else 128 - code


def kill_tagged_jobs(yarn: str | None, tag: str, why: str) -> None:
    """Kill all jobs in the cluster that have a tag.

    Args:
        yarn: The program that kills jobs. None: there is none, and nothing is killed.
        tag: The tag of the jobs.
        why: The reason, for the log.
    """
    if yarn is None:
        return
    states = "NEW,NEW_SAVING,SUBMITTED,ACCEPTED,RUNNING"
    listed = run_program([yarn, "application", "-list", "-appTags", tag, "-appStates", states])
    for job in dict.fromkeys(_JOB.findall(listed)):
        print(f"killing {job}, {why}", flush=True)
        run_program([yarn, "application", "-kill", job])


def run_program(argv: list[str]) -> str:
    """Run a program and return its output. If it cannot be run, print the error and return an empty string."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_YARN_S, check=False)  # noqa: S603 - likewise
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"{argv[0]!r} could not list the jobs of this task: {error}", file=sys.stderr, flush=True)
        return ""
    if done.returncode:
        print(f"{' '.join(argv[:3])} failed: {done.stderr.strip()[:500]}", file=sys.stderr, flush=True)
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
