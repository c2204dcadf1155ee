"""A worker of the chaos group, in a process of its own: it meets the others again and again, and writes with its fence.

Every event is reported with the time of the clock that all processes of the machine share.
"""

from __future__ import annotations

import logging
import os
import time
from itertools import count

import latchwork
from latchwork import Conflict, LatchworkError, Put
from latchwork.worker_group import GroupTerminated, GroupWorker, WrongRun

_log = logging.getLogger(__name__)

JOB, WORKERS, TTL_S = "storm", 8, 2.0
#: There once the storm is over.
STOP = "stop"


class Member:
    """What one worker does in each epoch."""

    def __init__(self, wire, store, key):
        self._wire = wire
        self._store = store
        self._key = key

    def log(self, event, **figures):
        self._wire.report({"event": event, "time": time.monotonic(), "key": self._key, "pid": os.getpid(), **figures})

    def main(self, worker):
        """Meet until worker 0 has told which meeting is the last one."""
        epoch, number = worker.epoch, worker.rank
        self.log("begin", epoch=epoch, id=number)
        for step in count():
            self.log("arrive", epoch=epoch, id=number, generation=step)
            generation = worker.barrier()
            self.log("pass", epoch=epoch, id=number, generation=generation)
            self._write(worker, epoch, number, generation)
            last = self._store.get(f"last/{epoch}")
            if last is not None and int(last.value) <= generation:
                return
            if number == 0 and last is None and self._store.get(STOP) is not None:
                # before it arrives for the next one: all will see it once they have passed that
                self._store.commit([worker.fence], [Put(f"last/{epoch}", str(generation + 1).encode())])

    def _write(self, worker, epoch, number, generation):
        try:
            fence = worker.fence
            time.sleep(0.002)  # where a freeze makes it late
            done = self._store.commit([fence], [Put(f"results/{number}", f"{epoch} {generation}".encode())])
            self.log("wrote", epoch=epoch, id=number, commit=done.token)
        except Conflict:
            self.log("refused", epoch=epoch, id=number)
            worker.check()


def serve(wire, url, key, run):
    """Be a worker until the group has ended."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    while True:
        try:
            with latchwork.connect(url, session_ttl_s=TTL_S, call_timeout_s=2) as store:
                member = Member(wire, store, key)
                worker = GroupWorker(store, JOB, run=run, key=key)
                try:
                    info = worker.join(60.0)
                    member.log("joined", id=info.rank, restarts=info.restarts)
                    worker.run(member.main)
                finally:
                    worker.close()
                member.log("done", id=info.rank)
                return
        except (GroupTerminated, WrongRun) as error:
            wire.report({"event": "over", "time": time.monotonic(), "key": key, "why": str(error)})
            return
        except LatchworkError as error:
            _log.info("again: %r", error)
            time.sleep(0.1)
