"""Attempts for workers, put as a master puts them, and workers in processes that are killed."""

import subprocess
import sys
import time
from pathlib import Path

import latchwork
from latchwork.primitives import WorkQueue
from latchwork.types import Create
from latchwork_workflows.keys import ItemName, Keys, build_sort_key, get_workflows_store
from latchwork_workflows.logs import open_logs
from latchwork_workflows.messages import AttemptResult, RunningRecord, TaskHead, TaskMessage
from latchwork_workflows.worker import Secrets, Worker, WorkerOptions
from patience import eventually

KEYS = Keys()
#: A script that says in a file when it begins, how it is ended, and when it ends by itself.
STEADY = """
echo "begun by $LATCHWORK_TOKEN"
echo "begin $LATCHWORK_TOKEN $(date +%s.%N)" >> "$journal"
trap 'echo "term $LATCHWORK_TOKEN $(date +%s.%N)" >> "$journal"; exit 143' TERM
n=0
while [ $n -lt 6000 ] && [ ! -e "$journal.go" ]; do
  echo "alive $LATCHWORK_TOKEN $(date +%s.%N)" >> "$journal"
  sleep 0.02 & wait $!
  n=$((n + 1))
done
echo "end $LATCHWORK_TOKEN $(date +%s.%N)" >> "$journal"
"""
#: The same, deaf to SIGTERM.
DEAF = "\n".join("trap '' TERM" if line.startswith("trap") else line for line in STEADY.splitlines())


def begun(store, folder):
    """A log store, and a store that know each other, as ``init`` makes them."""
    logs = open_logs(Path(folder) / "logs")
    logs.set_owner("testing")
    get_workflows_store(store).commit([], [Create(KEYS.id, b"testing")])
    return logs


def options(folder, **fields):
    return WorkerOptions(**{"slots": 2, "work_dir": Path(folder) / "work", "stop_grace_s": 1.0, **fields})


def worker(store, folder, *, name="w1", secrets=None, types=None, **fields):
    made = Worker(
        store,
        logs=open_logs(Path(folder) / "logs"),
        name=name,
        options=options(folder, **fields),
        secrets=secrets or Secrets(environ={}, providers=()),
        types=types,
    )
    made.start()
    made.wait_ready(60)
    return made


def put(store, task, params=None, *, type="shell", n=1, shard=0, lane="default", shelf=None, **more):  # noqa: A002
    """Put an attempt, and say what it is called."""
    env, values, known = (more.pop(each, {}) for each in ("env", "values", "connections"))
    about = TaskHead(shard, task, n, 11, 7, 1, "default.flow", f"task{task}", type, **{"project": "default", **more})
    spec = TaskMessage(about, params or {}, env, values, 1_700_000_000.0, connections=known)
    item, body = spec.to_bytes()
    ops = [Create(KEYS.data_key(about.attempt_key), body)] if body is not None else []
    shelf = shelf or build_sort_key("run", 11, 2, 2, 0.0)
    WorkQueue(get_workflows_store(store), KEYS.backlog).put(lane, shelf, ItemName(task, n, shard).id, item, ops=ops)
    return about.attempt_key


def shell(store, task, script, **more):
    return put(store, task, {"script": script}, **more)


def result(store, x, shard=0, timeout_s=60.0):
    key = KEYS.result_key(shard, x)
    entry = eventually(lambda: get_workflows_store(store).get(key), timeout_s, f"the result of {x}")
    return AttemptResult.from_bytes(entry.value)


def running(store, x, shard=0, timeout_s=60.0):
    key = KEYS.running_key(shard, x)
    entry = eventually(lambda: get_workflows_store(store).get(key), timeout_s, f"a worker of {x}")
    return RunningRecord.from_bytes(entry.value)


def log_of(logs, found):
    return logs.read(found.log_ref, 0, 10_000_000).data.decode("utf-8", "replace")


def journal(path):
    """What attempts have written: their moments, by claim and word."""
    found = {}
    for line in Path(path).read_text().splitlines() if Path(path).exists() else []:
        parts = line.split()
        if len(parts) == 3:  # the clock's own process may have been ended
            found.setdefault(int(parts[1]), []).append((parts[0], float(parts[2])))
    return found


def begun_runs(path, count=1, timeout_s=60.0):
    return eventually(lambda: len(journal(path)) >= count and journal(path), timeout_s, f"{count} runs in {path}")


def worker_process(url, folder, name, ttl_s=5.0, **fields):
    """A worker in a process of its own, that takes tasks already."""
    path = [str(Path(__file__).parents[1])]
    code = f"import sys, runpy; sys.path[:0] = {path!r}; runpy.run_path({__file__!r}, run_name='__main__')"
    process = subprocess.Popen(
        [sys.executable, "-c", code, url, str(folder), name, repr({"session_ttl_s": ttl_s, **fields})],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "ready\n"
    return process


def end_process(process):
    process.kill()
    process.wait()
    process.stdout.close()


if __name__ == "__main__":
    import ast
    import logging

    logging.basicConfig(level=logging.INFO)
    told_url, told_folder, told_name, told_fields = sys.argv[1:5]
    with latchwork.connect(told_url) as opened:
        mine = worker(opened, told_folder, name=told_name, **ast.literal_eval(told_fields))
        print("ready", flush=True)
        began = time.monotonic()
        mine.run_forever()
