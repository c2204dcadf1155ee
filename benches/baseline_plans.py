"""A minimal worker of a plan on ``baseline_stores``, as a separate process.

    python benches/baseline_plans.py < OPTIONS-JSON     prints a line of JSON

``t/<n>`` contains the numbers of the tasks that task n depends on, ``c/<n>`` is its claim, and ``r/<n>`` its result.
The worker reads the plan once, and gets results of other workers from its watch, so it knows which tasks are ready:

    turn      check s/<worker> and the claims that end; delete those and write their results; create the claims of the
              tasks that are ready now                                      up to 20 of each

A turn is one transaction, and a step of a chain is one turn. A claim is created only if none exists, and a result is
written only with the claim. Unlike latchwork's plans, it has no cancellation, no limits and no large values, and
handles neither dead workers, failures nor lost answers.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time

from baseline_stores import connect
from executor_ours import answer, used_s

TURN = 20
TTL_S = 10


class Worker:
    """Runs one plan alone. A task returns one plus the sum of the results that it depends on."""

    def __init__(self, kind, url):
        self.store = connect(kind, url)
        self.sid = self.store.open(TTL_S)

    def commit(self, checks, ops):
        answers, done = [], threading.Event()

        def ended(is_committed, versions):
            answers.append((is_committed, versions))
            done.set()

        self.store.txn(checks, ops, ended)
        done.wait(60)
        ((is_committed, versions),) = answers
        if not is_committed:
            raise SystemExit("a transaction was refused: this worker is not alone, or has lost its session")
        return versions

    def write(self, needs):
        """Store a plan, which lists for each task the numbers of the tasks that it depends on."""
        rows = [(f"t/{number:06d}", json.dumps(each).encode()) for number, each in enumerate(needs)]
        for at in range(0, len(rows), 90):
            self.commit([], rows[at : at + 90])

    def run(self):
        """Run the stored plan and return its results."""
        needs = {key[2:]: [f"{each:06d}" for each in json.loads(value)] for key, value, _ in self.store.list("t/")}
        waiting, left = {}, {number: len(each) for number, each in needs.items()}
        for number, each in needs.items():
            for needed in each:
                waiting.setdefault(needed, []).append(number)
        ready, results, claimed = [number for number, count in left.items() if not count], {}, {}
        while ready or claimed:
            for number in claimed:
                results[number] = 1 + sum(results[each] % 1000 for each in needs[number])
                for successor in waiting.get(number, ()):
                    left[successor] -= 1
                    if not left[successor]:
                        ready.append(successor)
            batch, ready = ready[:TURN], ready[TURN:]
            checks = [(f"s/{self.sid}", True)]
            checks += [(f"c/{number}", version) for number, version in claimed.items()]
            checks += [(f"c/{number}", False) for number in batch]
            ops = [(f"c/{number}", self.sid.encode()) for number in batch]
            ops += [(f"r/{number}", json.dumps(results[number]).encode()) for number in claimed]
            ops += [(f"c/{number}", None) for number in claimed]
            claimed = dict(zip(batch, self.commit(checks, ops), strict=False))
        return results


def main(kind, url, needs):
    worker = Worker(kind, url)
    worker.write(needs)
    used, begun, before = used_s(), time.perf_counter(), worker.store.counts.copy()
    results = worker.run()
    took = time.perf_counter() - begun
    if len(results) != len(needs) or len(worker.store.list("r/")) != len(needs):
        raise SystemExit("results are missing")
    answer(seconds=took, worker_s=used_s() - used, **(worker.store.counts - before))


if __name__ == "__main__":
    main(**json.loads(sys.stdin.readline()))
    sys.stdout.flush()
    os._exit(0)
