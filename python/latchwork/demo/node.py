"""One process of the demo's cluster: `python -m latchwork.demo.node`, which only the demo starts.

The URL is in the environment, because everybody can read a command line. The process ends with its parent, however the
parent ends.
"""

from __future__ import annotations

import argparse
import ctypes
import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Self

from latchwork._base.event import Signal
from latchwork.clock import SYSTEM_CLOCK
from latchwork.demo.corpus import find_items
from latchwork.demo.job import CountJob
from latchwork.errors import LatchworkError
from latchwork.jobs import JobManager
from latchwork.store import connect

_PR_SET_PDEATHSIG = 1
_PARENT_CHECK_S = 0.5


class ParentWatch:
    """Ends this process when its parent has ended: by the kernel if possible, otherwise by polling."""

    def __init__(self, parent_pid: int) -> None:
        self._parent_pid = parent_pid
        self._closed = Signal()
        self._thread = threading.Thread(target=self._look, name="latchwork-demo-parent-watch", daemon=True)

    def __enter__(self) -> Self:
        if sys.platform == "linux":  # also ends a process that is frozen
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._thread.join()

    def _look(self) -> None:
        while os.getppid() == self._parent_pid:
            if SYSTEM_CLOCK.wait(self._closed, _PARENT_CHECK_S):
                return
        os._exit(1)


def main() -> int:
    """Run a node of the demo until SIGTERM. Return the exit code."""
    parser = argparse.ArgumentParser(description="One process of the demo; `latchwork demo` starts it.")
    parser.add_argument("--node-id", required=True)
    parser.add_argument("--root", required=True)
    parser.add_argument("--extra", required=True, type=Path)
    parser.add_argument("--pace-s", required=True, type=float)
    parser.add_argument("--ttl-s", required=True, type=float)
    parser.add_argument("--parent-pid", required=True, type=int)
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    with ParentWatch(given.parent_pid):
        try:
            with connect(root=given.root, session_ttl_s=given.ttl_s) as store:
                job = CountJob(find_items(given.extra), given.pace_s)
                JobManager(
                    store,
                    given.node_id,
                    [job],
                    session_ttl_s=given.ttl_s,
                    lock_ttl_s=given.ttl_s,
                    close_timeout_s=5.0,
                ).run_forever()
        except LatchworkError as error:
            print(f"error: {error}", file=sys.stderr)  # noqa: T201 - its stderr is its log
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
