"""A node of a cluster in a process of its own; run by the tests as a script.

Arguments: url, node id, run log, number of items. Every start and end of a run is one line of the log, appended in one
write, with the time of the clock that all processes of the machine share.
"""

from __future__ import annotations

import json
import logging
import os
import random
import sys
import time

from latchwork.jobs import FixedDelay, Job, JobManager, Threads

SESSION_TTL_S = 2.0
LOCK_TTL_S = 2.0


def main(url, node_id, log_path, items):
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    log = os.open(log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(event, context):
        line = {
            "event": event,
            "time": time.clock_gettime(time.CLOCK_MONOTONIC),
            "item": context.items[0],
            "node": node_id,
            "pid": os.getpid(),
            "token": context.fence(context.items[0]).token if event == "start" else None,
        }
        os.write(log, (json.dumps(line) + "\n").encode())

    def run(context):
        note("start", context)
        context.wait_for_stop(random.uniform(0.05, 0.3))
        note("end", context)

    job = Job(
        "walk",
        work_pool=[f"item-{i}" for i in range(int(items))],
        run=run,
        schedule=FixedDelay(0.05),
        initial_delay_s=0.0,
        threads=Threads.per_item(),
    )
    JobManager(url, node_id, job, session_ttl_s=SESSION_TTL_S, lock_ttl_s=LOCK_TTL_S, close_timeout_s=5.0).run_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
