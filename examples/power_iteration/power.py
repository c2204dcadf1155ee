"""Compute the largest eigenvalue of a matrix by power iteration, with the rows divided among the workers.

python power.py URL WORKERS NUMBER
"""

import json
import sys

import latchwork
from latchwork import Put
from latchwork.worker_group import GroupWorker

SIZE, STEPS, KEPT_EVERY = 40, 100, 10


def row(i):
    """Compute a row of the Hilbert matrix, so that no process has to receive it."""
    return [1.0 / (i + j + 1) for j in range(SIZE)]


def compute(worker, store):
    """Run the iteration from the last saved step to the end."""
    workers = len(worker.wait_for_all(timeout_s=60))
    rows = {i: row(i) for i in range(worker.rank, SIZE, workers)}
    kept = store.get("power/kept")
    step, vector = json.loads(kept.value) if kept else (0, [1.0] * SIZE)
    length = 0.0
    for now in range(step, STEPS):
        mine = {i: sum(a * x for a, x in zip(rows[i], vector)) for i in rows}
        place = f"power/parts/{now % 2}"  # the barrier keeps all workers within one step
        store.commit([worker.fence], [Put(f"{place}/{worker.rank}", json.dumps(mine).encode())])
        worker.barrier(timeout_s=60)
        parts = {int(i): x for entry in store.list(place) for i, x in json.loads(entry.value).items()}
        length = sum(x * x for x in parts.values()) ** 0.5
        vector = [parts[i] / length for i in range(SIZE)]
        if worker.rank == 0 and (now + 1) % KEPT_EVERY == 0:
            state = json.dumps([now + 1, vector]).encode()
            store.commit([worker.fence], [Put("power/kept", state), Put("power/eigenvalue", str(length).encode())])
    return length


if __name__ == "__main__":
    url, workers, number = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    with (
        latchwork.connect(url) as store,
        GroupWorker(store, "power", workers=workers, key=f"w{number}", replace=True) as worker,
    ):
        worker.run(lambda worker: compute(worker, store))
        print(f"worker {worker.rank}: done in epoch {worker.epoch}, {worker.restarts} restarts")
